-- Version 2 of the schema. Programs of version 1 still work on it: their functions stay.

-- The reaper's watch reads each claim once more when all claims of its time are certainly visible.
-- A commit can become visible long after its claim was made: a synchronous standby was unreachable, or the
-- disk stalled. `mark_xid` is a transaction that began at `mark_at` or later. Once it and every transaction
-- with a lower number have ended, all claims from before `mark_at` are visible.
ALTER TABLE onetake_watch
    ADD COLUMN settled_until bigint NOT NULL DEFAULT 0, -- every claim before it was visible when the watch looked
    ADD COLUMN mark_at       bigint NOT NULL DEFAULT 0,
    ADD COLUMN mark_xid      xid8   NOT NULL DEFAULT '0';
-- Otherwise the first calls would read all claims of the table.
UPDATE onetake_watch SET settled_until = seen_until;

-- Puts claims that were made at `at` under watch. It is for calls in which more than three seconds
-- passed between reading the clock and writing the rows. A transaction gets its number with its first
-- write, and the mark of the watch relies on a number that is given within three seconds of the
-- claim's time.
CREATE FUNCTION onetake_watch_claims_1 (at bigint, ids bytea[], attempts bytea[]) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    UPDATE onetake_records AS record SET watch_at = record.state_at + record.grace
      FROM unnest(ids, attempts) AS asked (id, attempt)
     WHERE record.id BETWEEN asked.id AND asked.id AND record.attempt = asked.attempt
       AND record.claimed_at = at AND record.state = {{RUNNING}};
END $$;

-- Claims keys, each at most once in a call and in the order of their ids. A row of kind {{ROW_DONE}} is a grant,
-- one of kind {{ROW_STANDS}} is the current record, and a single one of kind {{ROW_ALL_DONE}} grants all of them: r_number is the
-- fence. A key without a row was locked by another transaction and must be sent again.
--
-- Version 1 read the floor before the insert. A key that was swept in between, while the clock was set
-- back, got a fence that is not above its last one. Here the floor is read after the insert, by a statement
-- that sees every sweep that the insert saw: a sweep deletes rows and raises the floor in one transaction.
CREATE FUNCTION onetake_claim_2 (
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
        -- No other transaction can see these rows yet.
        v_fence := v_lowest + 1;
        UPDATE onetake_records AS record SET fence = v_fence
          FROM unnest(ids, attempts) AS asked (id, attempt)
         WHERE record.id BETWEEN asked.id AND asked.id AND record.attempt = asked.attempt
           AND record.claimed_at = v_now AND record.fence = v_now;
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

    IF (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift
       NOT BETWEEN v_now AND v_now + {{WATCH_MARGIN}} THEN
        PERFORM onetake_watch_claims_1(v_now, ids, attempts);
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

UPDATE onetake_schema SET version = 2;
