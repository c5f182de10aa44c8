-- The common beginning of all scripts: functions that read, return and settle a record. Every decision
-- here restates decide.rs. The conformance suite and the differential test compare them.
--
-- Numbers are doubles in Lua: exact up to 2^53 microseconds, in the year 2255. MAX is that number, and
-- later times become MAX. Numbers are written by text(), because tostring() would write 1.8e+15. MAX
-- and the other constants are put in front of this text: see `constants` in scripts.rs.
local FIELDS = {'v', 'attempt', 'fence', 'fingerprint', 'ttl', 'lease', 'grace', 'on_unknown',
  'created', 'origin', 'claimed', 'history', 'state', 'at', 'ask', 'outcome'}

local function text(number)
  return string.format('%.0f', number)
end

local function plus(moment, by)
  return math.min(tonumber(moment) + tonumber(by), MAX)
end

-- The server's clock, in microseconds. Only tests shift it, or fix it (`=` and the time).
local function clock(shift)
  if string.sub(shift, 1, 1) == '=' then
    return tonumber(string.sub(shift, 2))
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2]) + tonumber(shift)
end

local function find(key)
  local values = redis.call('HMGET', key, unpack(FIELDS))
  if not values[1] then
    return nil
  end
  if values[1] ~= RECORD_VERSION then
    error('this record has version ' .. values[1] .. ', and this onetake knows version ' .. RECORD_VERSION)
  end
  local record = {}
  for at, field in ipairs(FIELDS) do
    record[field] = values[at]
  end
  -- Records of earlier versions do not have these fields.
  record.origin = record.origin or ''
  record.claimed = record.claimed or record.created
  record.history = record.history or ''
  record.ask = record.ask or record.at
  return record
end

local function expires_at(record)
  if record.state == RUNNING then
    return nil
  end
  if record.state == UNKNOWN then
    return plus(record.at, record.ttl)
  end
  local kept = math.min(tonumber(record.ttl), KEPT_AFTER_SETTLING)
  return math.max(plus(record.created, record.ttl), plus(record.at, kept))
end

-- An expired record counts as absent, even if the server has not deleted it yet.
local function alive(record, now)
  if not record then
    return false
  end
  local ends = expires_at(record)
  return ends == nil or ends > now
end

-- True if a running record may be taken from its owner. An owner that could not renew its lease while
-- the store was unreachable gets its whole grace again. back_for is how long the caller had been in
-- contact when it sent this call. After counts_until it is not used: the call was delayed for too long.
local function abandoned(record, now, back_for, counts_until)
  return plus(record.at, record.grace) <= now and tonumber(record.grace) <= tonumber(back_for)
    and now <= tonumber(counts_until)
end

-- True if the record is to be reconciled, from record.ask on.
local function is_asked_for(record)
  return record.state == UNKNOWN and record.on_unknown == RECONCILE
end

-- The score of a record to be reconciled: negative, so below those of all leases. Both share one sorted
-- set, because a record is never in both. While a cluster moves a slot, it refuses every script in
-- which one key exists and another does not, and a set of their own would be missing most of the time.
local function ask_score(moment)
  return text(tonumber(moment) - MAX - 1)
end

-- The server's own expiry does not know the shift. It never comes too early.
local function server_time(moment, shift)
  if string.sub(shift, 1, 1) == '=' then
    return text(MAX / 1000)
  end
  return text(math.ceil((moment - tonumber(shift)) / 1000))
end

-- Keeps the record among those of its reference until `ends`: MAX while it runs, now if it is
-- forgotten. All of one reference are in one value, each as its 16 bytes and the 16 digits of its
-- end, and the value stays until the last of them ends. Every grant and every settlement writes its
-- own end, so the value never ends before a record that it names. Any other content is overwritten,
-- because no decision depends on it.
local function refer(key, id, ends, now, shift)
  local value, latest = '', 0
  local function keep(other, other_ends)
    if other_ends > now and #value < 32 * FOUND_MAX then
      value = value .. other .. string.format('%016.0f', other_ends)
      latest = math.max(latest, other_ends)
    end
  end
  keep(id, ends)
  local known = redis.pcall('GET', key)
  if type(known) == 'string' then
    for at = 1, #known, 32 do
      local other = string.sub(known, at, at + 15)
      if other ~= id then
        keep(other, tonumber(string.sub(known, at + 16, at + 31)) or 0)
      end
    end
  end
  if value == '' then
    redis.call('DEL', key)
  elseif latest < MAX then
    redis.call('SET', key, value, 'PXAT', server_time(latest, shift))
  else
    redis.call('SET', key, value)
  end
end

-- Ends the attempt. ZREM is first: a server with full memory allows it, and then allows the rest of
-- the script, so it still records outcomes.
local function finish(record, state, now, outcome, shift)
  record.state, record.at, record.ask, record.outcome = state, text(now), text(now), outcome
  redis.call('ZREM', KEYS[2], ARGV[1])
  if is_asked_for(record) then
    redis.call('ZADD', KEYS[2], ask_score(record.ask), ARGV[1])
  end
  redis.call('HSET', KEYS[1], 'state', state, 'at', record.at, 'ask', record.ask,
    'outcome', outcome)
  local ends = expires_at(record)
  redis.call('PEXPIREAT', KEYS[1], server_time(ends, shift))
  refer(KEYS[3], ARGV[1], ends, now, shift)
end

-- Gives a running record a whole lease from now.
local function renew(record, now)
  -- PERSIST changes nothing here. A server with full memory allows it, and then allows the rest.
  redis.call('PERSIST', KEYS[1])
  local lease_until = plus(now, record.lease)
  redis.call('ZADD', KEYS[2], text(plus(lease_until, record.grace)), ARGV[1])
  record.at = text(lease_until)
  redis.call('HSET', KEYS[1], 'at', record.at)
end

-- Ends an attempt whose lease was lost, or that reports an unknown outcome.
local function lose(record, now, cause, shift)
  if record.on_unknown == ROLLBACK then
    finish(record, RELEASED, now, '', shift)
  else
    finish(record, UNKNOWN, now, cause, shift)
  end
end

local function told(answer, now, record, outcome)
  return {answer, text(now), record.attempt, record.fence, record.fingerprint, record.ttl,
    record.lease, record.grace, record.on_unknown, record.created, record.origin, record.claimed,
    record.history, record.state, record.at, record.ask, outcome}
end

