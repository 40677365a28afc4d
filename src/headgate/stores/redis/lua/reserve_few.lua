-- The shell around holding the charges of a few limits of one key, one inside the other, as in decide_unrolled.
--
-- KEYS: the record, and the hash. ARGV: the operation and the hold, packed as they are read below; the limits and other
-- slots as in a record; for how many seconds to keep the record; the borders of each calendar window. Record and reply
-- are those of the script for any limits.

local max_delay_us, given_us, lease_us, remember_us, at_once, is_named, identity, token, cost =
  unpack('<ddddBBc16c8d', ARGV[1])
local key, mode, groups, name_count, count = KEYS[2], HIT, 1, 1, COUNT
--@ include steps.moment
local former_record = is_named == 1 and call('GET', KEYS[1])
if former_record then
  --@ include reserve.repeated
end
local values = call('HMGET', key, '+', FIELDS)
local adds, places, longest_s, kept_s, lease_end = 1, 0, 0, 0, now_us + lease_us
local allowed, usual, reply, STATES = true, true, ''
local ENTRIES

--@ open
do
  local field, mark = FIELD, sub(ARGV[2], MARK_AT, MARK_END) BORDERS
  --@ include steps.numbers
  --@ include ALGORITHM.read
  --@ include steps.adopt
  --@ include ALGORITHM.roll
  --@ include steps.admit
  if wait ~= 0 then
    usual, allowed = false, false
  elseif delay ~= 0 then
    usual = false
  end

--@ close
  local remaining, reset_after, next_after = 0, 0, 0
  if allowed and cost ~= 0 then
    --@ include ALGORITHM.charge
    --@ include ALGORITHM.request
    --@ include steps.measure
    --@ include ALGORITHM.take
    --@ include steps.keep
  else
    delay = 0
    --@ include steps.measure
    --@ include steps.keep_former
  end
  if allowed then
    local marked, missing_then, times, refunds = 0, 0, 0, 0
    --@ include ALGORITHM.mark
    entryNUMBER = ENTRY_OF
  end
  if usual then
    reply = pack('<ddd', remaining, reset_after, next_after) .. reply
  else
    reply = pack('<ddddd', remaining, reset_after, next_after, wait, delay) .. reply
  end
end

--@ write
if ALL then
  call('HSET', key, CHANGES)
else
  --@ include reserve_few.each
end
if allowed then
  local settled_us, needed_s = at_once == 1 and now_us or 0, (now_us + lease_us + remember_us) / 1000000 + 2
  if given_us >= 0 then needed_s = call('TIME')[1] + ARGV[3] end
  local epoch, until_s = token, 0
  if values[1] then epoch, until_s = unpack('<c8I4', values[1]) end
  local part = ''
  if at_once == 0 then part = JOINED end
  -- Lua's own concatenation copies long strings faster than pack does.
  local record = identity
    .. pack('<ddHHHHBddH', lease_end, remember_us, 1, 1, COUNT, 1 - at_once, at_once, settled_us, cost, #key)
    .. key .. epoch .. ARGV[2] .. part .. reply
  call('SET', KEYS[1], record, 'EX', ARGV[3])
  if until_s < needed_s then
    until_s = math.min(math.ceil(needed_s + (lease_us + remember_us) / 8000000), 4294967295)
    call('HSET', key, '+', pack('<c8I4', epoch, until_s) .. sub(values[1] or '', 13))
    if until_s > longest_s then longest_s = until_s end
  else
    kept_s = until_s -- the hash already has such a long expiry
  end
end
if longest_s > kept_s then
  local expires_s = longest_s
  --@ include hash_io.prolong
end
return 'N' .. reply

--@ each
if stateNUMBER then call('HSET', key, FIELD, stateNUMBER) end
