-- Removes a record from the leases if it neither runs nor is to be reconciled. The scripts leave such
-- an entry only if a record expires before its reconciliation. An operator or an eviction can leave any.
-- KEYS: record, leases
-- ARGV: id, shift
local record = find(KEYS[1])
if alive(record, clock(ARGV[2])) and (record.state == RUNNING or is_asked_for(record)) then
  return 0
end
return redis.call('ZREM', KEYS[2], ARGV[1])
