-- Prolong the lease of a hold and hold more: either all of it is done, or nothing changes.
--
-- KEYS: the record. ARGV: the new lease, whether this is a further slot of the hold (1) or another slot has refused
-- (2), and the additional amounts, one number for each group or for all, packed as they are read below; the limits of
-- the caller as in the script that settles.
-- The reply is B where a calendar window has begun that no limit of the caller knows. Otherwise it begins with E for
-- extended, R for refused, L for a lease that has ended, A for already settled, U for unknown, G for a hold of so many
-- groups. After E, R, L and A follow the standing of each limit and the other slots, as in the script that settles.
-- After E and R these are preceded by the former end of the lease, whether a part was added, how many limits and bytes
-- follow, the number of each limit among the caller's (0: it is none of these), and doubles for each limit as in a
-- script for several limits.

local record = call('GET', KEYS[1])
if not record then return 'U' end
local given_us, lease_us, further, amount_count, amounts_at = unpack('<ddBH', ARGV[1])
local mode, standing, max_delay_us = HIT, {}, -1
--@ include steps.moment
--@ include holds.parse
--@ include holds.known
if not known then return 'U' end
--@ include holds.callers
--@ include holds.others
local outcome = 'A'
if settled ~= 1 then
  outcome = 'L'
  if now_us < lease_end then
    --@ include extend.more
  end
end
--@ include holds.standing
return outcome .. standing .. others

--@ more
if amount_count ~= groups and amount_count ~= 1 then return pack('<c1H', 'G', groups) end
--@ include holds.parts
local before, costs, more, indices, former_end, adds, added, borders_of = held, {}, {}, {}, lease_end, 0, '', {}
for group = 1, groups do more[group] = sub(ARGV[1], amounts_at, amounts_at + 7) end
if amount_count > 1 then
  for group = 1, groups do more[group] = sub(ARGV[1], amounts_at + 8 * group - 8, amounts_at + 8 * group - 1) end
end
local extends, requested = true, 0 -- includes charges of other slots: the parts are the same in all
for group = 1, groups do requested = requested + unpack('<d', more[group]) end
local first_kind_of, first_mark_of = kind_of, mark_of
kind_of, mark_of = {}, {}
for number = 1, count do
  kind_of[number], mark_of[number] = first_kind_of[number], first_mark_of[number]
  costs[number] = before[number] and unpack('<d', more[group_of[number]]) or 0
  indices[number], adds = pack('<H', caller_index[number] or 0), adds + costs[number]
  if caller_has_all then -- their current numbers
    kind_of[number], mark_of[number] = byte(kinds, caller_index[number]), ARGV[3 * caller_index[number]]
  end
end
--@ include holds.open
if further == 2 then allowed = false end -- each limit replies with its own verdict, and nothing changes
if allowed then lease_end = math.max(lease_end, now_us + lease_us) end
--@ include holds.close
if allowed then
  if requested > 0 then
    part_count, added = part_count + 1, table.concat(more) .. table.concat(part)
    if #added > 8 * groups + 34 * count then settled = 2 end
  end
  record = pack('<c16ddHHHHBd', identity, lease_end, remember_us, groups, name_count, count, part_count, settled, 0)
    .. sub(record, actuals_at, answer_at - 1) .. added .. sub(record, answer_at)
  local token = epochs[1]
  --@ include holds.keep
  if further == 1 or name_count > 1 or #others > 0 then
    local only = 'XX'
    --@ include holds.list
  end
end
outcome = (allowed and 'E' or 'R') .. pack('<dBHH', former_end, #added > 0 and 1 or 0, count, #answer)
  .. table.concat(indices) .. answer
