-- The tables of onetake in PostgreSQL, version 1. Times are microseconds since the epoch, by the
-- server's clock; durations are microseconds. The view onetake_keys shows the same in readable
-- form.

CREATE TABLE onetake_schema (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    version    integer NOT NULL,      -- the version after the last `onetake migrate`
    works_from integer NOT NULL       -- the oldest schema version of programs that work on it
);

CREATE TABLE onetake_records (
    id          bytea    PRIMARY KEY, -- 16 bytes: a digest of tenant, namespace and key
    attempt     bytea    NOT NULL,    -- 16 bytes: the latest attempt
    fence       bigint   NOT NULL,    -- rises with every attempt
    fingerprint bytea    NOT NULL,    -- one byte for the scheme, then the digest of the request
    origin      bytea    NOT NULL,    -- a digest of the tenant (16 bytes), then the route; or empty
                                      -- after a zero byte: the memo for a reconciler
    ttl         bigint   NOT NULL,
    lease       bigint   NOT NULL,
    grace       bigint   NOT NULL,
    created_at  bigint   NOT NULL,    -- the first claim of the key since it last expired
    claimed_at  bigint   NOT NULL,    -- the claim of the latest attempt
    state_at    bigint   NOT NULL,    -- running: the end of the lease; else the start of the state
    sweep_at    bigint   NOT NULL,    -- the next check by a sweep; not before it expires
    expires_at  bigint,               -- the key may be used again from then on; NULL while it runs
    watch_at    bigint,               -- only of a long-running attempt: the end of lease and grace
    ask_at      bigint,               -- unknown and to be reconciled: the next reconciliation
    state       smallint NOT NULL,    -- {{RUNNING}} {{RUNNING_NAME}}, {{COMPLETED}} {{COMPLETED_NAME}}, {{FAILED}} {{FAILED_NAME}}, {{RELEASED}} {{RELEASED_NAME}}, {{UNKNOWN}} {{UNKNOWN_NAME}}
    on_unknown  smallint NOT NULL,    -- {{ON_UNKNOWN_FAIL}} fail, {{ON_UNKNOWN_RECONCILE}} reconcile, {{ON_UNKNOWN_RETRY}} retry, {{ON_UNKNOWN_ROLLBACK}} rollback
    head        bytea,                -- completed: status and headers
    body        bytea,                -- completed: the body; NULL if it was not kept
    code        bytea,                -- failed: the code; unknown: the cause
    detail      bytea,                -- failed and unknown: a sentence
    history     text                  -- earlier attempts (fence, start, end, state), one a line
) WITH (fillfactor = 25);

-- No column of these indexes changes when a short operation completes: its row is updated in its
-- page, and no index is changed (a HOT update; the fill factor leaves room for it).
CREATE INDEX onetake_records_claimed ON onetake_records (claimed_at);
CREATE INDEX onetake_records_sweep ON onetake_records (sweep_at);
CREATE INDEX onetake_records_watch ON onetake_records (watch_at) WHERE watch_at IS NOT NULL;
CREATE INDEX onetake_records_ask ON onetake_records (ask_at) WHERE ask_at IS NOT NULL;

-- The highest fence of any swept record, so that fences rise also if the clock steps back.
CREATE TABLE onetake_floor (one boolean PRIMARY KEY DEFAULT true CHECK (one), fence bigint NOT NULL);
INSERT INTO onetake_floor (fence) VALUES (0);

-- The time up to which all claims were checked for long-running attempts.
CREATE TABLE onetake_watch (one boolean PRIMARY KEY DEFAULT true CHECK (one), seen_until bigint NOT NULL);
INSERT INTO onetake_watch (seen_until) VALUES (0);

-- Secrets that are created at first use and shared by all nodes.
CREATE TABLE onetake_secrets (name text PRIMARY KEY, value bytea NOT NULL);

-- The audit: the actions of operators, and of the reaper, on keys.
CREATE TABLE onetake_notes (
    place bytea PRIMARY KEY,          -- 8 bytes of time, then 16 random bytes
    id    bytea NOT NULL,             -- the id of the record, which may no longer exist
    said  bytea NOT NULL              -- the actor, the action, the reason and the result, encoded
);
CREATE INDEX onetake_notes_id ON onetake_notes (id, place);

-- The outbox: the messages of operations. A row is written by the transaction that completes its
-- operation, or not at all. Messages of one ordering key are delivered in the order of their
-- places.
CREATE TABLE onetake_outbox (
    place      bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message    bytea    NOT NULL UNIQUE, -- 16 bytes: the message's id
    lane       smallint NOT NULL,    -- 0 to 63, by the ordering key: the unit that a relay takes
    ordering   text     NOT NULL,    -- the ordering key
    topic      text     NOT NULL,
    headers    bytea    NOT NULL,    -- names and values, encoded
    payload    bytea    NOT NULL,
    created_at bigint   NOT NULL,
    -- 0 fresh, 1 delivered, 2 parked, 3 to be tried later, 4 behind a message that is tried later
    state      smallint NOT NULL DEFAULT {{FRESH}},
    state_at   bigint   NOT NULL,    -- later and behind: the next try; else the start of the state
    tries      integer  NOT NULL DEFAULT 0,
    error      text                  -- the error of the latest try
) WITH (autovacuum_vacuum_scale_factor = 0.02); -- each row changes its state at least once
-- A fresh message is checked once: it is delivered, or moves from this index to those below. The
-- order is that of `place + 0`, and not of `place`, because the primary key has the order of
-- `place` too: a planner that assumes that half of all rows are fresh would search for the first of
-- them there, after all rows that were ever delivered.
CREATE INDEX onetake_outbox_fresh ON onetake_outbox (lane, (place + 0)) WHERE state = {{FRESH}};
CREATE INDEX onetake_outbox_later ON onetake_outbox (lane, state_at) WHERE state IN ({{LATER}}, {{BEHIND}});
CREATE INDEX onetake_outbox_held ON onetake_outbox (lane, ordering, (place + 0)) WHERE state IN ({{LATER}}, {{BEHIND}});
CREATE INDEX onetake_outbox_oldest ON onetake_outbox (created_at) WHERE state IN ({{LATER}}, {{BEHIND}});
CREATE INDEX onetake_outbox_failing ON onetake_outbox ((place + 0)) WHERE state = {{LATER}};
CREATE INDEX onetake_outbox_delivered ON onetake_outbox (state_at) WHERE state = {{DELIVERED}};
CREATE INDEX onetake_outbox_parked ON onetake_outbox ((place + 0)) WHERE state = {{PARKED}};

CREATE SEQUENCE onetake_turns;

-- The relay that holds each lane; none after `taken_until`.
CREATE TABLE onetake_lanes (
    lane        smallint PRIMARY KEY,
    turn        bigint   NOT NULL DEFAULT 0, -- rises with every take
    taken_until bigint   NOT NULL DEFAULT 0
);
INSERT INTO onetake_lanes (lane) SELECT lane FROM generate_series(0, {{LANE_LAST}}) AS lane;

CREATE VIEW onetake_keys AS
SELECT encode(id, 'hex')                                               AS id,
       (ARRAY['{{RUNNING_NAME}}', '{{COMPLETED_NAME}}', '{{FAILED_NAME}}', '{{RELEASED_NAME}}', '{{UNKNOWN_NAME}}'])[state + 1] AS state,
       nullif(encode(substring(origin FROM 1 FOR 16), 'hex'), '')      AS tenant,
       -- The route ends before the zero byte.
       nullif(encode(substring(origin FROM 17 FOR
           position('\x00'::bytea IN substring(origin FROM 17) || '\x00'::bytea) - 1), 'escape'), '') AS route,
       fence,
       to_timestamp(created_at / 1000000.0)                            AS created_at,
       to_timestamp(claimed_at / 1000000.0)                            AS claimed_at,
       CASE WHEN state = {{RUNNING}} THEN to_timestamp(state_at / 1000000.0) END AS lease_until,
       CASE WHEN state > {{RUNNING}} THEN to_timestamp(state_at / 1000000.0) END AS settled_at,
       to_timestamp(expires_at / 1000000.0)                            AS expires_at,
       to_timestamp(ask_at / 1000000.0)                                AS ask_at,
       encode(code, 'escape')                                          AS code,
       encode(detail, 'escape')                                        AS detail,
       coalesce(length(head), 0) + coalesce(length(body), 0)           AS bytes,
       state = {{COMPLETED}} AND body IS NOT NULL                                  AS replayable
  FROM onetake_records;

INSERT INTO onetake_schema (version, works_from) VALUES (1, 1);
