-- Calendar window: the twin of algorithms/calendar_window.py.
-- State is (start, ends, count), nil for a key never seen.
--
-- The borders around the caller's moment follow the limit's numbers, as doubles. They bound the window before that of
-- the caller's moment, that window, and the three after it. Where the server's moment is in none of the first three,
-- the script replies with it, as two doubles, and does nothing else: the caller repeats the call with the borders
-- around it. Without borders, when a caller that has another limit settles, the script can see that a window is over,
-- but not which one follows: where that is needed the reply is B, and nothing else is done.

--@ read
local start, ends, count, expires_s
local former = false
--@ include hash_io.fetch
if value then
  local numbers
  start, ends, count, expires_s, numbers = unpack('<dddI4c15', value)
  former = numbers ~= mark
end

--@ borders
-- After this section the current window begins at the first border and ends at the second.
local first, second, third, fourth, fifth, sixth = unpack('<dddddd', borders)
if now < first or now >= fourth then return pack('<dd', OUTSIDE, now_us) end
if now >= third then
  first, second, third, fourth = third, fourth, fifth, sixth
elseif now >= second then
  first, second, third, fourth = second, third, fourth, fifth
end

--@ roll
if borders ~= '' then
  --@ include calendar_window.borders
  if start == nil or now >= ends then
    start, ends, count = first, second, 0
  elseif start > third then -- no clock steps back that far
    start, ends = first, second
    if mode == HIT then -- stored, so that it counts from this moment on
      --@ include calendar_window.adopt
    end
  end
elseif start == nil or now >= ends then
  if cost ~= 0 then return 'B' end
  start, ends, count = 0, 0, 0
end

--@ admit
if cost ~= 0 and count + cost > quota then
  if cost > quota then
    wait = NEVER
  else
    wait = ends - now
  end
end

--@ charge
count = count + cost

--@ measure
if count ~= 0 then reset_after = ends - now end
if count < quota then remaining = quota - count end
next_after = reset_after

--@ convert
local _, _, former_period = unpack('<BI7I7', value, 29)
if former_period ~= period then
  if borders == '' then return 'B' end
  --@ include calendar_window.borders
  if count == 0 or now >= ends then
    start, ends, count = nil, nil, nil
  else
    local moment = math.max(now, start)
    if moment >= fourth or moment < second then
      start, ends = first, second
    elseif moment < third then
      start, ends = second, third
    else
      start, ends = third, fourth
    end
    count = math.min(count, LARGEST)
  end
end

--@ give_back
if start <= earliest and earliest < ends then count = math.max(0, count - cost) end
if count == 0 then
  call('HDEL', key, field)
else
  --@ include calendar_window.write
end

--@ mark
marked, missing_then = start, ends

--@ settle
if ends == 0 and marked <= now and now < missing_then then start, ends = marked, missing_then end -- it counted nothing
if start == marked then count = math.max(0, count + change) end

--@ fits
if start == marked and count + change > LARGEST then fits = false end

--@ write
local state = pack('<dddI4c15', start, ends, count, expires_s, mark)
--@ include hash_io.put

--@ adopt
if start then
  local reset_after = ends - now
  --@ include steps.keep
else
  --@ include hash_io.drop
end

--@ numbers
local borders = sub(mark, 16)
mark = sub(mark, 1, 15)
local unit_us, quota, period = unpack('<BI7I7', mark)

--@ save
saved[at], saved[at + 1], saved[at + 2], saved[at + 3] = start, ends, count, expires_s

--@ load
local start, ends, count, expires_s = saved[at], saved[at + 1], saved[at + 2], saved[at + 3]
local former = false

--@ leave
if ends ~= 0 and (expires_s or count ~= 0) then
  --@ include steps.keep
end
