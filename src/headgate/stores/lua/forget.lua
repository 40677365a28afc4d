-- Forget states, and tell what they were: of a log its header and the time of its last entry.
--
-- ARGV: the field of each, nothing for a log. The reply ends with the server's time.

local reply = {}
for number = 1, #KEYS do
  local key = KEYS[number]
  if ARGV[number] == '' then
    reply[2 * number - 1] = call('LINDEX', key, 0)
    reply[2 * number] = call('LINDEX', key, -2)
    call('UNLINK', key)
  else
    reply[2 * number - 1] = call('HGET', key, ARGV[number])
    reply[2 * number] = false
    call('HDEL', key, ARGV[number])
  end
end
local time = call('TIME')
reply[2 * #KEYS + 1] = time[1] * 1000000 + time[2]
return reply
