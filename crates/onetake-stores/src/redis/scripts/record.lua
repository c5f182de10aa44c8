-- What all scripts begin with: how a record is read, told and ended. decide.rs is the original of
-- every decision here; the conformance suite holds these scripts to it.
--
-- Numbers are doubles in Lua: exact up to 2^53 microseconds, which is the year 2255. What would be
-- later is then. They are written by text(), never by tostring(), which would write 1.8e+15.
-- MAX is that number. It and the other constants are written in front of this text: see `constants` in scripts.rs.
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
  if values[1] ~= '1' then
    error('this record has version ' .. values[1] .. ', and this onetake knows version 1')
  end
  local record = {}
  for at, field in ipairs(FIELDS) do
    record[field] = values[at]
  end
  -- What was written before there were these fields.
  record.origin = record.origin or ''
  record.claimed = record.claimed or record.created
  record.history = record.history or ''
  record.ask = record.ask or record.at
  return record
end

local function expires_at(record)
  if record.state == 'running' then
    return nil
  end
  if record.state == 'unknown' then
    return plus(record.at, record.ttl)
  end
  local kept = math.min(tonumber(record.ttl), KEPT_AFTER_SETTLING)
  return math.max(plus(record.created, record.ttl), plus(record.at, kept))
end

-- Expired is absent at once, whether or not the server came by to delete it.
local function alive(record, now)
  if not record then
    return false
  end
  local ends = expires_at(record)
  return ends == nil or ends > now
end

-- Whether a running record may be taken from its owner. An owner that could not renew while the
-- store was away gets its whole grace anew: back_for is how long the asker had contact when it asked,
-- which says nothing any more if the question was on its way for longer than counts_until.
local function abandoned(record, now, back_for, counts_until)
  return plus(record.at, record.grace) <= now and tonumber(record.grace) <= tonumber(back_for)
    and now <= tonumber(counts_until)
end

-- Whether somebody should ask what became of it, from record.ask on.
local function is_asked_for(record)
  return record.state == 'unknown' and record.on_unknown == 'reconcile'
end

-- Where it stands among the leases: below zero, and so below all of them. They share a set, as a record
-- is never in both; while a cluster moves a slot, it refuses every script with a key that is not there
-- beside keys that are, and a set of asks would not be there most of the time.
local function ask_score(moment)
  return text(tonumber(moment) - MAX - 1)
end

-- The server's own expiry knows nothing of the shift, and comes never too early.
local function server_time(moment, shift)
  if string.sub(shift, 1, 1) == '=' then
    return text(MAX / 1000)
  end
  return text(math.ceil((moment - tonumber(shift)) / 1000))
end

-- Keeps the record among those of its reference until `ends`: MAX while it runs, now if it is
-- forgotten. All of one reference are in one value, each as its 16 bytes and the 16 digits of its
-- end, and the value stays until the last of them ends. Every grant and every settlement writes its
-- own end, so the value is never gone before a record that it names. Whatever else is found there is
-- written over: nothing that is decided depends on it.
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

-- Ends the attempt. ZREM stands first: it is allowed when memory is full, and then so is the rest,
-- so that a full server still records outcomes.
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
  -- PERSIST changes nothing here, but it is allowed when memory is full, and then so is the rest.
  redis.call('PERSIST', KEYS[1])
  local lease_until = plus(now, record.lease)
  redis.call('ZADD', KEYS[2], text(plus(lease_until, record.grace)), ARGV[1])
  record.at = text(lease_until)
  redis.call('HSET', KEYS[1], 'at', record.at)
end

-- Ends an attempt that was passed over, or that says that it knows nothing.
local function lose(record, now, cause, shift)
  if record.on_unknown == 'rollback' then
    finish(record, 'released', now, '', shift)
  else
    finish(record, 'unknown', now, cause, shift)
  end
end

local function told(answer, now, record, outcome)
  return {answer, text(now), record.attempt, record.fence, record.fingerprint, record.ttl,
    record.lease, record.grace, record.on_unknown, record.created, record.origin, record.claimed,
    record.history, record.state, record.at, record.ask, outcome}
end

