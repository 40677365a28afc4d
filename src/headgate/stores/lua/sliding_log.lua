-- Sliding window log: the twin of algorithms/sliding_log.py, in a list that is never read as a whole.
--
-- The list holds a header, a sum, and two elements for each entry: its time, and the sum of all costs up to
-- and with it. What is used is the difference of two sums, so an entry is found by halving and old ones leave
-- in one cut, before which the sum of the last to leave is in its place already. Times are told from the
-- header's `offset`, sums are counted modulo 2^53.

--@ read
local offset, expires_s, base, first, last, total, gone = 0, 0, 0, nil, nil, 0, 0
local first_total, kept_period = 0, period
local former = false
local head = call('LRANGE', key, 0, 5)
if head[1] then
  offset, expires_s = unpack('<dI4', head[1])
  former = sub(head[1], 13) ~= mark
  local tail = call('LRANGE', key, -2, -1)
  base, last, total = tonumber(head[2]), tail[1] + offset, tonumber(tail[2])
end

--@ roll
--@ include sliding_log.search
if last then
  if last - now > 2 * kept_period then offset, last = offset - (last - now), now end -- no clock steps back that far
  local border = math.max(now, last) - kept_period
  if last <= border then
    gone, base, last, total = -1, 0, nil, 0 -- all have left
  elseif head[3] + offset > border then
    first, first_total = head[3] + offset, head[4]
  elseif head[5] and head[5] + offset > border then
    gone, base, first, first_total = 1, tonumber(head[4]), head[5] + offset, head[6]
  else
    gone = last_below(0, border + 1)
    local around = call('LRANGE', key, 2 * gone + 1, 2 * gone + 3)
    base, first, first_total = tonumber(around[1]), around[2] + offset, around[3]
  end
end
local used = (total - base) % SUMS
--@ include sliding_log.waits

--@ admit
if cost ~= 0 and used + cost > quota then
  if cost > quota then
    wait = NEVER
  else
    wait = freed(used + cost - quota)
  end
end

--@ charge
local apart = last == nil or now > last
if apart then last = now end
if first == nil then first, first_total = now, cost end
used, total = used + cost, (total + cost) % SUMS

--@ measure
if last then
  if used < quota then remaining = quota - used end
  reset_after = last + period - now
  next_after = freed(math.max(1, used - quota + 1))
else
  remaining = quota
end

--@ convert
-- Entries that had left under the former numbers do not come back.
local _, _, former_period = unpack('<BI7I7', head[1], 13)
kept_period = math.min(period, former_period)

--@ write
if head[1] == nil or gone < 0 then
  if gone < 0 then call('UNLINK', key) end
  call('RPUSH', key, pack('<dI4c15', now, expires_s, mark), 0, last - now, total)
  call('EXPIREAT', key, expires_s)
else
  if gone > 0 then call('LTRIM', key, 2 * gone, -1) end
  local header = pack('<dI4c15', offset, expires_s, mark)
  if gone > 0 or header ~= head[1] then call('LSET', key, 0, header) end
  if fresh then call('EXPIREAT', key, expires_s) end
  if used == held then -- nothing was charged
  elseif apart then
    call('RPUSH', key, last - offset, total)
  else
    call('LSET', key, -1, total)
  end
end

--@ give_back
-- The sums of all later entries change, so those are written anew.
local held = call('LLEN', key) / 2 - 1
local seen, left = math.min(held, MOST_SINCE), cost
local moved = call('LRANGE', key, -2 * seen - 1, -1) -- the sum before them, then their times and sums
local first, again, border = seen + 1, {}, math.max(now, last) - period
if last > border and earliest > border and (seen == held or moved[2] + offset < earliest) then
  while first > 1 and moved[2 * first - 2] + offset >= earliest do first = first - 1 end
  local sum = tonumber(moved[2 * first - 1])
  for place = first, seen do
    local units = (moved[2 * place + 1] - moved[2 * place - 1]) % SUMS
    local taken = math.min(units, left)
    left = left - taken
    if units > taken then
      sum = (sum + units - taken) % SUMS
      again[#again + 1], again[#again + 2] = moved[2 * place], sum
    end
  end
  while left > 0 and first > 1 do
    first = first - 1
    local units = (moved[2 * first + 1] - moved[2 * first - 1]) % SUMS
    if units > left then again = {moved[2 * first], (moved[2 * first + 1] - left) % SUMS} end
    left = math.max(0, left - units)
  end
  call('LTRIM', key, 0, 2 * (first - seen) - 3)
  if again[1] then
    call('RPUSH', key, spread(again))
  elseif first == 1 and seen == held then
    call('UNLINK', key)
  end
end

--@ settle
if last then
  --@ include shell.keep
elseif gone < 0 then
  call('UNLINK', key)
end

--@ search
-- The last entry whose time (which 0) or sum (which 1) is still below a bound, counted from 1.
local function last_below(which, bound)
  local low, high = which * gone, call('LLEN', key) / 2 - 1
  while low < high do
    local middle = math.ceil((low + high) / 2)
    local seen = tonumber(call('LINDEX', key, 2 * middle + which))
    if which == 0 then seen = seen + offset else seen = (seen - base) % SUMS end
    if seen < bound then low = middle else high = middle - 1 end
  end
  return low
end

--@ waits
local held = used
-- How long until the oldest entries that hold `needed` units have left.
local function freed(needed)
  if needed <= (first_total - base) % SUMS then return first + period - now end
  if needed > held then return last + period - now end
  return call('LINDEX', key, 2 * last_below(1, needed) + 2) + offset + period - now
end

--@ numbers
local unit_us, quota, period = unpack('<BI7I7', mark)

--@ save
kept[at] = {offset, expires_s, base, first, last, total, gone, first_total, kept_period, former, head, used}

--@ load
local log = kept[at]
local offset, expires_s, base, first, last, total = log[1], log[2], log[3], log[4], log[5], log[6]
local gone, first_total, kept_period, former, head, used = log[7], log[8], log[9], log[10], log[11], log[12]
--@ include sliding_log.search
--@ include sliding_log.waits
