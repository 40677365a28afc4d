-- Places in flight: the twin of algorithms/concurrent.py.
--
-- Up to MOST_IN_FIELD leases are in the field of the limit itself, each in LEASE bytes: its id, the moment of its end,
-- and its places. More leases are in sorted sets, until none is in flight any more: a lease of n places is a member of
-- one set for each binary digit of n, and its score is the moment of its end; each member of the set of digit 4 counts
-- for 4 places. So the places in use need a few counts, and the moment at which enough will be free needs a few ranks,
-- however many leases there are; leases that have ended need not be removed. After the leases the field has the digits
-- that have sets (0 where the leases are in the field), its expiry, and the limit's numbers.

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
  local entry_end, entry_places = unpack('<dB', leases, at)
  if entry_end > now then used = used + entry_places else ended = true end
end
if left > 0 then
  ones, over = key .. field .. ':1', string.format('(%.0f', now)
  while left > 0 do
    if left % 2 == 1 then
      local members = call('ZCOUNT', weight == 1 and ones or key .. field .. ':' .. weight, over, '+inf')
      if members > 0 then used, live = used + weight * members, live + weight end -- these sets exist, and expire
    end
    left, weight = math.floor(left / 2), weight * 2
  end
  if used == 0 then digits = 0 end -- the sets expire, with the leases that have ended
end
local in_flight, requested_end = used, now

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

--@ request
-- The end of a requested lease.
requested_end = lease_end

--@ take
-- Add `cost` places to the lease, which had `places`; it ends at `lease_end`.
local former_places, new_places, id, sets = places, places + cost, sub(KEYS[1], -ID_LETTERS), digits > 0
if not sets then
  if ended or former_places > 0 then
    --@ include concurrent.without
  end
  sets = new_places > 255 or #leases >= MOST_IN_FIELD * LEASE
  if sets then
    --@ include concurrent.move
  else
    leases = leases .. id .. pack('<dB', lease_end, new_places)
  end
end
if sets then
  weight = 1
  while former_places > 0 or new_places > 0 do
    local name = weight == 1 and ones or key .. field .. ':' .. weight
    if new_places % 2 == 1 then
      call('ZADD', name, lease_end, id)
      if math.floor(digits / weight) % 2 == 0 then digits = digits + weight end
    elseif former_places % 2 == 1 then
      call('ZREM', name, id)
    end
    former_places, new_places, weight = math.floor(former_places / 2), math.floor(new_places / 2), weight * 2
  end
end
in_flight = used

--@ without
-- Remove the lease of the hold and ended leases from the field.
local others = ''
for at = 1, #leases, LEASE do
  if unpack('<d', leases, at + 24) > now and sub(leases, at, at + 23) ~= id then
    others = others .. sub(leases, at, at + LEASE - 1)
  end
end
leases = others

--@ move
-- Move all leases into sets: there are too many for the field, or one has more places than a byte can hold.
for at = 1, #leases, LEASE do
  local entry_end, entry_places = unpack('<dB', leases, at + 24)
  weight = 1
  while entry_places > 0 do
    if entry_places % 2 == 1 then
      call('ZADD', key .. field .. ':' .. weight, entry_end, sub(leases, at, at + 23))
      if math.floor(digits / weight) % 2 == 0 then digits = digits + weight end
    end
    entry_places, weight = math.floor(entry_places / 2), weight * 2
  end
end
leases, former_places = '', 0

--@ free
-- End the lease, which has `places`.
if digits > 0 then
  left, weight, live = places, 1, 0
  while left > 0 do
    if left % 2 == 1 then
      local freed_places = weight
        * call('ZREM', weight == 1 and ones or key .. field .. ':' .. weight, sub(KEYS[1], -ID_LETTERS))
      if lease_end > now then used = used - freed_places end
    end
    left, weight = math.floor(left / 2), weight * 2
  end
else
  local id = sub(KEYS[1], -ID_LETTERS)
  for at = 1, #leases, LEASE do
    if sub(leases, at, at + 23) == id then
      local entry_end, entry_places = unpack('<dB', leases, at + 24)
      if entry_end > now then used = used - entry_places end
      leases = #leases > LEASE and sub(leases, 1, at - 1) .. sub(leases, at + LEASE) or ''
      break
    end
  end
end
in_flight = used
local lines = redis.pcall('SMEMBERS', key .. 'line@') -- lines of callers that wait for places: call the first of each
for number = 1, #lines do
  local line = lines[number]
  local first = call('ZRANGE', line, '0', '0')[1]
  if first then
    redis.pcall('HSET', line .. '+', 'f', 1) -- it finds out by its next query if the message is lost
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
if requested_end > ends then ends = requested_end end
if ends > now then
  reset_after, next_after = ends - now, ends - now
  --@ include concurrent.next
end

--@ next
local needed = used - quota + 1
if needed < 1 then needed = 1 end
if needed <= in_flight then -- the requested places have no lease yet
  --@ include concurrent.freed
  next_after = freed - now
end

--@ ends
-- The end of the lease that ends last.
local ends = now
--@ include concurrent.last

--@ last
for at = 25, #leases, LEASE do
  local entry_end = unpack('<d', leases, at)
  if entry_end > ends then ends = entry_end end
end
left, weight = digits, 1
while left > 0 do
  if left % 2 == 1 then
    local last = tonumber(
      call('ZRANGE', weight == 1 and ones or key .. field .. ':' .. weight, '-1', '-1', 'WITHSCORES')[2] or 0)
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
    local first_end, first_places = nil, 0
    for at = 25, #leases, LEASE do
      local entry_end, entry_places = unpack('<dB', leases, at)
      if entry_end > freed then
        if first_end == nil or entry_end < first_end then
          first_end, first_places = entry_end, entry_places
        elseif entry_end == first_end then
          first_places = first_places + entry_places
        end
      end
    end
    freed, freeing = first_end, freeing + first_places
  end
elseif digits == only then -- all leases have the same size
  local name, rank = key .. field .. ':' .. only, math.ceil(needed / only) - 1
  if rank < 32 then -- counted from the first that has not ended
    freed = tonumber(call('ZRANGEBYSCORE', name, over, '+inf', 'WITHSCORES', 'LIMIT', rank, '1')[2])
  else
    rank = rank + call('ZCOUNT', name, '-inf', now)
    freed = tonumber(call('ZRANGE', name, rank, rank, 'WITHSCORES')[2])
  end
else
  --@ include concurrent.ends
  if ends > 2 * LARGEST then -- a lease begins no later than LARGEST
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
-- Nothing: only settling frees places.

--@ mark
-- Nothing to note. About every eighth hold removes some ended leases from the sets, more than these holds add.
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
-- `stay` where no lease was added.
--@ include steps.expire
if fresh or digits == 0 then
  --@ include concurrent.write
end

--@ numbers
local unit_us, quota = unpack('<BI7', mark)

--@ save
saved[at] = {digits, used, expires_s, former, leases, ended}

--@ load
local digits, used, expires_s, former, leases, ended = spread(saved[at], 1, 6)
local left, weight, over, in_flight, requested_end, live, value = 0, 1, string.format('(%.0f', now), used, now, 0, nil
local ones = key .. field .. ':1'

--@ prolong
-- Extend the lease without more places, also where a shadow limit has none to give.
if allowed and places ~= 0 then
  local cost, reset_after = 0, math.max(reset_after, lease_end - now)
  --@ include concurrent.take
  --@ include steps.keep
end
