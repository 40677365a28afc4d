-- Places in flight: the twin of algorithms/concurrent.py.
--
-- A few leases are in the field of the limit itself, MOST_IN_FIELD at the most: of each its id, the moment at which it is
-- over, and its places, in LEASE bytes. More of them are in sorted sets, until none is in flight any more: a lease of n
-- places is a member of one set for each binary digit of n, whose score is the moment at which it is over: each member of
-- the set of digit 4 counts for 4 places. So what is in use is a few counts, and the moment at which enough will be free
-- a few ranks, however many leases there are; those that are over need not be gone. After the leases the field tells which
-- digits have sets (0 where the leases are here), when it expires, and the limit's numbers.

--@ read
local digits, expires_s, leases, ones = 0, nil, '', nil
local former = false
--@ include hash_io.fetch
if value then
  local numbers
  digits, expires_s, numbers = unpack('<dI4c15', value, #value - 26)
  if not (digits >= 0 and digits <= LARGEST and digits % 1 == 0) then
    --@ include steps.no_state
  end
  former = numbers ~= mark
  if #value > 27 then leases = sub(value, 1, #value - 27) end
end

--@ roll
local used, left, weight, over, live, ended = 0, digits, 1, nil, 0, false
for at = 25, #leases, LEASE do
  local its_end, its_places = unpack('<dB', leases, at)
  if its_end > now then used = used + its_places else ended = true end
end
if left > 0 then
  ones, over = key .. field .. ':1', string.format('(%.0f', now)
  while left > 0 do
    if left % 2 == 1 then
      local members = call('ZCOUNT', weight == 1 and ones or key .. field .. ':' .. weight, over, '+inf')
      if members > 0 then used, live = used + weight * members, live + weight end -- these sets are there, and expire
    end
    left, weight = math.floor(left / 2), weight * 2
  end
  if used == 0 then digits = 0 end -- the sets expire, with what is over
end
local in_flight, asked_end = used, now

--@ admit
if cost ~= 0 and used + cost > quota then
  if cost > quota then
    wait = NEVER
  else
    local needed = used + cost - quota
    --@ include concurrent.freed
    wait = freed - now
  end
end

--@ charge
used = used + cost

--@ ask
-- The end of a lease that is asked for.
asked_end = lease_end

--@ take
-- The lease that has had `places` has `cost` more from now on, and is over at `lease_end`.
local had, has, id, sets = places, places + cost, sub(KEYS[1], -ID_LETTERS), digits > 0
if not sets then
  if ended or had > 0 then
    --@ include concurrent.without
  end
  sets = has > 255 or #leases >= MOST_IN_FIELD * LEASE
  if sets then
    --@ include concurrent.move
  else
    leases = leases .. id .. pack('<dB', lease_end, has)
  end
end
if sets then
  weight = 1
  while had > 0 or has > 0 do
    local name = weight == 1 and ones or key .. field .. ':' .. weight
    if has % 2 == 1 then
      call('ZADD', name, lease_end, id)
      if math.floor(digits / weight) % 2 == 0 then digits = digits + weight end
    elseif had % 2 == 1 then
      call('ZREM', name, id)
    end
    had, has, weight = math.floor(had / 2), math.floor(has / 2), weight * 2
  end
end
in_flight = used

--@ without
-- The leases in the field but for that of the hold, and those that are over.
local others = ''
for at = 1, #leases, LEASE do
  if unpack('<d', leases, at + 24) > now and sub(leases, at, at + 23) ~= id then
    others = others .. sub(leases, at, at + LEASE - 1)
  end
end
leases = others

--@ move
-- They are too many for the field, or one has more places than a byte tells: all go into sets.
for at = 1, #leases, LEASE do
  local its_end, its_places = unpack('<dB', leases, at + 24)
  weight = 1
  while its_places > 0 do
    if its_places % 2 == 1 then
      call('ZADD', key .. field .. ':' .. weight, its_end, sub(leases, at, at + 23))
      if math.floor(digits / weight) % 2 == 0 then digits = digits + weight end
    end
    its_places, weight = math.floor(its_places / 2), weight * 2
  end
end
leases, had = '', 0

--@ free
-- The lease that has `places` is over.
if digits > 0 then
  left, weight, live = places, 1, 0
  while left > 0 do
    if left % 2 == 1 then
      local gone = weight * call('ZREM', weight == 1 and ones or key .. field .. ':' .. weight, sub(KEYS[1], -ID_LETTERS))
      if lease_end > now then used = used - gone end
    end
    left, weight = math.floor(left / 2), weight * 2
  end
else
  local id = sub(KEYS[1], -ID_LETTERS)
  for at = 1, #leases, LEASE do
    if sub(leases, at, at + 23) == id then
      local its_end, its_places = unpack('<dB', leases, at + 24)
      if its_end > now then used = used - its_places end
      leases = #leases > LEASE and sub(leases, 1, at - 1) .. sub(leases, at + LEASE) or ''
      break
    end
  end
end
in_flight = used
local lines = redis.pcall('SMEMBERS', key .. 'line@') -- callers wait for places: the first of each line is called
for number = 1, #lines do
  local line = lines[number]
  local first = call('ZRANGE', line, '0', '0')[1]
  if first then
    redis.pcall('HSET', line .. '+', 'f', 1) -- it asks again, if what is said is lost
    redis.pcall('PUBLISH', 'headgate:turn:' .. sub(first, 1, 16), sub(first, 17, 28))
  end
end

--@ retake
if left_to_change + places > 0 then
  local cost, places, lease_end = left_to_change + places, 0, former_end
  --@ include concurrent.charge
  --@ include concurrent.take
end

--@ measure
if used < quota then remaining = quota - used end
local ends = now
if in_flight > 0 then
  --@ include concurrent.last
end
if asked_end > ends then ends = asked_end end
if ends > now then
  reset_after, next_after = ends - now, ends - now
  --@ include concurrent.next
end

--@ next
local needed = used - quota + 1
if needed < 1 then needed = 1 end
if needed <= in_flight then -- what is asked for has no lease yet
  --@ include concurrent.freed
  next_after = freed - now
end

--@ ends
-- The end of the lease that ends last.
local ends = now
--@ include concurrent.last

--@ last
for at = 25, #leases, LEASE do
  local its_end = unpack('<d', leases, at)
  if its_end > ends then ends = its_end end
end
left, weight = digits, 1
while left > 0 do
  if left % 2 == 1 then
    local last = tonumber(call('ZRANGE', weight == 1 and ones or key .. field .. ':' .. weight, '-1', '-1', 'WITHSCORES')[2] or 0)
    if last > ends then ends = last end
  end
  left, weight = math.floor(left / 2), weight * 2
end

--@ freed
-- The moment at which the leases that end first will have freed `needed` places.
local freed, only = nil, 1
while only * 2 <= digits do only = only * 2 end
if digits == 0 then
  local freeing = 0
  freed = now
  while freeing < needed do
    local first, its_places = nil, 0
    for at = 25, #leases, LEASE do
      local own_end, own_places = unpack('<dB', leases, at)
      if own_end > freed then
        if first == nil or own_end < first then
          first, its_places = own_end, own_places
        elseif own_end == first then
          its_places = its_places + own_places
        end
      end
    end
    freed, freeing = first, freeing + its_places
  end
elseif digits == only then -- all leases are of one size
  local name, rank = key .. field .. ':' .. only, math.ceil(needed / only) - 1
  if rank < 32 then -- counted from the first that is not over
    freed = tonumber(call('ZRANGEBYSCORE', name, over, '+inf', 'WITHSCORES', 'LIMIT', rank, '1')[2])
  else
    rank = rank + call('ZCOUNT', name, '-inf', now)
    freed = tonumber(call('ZRANGE', name, rank, rank, 'WITHSCORES')[2])
  end
else
  --@ include concurrent.ends
  if ends > 2 * LARGEST then -- a lease begins at LARGEST at the latest
    --@ include steps.no_state
  end
  local low, high = now, ends
  while high - low > 1 do
    local middle, freeing = math.floor((low + high) / 2), 0
    left, weight = digits, 1
    while left > 0 do
      if left % 2 == 1 then
        freeing = freeing + weight * call('ZCOUNT', weight == 1 and ones or key .. field .. ':' .. weight, over, middle)
      end
      left, weight = math.floor(left / 2), weight * 2
    end
    if freeing < needed then low = middle else high = middle end
  end
  freed = high
end

--@ convert

--@ give_back
-- Nothing: places are freed by settling alone.

--@ mark
-- Nothing; but leases that are over go from sets, some at every eighth hold or so, which are more than all these add.
left, weight = adds + places > 0 and now_us % DEAD_EVERY == 0 and digits or 0, 1
while left > 0 do
  if left % 2 == 1 then
    local name = weight == 1 and ones or key .. field .. ':' .. weight
    local dead = call('ZRANGEBYSCORE', name, '-inf', now, 'LIMIT', '0', 'MOST_DEAD')
    if dead[1] then call('ZREM', name, spread(dead)) end
  end
  left, weight = math.floor(left / 2), weight * 2
end

--@ begin
left_to_change = 0 -- see free

--@ settle
-- Nothing: see free.

--@ fits

--@ write
local state = leases .. pack('<dI4c15', digits, expires_s, mark)
left, weight = digits, 1
while left > 0 do
  if left % 2 == 1 and (fresh or math.floor(live / weight) % 2 == 0) then
    call('EXPIREAT', weight == 1 and ones or key .. field .. ':' .. weight, expires_s)
  end
  left, weight = math.floor(left / 2), weight * 2
end
if state ~= value then
  --@ include hash_io.put
end

--@ leave
--@ include concurrent.stay

--@ stay
--@ include steps.keep

--@ left
-- The same where no lease was added.
--@ include steps.expire
if fresh or digits == 0 then
  --@ include concurrent.write
end

--@ numbers
local unit_us, quota = unpack('<BI7', mark)

--@ save
kept[at] = {digits, used, expires_s, former, leases, ended}

--@ load
local digits, used, expires_s, former, leases, ended = spread(kept[at], 1, 6)
local left, weight, over, in_flight, asked_end, live, value = 0, 1, string.format('(%.0f', now), used, now, 0, nil
local ones = key .. field .. ':1'

--@ prolong
-- A lease that is extended has no more places, also where a limit that only watches has none to give.
if allowed and places ~= 0 then
  local cost, reset_after = 0, math.max(reset_after, lease_end - now)
  --@ include concurrent.take
  --@ include steps.keep
end
