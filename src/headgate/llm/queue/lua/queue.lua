-- The jobs of a queue on Redis: the operations of `memory.py` and `lanes.py`, with the same names, atomically.
--
-- KEYS[1]  the stream of jobs; all other keys begin with its name without "jobs", and so are in the same slot
-- ARGV     the operation; the time in microseconds, "" for the server's; ageing_tokens; priority_tokens; the
--          milliseconds that a result is stored; the milliseconds after which a silent worker is dead; then the
--          arguments of the operation, listed above each
--
-- A job is an entry of the stream, with its body, from `submit` until it has ended. While a worker has it, it is
-- pending for that consumer of the group "workers", and XAUTOCLAIM finds the jobs of dead workers. The state of a job
-- is a hash.
-- Numbers are whole and below 2^53; Redis writes them with 17 digits.
local call, format = redis.call, string.format
local base = string.sub(KEYS[1], 1, -5)
local operation, now = ARGV[1], tonumber(ARGV[2])
local ageing, priority_tokens = tonumber(ARGV[3]), tonumber(ARGV[4])
local results_ms, lease_ms = ARGV[5], tonumber(ARGV[6])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local STRICT, SOME, RATED, MOST_WOKEN, NEWS, HOUR = 2, 100, 32, 1000, 1000, 3600000000
local JOB_FIELDS = {'st', 'c', 'm', 'p', 'k', 's', 't', 'z', 'd', 'n', 'r', 'er', 'li', 'i'}

local function job_key(id) return base .. 'job:' .. id end
local function lane_key(lane) return base .. 'lane:' .. lane end
local function list_key(lane) return base .. 'in:' .. lane end
local function account_key(account) return base .. 'of:' .. account end

local function publish(kind, id)
  call('XADD', base .. 'news', 'MAXLEN', '~', NEWS, '*', 'k', kind, 'j', id)
end

local function number(text) return tonumber(text or 0) or 0 end

-- Compute the score of a lane, after its user's counter, or the time since which it waits, has changed.
local function rescore(lane)
  local lane_state = call('HMGET', lane_key(lane), 'a', 'p', 'since', 'until')
  local counter = number(call('HGET', account_key(lane_state[1]), 'counter'))
  local score = counter * 1000 + ageing * math.floor(lane_state[3] / 1000) - lane_state[2] * priority_tokens * 1000
  call('HSET', lane_key(lane), 'score', score)
  call('ZADD', base .. 'all', score, lane)
  if lane_state[4] == '0' then call('ZADD', base .. 'ready', score, lane) end
end

local function count(account, tokens)
  local counter = call('HINCRBY', account_key(account), 'counter', format('%.0f', tokens))
  for _, lane in ipairs(call('SMEMBERS', base .. 'lanes:' .. account)) do rescore(lane) end
  if call('ZSCORE', base .. 'active', account) then call('ZADD', base .. 'active', counter, account) end
  if call('ZSCORE', base .. 'left', account) then call('ZADD', base .. 'left', counter, account) end
end

local function park_until(lane, until_us, scope)
  call('HSET', lane_key(lane), 'until', until_us, 'scope', scope)
  if scope ~= '' then call('SADD', base .. 'scope:' .. scope, lane) end
  call('ZREM', base .. 'ready', lane)
  call('ZADD', base .. 'parked', until_us, lane)
end

local function unpark(lane)
  local scope = call('HGET', lane_key(lane), 'scope')
  if scope and scope ~= '' then call('SREM', base .. 'scope:' .. scope, lane) end
  call('HSET', lane_key(lane), 'until', 0)
  call('ZREM', base .. 'parked', lane)
  if call('EXISTS', list_key(lane)) == 1 then rescore(lane) end
end

local function claim_of(scope)
  local claim = call('HGET', base .. 'claims', scope)
  if claim then return string.sub(claim, 1, 24), tonumber(string.sub(claim, 26)) end
end

local function unclaim(lane)
  local scope = call('HGET', lane_key(lane), 'scope')
  if scope and scope ~= '' and claim_of(scope) == lane then call('HDEL', base .. 'claims', scope) end
end

-- The claims of limits that are in force: scope, score and end of each.
local function claims()
  local result = {}
  for _, scope in ipairs(call('HKEYS', base .. 'claims')) do
    local lane, until_us = claim_of(scope)
    local score = call('HGET', lane_key(lane), 'score')
    if not score or until_us <= now then
      call('HDEL', base .. 'claims', scope)
    else
      result[#result + 1] = {scope, tonumber(score), until_us}
    end
  end
  return result
end

local function note_idle(account)
  local account_state = call('HMGET', account_key(account), 'waiting', 'running', 'counter')
  if number(account_state[1]) == 0 and number(account_state[2]) == 0 then
    call('ZADD', base .. 'left', account_state[3] or 0, account)
  end
end

-- Update lane and account after a job of `tokens` tokens was taken out of the lane.
local function removed(lane, account, tokens)
  call('HINCRBY', lane_key(lane), 'tokens', -tokens)
  local waiting = call('HINCRBY', account_key(account), 'waiting', -1)
  if call('EXISTS', list_key(lane)) == 0 then
    unpark(lane)
    unclaim(lane)
    call('DEL', lane_key(lane))
    call('ZREM', base .. 'all', lane)
    call('ZREM', base .. 'ready', lane)
    call('SREM', base .. 'lanes:' .. account, lane)
  else
    rescore(lane)
  end
  if waiting == 0 then
    local counter = number(call('HGET', account_key(account), 'counter'))
    call('ZREM', base .. 'active', account)
    if counter > number(call('HGET', base .. 'meta', 'floor')) then call('HSET', base .. 'meta', 'floor', counter) end
    note_idle(account)
  end
end

local function joined(account)
  if call('HINCRBY', account_key(account), 'waiting', 1) == 1 then
    call('ZADD', base .. 'active', number(call('HGET', account_key(account), 'counter')), account)
    call('ZREM', base .. 'left', account)
  end
end

local function lane_of(lane, account, priority, since, refusals)
  if call('EXISTS', lane_key(lane)) == 0 then
    call('HSET', lane_key(lane), 'a', account, 'p', priority, 'since', since, 'tokens', 0, 'until', 0, 'scope', '',
      'refusals', refusals, 'promised', 0)
    call('SADD', base .. 'lanes:' .. account, lane)
  end
end

-- A returning user's counter is raised to the least of the waiting users; idle users below that are forgotten.
local function add(account)
  if number(call('HGET', account_key(account), 'waiting')) == 0 then
    local least = call('ZRANGE', base .. 'active', 0, 0, 'WITHSCORES')[2] or call('HGET', base .. 'meta', 'floor')
    least = number(least)
    for _, idle in ipairs(call('ZRANGEBYSCORE', base .. 'left', '-inf', least, 'LIMIT', 0, SOME)) do
      call('ZREM', base .. 'left', idle)
      call('DEL', account_key(idle))
    end
    local counter = number(call('HGET', account_key(account), 'counter'))
    if least > counter then count(account, least - counter) end
  end
  joined(account)
end

local function wake_scope(scope)
  local turn = call('HINCRBY', base .. 'meta', 'wakes', 1)
  call('ZADD', base .. 'woken', turn, scope)
  for _, old in ipairs(call('ZRANGEBYSCORE', base .. 'woken', '-inf', turn - MOST_WOKEN, 'LIMIT', 0, SOME)) do
    call('ZREM', base .. 'woken', old)
  end
  local first, least
  for _, lane in ipairs(call('SMEMBERS', base .. 'scope:' .. scope)) do
    local score = number(call('HGET', lane_key(lane), 'score'))
    if not first or score < least or (score == least and lane < first) then first, least = lane, score end
  end
  if first then unpark(first) end
end

local function drop(entry)
  call('XACK', KEYS[1], 'workers', entry)
  call('XDEL', KEYS[1], entry)
end

local function use(account, sign, bytes)
  for _, key in ipairs({base .. 'meta', account_key(account)}) do
    call('HINCRBY', key, 'jobs', sign)
    call('HINCRBY', key, 'bytes', sign * bytes)
  end
end

local function end_(id, state)
  local job_state = call('HMGET', job_key(id), 'a', 'y')
  call('HSET', job_key(id), 'st', state, 'z', now)
  call('PEXPIRE', job_key(id), results_ms)
  use(job_state[1], -1, job_state[2])
end

local function withdraw(id, state, reason)
  local job_state = call('HMGET', job_key(id), 'l', 'a', 'k', 'e')
  local lane = job_state[1]
  local is_first = call('LINDEX', list_key(lane), 0) == id
  call('LREM', list_key(lane), 1, id)
  if is_first and call('HGET', lane_key(lane), 'until') ~= '0' then
    unclaim(lane)
    unpark(lane)
  end
  removed(lane, job_state[2], job_state[3])
  call('HINCRBY', base .. 'meta', 'waiting', -1)
  call('ZREM', base .. 'deadlines', id)
  call('HSET', job_key(id), 'k', 0, 'er', reason)
  end_(id, state)
  drop(job_state[4])
  publish('ended', id)
end

local function expire()
  for _, id in ipairs(call('ZRANGEBYSCORE', base .. 'deadlines', '-inf', now, 'LIMIT', 0, SOME)) do
    withdraw(id, 'expired', 'it was not started before its deadline')
  end
end

-- Record that a worker gives a job up and is to settle its hold, so that it gets the same reply if it repeats a call
-- whose reply was lost.
local function leave(id, worker, hold) call('HSET', job_key(id), 'v', worker .. ':' .. hold) end

local function was_left(id, worker, hold) return call('HGET', job_key(id), 'v') == worker .. ':' .. hold end

local function job_reply(id, repeated)
  return {'job', repeated, call('HMGET', job_key(id), unpack(JOB_FIELDS))}
end

-- The reply to a worker that takes a job: the job's entry and state, and all claims.
local function taken_reply(id, fields)
  local state_fields = call('HMGET', job_key(id), 'st', 'h', 'n', 'x', 'q', 'sc', 'rf', 'pr', 'r', 'fo')
  local claimed = {}
  for _, claim in ipairs(claims()) do
    claimed[#claimed + 1] = claim[1]
    claimed[#claimed + 1] = format('%.0f', claim[2])
    claimed[#claimed + 1] = format('%.0f', claim[3] - now)
  end
  return {'taken', id, fields, state_fields, claimed}
end

-- Take over a job of a dead worker; false where there is none.
local function reclaim(worker)
  for _ = 1, SOME do
    local cursor = call('HGET', base .. 'meta', 'cursor') or '0-0'
    local reply = call('XAUTOCLAIM', KEYS[1], 'workers', worker, lease_ms, cursor, 'COUNT', 1)
    call('HSET', base .. 'meta', 'cursor', reply[1])
    local entry = reply[2][1]
    if not entry then return false end
    local fields = entry[2]
    local id = fields[2]
    local job_state = call('HMGET', job_key(id), 'st', 'a', 'e')
    if job_state[1] == 'running' or job_state[1] == 'done' then
      call('HSET', job_key(id), 'w', worker)
      call('HINCRBY', job_key(id), 'x', 1)
      return taken_reply(id, fields)
    end
    if job_state[1] then -- cancelled, and its worker died before it noticed
      call('HINCRBY', account_key(job_state[2]), 'running', -1)
      call('HSET', job_key(id), 'w', '')
      note_idle(job_state[2])
    end
    drop(entry[1])
  end
  return false
end

-- Create the group of workers if it is missing, and once an hour delete the workers that ended long ago.
local function prepare()
  local meta = call('HMGET', base .. 'meta', 'group', 'tidied')
  if not meta[1] then
    redis.pcall('XGROUP', 'CREATE', KEYS[1], 'workers', '0')
    call('HSET', base .. 'meta', 'group', 1)
  end
  if now - number(meta[2]) > HOUR then
    call('HSET', base .. 'meta', 'tidied', now)
    for _, worker in ipairs(call('XINFO', 'CONSUMERS', KEYS[1], 'workers')) do -- name, NAME, pending, COUNT, idle, MS
      if worker[4] == 0 and worker[6] * 1000 > HOUR then
        call('XGROUP', 'DELCONSUMER', KEYS[1], 'workers', worker[2])
      end
    end
  end
end

local operations = {}

-- id, account, lane, digest, priority, tokens, microseconds until its deadline (0: none), caller, model, path, body,
-- and the bounds: jobs, bytes, user_jobs, user_bytes
operations['submit'] = function(id, account, lane, digest, priority, tokens, deadline, caller, model, path, body, ...)
  expire()
  local job_state = call('HMGET', job_key(id), 'st', 'g')
  if job_state[1] then
    if job_state[2] ~= digest then return {'conflict'} end
    return job_reply(id, 1)
  end
  local used = call('HMGET', base .. 'meta', 'jobs', 'bytes')
  local account_state = call('HMGET', account_key(account), 'jobs', 'bytes')
  local bounds = {...}
  if number(account_state[1]) + 1 > tonumber(bounds[3]) then return {'full', 'user_jobs'} end
  if number(account_state[2]) + #body > tonumber(bounds[4]) then return {'full', 'user_bytes'} end
  if number(used[1]) + 1 > tonumber(bounds[1]) then return {'full', 'jobs'} end
  if number(used[2]) + #body > tonumber(bounds[2]) then return {'full', 'bytes'} end
  local deadline_us = 0
  if deadline ~= '0' then
    deadline_us = now + deadline
    call('ZADD', base .. 'deadlines', deadline_us, id)
  end
  local entry = call('XADD', KEYS[1], '*', 'id', id, 'c', caller, 'm', model, 'path', path, 'body', body)
  call('HSET', job_key(id), 'i', id, 'st', 'waiting', 'e', entry, 'l', lane, 'a', account, 'p', priority, 'k', tokens,
    's', now, 'd', deadline_us, 'h', now, 'n', 0, 'x', 0, 'g', digest, 'y', #body, 'c', caller, 'm', model, 'w', '')
  add(account)
  use(account, 1, #body)
  lane_of(lane, account, priority, now, 0)
  call('RPUSH', list_key(lane), id)
  call('HINCRBY', lane_key(lane), 'tokens', tokens)
  rescore(lane)
  call('HINCRBY', base .. 'meta', 'waiting', 1)
  publish('submitted', id)
  return job_reply(id, 0)
end

-- worker
operations['take'] = function(worker)
  expire()
  if call('EXISTS', KEYS[1]) == 0 then return {'nothing', -1} end
  prepare()
  local old = reclaim(worker)
  if old then return old end
  for _, lane in ipairs(call('ZRANGEBYSCORE', base .. 'parked', '-inf', now, 'LIMIT', 0, SOME)) do unpark(lane) end
  local claimed = {}
  for _, claim in ipairs(claims()) do claimed[claim[1]] = claim end
  for _ = 1, 10 * SOME do
    local first = call('ZRANGE', base .. 'ready', 0, 0, 'WITHSCORES')
    local lane = first[1]
    if not lane then break end
    local lane_state = call('HMGET', lane_key(lane), 'a', 'since', 'refusals', 'scope', 'score', 'promised')
    local claim = claimed[lane_state[4]]
    if claim and claim[2] < tonumber(lane_state[5]) then
      park_until(lane, claim[3], claim[1])
    else
      local account, since = lane_state[1], tonumber(lane_state[2])
      local id = call('LPOP', list_key(lane))
      local job = call('HMGET', job_key(id), 'k', 'e')
      unclaim(lane)
      call('HSET', lane_key(lane), 'since', math.max(now, since), 'refusals', 0, 'promised', 0)
      call('HINCRBY', account_key(account), 'running', 1)
      removed(lane, account, job[1])
      count(account, job[1])
      call('HINCRBY', base .. 'meta', 'waiting', -1)
      call('ZREM', base .. 'deadlines', id)
      local entries = call('XCLAIM', KEYS[1], 'workers', worker, 0, job[2], 'FORCE')
      call('HSET', job_key(id), 'st', 'running', 'w', worker, 't', now, 'q', since, 'sc', lane_state[5],
        'rf', lane_state[3], 'pr', lane_state[6], 'wk', call('HGET', base .. 'meta', 'wakes') or 0)
      call('HINCRBY', job_key(id), 'x', 1)
      call('LPUSH', base .. 'started', format('%.0f', now))
      call('LTRIM', base .. 'started', 0, RATED - 1)
      publish('taken', id)
      return taken_reply(id, entries[1][2])
    end
  end
  local next_us
  for _, key in ipairs({'parked', 'deadlines'}) do
    local due_us = call('ZRANGE', base .. key, 0, 0, 'WITHSCORES')[2]
    if due_us and (not next_us or tonumber(due_us) < next_us) then next_us = tonumber(due_us) end
  end
  local after = next_us and math.max(0, next_us - now) or -1
  if call('XPENDING', KEYS[1], 'workers')[1] > 0 then -- a worker that has jobs may die
    local half = lease_ms * 500
    if after < 0 or half < after then after = half end
  end
  return {'nothing', after}
end

-- worker, id, microseconds to wait, scope, 1 or 0: whether it was refused, its hold settled, its provider failed; and
-- the number of its hold
operations['park'] = function(worker, id, after, scope, refused, settled, failed, hold)
  if was_left(id, worker, hold) then return {'parked'} end
  local job_state = call('HMGET', job_key(id), 'st', 'w', 'l', 'a', 'p', 'k', 'q', 'rf', 'e', 'd', 'pr', 'wk')
  if job_state[1] ~= 'running' or job_state[2] ~= worker then return {'lost'} end
  if settled == '1' then leave(id, worker, hold) end
  if refused == '1' and number(call('ZSCORE', base .. 'woken', scope)) > number(job_state[12]) then
    after, scope, refused = 0, '', '0'
  end
  local lane, account, since, refusals = job_state[3], job_state[4], tonumber(job_state[7]), tonumber(job_state[8])
  call('HSET', job_key(id), 'st', 'waiting', 'w', '', 't', 0, 'x', 0)
  call('HINCRBY', job_key(id), 'h', settled)
  call('HINCRBY', job_key(id), 'n', failed)
  call('XACK', KEYS[1], 'workers', job_state[9])
  call('HINCRBY', base .. 'meta', 'waiting', 1)
  call('HINCRBY', account_key(account), 'running', -1)
  joined(account)
  lane_of(lane, account, job_state[5], since, refusals)
  local lane_state = call('HMGET', lane_key(lane), 'since', 'refusals', 'promised')
  refusals = math.max(lane_state[2], refusals)
  local promised = math.max(lane_state[3], job_state[11])
  call('HSET', lane_key(lane), 'since', math.min(lane_state[1], since), 'refusals', refusals, 'promised', promised)
  call('LPUSH', list_key(lane), id)
  call('HINCRBY', lane_key(lane), 'tokens', job_state[6])
  count(account, -job_state[6])
  unpark(lane)
  local until_us = now + math.max(1, after)
  park_until(lane, until_us, scope)
  if refused == '1' and now >= promised then
    refusals = refusals + 1
    call('HSET', lane_key(lane), 'refusals', refusals, 'promised', until_us)
  end
  if scope ~= '' and refused == '1' and refusals >= STRICT then
    local score = number(call('HGET', lane_key(lane), 'score'))
    local holder = claim_of(scope)
    local other = holder and call('HGET', lane_key(holder), 'score')
    other = other and tonumber(other)
    if not other or holder == lane or score < other or (score == other and lane < holder) then
      call('HSET', base .. 'claims', scope, lane .. '|' .. format('%.0f', until_us))
    end
  end
  if job_state[10] ~= '0' then call('ZADD', base .. 'deadlines', job_state[10], id) end
  publish('parked', id)
  return {'parked'}
end

-- worker, id; the reply has the numbers of the job's next hold and of the former hold, which is to be ended
operations['renew'] = function(worker, id)
  local job_state = call('HMGET', job_key(id), 'st', 'w')
  if job_state[1] ~= 'running' or job_state[2] ~= worker then return {'lost'} end
  local former = call('HGET', job_key(id), 'h')
  call('HSET', job_key(id), 'fo', former)
  return {'renewed', call('HINCRBY', job_key(id), 'h', 1), former}
end

-- worker, id, state, answer, error, limit, tokens that it used ("": as charged), 1 if it is settled, the number of its
-- hold, and scopes
operations['finish'] = function(worker, id, state, answer, reason, limit, tokens, settled, hold, ...)
  if was_left(id, worker, hold) then return {'was ended'} end
  local job_state = call('HMGET', job_key(id), 'st', 'w', 'a', 'k', 'e')
  if not job_state[1] or job_state[2] ~= worker then return {'lost'} end
  if job_state[1] == 'done' then return {'was ended'} end
  local account, used = job_state[3], tonumber(tokens) or tonumber(job_state[4])
  call('HINCRBY', account_key(account), 'running', -1)
  count(account, used - job_state[4])
  note_idle(account)
  call('HSET', job_key(id), 'k', used)
  for _, scope in ipairs({...}) do wake_scope(scope) end
  local is_first = job_state[1] == 'running'
  if is_first then
    call('HSET', job_key(id), 'r', answer, 'er', reason, 'li', limit)
    end_(id, state)
  end
  if not is_first or settled == '1' then
    leave(id, worker, hold)
    call('HSET', job_key(id), 'w', '')
    drop(job_state[5])
  end
  publish('ended', id)
  return {is_first and 'ended' or 'was ended'}
end

-- worker, id
operations['release'] = function(worker, id)
  local job_state = call('HMGET', job_key(id), 'w', 'e')
  if job_state[1] == worker then
    call('HSET', job_key(id), 'w', '')
    drop(job_state[2])
  end
  return {'released'}
end

-- scopes
operations['wake'] = function(...)
  for _, scope in ipairs({...}) do wake_scope(scope) end
  publish('freed', '')
  return {'woken'}
end

-- worker, ids; the reply has for each "lost", "cancelled" or ""
operations['keep'] = function(worker, ...)
  local reasons = {}
  for index, id in ipairs({...}) do
    local job_state = call('HMGET', job_key(id), 'st', 'w', 'e')
    if job_state[2] ~= worker then
      reasons[index] = 'lost'
    else
      call('XCLAIM', KEYS[1], 'workers', worker, 0, job_state[3], 'JUSTID')
      reasons[index] = job_state[1] == 'cancelled' and 'cancelled' or ''
    end
  end
  return reasons
end

-- id
operations['cancel'] = function(id)
  expire()
  local state = call('HGET', job_key(id), 'st')
  if state == 'waiting' then
    withdraw(id, 'cancelled', '')
  elseif state == 'running' then
    end_(id, 'cancelled')
    publish('cancelled', id)
  end
  return job_reply(id, 0)
end

-- id
operations['get'] = function(id)
  expire()
  return job_reply(id, 0)
end

-- id; the reply is the state, jobs before it, jobs that wait, microseconds until its lane may try again, and of the
-- latest starts the microseconds since the first, and their number
operations['position'] = function(id)
  expire()
  local job_state = call('HMGET', job_key(id), 'st', 'l')
  local waiting = number(call('HGET', base .. 'meta', 'waiting'))
  if job_state[1] ~= 'waiting' then return {job_state[1] or '', 0, waiting, 0, 0, 0} end
  local lane = job_state[2]
  local state = call('HMGET', lane_key(lane), 'score', 'until')
  local score, before = tonumber(state[1]), call('LPOS', list_key(lane), id)
  for _, other in ipairs(before > 0 and call('LRANGE', list_key(lane), 0, before - 1) or {}) do
    score = score + call('HGET', job_key(other), 'k') * 1000
  end
  for _, other in ipairs(call('ZRANGEBYSCORE', base .. 'all', '-inf', format('(%.0f', score), 'LIMIT', 0, 10 * SOME)) do
    if other ~= lane then
      local length = call('LLEN', list_key(other))
      local sums = call('HMGET', lane_key(other), 'tokens', 'score')
      local mean_score = math.max(1, math.floor(sums[1] * 1000 / length))
      before = before + math.min(length, math.ceil((score - sums[2]) / mean_score))
    end
  end
  local started = call('LRANGE', base .. 'started', 0, -1)
  local since = #started > 0 and now - started[#started] or 0
  local after = state[2] ~= '0' and math.max(0, state[2] - now) or 0
  return {'waiting', math.min(before, waiting - 1), waiting, after, since, #started}
end

return operations[operation](unpack(ARGV, 7))
