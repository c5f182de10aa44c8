-- KEYS: the value that is counted
-- ARGV: shift, verb, interval, count
--
-- The value is the debt of the counted key, in microseconds, and its time. These numbers are so small
-- that a double holds fractions of a microsecond. A clock that is set back does not reduce the debt;
-- afterwards it decreases as usual. The server deletes a value without a debt, never too early.
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

if verb == TAKE then
  -- Rounding loses up to a thousandth of a microsecond.
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
