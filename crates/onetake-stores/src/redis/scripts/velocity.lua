-- KEYS: the value that is counted
-- ARGV: shift, verb, interval, count
--
-- Kept is what is owed, in microseconds, and when that was so: numbers so small that a double holds
-- parts of a microsecond. A clock that was set back forgives nothing, and what is owed then passes as
-- ever. The server deletes what owes nothing any more; like all expiry here, that never comes too early.
local verb, interval, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2]) + tonumber(ARGV[1])

local owed = 0
local found = redis.call('GET', KEYS[1])
if found then
  local debt, since = string.match(found, '^(%S+) (%d+)$')
  if debt then
    owed = math.max(tonumber(debt) - math.max(now - tonumber(since), 0), 0)
  end
end

if verb == 'take' then
  -- A thousandth of a microsecond is what is lost when it is written down.
  local wait = owed - interval * (count - 1) - 0.001
  if wait > 0 then
    return string.format('%.0f', math.ceil(wait))
  end
  owed = owed + interval
else
  owed = math.max(owed - interval, 0)
end
if owed > 0 then
  redis.call('SET', KEYS[1], string.format('%.3f %.0f', owed, now), 'PX',
    string.format('%.0f', math.ceil(owed / 1000)))
else
  redis.call('DEL', KEYS[1])
end
return '0'
