-- Reading and writing states, except logs: the states of a key's limits are fields of one hash.

--@ fetch
local value = call('HGET', key, field)

--@ fetch_refunds
local refunded = call('HGET', key, '+' .. field)

--@ put_refunds
call('HSET', key, '+' .. field, pack('<dd', times, refunds))

--@ put
call('HSET', key, field, state)
if fresh then
  --@ include hash_io.prolong
end

--@ prolong
-- Another limit's state may need the key for longer.
local server_s = now_us / 1000000
if given_us >= 0 then server_s = call('TIME')[1] end
if call('TTL', key) < expires_s - server_s then call('EXPIREAT', key, expires_s) end

--@ fetched
local value = values[VALUE]

--@ fetched_refunds
local refunded = values[REFUNDED]

--@ gather_refunds
refundsNUMBER = pack('<dd', times, refunds)

--@ drop
call('HDEL', key, field)

--@ dropped
stateNUMBER = nil
call('HDEL', key, field)

--@ gather
stateNUMBER = state
if fresh and expires_s > longest_s then longest_s = expires_s end

--@ gather_changed
if state ~= value then
  --@ include hash_io.gather
end
