-- KEYS: record, leases, reference
-- ARGV: id, shift, attempt, verb, outcome, back_for, counts_until
-- The verbs renew, abandon, defer and forget are themselves; any other is the state that it leads to.
-- What a deferral sends as its outcome is for how long.
local id, shift, attempt = ARGV[1], ARGV[2], ARGV[3]
local verb, outcome, back_for, counts_until = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local now = clock(shift)
local record = find(KEYS[1])
if not alive(record, now) then
  return {'stale'}
end
local function stale()
  return told('stale', now, record, record.outcome)
end
-- An outcome that is what was sent is not sent back: it may be large.
local function done()
  return told('done', now, record, record.outcome ~= outcome and record.outcome)
end

if record.attempt ~= attempt then
  return stale()
end
local running, unknown = record.state == 'running', record.state == 'unknown'

if verb == 'renew' then
  if not running then
    return stale()
  end
  renew(record, now)
  return done()
end
if verb == 'abandon' then
  -- The reaper looked a while ago: only what is still abandoned now becomes unknown.
  if not running or not abandoned(record, now, back_for, counts_until) then
    return stale()
  end
  lose(record, now, LEASE_ENDED, shift)
  return done()
end
if verb == 'defer' then
  -- Of several who would ask at once, one does.
  if not is_asked_for(record) or tonumber(record.ask) > now then
    return stale()
  end
  -- ZREM stands first, for a server whose memory is full. The record expires when it would have.
  redis.call('ZREM', KEYS[2], id)
  record.ask = text(plus(now, outcome))
  redis.call('ZADD', KEYS[2], ask_score(record.ask), id)
  redis.call('HSET', KEYS[1], 'ask', record.ask)
  return done()
end
if verb == 'forget' then
  if running then
    return stale()
  end
  -- The fence of the shard stays, so that fences still rise above its own. DEL stands first, for a
  -- server whose memory is full.
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], id)
  refer(KEYS[3], id, now, now, shift)
  record.ttl, record.created = '0', text(math.min(tonumber(record.created), now))
  record.state, record.at, record.outcome = 'released', text(now), ''
  return done()
end
if running and verb == 'unknown' then
  lose(record, now, outcome, shift)
  return done()
end
if running or (unknown and verb ~= 'unknown') then
  finish(record, verb, now, outcome, shift)
  return done()
end
-- A settlement whose first answer got lost is sent again: it is its own success, if it says the same.
if record.state == verb and (unknown or record.outcome == outcome) then
  return done()
end
if verb == 'unknown' and record.state == 'released' and record.on_unknown == 'rollback' then
  return done()
end
return stale()
