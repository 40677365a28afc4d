-- The common parts of the scripts for holds: the record of a hold, and the decision about its charges.
--
-- A record is one string, in a key of its own in the slot of the hold:
--   head      the identity of its maker (a byte for a hit, 3 of its costs, 6 of its limits, 6 of its keys), the end of
--             its lease, how long it is remembered after that end or after its settlement, how many groups, names,
--             limits and parts follow, whether it is settled (1; 2 where it is not, and was charged under several
--             numbers), and when it was settled (0 while it is open)
--   actuals   the amount that each group was settled with
--   names     the hashes of its states, each with the epoch at the time of the hold: a reset begins the next one
--   limits    the group and name of each, its kind (plus 8 for a shadow), its field, and its numbers
--   others    the other slots of a Cluster in which this hold has a record
--   parts     for each charge the units of each group, and for each limit its kind (NOT_CHARGED without a charge), the
--             length of its numbers, the numbers where they differ from those in `limits`, and the data for settling:
--             a window or a moment, the units that were missing, the refunds until then
--   answer    the first reply
-- Beside the states of a name, in the same hash, the field '+' has its epoch: five random bytes and a number that each
-- reset raises; then the second until which it is kept, and the name of each field that was reset with its number since
-- then, see forget. '+' with the field of a bucket has the units that were given back to it since: two doubles, of
-- which the first counts multiples of LARGEST. A caller names each of its limits by its kind, numbers and field, and
-- the end of its name.

--@ parse
local identity, lease_end, remember_us, groups, name_count, count, part_count, settled, settled_us, at =
  unpack('<c16ddHHHHBd', record)
if not (lease_end >= 0 and lease_end <= 2 * LARGEST and remember_us >= 0 and remember_us <= LARGEST
  and settled_us >= 0 and settled_us <= LARGEST) then
  --@ include steps.no_state
end
local actuals_at, names, epochs, limits = at, {}, {}, record
at = at + 8 * groups
for number = 1, name_count do names[number], epochs[number], at = unpack('<Hc0c8', record, at) end
local limits_at = at
--@ include holds.limits
local others_at = at
local parts_at = others_at + 2 + 2 * unpack('<H', record, others_at)

--@ limits
local group_of, key_of, kind_of, field_of, mark_of, name = {}, {}, {}, {}, {}, nil
for number = 1, count do
  group_of[number], name, kind_of[number], field_of[number], mark_of[number], at = unpack('<HHBBc0Bc0', limits, at)
  key_of[number] = names[name]
end

--@ known
-- Whether the hold is still remembered, and none of its states was reset.
local known = now_us < math.max(lease_end, settled_us) + remember_us
--@ include holds.epochs

--@ epochs
for number = 1, name_count do
  local epoch = call('HGET', names[number], '+')
  if not epoch or sub(epoch, 1, 5) ~= sub(epochs[number], 1, 5) then
    known = false
  elseif sub(epoch, 6, 8) ~= sub(epochs[number], 6, 8) then -- a limit was reset since, of this hold or another one
    local began, at, field, since = unpack('<I3', epochs[number], 6), 13, nil, nil
    while at < #epoch do
      field, since, at = unpack('<Bc0I3', epoch, at)
      for limit = 1, count do
        if since > began and field_of[limit] == field and key_of[limit] == names[number] then known = false end
      end
    end
  end
end

--@ parts
-- The charges: for each part the units of the groups and the position of each limit's entry; all units of each limit.
local held, part_costs, entries_at, last_part_at = {}, {}, {}, at
at = parts_at
for part = 1, part_count do
  local costs = {}
  last_part_at = at
  for group = 1, groups do
    costs[group], at = unpack('<d', record, at)
    if not (costs[group] >= 0 and costs[group] <= LARGEST) then
      --@ include steps.no_state
    end
  end
  local starts = {}
  part_costs[part], entries_at[part] = costs, starts
  for number = 1, count do
    if byte(record, at) ~= NOT_CHARGED then held[number] = (held[number] or 0) + costs[group_of[number]] end
    starts[number], at = at, at + 34 + byte(record, at + 1)
  end
end
local answer_at = at

--@ callers
-- For each limit of the hold its index among the caller's, and whether all have one. The borders of the caller's
-- calendars follow their numbers, see calendar_window: nothing is done where they are those of another time.
local caller_index, caller_has_all, kinds = {}, true, ARGV[2]
for index = 1, #kinds do
  if byte(kinds, index) % 8 == CALENDAR then
    local borders = ARGV[3 * index]
    if now_us < unpack('<d', borders, 16) or now_us >= unpack('<d', borders, 40) then
      return pack('<dd', OUTSIDE, now_us)
    end
  end
end
for number = 1, count do
  for index = 1, #kinds do
    local tail = ARGV[3 * index + 2]
    if ARGV[3 * index + 1] == field_of[number] and sub(key_of[number], -#tail) == tail then
      caller_index[number] = index
    end
  end
  if not caller_index[number] then caller_has_all = false end
end

--@ open
-- Read all limits and admit each, as the scripts that decide do. `borders_of` are those of calendars.
local allowed, usual = true, true
local saved = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} -- six per limit: its wait, its delay, its state
for number = 1, count do
  local key, mark, field = key_of[number], mark_of[number] .. (borders_of[number] or ''), field_of[number]
  local kind, cost, shadow = kind_of[number], costs[number], false
  if kind >= 8 then kind, shadow = kind - 8, true end
  local at = 6 * number - 3
  --@ each ALGORITHM
  if kind == CODE then
    --@ include steps.numbers
    --@ include ALGORITHM.read
    --@ include steps.adopt
    --@ include ALGORITHM.roll
    --@ include steps.admit
    --@ include ALGORITHM.save
    if wait ~= 0 then
      usual = false
      if not shadow then allowed = false end
    elseif delay ~= 0 then
      usual = false
    end
    saved[at - 2], saved[at - 1] = wait, delay
  end
  --@ end
end

--@ close
-- Where the operation is allowed, charge each limit that admits, and note the data for settling. `before` has the units
-- of the hold for each limit; where it `extends`, a limit without additional units is not charged.
local answer, part = {}, {}
for number = 1, count do
  local key, mark, field = key_of[number], mark_of[number], field_of[number]
  local kind, cost, places = kind_of[number] % 8, costs[number], before[number] or 0
  local at = 6 * number - 3
  local wait, delay = saved[at - 2], saved[at - 1]
  local remaining, reset_after, next_after = 0, 0, 0
  local marked, missing_then, times, refunds = 0, 0, 0, 0
  --@ each ALGORITHM
  if kind == CODE then
    --@ include steps.numbers
    --@ include ALGORITHM.load
    if allowed and wait == 0 and cost ~= 0 then
      --@ include ALGORITHM.charge
      --@ include ALGORITHM.request
      --@ include steps.measure
      --@ include ALGORITHM.take
      --@ include steps.keep
    else
      delay = 0
      --@ include steps.measure
      --@ include steps.keep_former
      --@ include ALGORITHM.prolong
    end
    if allowed then
      --@ include ALGORITHM.mark
    end
  end
  --@ end
  local numbers = kind == first_kind_of[number] % 8 and mark == first_mark_of[number] and '' or mark
  local charged = wait == 0 and before[number] and (cost ~= 0 or not extends)
  part[number] = pack('<BBc0dddd', charged and kind or NOT_CHARGED, #numbers, numbers, marked, missing_then, times,
    refunds)
  if usual then
    answer[number] = pack('<ddd', remaining, reset_after, next_after)
  else
    answer[number] = pack('<ddddd', remaining, reset_after, next_after, wait, delay)
  end
end
answer = table.concat(answer)

--@ keep
-- Keep the record for as long as it is needed, and the epochs of its names at least as long.
--@ include holds.seconds
call('SET', KEYS[1], record, 'EX', seconds)
for number = 1, name_count do
  local key = names[number]
  local former = call('HGET', key, '+') or token .. '\0\0\0\0'
  local epoch, until_s = unpack('<c8I4', former)
  if until_s < server_s + seconds then
    local expires_s = math.min(math.ceil(server_s + seconds * 1.125), 4294967295)
    call('HSET', key, '+', pack('<c8I4', epoch, expires_s) .. sub(former, 13))
    --@ include hash_io.prolong
  end
end

--@ list
-- A hold of several names with places in flight is in a list of each name, by the key of its record and the end of its
-- lease: a reset of one name finds there the holds with places under others. Ended holds are removed like ended leases.
for number = 1, name_count do
  local name = names[number] .. 'apart'
  call('ZADD', name, only, lease_end, KEYS[1])
  if now_us % DEAD_EVERY == 0 then
    local over = call('ZRANGEBYSCORE', name, '-inf', now_us, 'LIMIT', '0', 'MOST_DEAD')
    if over[1] then call('ZREM', name, spread(over)) end
  end
  if call('TTL', name) < seconds then call('EXPIREAT', name, math.ceil(server_s + seconds)) end
end

--@ seconds
local seconds = math.ceil((math.max(lease_end, settled_us) + remember_us - now_us) / 1000000) + 1
local server_s = now_us / 1000000
if given_us >= 0 then -- keys expire by another clock
  seconds, server_s = seconds + 86400, call('TIME')[1]
end

--@ standing
-- The standing of each limit that the caller has, where it is not known yet.
mode = PEEK
for number = 1, count do
  local index = caller_index[number]
  if index and not standing[number] then
    local key, mark, field = key_of[number], ARGV[3 * index], field_of[number]
    local kind, cost = byte(kinds, index) % 8, 0
    local remaining, reset_after, next_after = 0, 0, 0
    --@ each ALGORITHM
    if kind == CODE then
      --@ include steps.numbers
      --@ include ALGORITHM.read
      --@ include steps.adopt
      --@ include ALGORITHM.roll
      --@ include steps.measure
    end
    --@ end
    standing[number] = pack('<Hdd', index, remaining, reset_after)
  end
  standing[number] = standing[number] or ''
end
standing = table.concat(standing)
standing = pack('<H', #standing / 18) .. standing

--@ others
-- The other slots of this hold, which the caller settles one by one.
local others = sub(record, others_at + 2, parts_at - 1)
