-- The line of the callers of all processes that wait for a key.
--
-- KEYS: the line, a sorted set of tickets by their order numbers; what is known of it, a hash; of each limit of what is
-- in flight the set of the lines that its places call. ARGV: J to join, T to ask whether it is a ticket's turn, L to
-- leave; the process, 16 letters; the ticket, which is the process, a number of 12 digits, and its costs; the number of the
-- process's oldest ticket; how long the process counts as alive, in ms; then for J the most tickets, and up to which
-- order number the caller's plan knows the tickets of which generation; for L 1 if the ticket left as planned, 2 if
-- its process never planned it, else 0.
--
-- The reply: for J the order number, the generation, whether it is first, and the tickets before it that the plan does
-- not know; F where the line is full. For T whether it is first, 2 if places were freed meanwhile; U for a ticket that is not in line, as those of a
-- process that did not ask for so long. For L the number of the first ticket, where it is of the same process. A line's generation changes whenever a ticket leaves otherwise than planned.

local line, known, process, ticket, oldest = KEYS[1], KEYS[2], ARGV[2], ARGV[3], ARGV[4]
local time = call('TIME')
local now_ms, alive_ms = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[5])
local first = call('ZRANGE', line, 0, 0)[1]
local called, reply = first, nil
if ARGV[1] == 'L' then
  local last = ARGV[6] == '2' and call('ZRANGE', line, -1, -1)[1] == ticket -- which no plan counts on
  call('ZREM', line, ticket)
  if ARGV[6] ~= '1' and not last then call('HINCRBY', known, 'g', 1) end
else
  call('HSET', known, process, string.format('%.0f', now_ms + alive_ms))
end

-- Tickets of processes that are gone are passed over, and those before its oldest that a process does not know any more.
first = call('ZRANGE', line, 0, 0)[1]
while first do
  local owner = sub(first, 1, 16)
  if owner == process then
    if sub(first, 17, 28) >= oldest then break end
  else
    local until_ms = tonumber(call('HGET', known, owner) or 0)
    if until_ms > now_ms + 4 * alive_ms then -- by a clock that went back: it counts as alive for once more
      call('HSET', known, owner, string.format('%.0f', now_ms + alive_ms))
    end
    if until_ms > now_ms then break end
  end
  call('ZREM', line, first)
  call('HINCRBY', known, 'g', 1)
  first = call('ZRANGE', line, 0, 0)[1]
end

if ARGV[1] == 'J' then
  if call('ZCARD', line) >= tonumber(ARGV[6]) then return 'F' end
  local generation = call('HGET', known, 'g')
  if not generation then
    generation = string.format('%.0f', now_ms)
    call('HSET', known, 'g', generation)
  end
  if not call('HGET', known, 'n') then -- later than the numbers of all lines that were there before
    call('HSET', known, 'n', string.format('%.0f', now_ms * 1000))
  end
  local since = generation == ARGV[8] and ARGV[7] or '0'
  local number = call('HINCRBY', known, 'n', 1)
  reply = call('ZRANGEBYSCORE', line, '(' .. since, '+inf')
  call('ZADD', line, number, ticket)
  for place = 3, #KEYS do
    call('SADD', KEYS[place], line)
  end
  if not first then first, called = ticket, ticket end
  table.insert(reply, 1, first == ticket and 1 or 0)
  table.insert(reply, 1, generation)
  table.insert(reply, 1, number)
elseif ARGV[1] == 'T' then
  reply = 'U'
  if call('ZSCORE', line, ticket) then reply = first == ticket and 1 + call('HDEL', known, 'f') or 0 end
  if first == ticket then called = ticket end
end

if ARGV[1] == 'L' and first and sub(first, 1, 16) == process then
  reply, called = sub(first, 17, 28), first
end
if first then
  if first ~= called then redis.pcall('PUBLISH', 'headgate:turn:' .. sub(first, 1, 16), sub(first, 17, 28)) end
  for place = 1, #KEYS do
    call('PEXPIRE', KEYS[place], 4 * alive_ms)
  end
else
  for place = 3, #KEYS do
    call('SREM', KEYS[place], line)
  end
  call('UNLINK', line, known)
end
return reply or 1
