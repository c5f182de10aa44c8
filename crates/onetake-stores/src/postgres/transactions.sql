-- Mode T: the last statement of a transaction that completes its own operation. It writes the
-- messages and the outcome, or fails with {{STALE_SQLSTATE}}. After that the transaction cannot commit, even if
-- the COMMIT was sent already. It returns nothing, so that there is no result that a caller could
-- ignore.
--
-- Messages of one ordering key get their places one transaction after the other, in the order of
-- commits: each transaction locks its ordering keys from before its first place until its commit.
-- The locks are taken in the order of their numbers, so that there is no deadlock. The record is
-- locked last, because its lease is renewed until then.
CREATE FUNCTION onetake_finish_1 (
    record_id bytea, attempt_id bytea, recording_head bytea, recording_body bytea,
    messages bytea[], lanes smallint[], orderings text[], topics text[], headers bytea[], payloads bytea[]
) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '10s'
AS $$
#variable_conflict use_column
DECLARE
    v_lock bigint;
    v_now  bigint;
    v_by   xid;
BEGIN
    -- Both settings hold until the transaction ends. An acknowledged outcome must be durable. A client
    -- that disappears before its COMMIT must not hold the locks of the record and the ordering keys
    -- until the network notices.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN '1 ms' AND '10 s' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '10s', true);
    END IF;
    FOR v_lock IN
        SELECT DISTINCT hashtextextended(asked.ordering, 6872012003) AS number
          FROM unnest(orderings) AS asked (ordering) ORDER BY number
    LOOP
        PERFORM pg_advisory_xact_lock(v_lock);
    END LOOP;
    v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    INSERT INTO onetake_outbox (message, lane, ordering, topic, headers, payload, created_at, state_at)
    SELECT asked.message, asked.lane, asked.ordering, asked.topic, asked.headers, asked.payload, v_now, v_now
      FROM unnest(messages, lanes, orderings, topics, headers, payloads) WITH ORDINALITY
           AS asked (message, lane, ordering, topic, headers, payload, number)
     ORDER BY asked.number;
    -- Waits for the lock of the record, and decides under it. An unknown record can still be completed
    -- by its own attempt, because no other attempt got the key.
    UPDATE onetake_records AS record
       SET state = {{COMPLETED}}, state_at = v_now, watch_at = NULL, ask_at = NULL, head = recording_head, body = recording_body,
           code = NULL, detail = NULL,
           expires_at = greatest(record.created_at + record.ttl, v_now + least(record.ttl, {{KEPT_AFTER_SETTLING}}))
     WHERE record.id = record_id AND record.attempt = attempt_id AND record.state IN ({{RUNNING}}, {{UNKNOWN}})
       AND (record.expires_at IS NULL OR record.expires_at > v_now)
    RETURNING record.xmin INTO v_by;
    IF FOUND AND v_by <> pg_current_xact_id()::xid THEN
        -- After a savepoint, the completion could be rolled back and the effects committed.
        RAISE EXCEPTION 'onetake: an operation is finished in its transaction, and not behind a savepoint in it'
            USING ERRCODE = '{{SAVEPOINT_SQLSTATE}}';
    END IF;
    IF v_by IS NULL THEN
        RAISE EXCEPTION 'onetake: this attempt does not own its key any more, so its transaction is rolled back'
            USING ERRCODE = '{{STALE_SQLSTATE}}';
    END IF;
END $$;
