-- Token bucket in steps: the twin of algorithms/stepwise.py.
-- State is (tokens, stepped), nil for a key never seen, which is a full bucket.

--@ read
local tokens, stepped, expires_s
local former = false
--@ include hash_io.fetch
if value then
  local numbers
  tokens, stepped, expires_s, numbers = unpack('<ddI4c22', value)
  former = numbers ~= mark
end

--@ roll
if tokens == nil or tokens >= quota then
  tokens, stepped = quota, now
elseif now >= stepped + period then
  --@ include stepwise.step
elseif stepped - now > math.ceil(quota / refill) * period then -- no clock steps back that far
  stepped = now
  if mode == HIT then -- stored, so that it counts from this moment on
    --@ include stepwise.adopt
  end
end

--@ step
local steps = math.floor((now - stepped) / period)
tokens, stepped = tokens + refill * steps, stepped + period * steps
if tokens >= quota then tokens, stepped = quota, now end

--@ admit
if cost > quota then
  wait = NEVER
elseif cost > tokens then
  wait = stepped + math.ceil((cost - tokens) / refill) * period - now
end

--@ charge
tokens = tokens - cost

--@ measure
if tokens < quota then
  remaining = tokens
  reset_after = stepped + math.ceil((quota - tokens) / refill) * period - now
  next_after = stepped + period - now
else
  remaining = quota
end

--@ convert
local former_unit_us, former_quota, former_period, former_refill = unpack('<BI7I7I7', value, 21)
former_unit_us = 10 ^ former_unit_us
local former_now = math.floor(now_us / former_unit_us)
local was_tokens, was_stepped = tokens, stepped
if tokens < former_quota then
  if former_now >= stepped + former_period then
    local steps = math.floor((former_now - stepped) / former_period)
    tokens, stepped = tokens + former_refill * steps, stepped + former_period * steps
  elseif stepped - former_now > math.ceil(former_quota / former_refill) * former_period then
    stepped = former_now
  end
end
if tokens >= former_quota then
  tokens, stepped = nil, nil
elseif former_period == period and former_refill == refill and former_unit_us == unit_us then
  tokens, stepped = was_tokens, was_stepped
else
  tokens = math.max(-quota, math.min(tokens, quota))
  stepped = math.ceil(stepped * former_unit_us / unit_us)
end

--@ give_back
if tokens >= quota then
  tokens, stepped = quota, now
elseif now >= stepped + period then
  --@ include stepwise.step
elseif stepped - now > math.ceil(quota / refill) * period then
  stepped = now
end
local steps = 0 -- none happens within a decision
if not exact then steps = math.ceil(math.max(0, stepped - earliest) / period) end
local given = math.min(quota - tokens, math.max(0, cost - refill * steps))
tokens = tokens + given
if given > 0 and call('HGET', key, '+') then
  local times, refunds = 0, 0
  --@ include token_bucket.refunds
  --@ include token_bucket.refund
end
if tokens >= quota then
  call('HDEL', key, field)
else
  --@ include stepwise.write
end

--@ mark
marked, missing_then = stepped, quota - tokens
--@ include token_bucket.refunds

--@ settle
-- Missing tokens are charged now. Of unused ones, only those are returned that cannot have been refilled since the
-- hold: the tokens that were missing then, minus what the steps since have refilled and what was given back. A charge
-- that is undone before any other change is as if it had never been, as in a token bucket.
if change > 0 then
  tokens = tokens - change
else
  local steps = math.ceil(math.max(0, stepped - marked) / period)
  local left = missing_then - refill * steps - ((times - times_then) * LARGEST + refunds - refunds_then)
  local alone = undoes and times == times_then and refunds == refunds_then and quota - tokens == math.max(0, left)
  local given = math.max(0, math.min(-change, left, quota - tokens))
  tokens = tokens + given
  if given > 0 and not alone then
    --@ include token_bucket.refund
  end
end

--@ fits
if tokens - change < -math.floor(LARGEST / period) then fits = false end

--@ write
local state = pack('<ddI4c22', tokens, stepped, expires_s, mark)
--@ include hash_io.put

--@ adopt
if tokens then
  local reset_after = (math.ceil((quota - tokens) / refill) * period + math.max(0, stepped - now)) * unit_us
  --@ include steps.keep
else
  --@ include hash_io.drop
end

--@ numbers
local unit_us, quota, period, refill = unpack('<BI7I7I7', mark)

--@ save
saved[at], saved[at + 1], saved[at + 2] = tokens, stepped, expires_s

--@ load
local tokens, stepped, expires_s = saved[at], saved[at + 1], saved[at + 2]
local former = false

--@ begin
--@ include token_bucket.begin

--@ leave
if expires_s or tokens < quota then
  --@ include steps.keep
end
