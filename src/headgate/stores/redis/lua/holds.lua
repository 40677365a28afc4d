-- What the scripts for holds are made of: the record of a hold, and the decision about what it charges.
--
-- A record is one string, in a key of its own in the slot of the hold:
--   head      who made it (a byte for a hit, 3 of its costs, 6 of its limits, 6 of its keys), the end of its lease, how
--             long it is remembered after that or after its settling, how many groups, names, limits and parts follow,
--             whether it is settled (1; 2 where it is not, and was charged under several numbers), and when it was
--             settled (0 while it is open)
--   actuals   what each group was settled with
--   names     the hashes of its states, each with the epoch that its holds had: a reset begins the next one
--   limits    of each its group and name, its kind (and 8 more for a shadow), its field, and its numbers
--   others    the other slots of a Cluster where this hold has a record
--   parts     for each charge the units of each group, and of each limit its kind (NOT_CHARGED where it was not), the
--             length of its numbers and these, where they are not those of `limits` any more, and what settling needs:
--             a window or a moment, what was missing, the refunds until then
--   answer    the first answer
-- Beside the states of a name, in the same hash, the field '+' has its epoch: five random bytes and a number that each
-- reset raises; then the second until which it is kept, and of each field that was reset its name and the number since
-- then, see forget. '+' with the field of a bucket has the units that were given back to it since: two doubles, the first
-- counts times LARGEST.
-- A caller names each limit of its own by its kind, numbers and field, and the end of its name.

--@ parse
local identity, lease_end, remember_us, groups, named, count, parted, settled, settled_us, at =
  unpack('<c16ddHHHHBd', record)
if not (lease_end >= 0 and lease_end <= 2 * LARGEST and remember_us >= 0 and remember_us <= LARGEST
  and settled_us >= 0 and settled_us <= LARGEST) then
  --@ include steps.no_state
end
local actuals_at, names, epochs, limits = at, {}, {}, record
at = at + 8 * groups
for number = 1, named do names[number], epochs[number], at = unpack('<Hc0c8', record, at) end
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
-- Whether it is still remembered, and none of its states was reset.
local known = now_us < math.max(lease_end, settled_us) + remember_us
--@ include holds.epochs

--@ epochs
for number = 1, named do
  local epoch = call('HGET', names[number], '+')
  if not epoch or sub(epoch, 1, 5) ~= sub(epochs[number], 1, 5) then
    known = false
  elseif sub(epoch, 6, 8) ~= sub(epochs[number], 6, 8) then -- something was reset since: of this hold, or beside it
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
-- What was charged: for each part the units of the groups, where each limit's entry is, and all units of each limit.
local held, part_costs, entries_at, last_part_at = {}, {}, {}, at
at = parts_at
for part = 1, parted do
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

--@ asked
-- Which limit of the caller each limit of the hold is, and whether all are. The borders of its calendars are behind their
-- numbers, see calendar_window: nothing is done where they are those of another time.
local asked, all_asked, kinds = {}, true, ARGV[2]
for index = 1, #kinds do
  if byte(kinds, index) % 8 == CALENDAR then
    local borders = ARGV[3 * index]
    if now_us < unpack('<d', borders, 16) or now_us >= unpack('<d', borders, 40) then return pack('<dd', OUTSIDE, now_us) end
  end
end
for number = 1, count do
  for index = 1, #kinds do
    local tail = ARGV[3 * index + 2]
    if ARGV[3 * index + 1] == field_of[number] and sub(key_of[number], -#tail) == tail then asked[number] = index end
  end
  if not asked[number] then all_asked = false end
end

--@ open
-- Read all limits and admit each, as the scripts that decide do. `borders_of` are those of calendars.
local allowed, usual = true, true
local kept = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} -- six for each: its wait, its delay, its state
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
    kept[at - 2], kept[at - 1] = wait, delay
  end
  --@ end
end

--@ close
-- Charge all that are admitted, if all are, and note what settling needs. `before` is what the hold had of each limit;
-- where it `extends`, nothing more of a limit is no charge of it.
local answer, part = {}, {}
for number = 1, count do
  local key, mark, field = key_of[number], mark_of[number], field_of[number]
  local kind, cost, places = kind_of[number] % 8, costs[number], before[number] or 0
  local at = 6 * number - 3
  local wait, delay = kept[at - 2], kept[at - 1]
  local remaining, reset_after, next_after = 0, 0, 0
  local marked, missing_then, times, refunds = 0, 0, 0, 0
  --@ each ALGORITHM
  if kind == CODE then
    --@ include steps.numbers
    --@ include ALGORITHM.load
    if allowed and wait == 0 and cost ~= 0 then
      --@ include ALGORITHM.charge
      --@ include ALGORITHM.ask
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
for number = 1, named do
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
-- A hold of several names that has places in flight is in a list of each of them, by the key of its record and the end of
-- its lease: a reset of one name looks there for the holds whose places are under others. What is over goes as leases do.
for number = 1, named do
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
if given_us >= 0 then -- another clock than the one by which keys expire
  seconds, server_s = seconds + 86400, call('TIME')[1]
end

--@ standing
-- What each limit that was asked about has now, where that is not told yet.
mode = PEEK
for number = 1, count do
  local index = asked[number]
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
-- The other slots of this hold, of which the caller settles each.
local others = sub(record, others_at + 2, parts_at - 1)
