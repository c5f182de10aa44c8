-- KEYS: record, leases, reference
-- ARGV: id, shift, attempt, verb, outcome, back_for, counts_until
-- The verb is RENEW, EXPIRE_LEASE, POSTPONE_RECONCILE or FORGET, or the state that the settlement leads
-- to. The outcome of POSTPONE_RECONCILE is its duration.
local id, shift, attempt = ARGV[1], ARGV[2], ARGV[3]
local verb, outcome, back_for, counts_until = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local now = clock(shift)
local record = find(KEYS[1])
if not alive(record, now) then
  return {STALE}
end
local function stale()
  return told(STALE, now, record, record.outcome)
end
-- An outcome that equals the one in the call is not sent back, because it may be large.
local function done()
  return told(DONE, now, record, record.outcome ~= outcome and record.outcome)
end

if record.attempt ~= attempt then
  return stale()
end
local running, unknown = record.state == RUNNING, record.state == UNKNOWN

if verb == RENEW then
  if not running then
    return stale()
  end
  renew(record, now)
  return done()
end
if verb == EXPIRE_LEASE then
  -- The reaper read the record earlier. It becomes unknown only if it is still abandoned.
  if not running or not abandoned(record, now, back_for, counts_until) then
    return stale()
  end
  lose(record, now, LEASE_ENDED, shift)
  return done()
end
if verb == POSTPONE_RECONCILE then
  -- If several nodes want to reconcile at once, one of them does.
  if not is_asked_for(record) or tonumber(record.ask) > now then
    return stale()
  end
  -- ZREM is first, for a server with full memory. The record's expiry does not change.
  redis.call('ZREM', KEYS[2], id)
  record.ask = text(plus(now, outcome))
  redis.call('ZADD', KEYS[2], ask_score(record.ask), id)
  redis.call('HSET', KEYS[1], 'ask', record.ask)
  return done()
end
if verb == FORGET then
  if running then
    return stale()
  end
  -- The fence of the shard stays, so that later fences are higher. DEL is first, for a server with
  -- full memory.
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], id)
  refer(KEYS[3], id, now, now, shift)
  record.ttl, record.created = '0', text(math.min(tonumber(record.created), now))
  record.state, record.at, record.outcome = RELEASED, text(now), ''
  return done()
end
if running and verb == UNKNOWN then
  lose(record, now, outcome, shift)
  return done()
end
if running or (unknown and verb ~= UNKNOWN) then
  finish(record, verb, now, outcome, shift)
  return done()
end
-- A settlement that is sent again, because its answer was lost, succeeds if it says the same.
if record.state == verb and (unknown or record.outcome == outcome) then
  return done()
end
if verb == UNKNOWN and record.state == RELEASED and record.on_unknown == ROLLBACK then
  return done()
end
return stale()
