-- KEYS: record, leases, reference, fence
-- ARGV: id, shift, attempt, fingerprint, ttl, lease, grace, on_unknown, origin, back_for, counts_until
local id, shift, attempt, fingerprint = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ttl, lease, grace, on_unknown = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local origin, back_for, counts_until = ARGV[9], ARGV[10], ARGV[11]

local now = clock(shift)
local record = find(KEYS[1])
local here = alive(record, now)

local free = not here
-- Another payload never runs, in any state.
if here and record.fingerprint == fingerprint then
  -- A claim that arrives twice is granted again while its attempt runs. An attempt that ended never
  -- runs again. (If the answer to a claim was lost, the engine renews the attempt.)
  if record.attempt == attempt then
    if record.state == RUNNING then
      renew(record, now)
      return {GRANTED, record.fence}
    end
    return told(FOUND, now, record, record.outcome)
  end
  local again = record.on_unknown == RETRY or record.on_unknown == ROLLBACK
  if record.state == RELEASED then
    free = true
  elseif record.state == UNKNOWN then
    free = again
  elseif record.state == RUNNING and abandoned(record, now, back_for, counts_until) then
    if again then
      free = true
    else
      lose(record, now, LEASE_ENDED, shift)
    end
  end
end
if not free then
  return told(FOUND, now, record, record.outcome)
end

-- Higher than every earlier fence of this shard, even after the record was deleted or the server's
-- clock was set back.
local previous = tonumber(redis.call('GET', KEYS[4]) or '0')
if record then
  previous = math.max(previous, tonumber(record.fence))
end
local fence = math.max(previous + 1, now)
if fence > MAX then
  error('there is no higher fence left: the server\'s clock, or the key ' .. KEYS[4] .. ', is wrong')
end
-- A key that runs again before it expires keeps the time of its first claim, and its attempts.
local created, history = text(now), ''
if here then
  local ended = record.state == RUNNING and text(now) or record.at
  local past = table.concat({record.fence, record.claimed, ended, record.state}, ' ') .. '\n'
  created, history = record.created, string.sub(record.history .. past, -HISTORY_BYTES_MAX)
end
local lease_until = plus(now, lease)
-- ZADD is first: a server with full memory refuses it, and then nothing was written.
redis.call('ZADD', KEYS[2], text(plus(lease_until, grace)), id)
redis.call('SET', KEYS[4], text(fence))
redis.call('HSET', KEYS[1], 'v', RECORD_VERSION, 'attempt', attempt, 'fence', text(fence),
  'fingerprint', fingerprint, 'ttl', ttl, 'lease', lease, 'grace', grace, 'on_unknown', on_unknown,
  'created', created, 'origin', origin, 'claimed', text(now), 'history', history,
  'state', RUNNING, 'at', text(lease_until), 'outcome', '')
redis.call('PERSIST', KEYS[1])
refer(KEYS[3], id, MAX, now, shift)
return {GRANTED, text(fence)}
