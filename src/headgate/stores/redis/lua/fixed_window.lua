-- Fixed window, aligned to the Unix epoch: the twin of algorithms/fixed_window.py.
-- State is (window, count), nil for a key never seen.

--@ read
local window, count, expires_s
local former = false
--@ include hash_io.fetch
if value then
  local numbers
  window, count, expires_s, numbers = unpack('<ddI4c15', value)
  former = numbers ~= mark
end

--@ roll
local index = math.floor(now / period)
if window == nil or index > window then
  window, count = index, 0
elseif window - index > 2 then -- no clock steps back that far
  window = index
  if mode == HIT then -- stored, so that it counts from this moment on
    --@ include fixed_window.adopt
  end
end

--@ admit
if cost ~= 0 and count + cost > quota then
  if cost > quota then
    wait = NEVER
  else
    wait = (window + 1) * period - now
  end
end

--@ charge
count = count + cost

--@ measure
if count ~= 0 then reset_after = (window + 1) * period - now end
if count < quota then remaining = quota - count end
next_after = reset_after

--@ convert
local former_unit_us, _, former_period = unpack('<BI7I7', value, 21)
former_unit_us = 10 ^ former_unit_us
if former_period ~= period or former_unit_us ~= unit_us then
  local index = math.floor(math.floor(now_us / former_unit_us) / former_period)
  if index > window then
    window, count = index, 0
  elseif window - index > 2 then
    window = index
  end
  if count == 0 then
    window, count = nil, nil
  else
    local moment_us = math.max(now_us, window * former_period * former_unit_us)
    window, count = math.floor(math.floor(moment_us / unit_us) / period), math.min(count, LARGEST)
  end
end

--@ give_back
if window == math.floor(earliest / period) then count = math.max(0, count - cost) end
if count == 0 then
  call('HDEL', key, field)
else
  --@ include fixed_window.write
end

--@ mark
marked = window

--@ settle
if window == marked then count = math.max(0, count + change) end

--@ fits
if window == marked and count + change > LARGEST then fits = false end

--@ write
local state = pack('<ddI4c15', window, count, expires_s, mark)
--@ include hash_io.put

--@ adopt
if window then
  local reset_after = (2 * period + math.max(0, window * period - now)) * unit_us
  --@ include steps.keep
else
  --@ include hash_io.drop
end

--@ numbers
local unit_us, quota, period = unpack('<BI7I7', mark)

--@ save
saved[at], saved[at + 1], saved[at + 2] = window, count, expires_s

--@ load
local window, count, expires_s = saved[at], saved[at + 1], saved[at + 2]
local former = false

--@ leave
if expires_s or count ~= 0 then
  --@ include steps.keep
end
