-- Give back what was charged at a moment before, where that still counts.
--
-- ARGV: the moment in microseconds, then each limit's numbers, its mark and the cost.

local charged_us = tonumber(ARGV[1])
local MOST_AFTER, mode, given_us = 200, HIT, -1
local now_us = charged_us
for number = 1, #KEYS do
  local key, mark, cost = KEYS[number], ARGV[3 * number], tonumber(ARGV[3 * number + 1])
  local quota, period, refill, unit_us, kind = unpack('<dddddd', ARGV[3 * number - 1])
  --@ include shell.now
  --@ each ALGORITHM
  if kind == CODE then
    --@ include ALGORITHM.read
    if expires_s and expires_s > 0 and not former then
      local fresh = false
      --@ include ALGORITHM.refund
    end
  end
  --@ end
end
return 1
