-- The records of a shard whose lease and grace are over, the longest over first.
-- KEYS: leases
-- ARGV: shift, limit
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(clock(ARGV[1])), 'WITHSCORES',
  'LIMIT', 0, ARGV[2])
