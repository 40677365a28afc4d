-- Sliding window log: the twin of algorithms/sliding_log.py, packed into a field of a hash.
--
-- Entries of ten bytes, oldest first: the time since `offset`, and the sum of all costs up to and including it. The
-- used units are the difference of two sums, so an entry is found by bisection, and old entries leave the window in one
-- cut; `base` is the sum of the last entry to leave. Sums are modulo `sums`. Limits too large for ten bytes have
-- entries of fourteen. After the entries follow base, and rarely changed values: offset, the expiry, the form of the
-- entries, and the limit's numbers; the length is even, that of a counter odd. Of more than MOST_PACKED entries the
-- oldest are moved into other fields, PACKED at a time and with the sum before them, numbered from `from` up to `to`;
-- `skip` entries of the first field have left, and the fields before it are deleted a few at a time. Copies of the next
-- few entries to leave, `copied` bytes, precede the entries that are not moved, so that few decisions read another
-- field.

--@ read
--@ include hash_io.fetch
local offset, base, expires_s, wide, length = 0, 0, nil, 0, 0
local before, swept, from, to, skip, copied = 0, 0, 0, 0, 0, 0
local former, kept_period, legacy, newest, newest_total, corrected = false, period, false, nil, nil, 0
if not value then
  --@ include sliding_log.adopt_list
elseif #value % 2 == 0 then
  --@ include sliding_log.parse
else
  former = true
end

--@ brief
-- Nearly every call: it appends an entry, and at most one has left. This section combines the steps below.
if newest and not former and mode == HIT and unit_us == 1 and cost ~= 0 and swept == from then
  local last, border = newest + offset, now - period
  if last > border and now > last then
    local start, before_first, expired = 0, base, 0
    local first, first_total = unpack('<I6I4', value)
    if first + offset <= border then
      start, before_first, expired = 10, first_total, 1
      first, first_total = unpack('<I6I4', value, 11)
    end
    local used, begin = (newest_total - before_first) % 4294967296 + cost, from < to and copied or start
    if first + offset > border and (from == to or start < copied) and used <= quota and used <= 2147483647
      and length - begin < MOST_PACKED * 10 - 10 and now - offset <= MOST_SPAN and period <= MOST_NARROW then
      local total, most, reset_after, fetched = (newest_total + cost) % 4294967296, length, period, ''
      last, base = now, before_first
      if from < to then skip = skip + expired end
      --@ include steps.expire
      local state
      --@ include sliding_log.append
      --@ include hash_io.put
      return pack('<ddd', quota - used, period, first + offset - border)
    end
  end
end

--@ roll
--@ include sliding_log.form
local start, first, first_total, last, total, fetched = 0, nil, 0, nil, 0, ''
if length > 0 then
  --@ include sliding_log.trim
end
local used = (total - base) % sums
local held, separate = used, true

--@ admit
if cost ~= 0 and used + cost > quota then
  if cost > quota then
    wait = NEVER
  else
    local needed = used + cost - quota
    --@ include sliding_log.freed
    wait = freed
  end
end

--@ charge
separate = last == nil or now > last
if last == nil then
  offset, base, total, start, length, first, first_total = now - period, 0, 0, 0, 0, now, cost
  wide = (quota > 2147483647 or period > MOST_NARROW) and 1 or 0
  width, form, sums = 10, '<I6I4', 4294967296
  if wide == 1 then width, form, sums = 14, '<I7I7', SUMS end
end
if separate then last = now end
used, total = used + cost, (total + cost) % sums

--@ measure
if last then
  if used < quota then remaining = quota - used end
  reset_after = last + period - now
  --@ include sliding_log.next
else
  remaining = quota
end

--@ next
local needed = used - quota + 1
if needed < 1 then needed = 1 end
--@ include sliding_log.freed
next_after = freed

--@ convert
if value and #value % 2 == 1 then
  --@ include sliding_log.of_counter
else -- entries that had left under the former numbers do not return
  local _, _, former_period = unpack('<BI7I7', value, #value - 14)
  kept_period = math.min(period, former_period)
end

--@ write
local state
local begin, most = from < to and copied or start, separate and length or length - width -- the last may be rewritten
if wide == 0 and swept == from and used ~= held and length - begin < MOST_PACKED * width - width
  and used <= 2147483647 and period <= MOST_NARROW and last - offset <= MOST_SPAN and (to == 0 or from < to)
  and corrected == 0 then
  --@ include sliding_log.append
else
  --@ include sliding_log.write_long
end
if legacy then call('UNLINK', legacy) end
--@ include hash_io.put

--@ append
-- Copying and packing cost Lua more than computing: unchanged bytes are copied, and only once.
local older, rest = '', nil
if most > start then older = sub(value, start + 1, most) end
if not (fresh or former or length == 0) then
  rest = sub(value, to == 0 and -28 or -48)
elseif to == 0 then
  rest = pack('<dI4Bc15', offset, expires_s, 0, mark)
else
  rest = pack('<dI4I4I4dI4Bc15', before, swept, from, to, offset, expires_s, 2, mark)
end
if to > 0 then
  state = fetched .. older .. pack('<I6I4dI2I2', last - offset, total, base, skip, #fetched + copied - start) .. rest
else
  state = older .. pack('<I6I4d', last - offset, total, base) .. rest
end

--@ write_long
local entries
local copies = from < to and fetched .. sub(value, start + 1, copied) or ''
if used == held then
  entries = sub(value, begin + 1, length)
elseif length == 0 then
  entries = pack(form, last - offset, total)
else
  entries = sub(value, begin + 1, most) .. pack(form, last - offset, total)
end
if wide == 0 and (used > 2147483647 or period > MOST_NARROW or last - offset > MOST_SPAN) then
  -- Numbers too large for the form: all units count as if they were charged with the newest entry.
  wide, offset, base, from, skip, copies = 1, last, 0, to, 0, ''
  entries = pack('<I7I7', 0, used)
else
  while #entries >= MOST_PACKED * width do
    local moved = PACKED * width
    local sum_before = before
    if from == to then sum_before, skip, copies = base, 0, sub(entries, 1, COPIED * width) end
    local chunk, numbered, _ = sub(entries, 1, moved) .. pack('<d', sum_before), to, nil
    --@ include sliding_log.shift
    shift = -shift
    --@ include sliding_log.shifted
    call('HSET', key, field .. ':' .. to, chunk)
    _, before = unpack(form, entries, moved - width + 1)
    to, entries = to + 1, sub(entries, moved + 1)
  end
end
if to > 0 then
  --@ include sliding_log.sweep
  if swept == to then
    swept, from, to, corrected = 0, 0, 0, 0
  else
    entries = copies .. entries
  end
end
--@ include sliding_log.seal

--@ seal
if to > 0 then
  state = entries .. pack('<dI2I2dI4I4I4dI4Bc15', base, skip, #copies, before, swept, from, to, offset, expires_s,
    wide + 2 + corrected, mark)
else
  state = entries .. pack('<ddI4Bc15', base, offset, expires_s, wide, mark)
end

--@ give_back
--@ include sliding_log.form
local fetched_to = to
local copies = sub(value, 1, copied)
value, length = sub(value, copied + 1), length - copied
local count = math.floor(length / width)
while to > from and count < MOST_SINCE do -- until all entries are here that may have to change
  local time = unpack(form, value, 1) + offset
  local _, sum = unpack(form, value, length - width + 1)
  if time < earliest and (sum - before) % sums >= cost then break end
  --@ include sliding_log.fetch_moved
end
local seen, left, last = math.min(count, MOST_SINCE), cost, unpack(form, value, length - width + 1) + offset
local times, sums_then, border = {}, {}, math.max(now, last) - period
sums_then[0] = to > from and before or base
for place = 1, seen do
  local time, sum = unpack(form, value, (count - seen + place - 1) * width + 1)
  times[place], sums_then[place] = time + offset, sum
end
if count > seen then
  local _
  _, sums_then[0] = unpack(form, value, (count - seen - 1) * width + 1)
end
if last > border and earliest > border and ((seen == count and to == from) or times[1] < earliest) then
  local place, units = seen + 1, {}
  while place > 1 and times[place - 1] >= earliest do place = place - 1 end
  for number = 1, seen do units[number] = (sums_then[number] - sums_then[number - 1]) % sums end
  for number = place, seen do
    local taken = math.min(units[number], left)
    units[number], left = units[number] - taken, left - taken
  end
  while left > 0 and place > 1 do
    place = place - 1
    local taken = math.min(units[place], left)
    units[place], left = units[place] - taken, left - taken
  end
  local rebuilt, sum = {sub(value, 1, (count - seen) * width)}, sums_then[0]
  for number = 1, seen do
    if units[number] > 0 then
      sum = (sum + units[number]) % sums
      rebuilt[#rebuilt + 1] = pack(form, times[number] - offset, sum)
    end
  end
  value = table.concat(rebuilt)
  length = #value
  if length == 0 and to > from then -- the newest entry is always here
    --@ include sliding_log.fetch_moved
  end
end
if length == 0 then
  if corrected ~= 0 then to = fetched_to end
  --@ include sliding_log.sweep_all
  call('HDEL', key, field)
else
  local fresh = false
  if from == to then copies = '' end
  local state
  local entries = copies .. sub(value, 1, length)
  if corrected ~= 0 and to < fetched_to then
    local cut_to = to
    to = fetched_to
    --@ include sliding_log.cut
    rebuilt, base, before = {}, (base + cut) % sums, (before + cut) % sums
    for place = 1, #entries, width do
      local time, entry_sum = unpack(form, entries, place)
      rebuilt[#rebuilt + 1] = pack(form, time, (entry_sum + cut) % sums)
    end
    entries = table.concat(rebuilt)
  end
  --@ include sliding_log.seal
  --@ include hash_io.put
end

--@ mark
marked = last and last > now and last or now

--@ settle
-- Change the units of the entry at the moment `marked`, which need not exist. Entries in the log's own field are
-- rewritten; see amend_moved for others.
if marked > (last and last > now and last or now) - period then
  if last == nil then
    value, offset, base, total, length, copied, last = '', now - period, 0, 0, 0, 0, marked
    wide = (quota > 2147483647 or period > MOST_NARROW) and 1 or 0
    --@ include sliding_log.form_of
  elseif from < to then
    local copies = fetched .. sub(value, start + 1, copied)
    value = copies .. sub(value, copied + 1, length)
    copied = #copies
  else
    value, copied = sub(value, start + 1, length), 0
  end
  length, start, fetched = #value, 0, ''
  if marked < offset then marked = offset end -- all units were moved to one entry since, see write_long
  if wide == 0 and used + change > 2147483647 then
    --@ include sliding_log.widen
  end
  if last == marked and from == to then
    --@ include sliding_log.amend_newest
  elseif from < to and marked < unpack(form, value, copied + 1) + offset then
    --@ include sliding_log.amend_moved
  else
    --@ include sliding_log.amend_own
  end
  used = (total - base) % sums
  if used == 0 then
    length, base, total, last, from, skip, copied = 0, 0, 0, nil, to, 0, 0
  else
    if length == copied then
      --@ include sliding_log.retract
    end
    last, total = unpack(form, value, length - width + 1)
    first, first_total = unpack(form, value, 1)
    first, last = first + offset, last + offset
    if last == marked and last > now then present = false end -- it may be the newest now: older ones have left
  end
  held = used
end

--@ fits
if used + change > LARGEST then fits = false end

--@ fetch_moved
-- Put the newest moved entries back before those in the log's own field.
to = to - 1
local chunk, numbered = call('HGET', key, field .. ':' .. to), to
--@ include sliding_log.shift
--@ include sliding_log.shifted
before = unpack('<d', chunk, #chunk - 7)
local text, sum_before = sub(chunk, (to == from and skip or 0) * width + 1, #chunk - 8), to == from and base or before
if corrected ~= 0 then
  --@ include sliding_log.solid
end
value = text .. sub(value, 1, length)
if to == from then skip = 0 end
call('HDEL', key, field .. ':' .. to)
length = #value
count = math.floor(length / width)

--@ keep_former
if last then
  --@ include steps.keep
else
  --@ include sliding_log.sweep_all
  if legacy then call('UNLINK', legacy) end
  call('HDEL', key, field)
end

--@ parse
local numbers
newest, newest_total, base, offset, expires_s, wide, numbers = unpack('<I6I4ddI4Bc15', value, #value - 45)
length = #value - 36
if wide ~= 0 then
  newest = nil
  if wide > 3 then corrected, wide = CORRECTED, wide - CORRECTED end
  if wide == 2 and corrected == 0 then
    length = #value - 60
    newest, newest_total, base, skip, copied, before, swept, from, to = unpack('<I6I4dI2I2dI4I4I4', value, length - 9)
    wide = 0
  elseif wide > 1 then
    length = #value - 60
    base, skip, copied, before, swept, from, to = unpack('<dI2I2dI4I4I4', value, length + 1)
    wide = wide - 2
  end
end
former = numbers ~= mark

--@ form
local width, form, sums = 10, '<I6I4', 4294967296
if wide ~= 0 then width, form, sums = 14, '<I7I7', SUMS end

--@ trim
if newest then
  last, total = newest + offset, newest_total
else
  last, total = unpack(form, value, length - width + 1)
  last = last + offset
end
if last - now > 2 * kept_period then -- no clock steps back that far
  offset, last = offset - (last - now), now
  former = true -- stored at a refusal, too, like a state of former numbers, so that it counts from this moment on
end
local border = (last > now and last or now) - kept_period
if last <= border then -- all have left
  length, base, total, last, from, skip, copied = 0, 0, 0, nil, to, 0, 0
else
  first, first_total = unpack(form, value, 1)
  first = first + offset
  if first <= border then
    start, base = width, first_total
    if from < to then skip = skip + 1 end
    if from == to or start < copied then
      first, first_total = unpack(form, value, width + 1)
      first = first + offset
    end
    if first > border then -- usually only one has left
    elseif from < to then
      --@ include sliding_log.trim_moved
    else
      base = first_total
      local text, low, high = value, 2, math.floor(length / width) - 1
      --@ include sliding_log.trim_text
      start = low * width
    end
  end
end

--@ trim_text
-- The first entry of a string, from `low` to `high`, that has not left.
local least = low
while low < high do
  local middle = math.floor((low + high) / 2)
  if unpack(form, text, middle * width + 1) + offset <= border then low = middle + 1 else high = middle end
end
if low > least then
  local _
  _, base = unpack(form, text, (low - 1) * width + 1)
end
first, first_total = unpack(form, text, low * width + 1)
first = first + offset

--@ trim_moved
-- The first field whose newest entry has not left, and in it the first entry that has not. That entry and the next ones
-- are `fetched`, to replace the copies.
local low, high, middle, text = from, to, from, nil
if skip == PACKED and corrected == 0 then low, middle = from + 1, from + 1 end -- usually the next field
while low < high do
  text = call('HGET', key, field .. ':' .. middle)
  if unpack(form, text, #text - 7 - width) + offset > border then
    high = middle
    if low == high then break end -- it was just read
  else
    low, text = middle + 1, nil
  end
  middle = middle == from and low or math.floor((low + high) / 2) -- after the first its neighbour, then by bisection
end
if low > from then
  from, skip = low, 0
  if low == to then
    base = before
  else
    text = text or call('HGET', key, field .. ':' .. low)
    base = unpack('<d', text, #text - 7)
  end
end
if from == to then text = value end
low, high = skip, PACKED - 1
if corrected ~= 0 and from < to then
  local chunk, numbered = text, from
  --@ include sliding_log.shift
  --@ include sliding_log.shifted
  text, high = chunk, (#chunk - 8) / width - 1
  if low == 0 then base = unpack('<d', text, #text - 7) end
end
if from == to then low, high = math.floor(copied / width), math.floor(length / width) - 1 end
--@ include sliding_log.trim_text
if from == to then
  start, copied = low * width, 0
else
  fetched, start, skip = sub(text, low * width + 1, math.min((low + COPIED) * width, #text - 8)), copied, low
end

--@ freed
-- How long until the oldest entries with `needed` units have left.
local freed = first
if needed > (first_total - base) % sums then
  freed = last
  if needed <= held then
    local low, high = from, to
    while low < high do
      local middle = math.floor((low + high) / 2)
      local chunk = call('HGET', key, field .. ':' .. middle)
      local _, sum = unpack(form, chunk, #chunk - 7 - width)
      local numbered = middle
      --@ include sliding_log.shift
      sum = sum + shift
      if (sum - base) % sums < needed then low = middle + 1 else high = middle end
    end
    local text, place, most = value, (from < to and copied or start) / width, math.floor(length / width) - 1
    if low < to then
      local chunk, numbered = call('HGET', key, field .. ':' .. low), low
      --@ include sliding_log.shift
      --@ include sliding_log.shifted
      text = chunk
      place, most = low == from and skip or 0, (#text - 8) / width - 1
    end
    while place < most do
      local middle = math.floor((place + most) / 2)
      local _, sum = unpack(form, text, middle * width + 1)
      if (sum - base) % sums < needed then place = middle + 1 else most = middle end
    end
    freed = unpack(form, text, place * width + 1) + offset
  end
end
freed = freed + period - now

--@ sweep
local dead = {}
while swept < from and #dead < MOST_SWEPT do
  dead[#dead + 1] = field .. ':' .. swept
  swept = swept + 1
  if corrected ~= 0 then dead[#dead + 1] = field .. ';' .. swept end
end
if dead[1] then call('HDEL', key, spread(dead)) end

--@ sweep_all
while swept < to do
  local dead = {}
  while swept < to and #dead < MOST_SWEPT do
    dead[#dead + 1] = field .. ':' .. swept
    swept = swept + 1
    if corrected ~= 0 then dead[#dead + 1] = field .. ';' .. swept end
  end
  if call('HDEL', key, spread(dead)) == 0 then swept = to end -- none exists: the counts are damaged
end

--@ of_counter
-- The twin of sliding_conversion.log_of_counter.
local window, current, previous, _, power, _, former_period = unpack('<dddI4BI7I7', value)
local former_unit_us = 10 ^ power
--@ include sliding_window.counted
if counted ~= 0 then
  local dropped, count = window + 1, current
  if current == 0 then dropped, count = window, previous end
  local dropped_us =
    (dropped * former_period + former_period - math.floor((former_period - 1) / count)) * former_unit_us
  local moment = now_us
  if period >= former_period * former_unit_us then moment = math.max(now_us, dropped_us - period) end
  offset, wide = moment - period, (counted > 2147483647 or period > MOST_NARROW) and 1 or 0 -- a hold may be older
  value = pack(wide == 1 and '<I7I7' or '<I6I4', period, counted)
  length = #value
end

--@ adopt_list
--@ include sliding_log.list

--@ adopt_list_before_holds
-- An earlier hold on this key has already looked for a list.
if not values[1] then
  --@ include sliding_log.list
end

--@ list
-- The format of version 0.1: a separate list of a header, a sum, and the time and the sum of each entry.
local name = key .. 'sliding_log.' .. sub(field, 2)
local head = call('LRANGE', name, '0', 'MOST_ADOPTED')
if head[1] then
  legacy = name
  local from_us, _, numbers = unpack('<dI4c15', head[1])
  local tail = call('LRANGE', name, '-2', '-1')
  former, offset, wide, value = numbers ~= mark, head[3] + from_us, 1, {}
  if #head > MOST_ADOPTED then -- all units count as if they were charged with the newest entry
    offset, head = tail[1] + from_us, {head[1], head[2], tail[1], tail[2]}
  end
  for place = 3, #head - 1, 2 do
    value[#value + 1] = pack('<I7I7', head[place] + from_us - offset, (head[place + 1] - head[2]) % SUMS)
  end
  value = table.concat(value)
  length = #value
  if former then value = value .. '\0' .. numbers end
end

--@ numbers
local unit_us, quota, period = unpack('<BI7I7', mark)

--@ save
saved[at] = {
  value, offset, base, expires_s, wide, length, before, swept, from, to, skip, copied, former, kept_period, legacy,
  start, first, first_total, last, total, fetched, used, corrected,
}

--@ load
local value, offset, base, expires_s, wide, length, before, swept, from, to, skip, copied, former, kept_period, legacy,
  start, first, first_total, last, total, fetched, used, corrected = spread(saved[at], 1, 23)
local held, separate = used, true
--@ include sliding_log.form

--@ shift
-- How much the sums in the field `numbered` lag, because entries in later fields were amended; see amend_moved.
local shift = 0
if corrected ~= 0 then
  local node, size, nodes = numbered + 2, 1, {}
  while node <= 4294967296 do
    nodes[#nodes + 1] = field .. ';' .. node
    while node % (2 * size) == 0 do size = 2 * size end
    node = node + size
  end
  for _, change in ipairs(call('HMGET', key, spread(nodes))) do
    if change then shift = shift - change end
  end
end

--@ shifted
if shift ~= 0 then
  local rebuilt = {}
  for at = 1, #chunk - 8, width do
    local time, sum = unpack(form, chunk, at)
    rebuilt[#rebuilt + 1] = pack(form, time, (sum + shift) % sums)
  end
  rebuilt[#rebuilt + 1] = pack('<d', (unpack('<d', chunk, #chunk - 7) + shift) % sums)
  chunk = table.concat(rebuilt)
end

--@ amend_newest
-- The last entry of a log in one field, the usual case: it was just held.
local sum_before, _ = base, nil
if length > width then _, sum_before = unpack(form, value, length - 2 * width + 1) end
total = (total + math.max(change, -((total - sum_before) % sums))) % sums
value = sub(value, 1, length - width)
if (total - sum_before) % sums ~= 0 then value = value .. pack(form, marked - offset, total) end
length = #value

--@ amend_own
local begin, at = copied, length
while at > begin and unpack(form, value, at - width + 1) + offset >= marked do at = at - width end
local _, sum_before, units, rest = nil, from < to and before or base, 0, at
if at > begin then _, sum_before = unpack(form, value, at - width + 1) end
if at < length then
  local time, sum = unpack(form, value, at + 1)
  if time + offset == marked then units, rest = (sum - sum_before) % sums, at + width end
end
local more = math.max(change, -units)
local rebuilt = {sub(value, 1, at)}
if units + more > 0 then rebuilt[2] = pack(form, marked - offset, (sum_before + units + more) % sums) end
for place = rest + 1, length, width do
  local time, sum = unpack(form, value, place)
  rebuilt[#rebuilt + 1] = pack(form, time, (sum + more) % sums)
end
value, total = table.concat(rebuilt), (total + more) % sums
length = #value

--@ amend_moved
-- A moved entry. Instead of the sums after it, those before it change by the opposite amount: in its own field, and the
-- base. For the fields before it, the change is noted in a Fenwick tree from the end, so that a change is noted in few
-- nodes, and the changes after a field are the sum of few nodes; see `shift`.
local low, high, chunk = from, to, nil
while low < high do
  local middle = math.floor((low + high) / 2)
  local text = call('HGET', key, field .. ':' .. middle)
  if unpack(form, text, #text - 7 - width) + offset < marked then
    low = middle + 1
  else
    high, chunk = middle, text
  end
end
if low == to then
  --@ include sliding_log.amend_own
else
  local at, sum_before, _ = 0, unpack('<d', chunk, #chunk - 7), nil
  local before_all, units = sum_before, 0
  while unpack(form, chunk, at + 1) + offset < marked do
    _, sum_before = unpack(form, chunk, at + 1)
    at = at + width
  end
  local time, sum = unpack(form, chunk, at + 1)
  local rest = at
  if time + offset == marked then units, rest = (sum - sum_before) % sums, at + width end
  local more, rebuilt = math.max(change, -units), {}
  if more ~= 0 then
    for place = 1, at, width do
      time, sum = unpack(form, chunk, place)
      rebuilt[#rebuilt + 1] = pack(form, time, (sum - more) % sums)
    end
    rebuilt[#rebuilt + 1] = pack(form, marked - offset, (sum_before + units) % sums)
    rebuilt[#rebuilt + 1] = sub(chunk, rest + 1, #chunk - 8)
    rebuilt[#rebuilt + 1] = pack('<d', (before_all - more) % sums)
    chunk = table.concat(rebuilt)
    call('HSET', key, field .. ':' .. low, chunk)
    local node, size = low + 1, 1
    while node > from do
      call('HINCRBY', key, field .. ';' .. node, more)
      while node % (2 * size) == 0 do size = 2 * size end
      node = node - size
    end
    corrected, base = CORRECTED, (base - more) % sums
    local numbered, copies = from, ''
    if low == from then
      --@ include sliding_log.shift
      --@ include sliding_log.shifted
      copies = sub(chunk, skip * width + 1, math.min((skip + COPIED) * width, #chunk - 8))
    else
      rebuilt = {}
      for place = 1, copied, width do
        time, sum = unpack(form, value, place)
        rebuilt[#rebuilt + 1] = pack(form, time, (sum - more) % sums)
      end
      copies = table.concat(rebuilt)
    end
    value = copies .. sub(value, copied + 1, length)
    length, copied = #value, #copies
  end
end

--@ widen
-- Convert to entries of fourteen bytes; the units of a long log all count as if charged with the newest entry.
local rebuilt = {}
if from == to then
  for place = 1, length, width do
    local time, sum = unpack(form, value, place)
    rebuilt[#rebuilt + 1] = pack('<I7I7', time, (sum - base) % sums)
  end
elseif used > 0 then
  rebuilt[1] = pack('<I7I7', last - offset, used)
end
value, base, total, from, skip, copied, wide = table.concat(rebuilt), 0, used, to, 0, 0, 1
length = #value
--@ include sliding_log.form_of

--@ retract
-- No entry in the log's own field has any units left: put the newest moved entry with units back.
local low, high, size = from, to - 1, length
while low < high do
  local middle = math.floor((low + high) / 2)
  local chunk, numbered = call('HGET', key, field .. ':' .. middle), middle
  --@ include sliding_log.shift
  local _, sum = unpack(form, chunk, #chunk - 7 - width)
  if (sum + shift - base) % sums < used then low = middle + 1 else high = middle end
end
local chunk, numbered = call('HGET', key, field .. ':' .. low), low
--@ include sliding_log.shift
--@ include sliding_log.shifted
local at, sum, _ = (low == from and skip or 0) * width, nil, nil
local begin = at
repeat
  _, sum = unpack(form, chunk, at + 1)
  at = at + width
until (sum - base) % sums >= used or at >= #chunk - 8
before = unpack('<d', chunk, #chunk - 7)
local copies = low > from and sub(value, 1, copied) or ''
local text, cut_to = sub(chunk, begin + 1, at), low
--@ include sliding_log.cut
if low == from then skip = 0 end
local sum_before = low == from and base or before
--@ include sliding_log.solid
base, before = (base + cut) % sums, (before + cut) % sums
value, rebuilt = copies .. text, {}
for place = 1, #value, width do
  local time, entry_sum = unpack(form, value, place)
  rebuilt[#rebuilt + 1] = pack(form, time, (entry_sum + cut) % sums)
end
value, copied = table.concat(rebuilt), #copies
length = #value

--@ solid
-- A string of entries without those that have no units left.
local solid = {}
for place = 1, #text, width do
  local _, entry_sum = unpack(form, text, place)
  if entry_sum ~= sum_before then solid[#solid + 1] = sub(text, place, place + width - 1) end
  sum_before = entry_sum
end
text = table.concat(solid)

--@ cut
-- Forget the fields from `cut_to` on, and their changes in the tree. All sums are `cut` higher from then on.
local cut, rebuilt = 0, nil
if corrected ~= 0 then
  local numbered = cut_to - 1
  do
    --@ include sliding_log.shift
    cut = -shift
  end
  local node, size = cut_to + 1, 1
  while true do
    while node % (2 * size) == 0 do size = 2 * size end
    node = node - size
    if node <= from then break end
    numbered = node - 2
    --@ include sliding_log.shift
    call('HSET', key, field .. ';' .. node, string.format('%.0f', -shift - cut))
  end
end
while to > cut_to do
  local dead = {}
  while to > cut_to and #dead < MOST_SWEPT do
    to = to - 1
    dead[#dead + 1] = field .. ':' .. to
    if corrected ~= 0 then dead[#dead + 1] = field .. ';' .. to + 1 end
  end
  call('HDEL', key, spread(dead))
end

--@ form_of
width, form, sums = 10, '<I6I4', 4294967296
if wide == 1 then width, form, sums = 14, '<I7I7', SUMS end

--@ leave
if last then
  if swept == to then swept, from, to, corrected = 0, 0, 0, 0 end
  --@ include steps.keep
else
  --@ include sliding_log.sweep_all
  --@ include hash_io.drop
end
