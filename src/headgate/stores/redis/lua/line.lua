-- The line of the callers of all processes that wait for a key.
--
-- KEYS: the line, a sorted set of tickets by their order numbers; a hash of information about the line; for each limit
-- in flight the set of the lines to call when its places are freed. ARGV: J to join, T to query whether it is a
-- ticket's turn, L to leave; the process, 16 letters; the ticket: the process, a number of 12 digits, and its costs;
-- the number of the process's oldest ticket; how long the process counts as alive, in ms; then for J the greatest
-- number of tickets, and the order number up to which the caller's plan knows the tickets, with their generation; for L
-- 1 if the ticket left as planned, 2 if its process never planned it, else 0.
--
-- The reply to J is the order number, the generation, whether the ticket is first, and the tickets before it that the
-- plan does not know; F where the line is full. The reply to T is whether the ticket is first, 2 if places were freed
-- meanwhile; U for a ticket that is not in line, as those of a process that has sent no query for too long. The reply
-- to L is the number of the first ticket where it is of the same process. A line's generation changes whenever a ticket
-- leaves otherwise than planned.

local line, line_info, process, ticket, oldest = KEYS[1], KEYS[2], ARGV[2], ARGV[3], ARGV[4]
local time = call('TIME')
local now_ms, alive_ms = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[5])
local first = call('ZRANGE', line, 0, 0)[1]
local called, reply = first, nil
if ARGV[1] == 'L' then
  local last = ARGV[6] == '2' and call('ZRANGE', line, -1, -1)[1] == ticket -- no plan depends on it
  call('ZREM', line, ticket)
  if ARGV[6] ~= '1' and not last then call('HINCRBY', line_info, 'g', 1) end
else
  call('HSET', line_info, process, string.format('%.0f', now_ms + alive_ms))
end

-- Skip tickets of dead processes, and tickets before its oldest one that a process does not know any more.
first = call('ZRANGE', line, 0, 0)[1]
while first do
  local owner = sub(first, 1, 16)
  if owner == process then
    if sub(first, 17, 28) >= oldest then break end
  else
    local until_ms = tonumber(call('HGET', line_info, owner) or 0)
    if until_ms > now_ms + 4 * alive_ms then -- the clock went back: count it as alive once more
      call('HSET', line_info, owner, string.format('%.0f', now_ms + alive_ms))
    end
    if until_ms > now_ms then break end
  end
  call('ZREM', line, first)
  call('HINCRBY', line_info, 'g', 1)
  first = call('ZRANGE', line, 0, 0)[1]
end

if ARGV[1] == 'J' then
  if call('ZCARD', line) >= tonumber(ARGV[6]) then return 'F' end
  local generation = call('HGET', line_info, 'g')
  if not generation then
    generation = string.format('%.0f', now_ms)
    call('HSET', line_info, 'g', generation)
  end
  if not call('HGET', line_info, 'n') then -- greater than the numbers of all former lines
    call('HSET', line_info, 'n', string.format('%.0f', now_ms * 1000))
  end
  local since = generation == ARGV[8] and ARGV[7] or '0'
  local number = call('HINCRBY', line_info, 'n', 1)
  reply = call('ZRANGEBYSCORE', line, '(' .. since, '+inf')
  call('ZADD', line, number, ticket)
  for index = 3, #KEYS do
    call('SADD', KEYS[index], line)
  end
  if not first then first, called = ticket, ticket end
  table.insert(reply, 1, first == ticket and 1 or 0)
  table.insert(reply, 1, generation)
  table.insert(reply, 1, number)
elseif ARGV[1] == 'T' then
  reply = 'U'
  if call('ZSCORE', line, ticket) then reply = first == ticket and 1 + call('HDEL', line_info, 'f') or 0 end
  if first == ticket then called = ticket end
end

if ARGV[1] == 'L' and first and sub(first, 1, 16) == process then
  reply, called = sub(first, 17, 28), first
end
if first then
  if first ~= called then redis.pcall('PUBLISH', 'headgate:turn:' .. sub(first, 1, 16), sub(first, 17, 28)) end
  for index = 1, #KEYS do
    call('PEXPIRE', KEYS[index], 4 * alive_ms)
  end
else
  for index = 3, #KEYS do
    call('SREM', KEYS[index], line)
  end
  call('UNLINK', line, line_info)
end
return reply or 1
