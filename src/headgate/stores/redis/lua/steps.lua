-- The common parts of the shells: the twin of algorithms/transition.py.

--@ moment
local now_us = given_us
if now_us < 0 then
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

--@ no_state
-- The value was not written by a script: loops over such a number might not end.
return redis.error_reply('NOSTATE a value is none of a limit')

--@ numbers
--@ include ALGORITHM.numbers
local now = now_us
if unit_us == 0 then
  unit_us = 1
else
  unit_us = 10 ^ unit_us
  now = math.floor(now_us / unit_us)
end

--@ adopt
if former then
  --@ include ALGORITHM.convert
  if mode == HIT then
    --@ include ALGORITHM.adopt
  end
end

--@ admit
local wait, delay = 0, 0
--@ include ALGORITHM.admit
--@ include ALGORITHM.delay
if unit_us ~= 1 then
  if wait > 0 then wait = (now + wait) * unit_us - now_us end
  if delay > 0 then delay = (now + delay) * unit_us - now_us end
end
if wait > LARGEST then wait = LARGEST end
if delay ~= 0 then
  if delay > LARGEST then delay = LARGEST end
  if wait >= 0 and max_delay_us >= 0 and delay - max_delay_us > wait then wait = delay - max_delay_us end
end

--@ measure
--@ include ALGORITHM.measure
if unit_us ~= 1 then
  if reset_after > 0 then reset_after = (now + reset_after) * unit_us - now_us end
  if next_after > 0 then next_after = (now + next_after) * unit_us - now_us end
end
if reset_after > LARGEST then reset_after = LARGEST end
if next_after > LARGEST then next_after = LARGEST end

--@ no_next
-- Nothing: settlements do not report when one more unit is free.

--@ keep
--@ include steps.expire
--@ include ALGORITHM.write

--@ expire
-- A state expires some time after it has become equal to no state, so that the next ones need no new expiry.
local needed_s, fresh = (now_us + reset_after) / 1000000, false
if given_us >= 0 then
  fresh, expires_s = true, call('TIME')[1] + 86400 -- keys expire by another clock
elseif expires_s == nil or expires_s <= needed_s then
  fresh, expires_s = true, math.min(math.ceil(needed_s + reset_after / 8000000) + 1, 4294967295)
end

--@ keep_former
if former and mode == HIT then
  --@ include ALGORITHM.keep_former
end

--@ finish
-- Charge a limit that admits, where the operation is allowed, and measure what is left.
if allowed and wait == 0 and cost ~= 0 then
  --@ include ALGORITHM.charge
  --@ include steps.measure
  if mode == HIT then
    --@ include steps.keep
  end
else
  delay = 0
  --@ include steps.measure
  --@ include steps.keep_former
end
