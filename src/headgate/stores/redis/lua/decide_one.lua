-- The shell around one limit: read it, admit or not, charge, and reply.
--
-- ARGV: the limit's numbers, and the options where they are not the usual ones. The reply is a string of doubles,
-- which costs less than a table: remaining, reset_after and next_after of an admitted request, followed by retry_after
-- and delay where one of these is not 0; in microseconds, retry_after -1 for never. For a bucket it is usually its new
-- state, or its too few units: the caller has more time to compute the rest than the server.

local key, field, mark = KEYS[1], FIELD, ARGV[1]
local mode, max_delay_us, given_us, cost = HIT, -1, -1, 1
if ARGV[2] then mode, max_delay_us, given_us, cost = unpack('<dddd', ARGV[2]) end
--@ include steps.moment
--@ include steps.numbers
--@ include ALGORITHM.read
--@ include ALGORITHM.brief
--@ include steps.adopt
--@ include ALGORITHM.roll
--@ include steps.admit
local remaining, reset_after, next_after = 0, 0, 0
if wait == 0 and cost ~= 0 then
  --@ include ALGORITHM.charge
  --@ include steps.measure
  if mode == HIT then
    --@ include steps.keep
  end
  if delay == 0 then return pack('<ddd', remaining, reset_after, next_after) end
else
  delay = 0
  --@ include steps.measure
  --@ include steps.keep_former
end
return pack('<ddddd', remaining, reset_after, next_after, wait, delay)
