-- The jobs of a queue on Redis: what `memory.py` and `lanes.py` do, by the same names, atomically.
--
-- KEYS[1]  the stream of jobs; all other keys have its name without "jobs" before them, and so its slot
-- ARGV     the operation; the moment in microseconds, "" for the server's; ageing_tokens; priority_tokens; the
--          milliseconds that a result is kept; those after which a worker that says nothing is dead; then what the
--          operation takes, see each
--
-- A job is an entry of the stream, with its body, from `submit` until it has ended. While a worker has it, it is pending
-- for that consumer of the group "workers", and XAUTOCLAIM finds those whose worker is dead. How a job stands is a hash.
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
local SHOWN = {'st', 'c', 'm', 'p', 'k', 's', 't', 'z', 'd', 'n', 'r', 'er', 'li', 'i'}

local function job_key(id) return base .. 'job:' .. id end
local function lane_key(lane) return base .. 'lane:' .. lane end
local function list_key(lane) return base .. 'in:' .. lane end
local function account_key(account) return base .. 'of:' .. account end

local function tell(kind, id)
  call('XADD', base .. 'news', 'MAXLEN', '~', NEWS, '*', 'k', kind, 'j', id)
end

local function number(text) return tonumber(text or 0) or 0 end

-- Where a lane stands changes: by its user's counter, or since when it waits.
local function rescore(lane)
  local own = call('HMGET', lane_key(lane), 'a', 'p', 'since', 'until')
  local counter = number(call('HGET', account_key(own[1]), 'counter'))
  local score = counter * 1000 + ageing * math.floor(own[3] / 1000) - own[2] * priority_tokens * 1000
  call('HSET', lane_key(lane), 'score', score)
  call('ZADD', base .. 'all', score, lane)
  if own[4] == '0' then call('ZADD', base .. 'ready', score, lane) end
end

local function count(account, tokens)
  local counter = call('HINCRBY', account_key(account), 'counter', format('%.0f', tokens))
  for _, lane in ipairs(call('SMEMBERS', base .. 'lanes:' .. account)) do rescore(lane) end
  if call('ZSCORE', base .. 'active', account) then call('ZADD', base .. 'active', counter, account) end
  if call('ZSCORE', base .. 'left', account) then call('ZADD', base .. 'left', counter, account) end
end

local function leave_alone(lane, moment, scope)
  call('HSET', lane_key(lane), 'until', moment, 'scope', scope)
  if scope ~= '' then call('SADD', base .. 'scope:' .. scope, lane) end
  call('ZREM', base .. 'ready', lane)
  call('ZADD', base .. 'parked', moment, lane)
end

local function let_go(lane)
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

-- Claims of limits: scope, score and moment of each.
local function claims()
  local found = {}
  for _, scope in ipairs(call('HKEYS', base .. 'claims')) do
    local lane, moment = claim_of(scope)
    local score = call('HGET', lane_key(lane), 'score')
    if not score or moment <= now then
      call('HDEL', base .. 'claims', scope)
    else
      found[#found + 1] = {scope, tonumber(score), moment}
    end
  end
  return found
end

local function left_if_idle(account)
  local own = call('HMGET', account_key(account), 'waiting', 'running', 'counter')
  if number(own[1]) == 0 and number(own[2]) == 0 then call('ZADD', base .. 'left', own[3] or 0, account) end
end

-- A job of so many tokens was taken out of a lane.
local function removed(lane, account, tokens)
  call('HINCRBY', lane_key(lane), 'tokens', -tokens)
  local waiting = call('HINCRBY', account_key(account), 'waiting', -1)
  if call('EXISTS', list_key(lane)) == 0 then
    let_go(lane)
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
    left_if_idle(account)
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

-- A user that comes back is lifted to the least of the active; users that would be lifted are forgotten.
local function add(account)
  if number(call('HGET', account_key(account), 'waiting')) == 0 then
    local least = call('ZRANGE', base .. 'active', 0, 0, 'WITHSCORES')[2] or call('HGET', base .. 'meta', 'floor')
    least = number(least)
    for _, gone in ipairs(call('ZRANGEBYSCORE', base .. 'left', '-inf', least, 'LIMIT', 0, SOME)) do
      call('ZREM', base .. 'left', gone)
      call('DEL', account_key(gone))
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
  if first then let_go(first) end
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
  local own = call('HMGET', job_key(id), 'a', 'y')
  call('HSET', job_key(id), 'st', state, 'z', now)
  call('PEXPIRE', job_key(id), results_ms)
  use(own[1], -1, own[2])
end

local function take_out(id, state, why)
  local own = call('HMGET', job_key(id), 'l', 'a', 'k', 'e')
  local lane = own[1]
  local is_first = call('LINDEX', list_key(lane), 0) == id
  call('LREM', list_key(lane), 1, id)
  if is_first and call('HGET', lane_key(lane), 'until') ~= '0' then
    unclaim(lane)
    let_go(lane)
  end
  removed(lane, own[2], own[3])
  call('HINCRBY', base .. 'meta', 'waiting', -1)
  call('ZREM', base .. 'deadlines', id)
  call('HSET', job_key(id), 'k', 0, 'er', why)
  end_(id, state)
  drop(own[4])
  tell('ended', id)
end

local function expire()
  for _, id in ipairs(call('ZRANGEBYSCORE', base .. 'deadlines', '-inf', now, 'LIMIT', 0, SOME)) do
    take_out(id, 'expired', 'it was not started before its deadline')
  end
end

local function shown(id, repeated)
  return {'job', repeated, call('HMGET', job_key(id), unpack(SHOWN))}
end

-- What a worker is told of a job that it has, and all claims.
local function handed(id, fields)
  local told = call('HMGET', job_key(id), 'st', 'h', 'n', 'x', 'q', 'sc', 'rf', 'pr', 'r', 'fo')
  local found = {}
  for _, claim in ipairs(claims()) do
    found[#found + 1] = claim[1]
    found[#found + 1] = format('%.0f', claim[2])
    found[#found + 1] = format('%.0f', claim[3] - now)
  end
  return {'taken', id, fields, told, found}
end

-- A job of a worker that is dead; false where there is none.
local function reclaim(worker)
  for _ = 1, SOME do
    local cursor = call('HGET', base .. 'meta', 'cursor') or '0-0'
    local came = call('XAUTOCLAIM', KEYS[1], 'workers', worker, lease_ms, cursor, 'COUNT', 1)
    call('HSET', base .. 'meta', 'cursor', came[1])
    local entry = came[2][1]
    if not entry then return false end
    local fields = entry[2]
    local id = fields[2]
    local own = call('HMGET', job_key(id), 'st', 'a', 'e')
    if own[1] == 'running' or own[1] == 'done' then
      call('HSET', job_key(id), 'w', worker)
      call('HINCRBY', job_key(id), 'x', 1)
      return handed(id, fields)
    end
    if own[1] then -- cancelled, and its worker died before it knew
      call('HINCRBY', account_key(own[2]), 'running', -1)
      call('HSET', job_key(id), 'w', '')
      left_if_idle(own[2])
    end
    drop(entry[1])
  end
  return false
end

-- The group of workers is there, and has not those for ever that ended long ago.
local function prepare()
  local known = call('HMGET', base .. 'meta', 'group', 'tidied')
  if not known[1] then
    redis.pcall('XGROUP', 'CREATE', KEYS[1], 'workers', '0')
    call('HSET', base .. 'meta', 'group', 1)
  end
  if now - number(known[2]) > HOUR then
    call('HSET', base .. 'meta', 'tidied', now)
    for _, worker in ipairs(call('XINFO', 'CONSUMERS', KEYS[1], 'workers')) do -- name, pending, idle: after each its own
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
  local known = call('HMGET', job_key(id), 'st', 'g')
  if known[1] then
    if known[2] ~= digest then return {'conflict'} end
    return shown(id, 1)
  end
  local used = call('HMGET', base .. 'meta', 'jobs', 'bytes')
  local own = call('HMGET', account_key(account), 'jobs', 'bytes')
  local most = {...}
  if number(own[1]) + 1 > tonumber(most[3]) then return {'full', 'user_jobs'} end
  if number(own[2]) + #body > tonumber(most[4]) then return {'full', 'user_bytes'} end
  if number(used[1]) + 1 > tonumber(most[1]) then return {'full', 'jobs'} end
  if number(used[2]) + #body > tonumber(most[2]) then return {'full', 'bytes'} end
  local moment = 0
  if deadline ~= '0' then
    moment = now + deadline
    call('ZADD', base .. 'deadlines', moment, id)
  end
  local entry = call('XADD', KEYS[1], '*', 'id', id, 'c', caller, 'm', model, 'path', path, 'body', body)
  call('HSET', job_key(id), 'i', id, 'st', 'waiting', 'e', entry, 'l', lane, 'a', account, 'p', priority, 'k', tokens,
    's', now, 'd', moment, 'h', 1, 'n', 0, 'x', 0, 'g', digest, 'y', #body, 'c', caller, 'm', model, 'w', '')
  add(account)
  use(account, 1, #body)
  lane_of(lane, account, priority, now, 0)
  call('RPUSH', list_key(lane), id)
  call('HINCRBY', lane_key(lane), 'tokens', tokens)
  rescore(lane)
  call('HINCRBY', base .. 'meta', 'waiting', 1)
  tell('submitted', id)
  return shown(id, 0)
end

-- worker
operations['take'] = function(worker)
  expire()
  if call('EXISTS', KEYS[1]) == 0 then return {'nothing', -1} end
  prepare()
  local old = reclaim(worker)
  if old then return old end
  for _, lane in ipairs(call('ZRANGEBYSCORE', base .. 'parked', '-inf', now, 'LIMIT', 0, SOME)) do let_go(lane) end
  local claimed = {}
  for _, claim in ipairs(claims()) do claimed[claim[1]] = claim end
  for _ = 1, 10 * SOME do
    local first = call('ZRANGE', base .. 'ready', 0, 0, 'WITHSCORES')
    local lane = first[1]
    if not lane then break end
    local own = call('HMGET', lane_key(lane), 'a', 'since', 'refusals', 'scope', 'score', 'promised')
    local claim = claimed[own[4]]
    if claim and claim[2] < tonumber(own[5]) then
      leave_alone(lane, claim[3], claim[1])
    else
      local account, since = own[1], tonumber(own[2])
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
      call('HSET', job_key(id), 'st', 'running', 'w', worker, 't', now, 'q', since, 'sc', own[5], 'rf', own[3],
        'pr', own[6], 'wk', call('HGET', base .. 'meta', 'wakes') or 0)
      call('HINCRBY', job_key(id), 'x', 1)
      call('LPUSH', base .. 'started', format('%.0f', now))
      call('LTRIM', base .. 'started', 0, RATED - 1)
      tell('taken', id)
      return handed(id, entries[1][2])
    end
  end
  local moment
  for _, key in ipairs({'parked', 'deadlines'}) do
    local next_ = call('ZRANGE', base .. key, 0, 0, 'WITHSCORES')[2]
    if next_ and (not moment or tonumber(next_) < moment) then moment = tonumber(next_) end
  end
  local after = moment and math.max(0, moment - now) or -1
  if call('XPENDING', KEYS[1], 'workers')[1] > 0 then -- a worker may die that has some
    local half = lease_ms * 500
    if after < 0 or half < after then after = half end
  end
  return {'nothing', after}
end

-- worker, id, microseconds to wait, scope, and 1 or 0: whether it was refused, its hold burnt, its provider failed
operations['park'] = function(worker, id, after, scope, refused, burnt, failed)
  local own = call('HMGET', job_key(id), 'st', 'w', 'l', 'a', 'p', 'k', 'q', 'rf', 'e', 'd', 'pr', 'wk')
  if own[1] ~= 'running' or own[2] ~= worker then return {'lost'} end
  if refused == '1' and number(call('ZSCORE', base .. 'woken', scope)) > number(own[12]) then
    after, scope, refused = 0, '', '0'
  end
  local lane, account, since, refusals = own[3], own[4], tonumber(own[7]), tonumber(own[8])
  call('HSET', job_key(id), 'st', 'waiting', 'w', '', 't', 0, 'x', 0)
  call('HINCRBY', job_key(id), 'h', burnt)
  call('HINCRBY', job_key(id), 'n', failed)
  call('XACK', KEYS[1], 'workers', own[9])
  call('HINCRBY', base .. 'meta', 'waiting', 1)
  call('HINCRBY', account_key(account), 'running', -1)
  joined(account)
  lane_of(lane, account, own[5], since, refusals)
  local held = call('HMGET', lane_key(lane), 'since', 'refusals', 'promised')
  refusals = math.max(held[2], refusals)
  local promised = math.max(held[3], own[11])
  call('HSET', lane_key(lane), 'since', math.min(held[1], since), 'refusals', refusals, 'promised', promised)
  call('LPUSH', list_key(lane), id)
  call('HINCRBY', lane_key(lane), 'tokens', own[6])
  count(account, -own[6])
  let_go(lane)
  local moment = now + math.max(1, after)
  leave_alone(lane, moment, scope)
  if refused == '1' and now >= promised then
    refusals = refusals + 1
    call('HSET', lane_key(lane), 'refusals', refusals, 'promised', moment)
  end
  if scope ~= '' and refused == '1' and refusals >= STRICT then
    local score = number(call('HGET', lane_key(lane), 'score'))
    local holder = claim_of(scope)
    local other = holder and call('HGET', lane_key(holder), 'score')
    other = other and tonumber(other)
    if not other or holder == lane or score < other or (score == other and lane < holder) then
      call('HSET', base .. 'claims', scope, lane .. '|' .. format('%.0f', moment))
    end
  end
  if own[10] ~= '0' then call('ZADD', base .. 'deadlines', own[10], id) end
  tell('parked', id)
  return {'parked'}
end

-- worker, id; the answer has the numbers of the hold that the job gets and of the former, which is to be ended
operations['renew'] = function(worker, id)
  local own = call('HMGET', job_key(id), 'st', 'w')
  if own[1] ~= 'running' or own[2] ~= worker then return {'lost'} end
  local former = call('HGET', job_key(id), 'h')
  call('HSET', job_key(id), 'fo', former)
  return {'renewed', call('HINCRBY', job_key(id), 'h', 1), former}
end

-- worker, id, state, answer, error, limit, tokens that it took ("": as charged), 1 where it is settled, and scopes
operations['finish'] = function(worker, id, state, answer, why, limit, tokens, settled, ...)
  local own = call('HMGET', job_key(id), 'st', 'w', 'a', 'k', 'e')
  if not own[1] or own[2] ~= worker then return {'lost'} end
  if own[1] == 'done' then return {'was ended'} end
  local account, took = own[3], tonumber(tokens) or tonumber(own[4])
  call('HINCRBY', account_key(account), 'running', -1)
  count(account, took - own[4])
  left_if_idle(account)
  call('HSET', job_key(id), 'k', took)
  for _, scope in ipairs({...}) do wake_scope(scope) end
  local is_first = own[1] == 'running'
  if is_first then
    call('HSET', job_key(id), 'r', answer, 'er', why, 'li', limit)
    end_(id, state)
  end
  if not is_first or settled == '1' then
    call('HSET', job_key(id), 'w', '')
    drop(own[5])
  end
  tell('ended', id)
  return {is_first and 'ended' or 'was ended'}
end

-- worker, id
operations['release'] = function(worker, id)
  local own = call('HMGET', job_key(id), 'w', 'e')
  if own[1] == worker then
    call('HSET', job_key(id), 'w', '')
    drop(own[2])
  end
  return {'released'}
end

-- scopes
operations['wake'] = function(...)
  for _, scope in ipairs({...}) do wake_scope(scope) end
  tell('freed', '')
  return {'woken'}
end

-- worker, ids; the answer has a word for each
operations['keep'] = function(worker, ...)
  local told = {}
  for number_, id in ipairs({...}) do
    local own = call('HMGET', job_key(id), 'st', 'w', 'e')
    if own[2] ~= worker then
      told[number_] = 'lost'
    else
      call('XCLAIM', KEYS[1], 'workers', worker, 0, own[3], 'JUSTID')
      told[number_] = own[1] == 'cancelled' and 'cancelled' or ''
    end
  end
  return told
end

-- id
operations['cancel'] = function(id)
  expire()
  local state = call('HGET', job_key(id), 'st')
  if state == 'waiting' then
    take_out(id, 'cancelled', '')
  elseif state == 'running' then
    end_(id, 'cancelled')
    tell('cancelled', id)
  end
  return shown(id, 0)
end

-- id
operations['get'] = function(id)
  expire()
  return shown(id, 0)
end

-- id; the answer is its state, jobs before it, jobs that wait, microseconds until its lane may ask, and since when the
-- last ones were started, and how many
operations['position'] = function(id)
  expire()
  local own = call('HMGET', job_key(id), 'st', 'l')
  local waiting = number(call('HGET', base .. 'meta', 'waiting'))
  if own[1] ~= 'waiting' then return {own[1] or '', 0, waiting, 0, 0, 0} end
  local lane = own[2]
  local told = call('HMGET', lane_key(lane), 'score', 'until')
  local score, before = tonumber(told[1]), call('LPOS', list_key(lane), id)
  for _, other in ipairs(before > 0 and call('LRANGE', list_key(lane), 0, before - 1) or {}) do
    score = score + call('HGET', job_key(other), 'k') * 1000
  end
  for _, other in ipairs(call('ZRANGEBYSCORE', base .. 'all', '-inf', format('(%.0f', score), 'LIMIT', 0, 10 * SOME)) do
    if other ~= lane then
      local length = call('LLEN', list_key(other))
      local of = call('HMGET', lane_key(other), 'tokens', 'score')
      local each = math.max(1, math.floor(of[1] * 1000 / length))
      before = before + math.min(length, math.ceil((score - of[2]) / each))
    end
  end
  local started = call('LRANGE', base .. 'started', 0, -1)
  local since = #started > 0 and now - started[#started] or 0
  local after = told[2] ~= '0' and math.max(0, told[2] - now) or 0
  return {'waiting', math.min(before, waiting - 1), waiting, after, since, #started}
end

return operations[operation](unpack(ARGV, 7))
