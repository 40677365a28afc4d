-- Forget states, and tell what they were: of a log its header and the time of its last entry.
--
-- ARGV: the kind of each. The reply ends with the server's time.

local reply = {}
for number = 1, #KEYS do
  local key = KEYS[number]
  if ARGV[number] == 'sliding_log' then
    reply[2 * number - 1] = call('LINDEX', key, 0)
    reply[2 * number] = call('LINDEX', key, -2)
  else
    reply[2 * number - 1] = call('GET', key)
    reply[2 * number] = false
  end
  call('UNLINK', key)
end
local time = call('TIME')
reply[2 * #KEYS + 1] = time[1] * 1000000 + time[2]
return reply
