-- KEYS: record
-- ARGV: shift
local now = clock(ARGV[1])
local record = find(KEYS[1])
if not alive(record, now) then
  return {ABSENT}
end
return told(FOUND, now, record, record.outcome)
