-- Takes a record that does not run, or is not there, out of the set of those that run. Our scripts
-- never leave one; a person or an eviction can.
-- KEYS: record, leases
-- ARGV: id
local record = find(KEYS[1])
if record and record.state == 'running' then
  return 0
end
return redis.call('ZREM', KEYS[2], ARGV[1])
