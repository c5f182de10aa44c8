-- Returns the secret, and creates it if there is none. A server with full memory can still read it.
-- KEYS: secret
-- ARGV: fresh
local found = redis.call('GET', KEYS[1])
if found then
  return found
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
