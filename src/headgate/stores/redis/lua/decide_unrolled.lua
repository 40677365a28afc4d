-- The shell around a few limits, one inside the other: read all, admit all or none, charge, and reply.
--
-- Each limit's `open` comes before the next one's, and its `close` after it, so that all are read before the
-- first is charged and each has its own locals. Limits of one hash read it at once, and write it at once.
-- ARGV: each limit's numbers, and the options where they are not the usual ones. The reply is that of several limits,
-- or the new states where all are buckets that were charged at this moment: the states say as much.

local mode, max_delay_us, given_us, options = HIT, -1, -1, ARGV[COUNT + 1]
if options then mode, max_delay_us, given_us = unpack('<ddd', options) end
local timed = mode == TIMED_HIT
if timed then mode = HIT end
--@ include steps.moment
local allowed, usual, reply = true, true, ''

--@ read
local key, longest_s = KEYS[1], 0
local values = call('HMGET', key, FIELDS)
local STATES

--@ brief_read
local brief = mode == HIT and not timed

--@ open
do
  local key, field, mark, cost, shadow = KEYS[PLACE], FIELD, ARGV[NUMBER], 1, 0
  if options then cost, shadow = unpack('<dB', options, 16 + 9 * NUMBER) end
  --@ include steps.numbers
  --@ include ALGORITHM.read
  --@ include steps.adopt
  --@ include ALGORITHM.roll
  --@ include steps.admit
  if wait ~= 0 then
    usual = false
    if shadow == 0 then allowed = false end
  elseif delay ~= 0 then
    usual = false
  end

--@ brief_open
  if updated ~= now or unit_us ~= 1 or cost == 0 then brief = false end

--@ close
  --@ include decide_unrolled.finish
end

--@ brief_close
  if brief and usual then
    --@ include ALGORITHM.charge
    local reset_after = (full - units) / refill
    --@ include steps.keep
  else
    --@ include decide_unrolled.finish
  end
end

--@ finish
  local remaining, reset_after, next_after = 0, 0, 0
  --@ include steps.finish
  if usual then
    reply = pack('<ddd', remaining, reset_after, next_after) .. reply
  else
    reply = pack('<ddddd', remaining, reset_after, next_after, wait, delay) .. reply
  end

--@ write
if ALL then
  call('HSET', key, CHANGES)
else
  --@ include decide_unrolled.each
end
if longest_s > 0 then
  local expires_s = longest_s
  --@ include hash_io.prolong
end

--@ each
if stateNUMBER then call('HSET', key, FIELD, stateNUMBER) end

--@ brief_reply
if brief and usual then return JOINED end

--@ reply
if timed then return reply .. pack('<d', now_us) end
return reply
