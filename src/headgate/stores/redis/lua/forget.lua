-- Forget states, and tell what they were: of a log what is in its field, where the newest entries are.
--
-- ARGV: the field of each; for each how the keys of records in its slot begin. Of places in flight it tells when the last
-- lease is over, as a double. The holds that have any of these limits are forgotten: the epoch of a name has a number which
-- is raised, and is noted for the field, so that the records which began before are of no use, see holds. The places that
-- such holds have of other limits of the name are freed; those that they have under other names, the caller frees. The
-- reply ends with the server's time, and the ids of the holds that may have such places.

local reply, head_of, apart = {}, {}, {}
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
    local name = key .. 'sliding_log.' .. sub(field, 2) -- as version 0.1 has it
    if not value then reply[number] = call('LRANGE', name, 0, 0)[1] or false end
    call('UNLINK', name)
  end
end
--@ include forget.places
local time = call('TIME')
reply[#KEYS + 1] = time[1] * 1000000 + time[2]
reply[#KEYS + 2] = apart
return reply

--@ epoch
-- What is not as written here makes all holds of the name unknown, as does a number that can be raised no more.
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
    head_of[key] = ARGV[#KEYS + number]
  else
    call('HDEL', key, '+')
  end
end

--@ leases
-- Those in the field, and which digits have sets; where that is damaged, any may have.
if #value > 26 then
  digits, leases = unpack('<d', value, #value - 26), sub(value, 1, #value - 27 - (#value - 27) % LEASE)
end
if not (digits >= 0 and digits <= LARGEST and digits % 1 == 0) then digits = 2 * LARGEST - 1 end

--@ places
-- Free what is in flight of holds that are forgotten, under limits that were not reset.
local function is_over(name)
  local record = call('GET', name)
  local read, known = pcall(function()
    --@ include holds.parse
    local known = true
    --@ include holds.epochs
    return known
  end)
  return read and known == false
end
for key, head in pairs(head_of) do
  local listed = redis.pcall('ZRANGE', key .. 'apart', '0', '-1') -- not allowed to users without holds
  if listed.err and string.find(listed.err, 'WRONGTYPE', 1, true) then redis.pcall('UNLINK', key .. 'apart') end
  for _, name in ipairs(listed) do
    if is_over(name) then
      call('ZREM', key .. 'apart', name)
      apart[#apart + 1] = sub(name, -ID_LETTERS)
    end
  end
  for place = 0, MOST_PLACES do
    local field, digits, leases = 'p' .. place, 0, ''
    local value = call('HGET', key, field)
    if value then
      --@ include forget.leases
      local kept = ''
      for at = 1, #leases, LEASE do
        if not is_over(head .. sub(leases, at, at + 23)) then kept = kept .. sub(leases, at, at + LEASE - 1) end
      end
      if #kept < #leases then call('HSET', key, field, kept .. sub(value, #leases + 1)) end
      local left, weight = digits, 1
      while left > 0 do
        if left % 2 == 1 then
          local name = key .. field .. ':' .. weight
          for _, id in ipairs(call('ZRANGE', name, '0', '-1')) do
            if is_over(head .. id) then call('ZREM', name, id) end
          end
        end
        left, weight = math.floor(left / 2), weight * 2
      end
    end
  end
end
