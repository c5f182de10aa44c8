-- Writes an entry of the audit log. The name of an entry is its place and its record; an entry with
-- the same name is replaced.
-- KEYS: notes, all names, names of the record
-- ARGV: name, note
-- PERSIST changes nothing here. A server with full memory allows it, and then allows the rest of the
-- script: an operator who makes room needs the entry in the audit log.
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return 1
