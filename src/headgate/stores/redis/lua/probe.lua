-- Runs the commands of decisions, so that a guard knows whether the server can decide again; it leaves nothing behind.
-- KEYS[1] is a key for this script alone. The reply is OK.
local until_s = string.format('%.0f', call('TIME')[1] + 60)
call('HSET', KEYS[1], 'p', '', 'q', '')
call('EXPIREAT', KEYS[1], until_s)
call('TTL', KEYS[1])
call('HGET', KEYS[1], 'p')
call('HMGET', KEYS[1], 'p', 'q')
call('HDEL', KEYS[1], 'q')
call('UNLINK', KEYS[1])
return 'OK'
