-- Decide several limits and hold their charges, once for an id: all limits are read before the first is charged.
--
-- KEYS: the record, then the hash of each name. ARGV: the operation and the hold, packed as they are read below: after
-- the numbers of groups, names and limits, whether the hold is to be listed, see holds.list; then the cost of each
-- group, and the limits and other slots as in a record; then, for each calendar window among them, its borders. The
-- reply begins with N for a new decision, R for the repeated first reply of this id, C for an id of another hold, with
-- its identity and costs, see below. After N and R follow doubles for each limit, as in a script for several limits.

local max_delay_us, given_us, lease_us, remember_us, at_once, is_named, identity, token, groups, name_count, count,
  listed, at = unpack('<ddddBBc16c8HHHB', ARGV[1])
local limits, mode, extends, group_costs, costs, before, names = ARGV[1], HIT, false, {}, {}, {}, {}
--@ include steps.moment
local former_record = is_named == 1 and call('GET', KEYS[1])
if former_record then
  --@ include reserve.repeated
end
local costs_at = at
for group = 1, groups do group_costs[group], at = unpack('<d', limits, at) end
for number = 1, name_count do names[number] = KEYS[number + 1] end
local limits_at = at
--@ include holds.limits
local borders_of, borders_at = {}, 1
for number = 1, count do
  costs[number], before[number] = group_costs[group_of[number]], 0
  if kind_of[number] % 8 == CALENDAR then
    borders_of[number], borders_at = sub(ARGV[2], borders_at, borders_at + 47), borders_at + 48
  end
end
local first_kind_of, first_mark_of = kind_of, mark_of
local adds, lease_end = 1, now_us + lease_us
--@ include holds.open
--@ include holds.close
if allowed then
  local settled_us = at_once == 1 and now_us or 0
  local known_names = {}
  for number = 1, name_count do
    local epoch = call('HGET', names[number], '+')
    known_names[number] = pack('<Hc0c8', #names[number], names[number], epoch and sub(epoch, 1, 8) or token)
  end
  costs = sub(limits, costs_at, limits_at - 1)
  local record = pack('<c16ddHHHHBd', identity, lease_end, remember_us, groups, name_count, count, 1 - at_once, at_once,
    settled_us) .. costs .. table.concat(known_names) .. sub(limits, limits_at)
  if at_once == 0 then record = record .. costs .. table.concat(part) end
  record = record .. answer
  --@ include holds.keep
  if listed == 1 then
    local only = 'CH'
    --@ include holds.list
  end
end
return 'N' .. answer

--@ repeated
do
  local new_identity, record = identity, former_record
  --@ include holds.parse
  --@ include holds.known
  if known then
    if identity ~= new_identity then
      local costs_at = part_count > 0 and parts_at or actuals_at
      return 'C' .. identity .. sub(record, costs_at, costs_at + 8 * groups - 1)
    end
    --@ include holds.parts
    return 'R' .. sub(record, answer_at)
  end
end
