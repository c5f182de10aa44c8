-- The secret, made now if there is none. A server whose memory is full still tells what is there.
-- KEYS: secret
-- ARGV: fresh
local found = redis.call('GET', KEYS[1])
if found then
  return found
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
