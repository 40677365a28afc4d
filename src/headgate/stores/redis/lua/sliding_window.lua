-- Sliding window counter: the twin of algorithms/sliding_window.py.
-- The share of the last window is rounded down to integer units.
-- State is (window, current, previous), nil for a key never seen.

--@ read
local window, current, previous, expires_s
local former = false
--@ include hash_io.fetch
if value and #value % 2 == 1 then
  local numbers
  window, current, previous, expires_s, numbers = unpack('<dddI4c15', value)
  former = numbers ~= mark
elseif value then
  former = true -- a log
end

--@ roll
local index = math.floor(now / period)
if window == nil then
  window, current, previous = index, 0, 0
elseif index == window + 1 then
  window, current, previous = index, 0, current
elseif index > window then
  window, current, previous = index, 0, 0
elseif window - index > 2 then -- no clock steps back that far
  window = index + 1
  if mode == HIT then -- stored, so that it counts from this moment on
    --@ include sliding_window.adopt
  end
end
--@ include sliding_window.to_come

--@ admit
if cost ~= 0 then
  if cost > quota then
    wait = NEVER
  elseif previous * left >= (quota - current - cost + 1) * period then
    if current + cost <= quota then
      wait = left - math.floor(((quota - current - cost + 1) * period - 1) / previous) + behind
    else
      wait = left + math.max(0, period - math.floor(((quota - cost + 1) * period - 1) / current)) + behind
    end
  end
end

--@ charge
current = current + cost

--@ measure
local room = quota - current - math.floor(previous * left / period)
if room > 0 then remaining = room end
if current ~= 0 then
  reset_after = period + left + behind
elseif previous ~= 0 then
  reset_after = left + behind
end
--@ include sliding_window.next

--@ next
if reset_after ~= 0 then -- one more than remains, as admitted above
  local more = remaining + 1
  if more > quota then
    next_after = reset_after
  elseif current + more <= quota then
    next_after = left - math.floor(((quota - current - more + 1) * period - 1) / previous) + behind
  else
    next_after = left + math.max(0, period - math.floor(((quota - more + 1) * period - 1) / current)) + behind
  end
end

--@ convert
if #value % 2 == 0 then
  --@ include sliding_window.of_log
else
  --@ include sliding_window.of_counter
end

--@ of_counter
local former_unit_us, _, former_period = unpack('<BI7I7', value, 29)
former_unit_us = 10 ^ former_unit_us
if former_period ~= period or former_unit_us ~= unit_us then
  --@ include sliding_window.counted
  if counted == 0 then
    window, current, previous = nil, nil, nil
  else
    local moment = math.floor((former_now + behind) * former_unit_us / unit_us)
    window, current, previous = math.floor(moment / period), math.min(counted, math.floor(LARGEST / period)), 0
  end
end

--@ counted
-- How much of a state still counts under the numbers that it was written under.
local former_now = math.floor(now_us / former_unit_us)
local index = math.floor(former_now / former_period)
if index == window + 1 then
  window, current, previous = index, 0, current
elseif index > window then
  window, current, previous = index, 0, 0
elseif window - index > 2 then
  window = index + 1
end
local to_come = window * former_period + former_period - former_now
local behind = math.max(0, to_come - former_period)
local counted = current + math.floor(previous * (to_come - behind) / former_period)

--@ of_log
-- The twin of sliding_conversion.counter_of_log.
local now, kept_period, expires_s, former = now_us, period * unit_us
local offset, base, wide, length, before, swept, from, to, skip, copied, corrected = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
local newest, newest_total = nil, nil
--@ include sliding_log.parse
local _, _, former_period = unpack('<BI7I7', value, #value - 14)
kept_period = math.min(kept_period, former_period)
--@ include sliding_log.form
local start, first, first_total, last, total, fetched = 0, nil, 0, nil, 0, ''
if length > 0 then
  --@ include sliding_log.trim
end
if last then
  local most = math.floor(LARGEST / period)
  local counted = math.min((total - base) % sums, most)
  last = math.ceil(last / unit_us)
  window, previous = math.floor(last / period), 0
  local to_come = math.min(period, period - last % period + 1)
  local raised = math.ceil(counted * period / to_come)
  if raised <= quota or (counted >= quota and raised <= most) then
    current = raised
  else
    window, current = window + 1, counted
  end
end
if mode == HIT then
  --@ include sliding_log.sweep_all
  if not last then call('HDEL', key, field) end
end

--@ give_back
local charged = math.floor(earliest / period)
if window == charged then
  current = math.max(0, current - cost)
elseif window == charged + 1 then
  previous = math.max(0, previous - cost)
end
if current == 0 and previous == 0 then
  call('HDEL', key, field)
else
  --@ include sliding_window.write
end

--@ mark
marked = window

--@ settle
if window == marked then
  current = math.max(0, current + change)
elseif window == marked + 1 then
  previous = math.max(0, previous + change)
end

--@ fits
if (window == marked and (current + change) * period > LARGEST)
  or (window == marked + 1 and (previous + change) * period > LARGEST) then fits = false end

--@ write
local state = pack('<dddI4c15', window, current, previous, expires_s, mark)
--@ include hash_io.put

--@ adopt
if window then
  local reset_after = (2 * period + math.max(0, window * period - now)) * unit_us
  --@ include steps.keep
else
  --@ include hash_io.drop
end

--@ to_come
local left, behind = window * period + period - now, 0
if left > period then left, behind = period, left - period end

--@ numbers
local unit_us, quota, period = unpack('<BI7I7', mark)

--@ save
saved[at], saved[at + 1], saved[at + 2], saved[at + 3] = window, current, previous, expires_s

--@ load
local window, current, previous, expires_s = saved[at], saved[at + 1], saved[at + 2], saved[at + 3]
local former = false
--@ include sliding_window.to_come

--@ leave
if expires_s or current ~= 0 or previous ~= 0 then
  --@ include steps.keep
end
