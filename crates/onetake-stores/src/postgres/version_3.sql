-- Version 3 of the schema. Programs of versions 1 and 2 still work on it: their functions stay.

-- True if a claim may get a record. The record has expired, or it is the same operation and has no
-- owner any more, or the claim's own attempt still runs. An attempt that ended is never granted again:
-- a claim that was sent twice may arrive long after its attempt was released.
CREATE FUNCTION onetake_free_2 (
    record_attempt bytea, record_fingerprint bytea, state smallint, state_at bigint, grace bigint,
    on_unknown smallint, expires_at bigint, attempt bytea, fingerprint bytea, at bigint, in_touch bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(expires_at <= at, false)
        OR (record_fingerprint = fingerprint
            AND CASE WHEN record_attempt = attempt THEN state = {{RUNNING}}
                     ELSE state = {{RELEASED}} OR (state = {{UNKNOWN}} AND on_unknown >= {{ON_UNKNOWN_RETRY}})
                          OR (state = {{RUNNING}} AND state_at + grace <= at AND grace <= in_touch) END)
$$;

-- Claims keys, each at most once in a call and in the order of their ids. A row of kind {{ROW_DONE}} is a grant,
-- one of kind {{ROW_STANDS}} is the current record, and a single one of kind {{ROW_ALL_DONE}} grants all of them: r_number is the
-- fence. A key without a row was locked by another transaction and must be sent again.
--
-- A claim is idempotent by its attempt. A claim that is sent again is granted again while its attempt
-- runs, with the same fence and for a whole lease from now. Version 2 took it for a claim of another
-- attempt.
--
-- The floor is read after the insert, by a statement that sees every sweep that the insert saw: a
-- sweep deletes rows and raises the floor in one transaction.
CREATE FUNCTION onetake_claim_3 (
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
    v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    v_fence := v_now;
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
    SELECT fence INTO v_lowest FROM onetake_floor;
    IF v_count > 0 AND v_lowest >= v_fence THEN
        -- No other transaction can see the inserted rows yet. The row of a claim that was sent before,
        -- perhaps at the same microsecond, is not among them.
        v_fence := v_lowest + 1;
        UPDATE onetake_records AS record SET fence = v_fence
          FROM unnest(ids, attempts) AS asked (id, attempt)
         WHERE record.id BETWEEN asked.id AND asked.id AND record.attempt = asked.attempt
           AND record.claimed_at = v_now AND record.fence = v_now AND record.xmin = pg_current_xact_id()::xid;
    END IF;
    IF v_count = cardinality(ids) THEN
        IF (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift
           NOT BETWEEN v_now AND v_now + {{WATCH_MARGIN}} THEN
            PERFORM onetake_watch_claims_1(v_now, ids, attempts);
        END IF;
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
              FROM unnest(ids, attempts, fingerprints) AS asked (id, attempt, fingerprint)
              JOIN onetake_records AS record ON record.id BETWEEN asked.id AND asked.id
             WHERE onetake_free_2(record.attempt, record.fingerprint, record.state, record.state_at, record.grace,
                       record.on_unknown, record.expires_at, asked.attempt, asked.fingerprint, v_now, in_touch)
             ORDER BY asked.id FOR NO KEY UPDATE OF record
        ) AS mine;
    ELSE
        SELECT array_agg(mine.id) INTO v_mine FROM (
            SELECT record.id
              FROM unnest(ids, attempts, fingerprints) AS asked (id, attempt, fingerprint)
              JOIN onetake_records AS record ON record.id BETWEEN asked.id AND asked.id
             WHERE onetake_free_2(record.attempt, record.fingerprint, record.state, record.state_at, record.grace,
                       record.on_unknown, record.expires_at, asked.attempt, asked.fingerprint, v_now, in_touch)
             ORDER BY asked.id FOR NO KEY UPDATE OF record SKIP LOCKED
        ) AS mine;
    END IF;
    IF v_mine IS NOT NULL THEN
        -- The owner is lost, and the record must not run again: it becomes unknown.
        -- The caller's own attempt is renewed instead, below.
        UPDATE onetake_records AS record
           SET state = {{UNKNOWN}}, state_at = v_now, expires_at = v_now + record.ttl, watch_at = NULL,
               ask_at = CASE record.on_unknown WHEN {{ON_UNKNOWN_RECONCILE}} THEN v_now END, code = '{{LEASE_ENDED}}', detail = ''
         WHERE record.id = ANY (v_mine) AND record.on_unknown < {{ON_UNKNOWN_RETRY}} AND NOT record.attempt = ANY (attempts)
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
           AND (record.attempt <> asked.attempt OR record.expires_at <= v_now)
           AND onetake_free_2(record.attempt, record.fingerprint, record.state, record.state_at, record.grace,
                   record.on_unknown, record.expires_at, asked.attempt, asked.fingerprint, v_now, in_touch);
        -- A claim that was sent before, and whose answer was lost: its lease begins again. The row is
        -- written, so that the repeated grant is durable as well.
        UPDATE onetake_records AS record
           SET state_at = v_now + record.lease,
               watch_at = CASE WHEN record.watch_at IS NOT NULL THEN v_now + record.lease + record.grace END
          FROM unnest(ids, attempts, fingerprints) AS asked (id, attempt, fingerprint)
         WHERE record.id BETWEEN asked.id AND asked.id AND record.id = ANY (v_mine) AND record.state = {{RUNNING}}
           AND record.attempt = asked.attempt AND record.fingerprint = asked.fingerprint
           AND record.state_at <> v_now + record.lease;
    END IF;

    IF (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift
       NOT BETWEEN v_now AND v_now + {{WATCH_MARGIN}} THEN
        PERFORM onetake_watch_claims_1(v_now, ids, attempts);
    END IF;

    -- The new and the repeated grants, and the other records as they are.
    RETURN QUERY
    SELECT CASE WHEN record.attempt = asked.attempt AND record.state = {{RUNNING}} AND record.fingerprint = asked.fingerprint
                     AND (record.claimed_at = v_now OR record.id = ANY (v_mine)) THEN {{ROW_DONE}} ELSE {{ROW_STANDS}} END::smallint,
           v_now, record.fence, record.id,
           ARRAY[record.state, record.fence, record.ttl, record.lease, record.grace, record.on_unknown,
                 record.created_at, record.state_at, record.claimed_at, record.ask_at],
           ARRAY[record.attempt, record.fingerprint, record.origin, convert_to(record.history, 'UTF8'),
                 record.code, record.detail], record.head, record.body
      FROM unnest(ids, attempts, fingerprints) AS asked (id, attempt, fingerprint)
      JOIN onetake_records AS record ON record.id BETWEEN asked.id AND asked.id
     WHERE (record.attempt = asked.attempt AND record.state = {{RUNNING}} AND record.fingerprint = asked.fingerprint
            AND (record.claimed_at = v_now OR record.id = ANY (v_mine)))
        OR NOT onetake_free_2(record.attempt, record.fingerprint, record.state, record.state_at, record.grace,
               record.on_unknown, record.expires_at, asked.attempt, asked.fingerprint, v_now, in_touch);
END $$;

UPDATE onetake_schema SET version = 3;
