-- Takes a record out of the leases that neither runs nor is to be asked for. Our scripts leave one only
-- when it expires before somebody heard what became of it; a person or an eviction can leave any.
-- KEYS: record, leases
-- ARGV: id, shift
local record = find(KEYS[1])
if alive(record, clock(ARGV[2])) and (record.state == 'running' or is_asked_for(record)) then
  return 0
end
return redis.call('ZREM', KEYS[2], ARGV[1])
