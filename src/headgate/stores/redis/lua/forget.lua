-- Forget states and reply with their values; of a log only with the value of its own field, which has the newest ones.
--
-- ARGV: the field of each limit; for each the prefix of records in its slot. For places in flight the reply is the end
-- of the last lease, as a double. Holds that have any of these limits are forgotten: the number in the epoch of the
-- name is raised and noted for the field, so that earlier records become invalid, see holds. The script frees the
-- places that such holds have of other limits of the name; the caller frees those under other names. The reply ends
-- with the server's time, and the ids of the holds that may have such places.

local reply, prefix_of, record_ids = {}, {}, {}
for number = 1, #KEYS do
  local key, field = KEYS[number], ARGV[number]
  local value = call('HGET', key, field)
  reply[number] = value
  call('HDEL', key, field, '+' .. field)
  --@ include forget.epoch
  if value and sub(field, 1, 1) == 'p' then
    local digits, leases, now, ones, left, weight = 0, '', 0, key .. field .. ':1', nil, nil
    --@ include forget.leases
    --@ include concurrent.ends
    left, weight = digits, 1
    while left > 0 do
      if left % 2 == 1 then call('UNLINK', key .. field .. ':' .. weight) end
      left, weight = math.floor(left / 2), weight * 2
    end
    reply[number] = pack('<d', math.min(math.floor(ends), LARGEST))
  end
  if sub(field, 1, 1) == 'w' then
    if value and #value % 2 == 0 and #value > 59 and byte(value, #value - 15) >= 2 then
      local swept, _, to = unpack('<I4I4I4', value, #value - 39)
      local corrected = byte(value, #value - 15) >= CORRECTED and CORRECTED or 0
      --@ include sliding_log.sweep_all
    end
    local name = key .. 'sliding_log.' .. sub(field, 2) -- the list of version 0.1
    if not value then reply[number] = call('LRANGE', name, 0, 0)[1] or false end
    call('UNLINK', name)
  end
end
--@ include forget.places
local time = call('TIME')
reply[#KEYS + 1] = time[1] * 1000000 + time[2]
reply[#KEYS + 2] = record_ids
return reply

--@ epoch
-- A damaged epoch makes all holds of the name unknown, as does a number that cannot be raised any more.
local epoch = call('HGET', key, '+')
if epoch then
  local resets, at, others = #epoch > 11 and unpack('<I3', epoch, 6) + 1 or MOST_RESETS, 13, ''
  while at < #epoch do
    local behind = at + 4 + byte(epoch, at)
    if behind > #epoch + 1 then resets = MOST_RESETS end
    if sub(epoch, at + 1, behind - 4) ~= field then others = others .. sub(epoch, at, behind - 1) end
    at = behind
  end
  if resets < MOST_RESETS then
    call('HSET', key, '+', sub(epoch, 1, 5) .. pack('<I3', resets) .. sub(epoch, 9, 12) .. others
      .. pack('<Bc0I3', #field, field, resets))
    prefix_of[key] = ARGV[#KEYS + number]
  else
    call('HDEL', key, '+')
  end
end

--@ leases
-- The leases in the field, and the digits that have sets; where these are damaged, any digit may have one.
if #value > 26 then
  digits, leases = unpack('<d', value, #value - 26), sub(value, 1, #value - 27 - (#value - 27) % LEASE)
end
if not (digits >= 0 and digits <= LARGEST and digits % 1 == 0) then digits = 2 * LARGEST - 1 end

--@ places
-- Free the places of forgotten holds under limits that were not reset.
local function is_forgotten(name)
  local record = call('GET', name)
  local read, known = pcall(function()
    --@ include holds.parse
    local known = true
    --@ include holds.epochs
    return known
  end)
  return read and known == false
end
for key, prefix in pairs(prefix_of) do
  local records = redis.pcall('ZRANGE', key .. 'apart', '0', '-1') -- users without holds may not be allowed to run it
  if records.err and string.find(records.err, 'WRONGTYPE', 1, true) then redis.pcall('UNLINK', key .. 'apart') end
  for _, name in ipairs(records) do
    if is_forgotten(name) then
      call('ZREM', key .. 'apart', name)
      record_ids[#record_ids + 1] = sub(name, -ID_LETTERS)
    end
  end
  for place = 0, MOST_PLACES do
    local field, digits, leases = 'p' .. place, 0, ''
    local value = call('HGET', key, field)
    if value then
      --@ include forget.leases
      local rest = ''
      for at = 1, #leases, LEASE do
        if not is_forgotten(prefix .. sub(leases, at, at + 23)) then rest = rest .. sub(leases, at, at + LEASE - 1) end
      end
      if #rest < #leases then call('HSET', key, field, rest .. sub(value, #leases + 1)) end
      local left, weight = digits, 1
      while left > 0 do
        if left % 2 == 1 then
          local name = key .. field .. ':' .. weight
          for _, id in ipairs(call('ZRANGE', name, '0', '-1')) do
            if is_forgotten(prefix .. id) then call('ZREM', name, id) end
          end
        end
        left, weight = math.floor(left / 2), weight * 2
      end
    end
  end
end
