-- Writes an entry of the audit, over one of the same name, which is its place and its record.
-- KEYS: notes, all names, names of the record
-- ARGV: name, note
-- PERSIST changes nothing here, but it is allowed when memory is full, and then so is the rest: what
-- an operator does about that needs its note.
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return 1
