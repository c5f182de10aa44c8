-- What onetake keeps in PostgreSQL, version 1. Times are microseconds since the epoch, by the
-- server's clock; durations are microseconds. The view onetake_keys shows the same for people.

CREATE TABLE onetake_schema (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    version    integer NOT NULL,      -- what `onetake migrate` brought it to
    works_from integer NOT NULL       -- the oldest version of the program's schema that still works on it
);

CREATE TABLE onetake_records (
    id          bytea    PRIMARY KEY, -- 16 bytes: a digest of tenant, namespace and key
    attempt     bytea    NOT NULL,    -- 16 bytes: the attempt that ran last
    fence       bigint   NOT NULL,    -- rises with every attempt
    fingerprint bytea    NOT NULL,    -- one byte for the scheme, then the digest of what was asked
    origin      bytea    NOT NULL,    -- 16 bytes: a digest of the tenant; then the route; empty if nobody said;
                                      -- behind a zero byte what a reconciler needs
    ttl         bigint   NOT NULL,
    lease       bigint   NOT NULL,
    grace       bigint   NOT NULL,
    created_at  bigint   NOT NULL,    -- when the key was first claimed
    claimed_at  bigint   NOT NULL,    -- when the latest attempt claimed it
    state_at    bigint   NOT NULL,    -- running: the end of the lease; otherwise since when it is so
    sweep_at    bigint   NOT NULL,    -- when a sweep looks at it; not before it expires
    expires_at  bigint,               -- when the key may be used anew; running: never
    watch_at    bigint,               -- only if it runs for long: the end of lease and grace
    ask_at      bigint,               -- unknown and to be reconciled: when to ask what became of it
    state       smallint NOT NULL,    -- 0 running, 1 completed, 2 failed, 3 released, 4 unknown
    on_unknown  smallint NOT NULL,    -- 0 fail, 1 reconcile, 2 retry, 3 rollback
    head        bytea,                -- completed: status and headers
    body        bytea,                -- completed: the body; NULL if it was not kept
    code        bytea,                -- failed: the code; unknown: why
    detail      bytea,                -- failed and unknown: a sentence
    history     text                  -- earlier attempts, a line each: fence, claimed, ended, state; NULL: none
) WITH (fillfactor = 25);

-- No column of these changes when a short operation completes: its row is updated in its page, and
-- no index is touched (a HOT update; the fill factor leaves room for it).
CREATE INDEX onetake_records_claimed ON onetake_records (claimed_at);
CREATE INDEX onetake_records_sweep ON onetake_records (sweep_at);
CREATE INDEX onetake_records_watch ON onetake_records (watch_at) WHERE watch_at IS NOT NULL;
CREATE INDEX onetake_records_ask ON onetake_records (ask_at) WHERE ask_at IS NOT NULL;

-- The highest fence that was ever swept: fences rise also where the clock steps back.
CREATE TABLE onetake_floor (one boolean PRIMARY KEY DEFAULT true CHECK (one), fence bigint NOT NULL);
INSERT INTO onetake_floor (fence) VALUES (0);

-- Up to when all claims were looked at for what runs long.
CREATE TABLE onetake_watch (one boolean PRIMARY KEY DEFAULT true CHECK (one), seen_until bigint NOT NULL);
INSERT INTO onetake_watch (seen_until) VALUES (0);

-- Secrets that were made at first use, the same for all nodes.
CREATE TABLE onetake_secrets (name text PRIMARY KEY, value bytea NOT NULL);

-- The audit: what people, and the reaper on their behalf, did to keys.
CREATE TABLE onetake_notes (
    place bytea PRIMARY KEY,          -- 8 bytes: when it was done; then 16 by chance
    id    bytea NOT NULL,             -- the record's, which may be gone
    said  bytea NOT NULL              -- who, what, why, and how it ended, as onetake reads it
);
CREATE INDEX onetake_notes_id ON onetake_notes (id, place);

-- The outbox: what operations say to others. A row is written by the transaction that completes its
-- operation, or not at all. Messages of one ordering key are delivered in the order of their places.
CREATE TABLE onetake_outbox (
    place      bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message    bytea    NOT NULL UNIQUE, -- 16 bytes: the message's id
    lane       smallint NOT NULL,    -- 0 to 63, by the ordering key: what one relay takes at a time
    ordering   text     NOT NULL,    -- the ordering key
    topic      text     NOT NULL,
    headers    bytea    NOT NULL,    -- names and values, as onetake reads them
    payload    bytea    NOT NULL,
    created_at bigint   NOT NULL,
    -- 0 fresh, 1 delivered, 2 parked, 3 to be tried later, 4 behind one that is
    state      smallint NOT NULL DEFAULT 0,
    state_at   bigint   NOT NULL,    -- later and behind: not to be looked at before; otherwise since when it is so
    tries      integer  NOT NULL DEFAULT 0,
    error      text                  -- why the latest try failed
) WITH (autovacuum_vacuum_scale_factor = 0.02); -- each row changes its state at least once
-- What is fresh is looked at once: it is delivered, or leaves this index for those below. They are in the order of
-- `place + 0`, and not of `place`, because the primary key is in that one too: a planner that thinks that half of
-- all rows are fresh would look for the first of them there, behind all that were ever delivered.
CREATE INDEX onetake_outbox_fresh ON onetake_outbox (lane, (place + 0)) WHERE state = 0;
CREATE INDEX onetake_outbox_later ON onetake_outbox (lane, state_at) WHERE state IN (3, 4);
CREATE INDEX onetake_outbox_held ON onetake_outbox (lane, ordering, (place + 0)) WHERE state IN (3, 4);
CREATE INDEX onetake_outbox_oldest ON onetake_outbox (created_at) WHERE state IN (3, 4);
CREATE INDEX onetake_outbox_failing ON onetake_outbox ((place + 0)) WHERE state = 3;
CREATE INDEX onetake_outbox_delivered ON onetake_outbox (state_at) WHERE state = 1;
CREATE INDEX onetake_outbox_parked ON onetake_outbox ((place + 0)) WHERE state = 2;

CREATE SEQUENCE onetake_turns;

-- Which relay has which lane: nobody, once `taken_until` is over.
CREATE TABLE onetake_lanes (
    lane        smallint PRIMARY KEY,
    turn        bigint   NOT NULL DEFAULT 0, -- rises whenever it is taken
    taken_until bigint   NOT NULL DEFAULT 0
);
INSERT INTO onetake_lanes (lane) SELECT lane FROM generate_series(0, 63) AS lane;

CREATE VIEW onetake_keys AS
SELECT encode(id, 'hex')                                               AS id,
       (ARRAY['running', 'completed', 'failed', 'released', 'unknown'])[state + 1] AS state,
       nullif(encode(substring(origin FROM 1 FOR 16), 'hex'), '')      AS tenant,
       -- Up to the zero byte that nobody sees.
       nullif(encode(substring(origin FROM 17 FOR
           position('\x00'::bytea IN substring(origin FROM 17) || '\x00'::bytea) - 1), 'escape'), '') AS route,
       fence,
       to_timestamp(created_at / 1000000.0)                            AS created_at,
       to_timestamp(claimed_at / 1000000.0)                            AS claimed_at,
       CASE WHEN state = 0 THEN to_timestamp(state_at / 1000000.0) END AS lease_until,
       CASE WHEN state > 0 THEN to_timestamp(state_at / 1000000.0) END AS settled_at,
       to_timestamp(expires_at / 1000000.0)                            AS expires_at,
       to_timestamp(ask_at / 1000000.0)                                AS ask_at,
       encode(code, 'escape')                                          AS code,
       encode(detail, 'escape')                                        AS detail,
       coalesce(length(head), 0) + coalesce(length(body), 0)           AS bytes,
       state = 1 AND body IS NOT NULL                                  AS replayable
  FROM onetake_records;

INSERT INTO onetake_schema (version, works_from) VALUES (1, 1);
