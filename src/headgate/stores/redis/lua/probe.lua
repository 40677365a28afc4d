-- What decisions ask of a server, so that a guard knows whether it would decide again; nothing is left behind.
-- KEYS[1] is a key of its own. Replies OK.
local until_s = string.format('%.0f', call('TIME')[1] + 60)
call('HSET', KEYS[1], 'p', '', 'q', '')
call('EXPIREAT', KEYS[1], until_s)
call('TTL', KEYS[1])
call('HGET', KEYS[1], 'p')
call('HMGET', KEYS[1], 'p', 'q')
call('HDEL', KEYS[1], 'q')
call('UNLINK', KEYS[1])
return 'OK'
