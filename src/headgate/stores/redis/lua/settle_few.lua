-- The shell around settling a hold of a few limits of one key, one inside the other.
--
-- KEYS: the record. ARGV: the moment and the actual cost (-1 for the held amount), packed as they are read below; the
-- limits and other slots that the record must have. The reply is that of the script for any hold; X, without any
-- change, where that script is needed for other limits or numbers, or after a reset; Y where the hold was settled, but
-- a clock has stepped back, so that the standings have to be read by that script.

local record = call('GET', KEYS[1])
if not record then return 'U' end
if sub(record, 33, 34) ~= '\1\0' then return 'X' end -- not one group: what follows is elsewhere
local given_us, actual = unpack('<dd', ARGV[1])
local lease_end, remember_us, _, name_count, count, part_count, settled, settled_us, settled_with, key, epoch, at =
  unpack('<ddHHHHBddHc0c8', record, 17)
if name_count ~= 1 or settled > 1 or sub(record, at, at + #ARGV[2] - 1) ~= ARGV[2] then return 'X' end
if not (lease_end <= 2 * LARGEST and remember_us <= LARGEST and settled_us <= LARGEST) then return 'X' end -- damaged
local mode, limits_end, undoes = settled == 1 and PEEK or HIT, at + #ARGV[2], false
--@ include steps.moment
local values = call('HMGET', key, '+', FIELDS)
local later_us = lease_end
if settled_us > lease_end then later_us = settled_us end
if not values[1] or now_us >= later_us + remember_us then return 'U' end
if sub(values[1], 1, 8) ~= epoch then return 'X' end -- a limit was reset since
local outcome, is_current, held_in_all, change_in_all, longest_s = 'S', true, 0, 0, 0
local answer_at = limits_end + part_count * PART_SIZE
if settled == 1 then
  outcome, actual = 'A', settled_with
else
  for part = 1, part_count do
    local units = unpack('<d', record, limits_end + part * PART_SIZE - PART_SIZE)
    if not (units >= 0 and units <= LARGEST) then return 'X' end
    held_in_all = held_in_all + units
  end
  if actual < 0 then actual = held_in_all end
  change_in_all = actual - held_in_all
end
local STATES
local REFUNDS
local STANDING

--@ open
do
  local field, mark, cost, fits = FIELD, sub(ARGV[2], MARK_AT, MARK_END), 0, true
  --@ include steps.numbers
  --@ include ALGORITHM.read
  if former and value then return 'X' end
  --@ include ALGORITHM.roll
  if change_in_all > 0 then
    local change, marked = change_in_all, unpack('<d', record, answer_at - PART_SIZE + ENTRY_AT)
    --@ include ALGORITHM.fits
  end
  if not fits then return pack('<c1Hd', 'D', NUMBER, actual) end

--@ close
  local remaining, reset_after, next_after, present = 0, 0, 0, true
  if outcome == 'S' then
    local places, left_to_change, part_at = held_in_all, change_in_all, answer_at
    --@ include ALGORITHM.free
    --@ include ALGORITHM.begin
    while left_to_change ~= 0 and part_at > limits_end do
      part_at = part_at - PART_SIZE
      local change, marked, missing_then, times_then, refunds_then =
        left_to_change, unpack('<dddd', record, part_at + ENTRY_AT)
      if change < 0 and part_count > 1 then change = -math.min(-change, (unpack('<d', record, part_at))) end
      --@ include ALGORITHM.settle
      left_to_change = left_to_change - change
    end
    --@ include steps.measure
    --@ include ALGORITHM.leave
  else
    --@ include steps.measure
  end
  if not present then is_current = false end
  remainingNUMBER, reset_afterNUMBER = remaining, reset_after
end

--@ each
if refundsNUMBER then
  call('HSET', key, FIELD, stateNUMBER, '+' .. FIELD, refundsNUMBER)
elseif stateNUMBER then
  call('HSET', key, FIELD, stateNUMBER)
end

--@ write
if ALL then
  call('HSET', key, CHANGES)
else
  --@ include settle_few.each
end
if outcome ~= 'A' then
  call('SETRANGE', KEYS[1], '40', pack('<Bdd', 1, now_us, actual))
end
if outcome ~= 'A' and now_us > lease_end then -- else the record is kept for long enough
  settled_us = now_us
  --@ include holds.seconds
  call('EXPIREAT', KEYS[1], math.ceil(server_s + seconds))
  local _, until_s = unpack('<c8I4', values[1])
  if until_s < server_s + seconds then
    until_s = math.min(math.ceil(server_s + seconds * 1.125), 4294967295)
    call('HSET', key, '+', pack('<c8I4', epoch, until_s) .. sub(values[1], 13))
    if until_s > longest_s then longest_s = until_s end
  end
end
if longest_s > 0 and longest_s > unpack('<I4', values[1], 9) then -- else the hash already has such a long expiry
  local expires_s = longest_s
  --@ include hash_io.prolong
end
return pack(REPLY_FORMAT, is_current and outcome or 'Y', 1, actual, COUNT, REPLY)
