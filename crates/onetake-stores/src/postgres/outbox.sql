-- How relays share the outbox. They are functions for their plans, as those of functions.sql are, and
-- because each of their statements sees what was committed before it: who has just got a lane sees
-- what its last owner did there.

-- Takes a lane that nobody has and in which something is due, and reads what to deliver.
--
-- What failed is not tried again before its time, and holds back those behind it of the same ordering
-- key. What was never tried is always due, whatever the clock did since it was written.
CREATE FUNCTION onetake_take_1 (shift bigint, hold bigint, most integer, bytes bigint)
RETURNS TABLE (
    r_lane smallint, r_turn bigint, r_place bigint, r_message bytea, r_ordering text, r_topic text,
    r_headers bytea, r_payload bytea, r_tries integer, r_created_at bigint
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now  bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    v_lane smallint;
    v_turn bigint;
BEGIN
    -- The one that was taken longest ago comes first: turns are numbers of one sequence.
    FOR v_lane IN
        SELECT lane.lane FROM onetake_lanes AS lane WHERE lane.taken_until <= v_now
         ORDER BY lane.turn, lane.lane
    LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM onetake_outbox AS waiting
             WHERE waiting.lane = v_lane AND waiting.state = 0
               AND (waiting.tries = 0 OR waiting.state_at <= v_now)
               AND NOT EXISTS (
                 SELECT FROM onetake_outbox AS failing
                  WHERE failing.lane = v_lane AND failing.ordering = waiting.ordering
                    AND failing.state = 0 AND failing.tries > 0 AND failing.place < waiting.place
                    AND failing.state_at > v_now));
        PERFORM FROM onetake_lanes AS lane WHERE lane.lane = v_lane AND lane.taken_until <= v_now
            FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        UPDATE onetake_lanes AS lane SET turn = nextval('onetake_turns'), taken_until = v_now + hold
         WHERE lane.lane = v_lane RETURNING lane.turn INTO v_turn;
        RETURN QUERY
        SELECT v_lane, v_turn, message.place, message.message, message.ordering, message.topic,
               message.headers, message.payload, message.tries, message.created_at
          FROM (
            SELECT due.place, row_number() OVER so_far AS number, sum(due.size) OVER so_far AS bytes
              FROM (
                SELECT waiting.place, (octet_length(waiting.payload) + octet_length(waiting.headers)
                         + octet_length(waiting.topic) + octet_length(waiting.ordering))::bigint AS size
                  FROM onetake_outbox AS waiting
                 WHERE waiting.lane = v_lane AND waiting.state = 0
                   AND (waiting.tries = 0 OR waiting.state_at <= v_now)
                   AND NOT EXISTS (
                     SELECT FROM onetake_outbox AS failing
                      WHERE failing.lane = v_lane AND failing.ordering = waiting.ordering
                        AND failing.state = 0 AND failing.tries > 0 AND failing.place < waiting.place
                        AND failing.state_at > v_now)
                 ORDER BY waiting.place LIMIT most
              ) AS due
            WINDOW so_far AS (ORDER BY due.place ROWS UNBOUNDED PRECEDING)
          ) AS chosen
          JOIN onetake_outbox AS message ON message.place = chosen.place
         WHERE chosen.number = 1 OR chosen.bytes <= onetake_take_1.bytes
         ORDER BY chosen.place;
        IF FOUND THEN
            RETURN;
        END IF;
        -- Its last owner delivered everything in this very moment.
        UPDATE onetake_lanes AS lane SET taken_until = 0 WHERE lane.lane = v_lane;
    END LOOP;
END
$$;

-- Says what became of messages, and gives their lane back; false if it is not this turn's any more.
-- Giving it back ends the turn: what is said twice is heard once.
CREATE FUNCTION onetake_delivered_1 (
    shift bigint, lock_wait text, in_lane smallint, in_turn bigint, places bigint[], states smallint[],
    afters bigint[], errors text[]
) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_set text := set_config('lock_timeout', lock_wait, true);
    v_now bigint;
BEGIN
    PERFORM FROM onetake_lanes AS lane WHERE lane.lane = in_lane AND lane.turn = in_turn FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    UPDATE onetake_outbox AS message
       SET state = said.state, state_at = v_now + said.after,
           tries = message.tries + (said.error IS NOT NULL)::integer, error = said.error
      FROM unnest(places, states, afters, errors) AS said (place, state, after, error)
     WHERE message.place = said.place AND message.lane = in_lane AND message.state = 0;
    -- Nobody's, whatever becomes of the clock.
    UPDATE onetake_lanes AS lane SET turn = nextval('onetake_turns'), taken_until = 0
     WHERE lane.lane = in_lane;
    RETURN true;
END
$$;

-- Deletes what was delivered long ago; how many it were.
CREATE FUNCTION onetake_prune_1 (shift bigint, kept bigint, most integer) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now   bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    v_count bigint;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT message.place FROM onetake_outbox AS message
         WHERE message.state = 1 AND message.state_at <= v_now - kept
         ORDER BY message.state_at LIMIT most FOR UPDATE SKIP LOCKED
    )
    DELETE FROM onetake_outbox AS message USING old WHERE message.place = old.place;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;

-- How many wait, for how long the oldest has, and how many are parked; counted up to a limit.
CREATE FUNCTION onetake_outbox_counts_1 (shift bigint, most bigint)
RETURNS TABLE (r_waiting bigint, r_lag bigint, r_parked bigint)
LANGUAGE sql STABLE
SET enable_seqscan = off SET jit = off
AS $$
    SELECT (SELECT count(*) FROM (SELECT FROM onetake_outbox WHERE state = 0 LIMIT most) AS counted),
           (SELECT coalesce((extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift
                            - min(oldest.created_at), 0)
              FROM onetake_lanes AS lane, LATERAL (
                SELECT message.created_at FROM onetake_outbox AS message
                 WHERE message.lane = lane.lane AND message.state = 0 ORDER BY message.place LIMIT 1
              ) AS oldest),
           (SELECT count(*) FROM (SELECT FROM onetake_outbox WHERE state = 2 LIMIT most) AS counted)
$$;
