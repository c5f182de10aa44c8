-- The records of a shard whose lease and grace have ended, or those that are due for reconciliation.
-- Those that are due longest come first.
-- KEYS: leases
-- ARGV: shift, limit, DUE_LEASES or DUE_ASKS
local from, to = '0', clock(ARGV[1])
if ARGV[3] == DUE_ASKS then
  from, to = '-inf', ask_score(to)
else
  to = text(to)
end
return redis.call('ZRANGEBYSCORE', KEYS[1], from, to, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
