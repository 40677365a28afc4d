-- Settle a hold: give back what was too much, charge what is missing, free its places.
--
-- KEYS: the record. ARGV: how, whether this is a further slot of the hold, and what each group really cost, or one number
-- for all (-1 for as much as is held), packed as they are read below; a byte for each limit of the caller, its kind; then
-- its numbers, its field and the end of its name.
-- The reply begins with S for settled, A for already settled, U for unknown, G for a hold of so many groups, D for
-- a debt beyond exact numbers (of which limit of the caller's, and how much it was to be), F with the other slots of a hold
-- whose debts are to be looked at there first (that fits here), where nothing was changed.
-- After S and A come the number of groups, what each was settled with, as doubles; for each limit of the caller its
-- number, and remaining and reset_after as doubles; the other slots.

local record = call('GET', KEYS[1])
if not record then return 'U' end
local given_us, how, further, former_end, given, actuals_given = unpack('<dBBdH', ARGV[1])
local mode, standing, undoes = HIT, {}, how == FORGET or how == SHORTEN
--@ include steps.moment
--@ include holds.parse
--@ include holds.known
if not known and how ~= DROP then return 'U' end
--@ include holds.asked
local outcome = 'A'
if settled ~= 1 then
  if given ~= groups and given ~= 1 then return pack('<c1H', 'G', groups) end
  --@ include holds.parts
  local actuals, told, owes = {}, {}, false
  for group = 1, groups do
    local actual = unpack('<d', ARGV[1], actuals_given + (given == 1 and 0 or 8 * group - 8))
    if actual < 0 then
      actual = 0
      for part = 1, how == SHORTEN and parted - 1 or parted do actual = actual + part_costs[part][group] end
    end
    actuals[group], told[group] = actual, pack('<d', actual)
    for part = 1, parted do actual = actual - part_costs[part][group] end
    if how == SETTLE and actual > 0 then owes = true end
  end
  --@ include settle.look
  if how == CHECK or (how ~= CHECKED and owes and parts_at > others_at + 2) then return 'F' .. sub(record, others_at + 2, parts_at - 1) end
  --@ include settle.change
  outcome = 'S'
  if how == SHORTEN or how == TURN_BACK then
    lease_end = former_end
    local parts_end = how == SHORTEN and last_part_at or answer_at
    record = pack('<c16ddHHHHBd', identity, lease_end, remember_us, groups, named, count,
      how == SHORTEN and parted - 1 or parted, settled, 0) .. sub(record, actuals_at, parts_end - 1) .. sub(record, answer_at)
  else
    settled_us = now_us
    if further == 1 or named > 1 or parts_at > others_at + 2 then
      for number = 1, named do call('ZREM', names[number] .. 'apart', KEYS[1]) end
    end
    record = pack('<c16ddHHHHBd', identity, lease_end, remember_us, groups, named, count, parted, 1, settled_us)
      .. table.concat(told) .. sub(record, actuals_at + 8 * groups)
  end
  if how == FORGET or how == DROP then
    call('UNLINK', KEYS[1])
  else
    local token = epochs[1]
    --@ include holds.keep
  end
end
--@ include holds.standing
--@ include holds.others
return outcome .. pack('<H', groups) .. sub(record, actuals_at, actuals_at + 8 * groups - 1) .. standing .. others

--@ look
-- Read the states, each in the numbers that wrote it, and see that all debts fit.
local kept, written = {}, {}
for number = 1, count do
  local key, field, cost, at, fits = key_of[number], field_of[number], 0, 4 * number - 3, true
  if held[number] then
    local change, part, kind, mark = actuals[group_of[number]] - held[number], parted, nil, nil
    while byte(record, entries_at[part][number]) == NOT_CHARGED do part = part - 1 end
    --@ include settle.numbers
    local last_kind, last_mark = charged_kind, charged_mark
    kind, mark = last_kind, last_mark
    local value = call('HGET', key, field)
    if value and (kind == LOG or kind == WINDOW) then
      kind = #value % 2 == 0 and LOG or WINDOW
      mark = sub(value, -15)
    elseif value then
      mark = sub(value, -#mark)
    end
    if value and kind ~= PLACES and (kind ~= last_kind or mark ~= last_mark) then
      --@ include settle.ended
      if ended then kind, mark = last_kind, last_mark end
    end
    written[number] = {kind, mark}
    --@ each ALGORITHM
    if kind == CODE then
      --@ include steps.numbers
      --@ include ALGORITHM.read
      --@ include ALGORITHM.roll
      if change > 0 then
        local adds, places, times, refunds, marked, missing_then, times_then, refunds_then = 0, 0, 0, 0, nil, nil, nil, nil
        --@ include settle.entry
        --@ include ALGORITHM.fits
      end
      --@ include ALGORITHM.save
    end
    --@ end
    if not fits then return pack('<c1Hd', 'D', asked[number] or 0, actuals[group_of[number]]) end
  end
end

--@ ended
-- Forget a state that has ended in other numbers: what is settled comes to the same whether or not it was forgotten before.
local mode, ended, remaining, reset_after, next_after = PEEK, false, 0, 0, 0
--@ each ALGORITHM
if kind == CODE then
  --@ include steps.numbers
  --@ include ALGORITHM.read
  --@ include ALGORITHM.roll
  --@ include steps.measure
  if reset_after == 0 then
    ended = true
    --@ include ALGORITHM.sweep_all
    --@ include hash_io.drop
  end
end
--@ end

--@ change
-- Amend what was charged: what is unused goes off the last part first, what is missing onto the last.
for number = 1, count do
  if held[number] then
    local key, field, at = key_of[number], field_of[number], 4 * number - 3
    local kind, mark, cost, adds, places = written[number][1], written[number][2], 0, 0, held[number]
    local left_to_change = actuals[group_of[number]] - places
    local remaining, reset_after, next_after, present = 0, 0, 0, true
    --@ each ALGORITHM
    if kind == CODE then
      --@ include steps.numbers
      --@ include ALGORITHM.load
      --@ include ALGORITHM.free
      if how == SHORTEN or how == TURN_BACK then
        --@ include ALGORITHM.retake
      end
      --@ include ALGORITHM.begin
      local part = parted
      while left_to_change ~= 0 and part > 0 do
        local change, marked, missing_then, times_then, refunds_then = left_to_change, nil, nil, nil, nil
        if byte(record, entries_at[part][number]) ~= NOT_CHARGED then
          --@ include settle.numbers
          --@ include settle.entry
          if change < 0 then change = -math.min(-change, part_costs[part][group_of[number]]) end
          if alike or change > 0 then
            --@ include ALGORITHM.settle
          end
          left_to_change = left_to_change - change
        end
        part = part - 1
      end
      --@ include steps.measure
      --@ include ALGORITHM.leave
      if present and asked[number] and mark == sub(ARGV[3 * asked[number]], 1, #mark) and kind == byte(kinds, asked[number]) % 8 then
        standing[number] = pack('<Hdd', asked[number], remaining, reset_after)
      end
    end
    --@ end
  end
end

--@ numbers
-- The numbers that a part was charged under.
local entry_at = entries_at[part][number]
local charged_kind, own = byte(record, entry_at, entry_at + 1) -- how long its own numbers are
local charged_mark = own == 0 and mark_of[number] or sub(record, entry_at + 2, entry_at + 1 + own)

--@ entry
-- Where a part was charged; under numbers that count otherwise than those of the state, a debt is charged now.
--@ include settle.alike
if alike then
  marked, missing_then, times_then, refunds_then = unpack('<dddd', record, entry_at + 2 + own)
else
  --@ include ALGORITHM.mark
end

--@ alike
-- Whether what is left of a charge can be told from a state in these numbers, see transition.counts_alike.
local alike = kind == charged_kind and sub(charged_mark, 1, 1) == sub(mark, 1, 1)
  and sub(charged_mark, 9) == sub(mark, 9) and (#mark == 15 or unpack('<I7', mark, 2) >= unpack('<I7', charged_mark, 2))
