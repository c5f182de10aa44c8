-- The decisions on claims and settlements: onetake_core::decide, restated in the database.
--
-- They are functions because of their plans: planning takes longer than running, and a function's
-- plans stay with the server connection, also if a pooler gives it to another client. The plans are
-- made once and kept, perhaps while the table is still small, so records must always be found by an
-- index, however few there are. That is why an id is BETWEEN asked.id AND asked.id: with an
-- equality, a plan could join a table of five records as a whole, and would still do so when there
-- are millions. The names end in the version of the text, so that nodes of two versions can run
-- side by side. A record is returned in few columns, because every column of an answer takes time,
-- however few rows there are.
--
--   shift         the offset that tests add to the clock
--   lock_wait     the longest wait for another transaction's lock, for this statement alone
--   in_touch      how long the caller has been in contact with this server
--   counts_until  the time, by this clock, until which in_touch may be used: a statement that was
--                 stuck in a broken network is executed when the network recovers, and by then the
--                 contact was interrupted
--   manner        {{LOCK_QUICK}}: quick, and fails as a whole (unique_violation) if another transaction inserts
--                 one of the keys meanwhile; {{LOCK_TOGETHER}}: takes what is free, and skips locked rows;
--                 {{LOCK_ALONE}}: waits for locked rows, for single keys

-- True if the owner of a running record may be replaced: its lease and grace have ended, and the
-- caller has been in contact for a whole grace, so that an owner that could not reach the server
-- had the time to come back.
CREATE FUNCTION onetake_over_1 (state smallint, state_at bigint, grace bigint, at bigint, in_touch bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT state = {{RUNNING}} AND state_at + grace <= at AND grace <= in_touch
$$;

-- True if a record may be claimed: it expired, or it is the same operation and has no owner any
-- more.
CREATE FUNCTION onetake_free_1 (
    record_fingerprint bytea, state smallint, state_at bigint, grace bigint, on_unknown smallint,
    expires_at bigint, fingerprint bytea, at bigint, in_touch bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(expires_at <= at, false)
        OR (record_fingerprint = fingerprint
            AND (state = {{RELEASED}} OR (state = {{UNKNOWN}} AND on_unknown >= {{ON_UNKNOWN_RETRY}})
                 OR (state = {{RUNNING}} AND state_at + grace <= at AND grace <= in_touch)))
$$;

-- Claims keys, each at most once in a call and in the order of their ids. A row of kind {{ROW_DONE}} is a
-- grant, one of kind {{ROW_STANDS}} is the current record, and a single one of kind {{ROW_ALL_DONE}} grants all of them:
-- r_number is the fence. A key without a row was held by another transaction and must be sent
-- again.
CREATE FUNCTION onetake_claim_1 (
    shift bigint, lock_wait text, in_touch bigint, counts_until bigint, manner smallint,
    ids bytea[], attempts bytea[], fingerprints bytea[], ttls bigint[], leases bigint[], graces bigint[],
    on_unknowns smallint[], origins bytea[]
) RETURNS TABLE (
    r_kind smallint, r_now bigint, r_number bigint, r_id bytea, r_numbers bigint[], r_texts bytea[],
    r_head bytea, r_body bytea
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_set    text;
    v_now    bigint;
    v_lowest bigint;
    v_fence  bigint;
    v_count  integer;
    v_mine   bytea[];
BEGIN
    v_set := set_config('lock_timeout', lock_wait, true);
    SELECT fence INTO v_lowest FROM onetake_floor;
    v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    v_fence := greatest(v_lowest + 1, v_now);
    IF v_now > counts_until THEN
        in_touch := -1;
    END IF;

    -- Inserts the absent records. Only this statement can wait, for an uncommitted row of another
    -- transaction. ON CONFLICT looks up, locks and confirms every key once more, so the usual case
    -- does without it.
    IF manner = {{LOCK_QUICK}} THEN
        INSERT INTO onetake_records
            (id, state, attempt, fence, fingerprint, ttl, lease, grace, on_unknown, origin, created_at, claimed_at,
             state_at, sweep_at)
        SELECT asked.id, {{RUNNING}}, asked.attempt, v_fence, asked.fingerprint, asked.ttl, asked.lease,
               asked.grace, asked.on_unknown, asked.origin, v_now, v_now, v_now + asked.lease, v_now + asked.ttl
          FROM unnest(ids, attempts, fingerprints, ttls, leases, graces, on_unknowns, origins)
               AS asked (id, attempt, fingerprint, ttl, lease, grace, on_unknown, origin)
         WHERE NOT EXISTS (SELECT FROM onetake_records AS record WHERE record.id BETWEEN asked.id AND asked.id)
         ORDER BY asked.id;
    ELSE
        INSERT INTO onetake_records
            (id, state, attempt, fence, fingerprint, ttl, lease, grace, on_unknown, origin, created_at, claimed_at,
             state_at, sweep_at)
        SELECT asked.id, {{RUNNING}}, asked.attempt, v_fence, asked.fingerprint, asked.ttl, asked.lease,
               asked.grace, asked.on_unknown, asked.origin, v_now, v_now, v_now + asked.lease, v_now + asked.ttl
          FROM unnest(ids, attempts, fingerprints, ttls, leases, graces, on_unknowns, origins)
               AS asked (id, attempt, fingerprint, ttl, lease, grace, on_unknown, origin)
         WHERE NOT EXISTS (SELECT FROM onetake_records AS record WHERE record.id BETWEEN asked.id AND asked.id)
         ORDER BY asked.id
        ON CONFLICT (id) DO NOTHING;
    END IF;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = cardinality(ids) THEN
        r_kind := {{ROW_ALL_DONE}};
        r_now := v_now;
        r_number := v_fence;
        RETURN NEXT;
        RETURN;
    END IF;

    -- Locks the records that can be taken, and decides again under the lock.
    IF manner = {{LOCK_ALONE}} THEN
        SELECT array_agg(mine.id) INTO v_mine FROM (
            SELECT record.id
              FROM unnest(ids, fingerprints) AS asked (id, fingerprint)
              JOIN onetake_records AS record ON record.id BETWEEN asked.id AND asked.id
             WHERE onetake_free_1(record.fingerprint, record.state, record.state_at, record.grace,
                       record.on_unknown, record.expires_at, asked.fingerprint, v_now, in_touch)
             ORDER BY asked.id FOR NO KEY UPDATE OF record
        ) AS mine;
    ELSE
        SELECT array_agg(mine.id) INTO v_mine FROM (
            SELECT record.id
              FROM unnest(ids, fingerprints) AS asked (id, fingerprint)
              JOIN onetake_records AS record ON record.id BETWEEN asked.id AND asked.id
             WHERE onetake_free_1(record.fingerprint, record.state, record.state_at, record.grace,
                       record.on_unknown, record.expires_at, asked.fingerprint, v_now, in_touch)
             ORDER BY asked.id FOR NO KEY UPDATE OF record SKIP LOCKED
        ) AS mine;
    END IF;
    IF v_mine IS NOT NULL THEN
        -- The owner is lost, and the record must not run again: it becomes unknown.
        UPDATE onetake_records AS record
           SET state = {{UNKNOWN}}, state_at = v_now, expires_at = v_now + record.ttl, watch_at = NULL,
               ask_at = CASE record.on_unknown WHEN {{ON_UNKNOWN_RECONCILE}} THEN v_now END, code = '{{LEASE_ENDED}}', detail = ''
         WHERE record.id = ANY (v_mine) AND record.on_unknown < {{ON_UNKNOWN_RETRY}}
           AND onetake_over_1(record.state, record.state_at, record.grace, v_now, in_touch);
        UPDATE onetake_records AS record
           SET state = {{RUNNING}}, attempt = asked.attempt, fence = greatest(greatest(record.fence, v_lowest) + 1, v_now),
               fingerprint = asked.fingerprint, ttl = asked.ttl, lease = asked.lease, grace = asked.grace,
               on_unknown = asked.on_unknown, origin = asked.origin,
               -- A key that runs again before it expires keeps its latest attempts. concat() skips a NULL history.
               history = CASE WHEN record.expires_at <= v_now THEN NULL ELSE right(concat(
                   record.history, record.fence, ' ', record.claimed_at, ' ',
                   CASE WHEN record.state = {{RUNNING}} THEN v_now ELSE record.state_at END, ' ',
                   CASE record.state WHEN {{RUNNING}} THEN '{{RUNNING_NAME}}' WHEN {{RELEASED}} THEN '{{RELEASED_NAME}}' ELSE '{{UNKNOWN_NAME}}' END, chr(10)),
                   {{HISTORY_BYTES_MAX}}) END,
               created_at = CASE WHEN record.expires_at <= v_now THEN v_now ELSE record.created_at END,
               claimed_at = v_now, state_at = v_now + asked.lease, expires_at = NULL,
               sweep_at = CASE WHEN record.expires_at <= v_now THEN v_now ELSE record.created_at END + asked.ttl,
               watch_at = NULL, ask_at = NULL, head = NULL, body = NULL, code = NULL, detail = NULL
          FROM unnest(ids, attempts, fingerprints, ttls, leases, graces, on_unknowns, origins)
               AS asked (id, attempt, fingerprint, ttl, lease, grace, on_unknown, origin)
         WHERE record.id BETWEEN asked.id AND asked.id AND record.id = ANY (v_mine)
           AND onetake_free_1(record.fingerprint, record.state, record.state_at, record.grace,
                   record.on_unknown, record.expires_at, asked.fingerprint, v_now, in_touch);
    END IF;

    -- The new grants, and the other records as they are.
    RETURN QUERY
    SELECT CASE WHEN record.attempt = asked.attempt AND record.claimed_at = v_now THEN {{ROW_DONE}} ELSE {{ROW_STANDS}} END::smallint,
           v_now, record.fence, record.id,
           ARRAY[record.state, record.fence, record.ttl, record.lease, record.grace, record.on_unknown,
                 record.created_at, record.state_at, record.claimed_at, record.ask_at],
           ARRAY[record.attempt, record.fingerprint, record.origin, convert_to(record.history, 'UTF8'),
                 record.code, record.detail], record.head, record.body
      FROM unnest(ids, attempts, fingerprints) AS asked (id, attempt, fingerprint)
      JOIN onetake_records AS record ON record.id BETWEEN asked.id AND asked.id
     WHERE (record.attempt = asked.attempt AND record.claimed_at = v_now)
        OR NOT onetake_free_1(record.fingerprint, record.state, record.state_at, record.grace,
               record.on_unknown, record.expires_at, asked.fingerprint, v_now, in_touch);
END $$;

-- Settles attempts, each key at most once in a call and in the order of their ids. Verbs: {{VERB_RENEW}} renew,
-- {{VERB_COMPLETE}} complete, {{VERB_FAIL}} fail, {{VERB_RELEASE}} release, {{VERB_UNKNOWN}} unknown, {{VERB_EXPIRE_LEASE}} abandon, {{VERB_FORGET}} forget, {{VERB_POSTPONE_RECONCILE}} defer for the given hold. A row
-- of kind {{ROW_DONE}} means that it was done. Rows of kind {{ROW_STANDS}}, if there are any, show all current records of
-- the call, with their expiry, from which the caller derives why the others were not done. These
-- records are locked, so that this commit waits for every standby that theirs did not wait for: a
-- record that was settled before, by a statement whose answer was lost, is then really durable.
CREATE FUNCTION onetake_settle_1 (
    shift bigint, lock_wait text, in_touch bigint, counts_until bigint,
    ids bytea[], attempts bytea[], verbs smallint[], heads bytea[], bodies bytea[], codes bytea[], details bytea[],
    holds bigint[]
) RETURNS TABLE (
    r_kind smallint, r_now bigint, r_number bigint, r_id bytea, r_numbers bigint[], r_texts bytea[],
    r_head bytea, r_body bytea
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_set   text;
    v_now   bigint;
    v_count integer;
BEGIN
    v_set := set_config('lock_timeout', lock_wait, true);
    v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    IF v_now > counts_until THEN
        in_touch := -1;
    END IF;

    -- Each row is decided again under its lock. Only its owner and the reaper write it, so the wait
    -- for the lock is rare and short.
    RETURN QUERY
    UPDATE onetake_records AS record
       SET -- Mode T: the transaction rolled back, so the record is released and not unknown.
           state = CASE WHEN asked.verb IN ({{VERB_UNKNOWN}}, {{VERB_EXPIRE_LEASE}}) THEN CASE record.on_unknown WHEN {{ON_UNKNOWN_ROLLBACK}} THEN {{RELEASED}} ELSE {{UNKNOWN}} END
                        WHEN asked.verb = {{VERB_FORGET}} THEN {{RELEASED}}
                        WHEN asked.verb = {{VERB_POSTPONE_RECONCILE}} THEN {{UNKNOWN}}
                        ELSE asked.verb END,
           state_at = CASE asked.verb WHEN {{VERB_RENEW}} THEN v_now + record.lease WHEN {{VERB_POSTPONE_RECONCILE}} THEN record.state_at ELSE v_now END,
           expires_at = CASE WHEN asked.verb = {{VERB_RENEW}} THEN NULL
                             WHEN asked.verb IN ({{VERB_UNKNOWN}}, {{VERB_EXPIRE_LEASE}}) AND record.on_unknown <> {{ON_UNKNOWN_ROLLBACK}} THEN v_now + record.ttl
                             WHEN asked.verb = {{VERB_FORGET}} THEN v_now
                             WHEN asked.verb = {{VERB_POSTPONE_RECONCILE}} THEN record.expires_at
                             ELSE greatest(record.created_at + record.ttl, v_now + least(record.ttl, {{KEPT_AFTER_SETTLING}})) END,
           watch_at = CASE WHEN asked.verb = {{VERB_RENEW}} AND record.watch_at IS NOT NULL
                           THEN v_now + record.lease + record.grace END,
           ask_at = CASE WHEN asked.verb IN ({{VERB_UNKNOWN}}, {{VERB_EXPIRE_LEASE}}) AND record.on_unknown = {{ON_UNKNOWN_RECONCILE}} THEN v_now
                         WHEN asked.verb = {{VERB_POSTPONE_RECONCILE}} THEN v_now + asked.hold END,
           head = asked.head, body = asked.body,
           code = CASE WHEN asked.verb = {{VERB_POSTPONE_RECONCILE}} THEN record.code
                       WHEN asked.verb IN ({{VERB_UNKNOWN}}, {{VERB_EXPIRE_LEASE}}) AND record.on_unknown = {{ON_UNKNOWN_ROLLBACK}} THEN NULL ELSE asked.code END,
           detail = CASE WHEN asked.verb = {{VERB_POSTPONE_RECONCILE}} THEN record.detail
                         WHEN asked.verb IN ({{VERB_UNKNOWN}}, {{VERB_EXPIRE_LEASE}}) AND record.on_unknown = {{ON_UNKNOWN_ROLLBACK}} THEN NULL ELSE asked.detail END,
           -- A forgotten record expires now, and the next sweep deletes it. For other transitions these
           -- columns keep their values, so that no index changes.
           ttl = CASE asked.verb WHEN {{VERB_FORGET}} THEN 0 ELSE record.ttl END,
           created_at = CASE asked.verb WHEN {{VERB_FORGET}} THEN least(record.created_at, v_now) ELSE record.created_at END,
           sweep_at = CASE asked.verb WHEN {{VERB_FORGET}} THEN v_now ELSE record.sweep_at END
      FROM unnest(ids, attempts, verbs, heads, bodies, codes, details, holds)
           AS asked (id, attempt, verb, head, body, code, detail, hold)
     WHERE record.id BETWEEN asked.id AND asked.id AND record.attempt = asked.attempt
       AND (record.expires_at IS NULL OR record.expires_at > v_now)
       AND CASE asked.verb
             WHEN {{VERB_RENEW}} THEN record.state = {{RUNNING}}
             WHEN {{VERB_UNKNOWN}} THEN record.state = {{RUNNING}}
             WHEN {{VERB_EXPIRE_LEASE}} THEN onetake_over_1(record.state, record.state_at, record.grace, v_now, in_touch)
             WHEN {{VERB_FORGET}} THEN record.state <> {{RUNNING}}
             WHEN {{VERB_POSTPONE_RECONCILE}} THEN record.state = {{UNKNOWN}} AND record.on_unknown = {{ON_UNKNOWN_RECONCILE}} AND record.ask_at <= v_now
             ELSE record.state IN ({{RUNNING}}, {{UNKNOWN}}) END
    RETURNING {{ROW_DONE}}::smallint, v_now, NULL::bigint, record.id,
              ARRAY[record.state, record.fence, record.ttl, record.lease, record.grace, record.on_unknown,
                    record.created_at, record.state_at, record.claimed_at, record.ask_at],
              ARRAY[record.attempt, record.fingerprint, record.origin, convert_to(record.history, 'UTF8'),
                    record.code, record.detail],
              NULL::bytea, NULL::bytea;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = cardinality(ids) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT {{ROW_STANDS}}::smallint, v_now, record.expires_at, record.id,
           ARRAY[record.state, record.fence, record.ttl, record.lease, record.grace, record.on_unknown,
                 record.created_at, record.state_at, record.claimed_at, record.ask_at],
           ARRAY[record.attempt, record.fingerprint, record.origin, convert_to(record.history, 'UTF8'),
                 record.code, record.detail], record.head, record.body
      FROM unnest(ids) AS asked (id)
      JOIN onetake_records AS record ON record.id BETWEEN asked.id AND asked.id
     FOR NO KEY UPDATE OF record;
END $$;

-- Deletes up to `at_most` expired records, each checked again under its lock, beginning with those
-- that are due for a sweep since `since`. A record that the index named too early (a late outcome,
-- an attempt that runs past its ttl) is postponed, and a running one is watched from then on,
-- whatever the watch may have missed. The first step of a sweep also deletes some audit entries
-- that are older than `notes_kept`. Deleting again after a crash does no harm, so this commit does
-- not wait for the disk.
CREATE FUNCTION onetake_sweep_1 (shift bigint, lock_wait text, since bigint, at_most integer, notes_kept bigint)
RETURNS TABLE (r_removed bigint, r_unknown bigint, r_more boolean, r_last bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_set     text;
    v_now     bigint;
    v_due     tid[];
    v_highest bigint;
BEGIN
    v_set := set_config('lock_timeout', lock_wait, true) || set_config('synchronous_commit', 'off', true);
    v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    SELECT array_agg(due.ctid), max(due.sweep_at) INTO v_due, r_last FROM (
        SELECT record.ctid, record.sweep_at FROM onetake_records AS record
         WHERE record.sweep_at >= since AND record.sweep_at <= v_now
         ORDER BY record.sweep_at LIMIT at_most FOR UPDATE SKIP LOCKED
    ) AS due;
    WITH gone AS (
        DELETE FROM onetake_records AS record
         WHERE record.ctid = ANY (v_due) AND record.expires_at <= v_now
        RETURNING record.state, record.fence
    )
    SELECT count(*), count(*) FILTER (WHERE gone.state = {{UNKNOWN}}), max(gone.fence)
      INTO r_removed, r_unknown, v_highest FROM gone;
    IF r_removed < cardinality(v_due) THEN
        UPDATE onetake_records AS record
           SET sweep_at = coalesce(record.expires_at, v_now + record.lease + record.grace),
               watch_at = CASE WHEN record.state = {{RUNNING}} THEN record.state_at + record.grace END
         WHERE record.ctid = ANY (v_due);
    END IF;
    UPDATE onetake_floor SET fence = v_highest WHERE v_highest > fence;
    IF since = 0 THEN
        -- The first bytes of a place are its time, in big-endian order.
        DELETE FROM onetake_notes AS note WHERE note.place = ANY (ARRAY(
            SELECT old.place FROM onetake_notes AS old
             WHERE old.place < int8send(greatest(v_now - notes_kept, 0))
             ORDER BY old.place LIMIT 1000 FOR UPDATE SKIP LOCKED));
    END IF;
    r_more := coalesce(cardinality(v_due), 0) >= at_most;
    RETURN NEXT;
END $$;
