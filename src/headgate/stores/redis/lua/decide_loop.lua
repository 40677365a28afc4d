-- The shell around several limits: read all, admit all or none, charge, and reply.
--
-- ARGV: a byte for each limit (its kind, plus 8 for a shadow), followed by the options where they are not the usual
-- ones; then each limit's numbers and field. The reply is a string of doubles: for each limit remaining, reset_after
-- and next_after where all are admitted; otherwise also retry_after and delay for each; and the moment in the mode
-- TIMED_HIT.

local count, kinds = #KEYS, ARGV[1]
local mode, max_delay_us, given_us, costs_at = HIT, -1, -1, nil
if #kinds > count then
  mode, max_delay_us, given_us, costs_at = unpack('<ddd', kinds, count + 1)
end
local timed = mode == TIMED_HIT
if timed then mode = HIT end
--@ include steps.moment
local allowed, usual = true, true
local saved = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} -- six per limit: its wait, its delay, its state
for number = 1, count do
  local key, mark, field = KEYS[number], ARGV[2 * number], ARGV[2 * number + 1]
  local kind, cost, shadow = byte(kinds, number), 1, false
  if kind >= 8 then kind, shadow = kind - 8, true end
  if costs_at then cost = unpack('<d', kinds, costs_at + 8 * (number - 1)) end
  local at = 6 * number - 3
  --@ each ALGORITHM
  if kind == CODE then
    --@ include steps.numbers
    --@ include ALGORITHM.read
    --@ include steps.adopt
    --@ include ALGORITHM.roll
    --@ include steps.admit
    --@ include ALGORITHM.save
    if wait ~= 0 then
      usual = false
      if not shadow then allowed = false end
    elseif delay ~= 0 then
      usual = false
    end
    saved[at - 2], saved[at - 1] = wait, delay
  end
  --@ end
end
local reply = {}
for number = 1, count do
  local key, mark, field = KEYS[number], ARGV[2 * number], ARGV[2 * number + 1]
  local kind, cost = byte(kinds, number) % 8, 1
  if costs_at then cost = unpack('<d', kinds, costs_at + 8 * (number - 1)) end
  local at = 6 * number - 3
  local wait, delay = saved[at - 2], saved[at - 1]
  local remaining, reset_after, next_after = 0, 0, 0
  --@ each ALGORITHM
  if kind == CODE then
    --@ include steps.numbers
    --@ include ALGORITHM.load
    --@ include steps.finish
  end
  --@ end
  if usual then
    reply[number] = pack('<ddd', remaining, reset_after, next_after)
  else
    reply[number] = pack('<ddddd', remaining, reset_after, next_after, wait, delay)
  end
end
if timed then reply[count + 1] = pack('<d', now_us) end
return table.concat(reply)
