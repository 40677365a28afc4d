-- Let the lease of a hold end later, and hold more: all of it, or nothing changes.
--
-- KEYS: the record. ARGV: the new lease, whether this is a further slot of the hold (1) or another slot has refused
-- (2), and what is held on top, one number for each group or for all, packed as they are read below; the limits of the
-- caller as in the script that settles. The reply is B where a calendar window has begun that no limit of the caller knows. It begins with E for extended, R for
-- refused, L for a lease that is over, A for settled before, U for unknown, G for a hold of so many groups. After E, R, L
-- and A comes what each limit has and the other slots, as in the script that settles, and before that after E and R the
-- former end of the lease, whether there is a part more, how many limits and bytes follow, the number of each limit among the caller's (0: it is none
-- of these), and doubles for each limit as in a script for several limits.

local record = call('GET', KEYS[1])
if not record then return 'U' end
local given_us, lease_us, further, given, more_at = unpack('<ddBH', ARGV[1])
local mode, standing, max_delay_us = HIT, {}, -1
--@ include steps.moment
--@ include holds.parse
--@ include holds.known
if not known then return 'U' end
--@ include holds.asked
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
if given ~= groups and given ~= 1 then return pack('<c1H', 'G', groups) end
--@ include holds.parts
local before, costs, more, indices, former_end, adds, added, borders_of = held, {}, {}, {}, lease_end, 0, '', {}
for group = 1, groups do more[group] = sub(ARGV[1], more_at, more_at + 7) end
if given > 1 then
  for group = 1, groups do more[group] = sub(ARGV[1], more_at + 8 * group - 8, more_at + 8 * group - 1) end
end
local extends, asks = true, 0 -- also what other slots charge: what is held is the same in all
for group = 1, groups do asks = asks + unpack('<d', more[group]) end
local first_kind_of, first_mark_of = kind_of, mark_of
kind_of, mark_of = {}, {}
for number = 1, count do
  kind_of[number], mark_of[number] = first_kind_of[number], first_mark_of[number]
  costs[number] = before[number] and unpack('<d', more[group_of[number]]) or 0
  indices[number], adds = pack('<H', asked[number] or 0), adds + costs[number]
  if all_asked then -- as they are now
    kind_of[number], mark_of[number] = byte(kinds, asked[number]), ARGV[3 * asked[number]]
  end
end
--@ include holds.open
if further == 2 then allowed = false end -- each limit tells what it would have said, and nothing changes
if allowed then lease_end = math.max(lease_end, now_us + lease_us) end
--@ include holds.close
if allowed then
  if asks > 0 then
    parted, added = parted + 1, table.concat(more) .. table.concat(part)
    if #added > 8 * groups + 34 * count then settled = 2 end
  end
  record = pack('<c16ddHHHHBd', identity, lease_end, remember_us, groups, named, count, parted, settled, 0)
    .. sub(record, actuals_at, answer_at - 1) .. added .. sub(record, answer_at)
  local token = epochs[1]
  --@ include holds.keep
  if further == 1 or named > 1 or #others > 0 then
    local only = 'XX'
    --@ include holds.list
  end
end
outcome = (allowed and 'E' or 'R') .. pack('<dBHH', former_end, #added > 0 and 1 or 0, count, #answer) .. table.concat(indices) .. answer
