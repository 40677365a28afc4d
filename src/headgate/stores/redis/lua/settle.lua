-- Settle a hold: give back unused units, charge missing ones, free its places.
--
-- KEYS: the record. ARGV: the action, whether this is a further slot of the hold, and the actual cost of each group, or
-- one number for all (-1 for the held amount), packed as they are read below; a byte for each limit of the caller, its
-- kind; then its numbers, its field and the end of its name.
-- The reply begins with S for settled, A for already settled, U for unknown, G for a hold of so many groups, D for a
-- debt beyond exact numbers (with the number of the caller's limit, and the actual cost), F with the other slots of a
-- hold whose debts fit here and are to be checked there first; after D and F nothing was changed.
-- After S and A follow the number of groups; the amount that each was settled with, as doubles; for each limit of the
-- caller its number, and remaining and reset_after as doubles; the other slots.

local record = call('GET', KEYS[1])
if not record then return 'U' end
local given_us, action, further, former_end, amount_count, amounts_at = unpack('<dBBdH', ARGV[1])
local mode, standing, undoes = HIT, {}, action == FORGET or action == SHORTEN
--@ include steps.moment
--@ include holds.parse
--@ include holds.known
if not known and action ~= DROP then return 'U' end
--@ include holds.callers
local outcome = 'A'
if settled ~= 1 then
  if amount_count ~= groups and amount_count ~= 1 then return pack('<c1H', 'G', groups) end
  --@ include holds.parts
  local actuals, settled_amounts, has_debt = {}, {}, false
  for group = 1, groups do
    local actual = unpack('<d', ARGV[1], amounts_at + (amount_count == 1 and 0 or 8 * group - 8))
    if actual < 0 then
      actual = 0
      for part = 1, action == SHORTEN and part_count - 1 or part_count do actual = actual + part_costs[part][group] end
    end
    actuals[group], settled_amounts[group] = actual, pack('<d', actual)
    for part = 1, part_count do actual = actual - part_costs[part][group] end
    if action == SETTLE and actual > 0 then has_debt = true end
  end
  --@ include settle.check
  if action == CHECK or (action ~= CHECKED and has_debt and parts_at > others_at + 2) then
    return 'F' .. sub(record, others_at + 2, parts_at - 1)
  end
  --@ include settle.change
  outcome = 'S'
  if action == SHORTEN or action == TURN_BACK then
    lease_end = former_end
    local parts_end = action == SHORTEN and last_part_at or answer_at
    record = pack('<c16ddHHHHBd', identity, lease_end, remember_us, groups, name_count, count,
      action == SHORTEN and part_count - 1 or part_count, settled, 0)
      .. sub(record, actuals_at, parts_end - 1) .. sub(record, answer_at)
  else
    settled_us = now_us
    if further == 1 or name_count > 1 or parts_at > others_at + 2 then
      for number = 1, name_count do call('ZREM', names[number] .. 'apart', KEYS[1]) end
    end
    record = pack('<c16ddHHHHBd', identity, lease_end, remember_us, groups, name_count, count, part_count, 1,
      settled_us)
      .. table.concat(settled_amounts) .. sub(record, actuals_at + 8 * groups)
  end
  if action == FORGET or action == DROP then
    call('UNLINK', KEYS[1])
  else
    local token = epochs[1]
    --@ include holds.keep
  end
end
--@ include holds.standing
--@ include holds.others
return outcome .. pack('<H', groups) .. sub(record, actuals_at, actuals_at + 8 * groups - 1) .. standing .. others

--@ check
-- Read the states, each under the numbers that it was written under, and check that all debts fit.
local saved, written = {}, {}
for number = 1, count do
  local key, field, cost, at, fits = key_of[number], field_of[number], 0, 4 * number - 3, true
  if held[number] then
    local change, part, kind, mark = actuals[group_of[number]] - held[number], part_count, nil, nil
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
        local adds, places, times, refunds, marked, missing_then, times_then, refunds_then =
          0, 0, 0, 0, nil, nil, nil, nil
        --@ include settle.entry
        --@ include ALGORITHM.fits
      end
      --@ include ALGORITHM.save
    end
    --@ end
    if not fits then return pack('<c1Hd', 'D', caller_index[number] or 0, actuals[group_of[number]]) end
  end
end

--@ ended
-- Forget an ended state with other numbers: settling has the same result whether it was forgotten before or not.
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
-- Amend the charges: unused units are taken off the last part first, missing ones are added to the last part.
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
      if action == SHORTEN or action == TURN_BACK then
        --@ include ALGORITHM.retake
      end
      --@ include ALGORITHM.begin
      local part = part_count
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
      if present and caller_index[number] and mark == sub(ARGV[3 * caller_index[number]], 1, #mark)
        and kind == byte(kinds, caller_index[number]) % 8 then
        standing[number] = pack('<Hdd', caller_index[number], remaining, reset_after)
      end
    end
    --@ end
  end
end

--@ numbers
-- The numbers that a part was charged under.
local entry_at = entries_at[part][number]
local charged_kind, numbers_length = byte(record, entry_at, entry_at + 1) -- the length of the part's own numbers
local charged_mark = numbers_length == 0 and mark_of[number] or sub(record, entry_at + 2, entry_at + 1 + numbers_length)

--@ entry
-- The charge of a part. Where its numbers count in another way than those of the state, a debt is charged now.
--@ include settle.alike
if alike then
  marked, missing_then, times_then, refunds_then = unpack('<dddd', record, entry_at + 2 + numbers_length)
else
  --@ include ALGORITHM.mark
end

--@ alike
-- Whether a state with these numbers shows what is left of a charge, see transition.counts_alike.
local alike = kind == charged_kind and sub(charged_mark, 1, 1) == sub(mark, 1, 1)
  and sub(charged_mark, 9) == sub(mark, 9) and (#mark == 15 or unpack('<I7', mark, 2) >= unpack('<I7', charged_mark, 2))
