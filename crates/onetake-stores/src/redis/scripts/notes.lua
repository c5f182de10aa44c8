-- The audit log: names and entries alternate, the newest first.
-- KEYS: notes, names (all, or those of a record)
-- ARGV: from, limit
local names = redis.call('ZREVRANGEBYLEX', KEYS[2], ARGV[1], '-', 'LIMIT', 0, ARGV[2])
local answer = {}
for _, name in ipairs(names) do
  answer[#answer + 1] = name
  answer[#answer + 1] = redis.call('HGET', KEYS[1], name) or ''
end
return answer
