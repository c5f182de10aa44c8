-- The names of entries that are older than the retention time, the oldest first.
-- KEYS: all names
-- ARGV: shift, retention time, limit
local since = clock(ARGV[1]) - tonumber(ARGV[2])
return redis.call('ZRANGEBYLEX', KEYS[1], '-', '(' .. struct.pack('>I8', math.max(since, 0)),
  'LIMIT', 0, ARGV[3])
