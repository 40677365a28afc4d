-- Sliding window counter: the twin of algorithms/sliding_window.py.
-- The share of the last window is rounded down to whole units. State is (window, current, previous), nil for a key never seen.

--@ read
local window, current, previous, expires_s
local former = false
--@ include hash.fetch
if value then
  local numbers
  window, current, previous, expires_s, numbers = unpack('<dddI4c15', value)
  former = numbers ~= mark
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
local former_unit_us, _, former_period = unpack('<BI7I7', value, 29)
former_unit_us = 10 ^ former_unit_us
if former_period ~= period or former_unit_us ~= unit_us then
  local former_now = math.floor(now_us / former_unit_us)
  local index = math.floor(former_now / former_period)
  if index == window + 1 then
    window, current, previous = index, 0, current
  elseif index > window then
    window, current, previous = index, 0, 0
  elseif window - index > 2 then
    window = index + 1
  end
  local left, behind = window * former_period + former_period - former_now, 0
  if left > former_period then left, behind = former_period, left - former_period end
  local used = current + math.floor(previous * left / former_period)
  if used == 0 then
    window, current, previous = nil, nil, nil
  else
    local moment = math.floor((former_now + behind) * former_unit_us / unit_us)
    window, current, previous = math.floor(moment / period), math.min(used, math.floor(LARGEST / period)), 0
  end
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

--@ write
local state = pack('<dddI4c15', window, current, previous, expires_s, mark)
--@ include hash.put

--@ adopt
if window then
  local reset_after = (2 * period + math.max(0, window * period - now)) * unit_us
  --@ include shell.keep
end

--@ to_come
local left, behind = window * period + period - now, 0
if left > period then left, behind = period, left - period end

--@ numbers
local unit_us, quota, period = unpack('<BI7I7', mark)

--@ save
kept[at], kept[at + 1], kept[at + 2], kept[at + 3] = window, current, previous, expires_s

--@ load
local window, current, previous, expires_s = kept[at], kept[at + 1], kept[at + 2], kept[at + 3]
local former = false
--@ include sliding_window.to_come
