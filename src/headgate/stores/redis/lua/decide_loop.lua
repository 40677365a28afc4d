-- The shell around several limits: read all, admit all or none, charge, and reply.
--
-- ARGV: a byte for each limit (its kind, and 8 more for a shadow) with the options behind them where they are not
-- the usual ones; then each limit's numbers and field. The reply is a text of doubles: for each limit remaining, reset_after,
-- next_after where all are admitted, else those with retry_after and delay behind each; and where it is to be told,
-- the moment.

local count, kinds = #KEYS, ARGV[1]
local mode, max_delay_us, given_us, costs_at = HIT, -1, -1, nil
if #kinds > count then
  mode, max_delay_us, given_us, costs_at = unpack('<ddd', kinds, count + 1)
end
local told = mode == TELL
if told then mode = HIT end
--@ include steps.moment
local allowed, usual = true, true
local kept = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} -- six for each: its wait, its delay, its state
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
    kept[at - 2], kept[at - 1] = wait, delay
  end
  --@ end
end
local reply = {}
for number = 1, count do
  local key, mark, field = KEYS[number], ARGV[2 * number], ARGV[2 * number + 1]
  local kind, cost = byte(kinds, number) % 8, 1
  if costs_at then cost = unpack('<d', kinds, costs_at + 8 * (number - 1)) end
  local at = 6 * number - 3
  local wait, delay = kept[at - 2], kept[at - 1]
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
if told then reply[count + 1] = pack('<d', now_us) end
return table.concat(reply)
