-- Token bucket with greedy refill, without any rounding: the twin of algorithms/token_bucket.py.
-- State is (units, updated), nil for a key never seen, which is a full bucket.

--@ read
-- A missing state is read as zeros, whose numbers are not those of any limit.
--@ include hash_io.fetch
local units, updated, expires_s, written = unpack('<ddI4c22', value or NOTHING)
local full, former = quota * period, false
if written ~= mark then
  former = value
  if not value then units, updated, expires_s = nil, nil, nil end
end

--@ brief
-- Nearly every call, where the clock has advanced: this section combines the steps below. The new state says
-- everything, so it is the reply; for a bucket with too few units, the reply is its units.
if written == mark and now > updated and unit_us == 1 and mode == HIT and cost ~= 0 then
  local left = units + refill * (now - updated)
  if left > full then left = full end
  if left < cost * period then return pack('<d', left) end
  units, updated = left - cost * period, now
  local reset_after = (full - units) / refill
  --@ include steps.keep
  return state
end

--@ roll
if units == nil or units >= full then
  units, updated = full, now
elseif now > updated then
  units, updated = units + refill * (now - updated), now
  if units > full then units = full end
elseif updated - now > math.ceil(full / refill) then -- no clock steps back that far
  updated = now
  if mode == HIT then -- stored, so that it counts from this moment on
    --@ include token_bucket.adopt
  end
end

--@ admit
if cost > quota then
  wait = NEVER
else
  local missing = cost * period - units
  if missing > 0 then wait = math.ceil(missing / refill) + updated - now end
end

--@ charge
units = units - cost * period

--@ measure
local missing = full - units
if missing ~= 0 then
  -- x - x % 1 is floor(x) and x + -x % 1 is ceil(x), without the price of a call.
  local behind, held, all = updated - now, units / period, missing / refill
  remaining = held - held % 1
  reset_after = all + -all % 1 + behind
  --@ include token_bucket.next
else
  remaining = quota
end

--@ next
local more = ((remaining + 1) * period - units) / refill
next_after = more + -more % 1 + behind

--@ convert
local former_unit_us, former_quota, former_period, former_refill = unpack('<BI7I7I7', value, 21)
former_unit_us = 10 ^ former_unit_us
local former_full = former_quota * former_period
local former_now = math.floor(now_us / former_unit_us)
local was_units, was_updated = units, updated
if units >= former_full then
  units, updated = former_full, former_now
elseif former_now > updated then
  units, updated = units + math.min(former_full - units, former_refill * (former_now - updated)), former_now
elseif updated - former_now > math.ceil(former_full / former_refill) then
  updated = former_now
end
if units == former_full then
  units, updated = nil, nil
elseif former_period == period and former_refill == refill and former_unit_us == unit_us then
  units, updated = was_units, was_updated
else
  -- floor(units * period / former_period), whose product may be beyond what a double holds: bit by bit
  local bits, scaled, rest = math.abs(units), 0, 0
  local whole, part = math.floor(period / former_period), period % former_period
  for power = 52, 0, -1 do
    scaled, rest = scaled * 2, rest * 2
    if rest >= former_period then scaled, rest = scaled + 1, rest - former_period end
    if bits >= 2 ^ power then
      bits, scaled, rest = bits - 2 ^ power, scaled + whole, rest + part
      if rest >= former_period then scaled, rest = scaled + 1, rest - former_period end
    end
  end
  if units < 0 then scaled = rest > 0 and -scaled - 1 or -scaled end
  units = math.max(-full, math.min(scaled, full))
  updated = math.ceil(updated * former_unit_us / unit_us)
end

--@ give_back
local passed = 0 -- nothing is refilled within a decision
if not exact then passed = math.max(now, updated) - earliest end
local given = math.min(full - units, math.max(0, cost * period - refill * passed))
units = units + given
-- A charge that is undone within a decision, before any other charge, is as if it had never been.
local alone = exact and unit_us == 1 and updated == earliest
if given > 0 and not alone and call('HGET', key, '+') then
  local times, refunds = 0, 0
  --@ include token_bucket.refunds
  --@ include token_bucket.refund
end
if units >= full then
  call('HDEL', key, field)
else
  --@ include token_bucket.write
end

--@ mark
marked, missing_then = updated, full - units
--@ include token_bucket.refunds

--@ settle
-- Missing units are charged now. Of unused ones, only those are returned that cannot have been refilled since the hold:
-- the units that were missing then, minus what was refilled since and what was given back. A charge that is undone
-- before anything else was charged or given back is as if it had never been: no refund has to be recorded for other
-- holds.
if change > 0 then
  units = units - change * period
else
  local left = missing_then - refill * (updated - marked) - ((times - times_then) * LARGEST + refunds - refunds_then)
  local alone = undoes and times == times_then and refunds == refunds_then and full - units == math.max(0, left)
  local given = -change * period
  if given > left then given = left end
  if given > full - units then given = full - units end
  if given < 0 then given = 0 end
  units = units + given
  if given > 0 and not alone then
    --@ include token_bucket.refund
  end
end

--@ fits
if units - change * period < -LARGEST then fits = false end

--@ write
local state = pack('<ddI4c22', units, updated, expires_s, mark)
--@ include hash_io.put

--@ adopt
if units then
  local reset_after = (math.ceil(full / refill) + math.max(0, updated - now)) * unit_us
  --@ include steps.keep
else
  --@ include hash_io.drop
end

--@ numbers
local unit_us, quota, period, refill = unpack('<BI7I7I7', mark)

--@ save
saved[at], saved[at + 1], saved[at + 2] = units, updated, expires_s

--@ load
local units, updated, expires_s = saved[at], saved[at + 1], saved[at + 2]
local full, former = quota * period, false

--@ refunds
-- The units given back while holds of the key are remembered: a multiple of LARGEST, and the rest.
--@ include hash_io.fetch_refunds
if refunded then times, refunds = unpack('<dd', refunded) end

--@ begin
local times, refunds = 0, 0
if left_to_change < 0 then
  --@ include token_bucket.refunds
end

--@ refund
refunds = refunds + given
if refunds >= LARGEST then times, refunds = times + 1, refunds - LARGEST end
--@ include hash_io.put_refunds

--@ leave
if expires_s or units < full then
  --@ include steps.keep
end
