-- Places in flight: the twin of algorithms/concurrent.py.
--
-- A lease of n places is a member of one sorted set for each binary digit of n, whose score is the moment at which it
-- is over: each member of the set of digit 4 counts for 4 places. So what is in use is a few counts, and the moment at
-- which enough will be free a few ranks, however many leases there are; those that are over need not be gone. The field
-- of the limit tells which digits have sets.

--@ read
local digits, expires_s, ones = 0, nil, key .. field .. ':1'
local former = false
--@ include hash_io.fetch
if value then
  local numbers
  digits, expires_s, numbers = unpack('<dI4c15', value)
  former = numbers ~= mark
end

--@ roll
local used, left, weight, over, live = 0, digits, 1, string.format('(%.0f', now), 0
while left > 0 do
  if left % 2 == 1 then
    local leases = call('ZCOUNT', weight == 1 and ones or key .. field .. ':' .. weight, over, '+inf')
    if leases > 0 then used, live = used + weight * leases, live + weight end -- these sets are there, and expire
  end
  left, weight = math.floor(left / 2), weight * 2
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
local had, has = places, places + cost
weight = 1
while had > 0 or has > 0 do
  local name = weight == 1 and ones or key .. field .. ':' .. weight
  if has % 2 == 1 then
    call('ZADD', name, lease_end, sub(KEYS[1], -ID_LETTERS))
    if math.floor(digits / weight) % 2 == 0 then digits = digits + weight end
  elseif had % 2 == 1 then
    call('ZREM', name, sub(KEYS[1], -ID_LETTERS))
  end
  had, has, weight = math.floor(had / 2), math.floor(has / 2), weight * 2
end
in_flight = used

--@ free
-- The lease that has `places` is over.
left, weight, live = places, 1, 0
while left > 0 do
  if left % 2 == 1 then
    local gone = weight * call('ZREM', weight == 1 and ones or key .. field .. ':' .. weight, sub(KEYS[1], -ID_LETTERS))
    if lease_end > now then used = used - gone end
  end
  left, weight = math.floor(left / 2), weight * 2
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
if digits == only then -- all leases are of one size
  local name, rank = key .. field .. ':' .. only, math.ceil(needed / only) - 1
  if rank < 32 then -- counted from the first that is not over
    freed = tonumber(call('ZRANGEBYSCORE', name, over, '+inf', 'WITHSCORES', 'LIMIT', rank, '1')[2])
  else
    rank = rank + call('ZCOUNT', name, '-inf', now)
    freed = tonumber(call('ZRANGE', name, rank, rank, 'WITHSCORES')[2])
  end
else
  --@ include concurrent.ends
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
-- Nothing; but leases that are over go, some at every eighth hold or so, which are more than all these add.
left, weight = adds + places > 0 and now_us % DEAD_EVERY == 0 and digits or 0, 1
while left > 0 do
  if left % 2 == 1 then
    local name = weight == 1 and ones or key .. field .. ':' .. weight
    local dead = call('ZRANGEBYSCORE', name, '-inf', now, 'LIMIT', '0', 'MOST_DEAD')
    if dead[1] then call('ZREM', name, spread(dead)) end
  end
  left, weight = math.floor(left / 2), weight * 2
end

--@ settle
-- Nothing: see free.

--@ fits

--@ write
local state = pack('<dI4c15', digits, expires_s, mark)
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
if fresh then
  --@ include concurrent.write
end

--@ numbers
local unit_us, quota = unpack('<BI7', mark)

--@ save
kept[at], kept[at + 1], kept[at + 2], kept[at + 3] = digits, used, expires_s, former

--@ load
local digits, used, expires_s, former = kept[at], kept[at + 1], kept[at + 2], kept[at + 3]
local left, weight, over, in_flight, asked_end, live, value = 0, 1, string.format('(%.0f', now), used, now, 0, nil
local ones = key .. field .. ':1'

--@ prolong
-- A lease that is extended has no more places.
if allowed and wait == 0 and places ~= 0 then
  local reset_after = math.max(reset_after, lease_end - now)
  --@ include concurrent.take
  --@ include steps.keep
end
