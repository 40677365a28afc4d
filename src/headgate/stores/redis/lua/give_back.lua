-- Give back what is left of a charge, where it still counts: the twin of transition.give_back.
--
-- ARGV: the moment of the charge in microseconds where it is known, as it is within one decision (else -1), its
-- greatest age, and now (-1 for the server's time), as doubles; a byte for each limit's kind; then each limit's
-- numbers, field and cost. A state keeps the numbers that it was written under.

local charged_us, ago_us, given_us = unpack('<ddd', ARGV[1])
local kinds, exact = ARGV[2], charged_us >= 0
if exact then given_us = charged_us end
--@ include steps.moment
if not exact then charged_us = math.max(0, now_us - ago_us) end
for number = 1, #KEYS do
  local key, mark, field, cost = KEYS[number], ARGV[3 * number], ARGV[3 * number + 1], tonumber(ARGV[3 * number + 2])
  local kind = byte(kinds, number) % 8
  local value = call('HGET', key, field)
  if value and kind == LOG and #value % 2 == 1 then -- a counter
    unpack('<dddI4c15', value)
    value = false
  elseif value and kind == WINDOW and #value % 2 == 0 then -- a log
    unpack('<ddI4Bc15', value, #value - 35)
    value = false
  end
  if value then
    -- Where only the quota has changed since, the whole charge still counts; except in a bucket that became smaller.
    local written = sub(value, -#mark)
    if sub(written, 1, 1) == sub(mark, 1, 1) and sub(written, 9) == sub(mark, 9)
      and (#mark == 15 or unpack('<I7', written, 2) >= unpack('<I7', mark, 2)) then mark = written end
    if cost > unpack('<I7', mark, 2) then value = false end
  end
  --@ each ALGORITHM
  if value and kind == CODE then
    --@ include steps.numbers
    --@ include ALGORITHM.read
    if not former then
      local earliest, fresh = math.floor(charged_us / unit_us), false
      --@ include ALGORITHM.give_back
    end
  end
  --@ end
end
return 1
