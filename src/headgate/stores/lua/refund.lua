-- Give back what was charged at a moment before, where that still counts.
--
-- ARGV: the moment in microseconds and a byte for each limit's kind; then each limit's numbers, field and cost.

local charged_us, kinds = tonumber(ARGV[1]), ARGV[2]
local MOST_AFTER, given_us, now_us = 200, -1, charged_us
for number = 1, #KEYS do
  local key, mark, field, cost = KEYS[number], ARGV[3 * number], ARGV[3 * number + 1], tonumber(ARGV[3 * number + 2])
  local kind = byte(kinds, number) % 8
  --@ each ALGORITHM
  if kind == CODE then
    --@ include shell.numbers
    --@ include ALGORITHM.read
    if expires_s and expires_s > 0 and not former then
      local fresh = false
      --@ include ALGORITHM.refund
    end
  end
  --@ end
end
return 1
