-- Forget states, and tell what they were: of a log what is in its field, where the newest entries are.
--
-- ARGV: the field of each. Of places in flight it tells when the last lease is over, as a double. The holds of a name are
-- forgotten with the epoch that they began in. The reply ends with the server's time.

local reply = {}
for number = 1, #KEYS do
  local key, field = KEYS[number], ARGV[number]
  local value = call('HGET', key, field)
  reply[number] = value
  call('HDEL', key, field, '+' .. field, '+')
  if value and sub(field, 1, 1) == 'p' then
    local digits, leases, now, ones, left, weight = 0, '', 0, key .. field .. ':1', nil, nil
    if #value > 26 then
      digits, leases = unpack('<d', value, #value - 26), sub(value, 1, #value - 27 - (#value - 27) % LEASE)
    end
    if not (digits >= 0 and digits <= LARGEST and digits % 1 == 0) then digits = 2 * LARGEST - 1 end -- any may have sets
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
local time = call('TIME')
reply[#KEYS + 1] = time[1] * 1000000 + time[2]
return reply
