-- The shell around several limits: read all, admit all or none, charge, and reply.
--
-- ARGV: the options, then each limit's numbers and its mark. The reply has, for each limit, {remaining,
-- reset_after, next_after} where all are admitted, else those with {retry_after, delay} behind each; and where it is
-- to be told, the moment.

local count = #KEYS
local mode, max_delay_us, given_us, costs_at = HIT, -1, -1, nil
if ARGV[1] ~= '' then
  mode, max_delay_us, given_us = unpack('<ddd', ARGV[1])
  costs_at = 25
end
local told = mode == TELL
if told then mode = HIT end
--@ include shell.moment
local allowed, usual = true, true
local finish, waits, delays = {}, {}, {}
for number = 1, count do
  local key, mark = KEYS[number], ARGV[2 * number + 1]
  local quota, period, refill, unit_us, kind, shadow = unpack('<dddddd', ARGV[2 * number])
  local cost = 1
  if costs_at then cost = unpack('<d', ARGV[1], costs_at + 8 * (number - 1)) end
  --@ include shell.now
  --@ each ALGORITHM
  if kind == CODE then
    --@ include ALGORITHM.read
    --@ include shell.adopt
    --@ include ALGORITHM.roll
    --@ include shell.admit
    finish[number] = function(charged)
      local remaining, reset_after, next_after = 0, 0, 0
      if charged and cost ~= 0 then
        --@ include ALGORITHM.charge
        --@ include shell.measure
        if mode == HIT then
          --@ include shell.keep
        end
      else
        --@ include shell.measure
        if former and mode == HIT then
          --@ include ALGORITHM.settle
        end
      end
      return remaining, reset_after, next_after
    end
    waits[number], delays[number] = wait, delay
    if wait ~= 0 then usual = false end
    if wait ~= 0 and shadow == 0 then allowed = false end
    if delay ~= 0 then usual = false end
  end
  --@ end
end
local reply, at = {}, 0
for number = 1, count do
  local charged = allowed and waits[number] == 0
  reply[at + 1], reply[at + 2], reply[at + 3] = finish[number](charged)
  if usual then
    at = at + 3
  else
    reply[at + 4], reply[at + 5] = waits[number], charged and delays[number] or 0
    at = at + 5
  end
end
if told then reply[at + 1] = now_us end
return reply
