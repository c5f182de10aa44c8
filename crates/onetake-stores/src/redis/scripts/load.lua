-- KEYS: record
-- ARGV: shift
local now = clock(ARGV[1])
local record = find(KEYS[1])
if not alive(record, now) then
  return {'absent'}
end
return told('found', now, record, record.outcome)
