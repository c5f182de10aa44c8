-- The sharing of the outbox between relays. These are functions because of their plans, like those
-- of functions.sql, and because each of their statements sees what was committed before it: a relay
-- that has just taken a lane sees what the lane's last owner did.

-- Takes a free lane in which something is due, and reads the messages to deliver, in no order:
-- sorting them here would make the planner read the whole table in the order of places.
--
-- A message that failed is tried later ({{LATER}}), and holds back the later messages of its ordering key
-- ({{BEHIND}}). However many they are, each is found once: among the fresh messages ({{FRESH}}), where it is put
-- behind the failed one. Due messages are then found by their time, and the messages behind them by
-- their ordering key. At least one held-back message of a key has a time. If that one is deleted,
-- the others are checked when a day is over.
--
-- A row without a place means that there is more to search: the call ends so that no call takes
-- long.
CREATE FUNCTION onetake_take_1 (shift bigint, hold bigint, most integer, bytes bigint)
RETURNS TABLE (
    r_lane smallint, r_turn bigint, r_place bigint, r_message bytea, r_ordering text, r_topic text,
    r_headers bytea, r_payload bytea, r_tries integer, r_created_at bigint
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    -- The number of fresh messages that are read at once, and the limit of reads without a result.
    v_look  integer := greatest(most, {{LOOK_MIN}});
    v_left  integer := greatest(1, {{LOOKED_MAX}} / v_look);
    v_day   bigint := {{HELD_MAX}};
    v_now   bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    v_lane  smallint;
    v_turn  bigint;
    v_seen  bigint;
    v_fresh bigint[];
    v_due   bigint[];
    v_key   bigint[];
    v_later record;
BEGIN
    -- The lane whose last turn is the oldest comes first. Turns are numbers of one sequence.
    FOR v_lane IN
        SELECT lane.lane FROM onetake_lanes AS lane WHERE lane.taken_until <= v_now
         ORDER BY lane.turn, lane.lane
    LOOP
        -- ORDER BY leads the planner to the right index. EXISTS would ignore it.
        CONTINUE WHEN (
            SELECT fresh.place FROM onetake_outbox AS fresh
             WHERE fresh.lane = v_lane AND fresh.state = {{FRESH}} ORDER BY fresh.place + 0 LIMIT 1
        ) IS NULL AND (
            SELECT later.place FROM onetake_outbox AS later
             WHERE later.lane = v_lane AND later.state IN ({{LATER}}, {{BEHIND}}) AND later.state_at <= v_now
             ORDER BY later.state_at LIMIT 1
        ) IS NULL;
        PERFORM FROM onetake_lanes AS lane WHERE lane.lane = v_lane AND lane.taken_until <= v_now
            FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        UPDATE onetake_lanes AS lane SET turn = nextval('onetake_turns'), taken_until = v_now + least(hold, v_day)
         WHERE lane.lane = v_lane RETURNING lane.turn INTO v_turn;

        LOOP
            WITH looked AS MATERIALIZED (
                SELECT fresh.place, fresh.ordering FROM onetake_outbox AS fresh
                 WHERE fresh.lane = v_lane AND fresh.state = {{FRESH}} ORDER BY fresh.place + 0 LIMIT v_look
            ), behind AS (
                UPDATE onetake_outbox AS message SET state = {{BEHIND}}, state_at = v_now + v_day FROM looked
                 WHERE message.place = looked.place AND (
                    SELECT held.place FROM onetake_outbox AS held
                     WHERE held.lane = v_lane AND held.ordering = looked.ordering
                       AND held.state IN ({{LATER}}, {{BEHIND}}) AND held.place + 0 < looked.place
                     ORDER BY held.place + 0 DESC LIMIT 1) IS NOT NULL
                RETURNING message.place
            )
            SELECT count(*), coalesce(array_agg(looked.place ORDER BY looked.place)
                       FILTER (WHERE looked.place NOT IN (SELECT behind.place FROM behind)), '{}')
              FROM looked INTO v_seen, v_fresh;
            EXIT WHEN cardinality(v_fresh) > 0 OR v_seen < v_look OR v_left = 0;
            v_left := v_left - 1;
        END LOOP;

        v_due := '{}';
        FOR v_later IN
            SELECT later.place, later.ordering FROM onetake_outbox AS later
             WHERE later.lane = v_lane AND later.state IN ({{LATER}}, {{BEHIND}}) AND later.state_at <= v_now
             ORDER BY later.state_at LIMIT most
        LOOP
            EXIT WHEN cardinality(v_due) >= most;
            CONTINUE WHEN v_later.place = ANY (v_due);
            -- The messages of the ordering key, from the first one up to one that has to wait.
            SELECT coalesce(array_agg(held.place ORDER BY held.place) FILTER (WHERE NOT held.waits), '{}')
              INTO v_key
              FROM (
                SELECT first.place, bool_or(first.state = {{LATER}} AND first.state_at > v_now)
                         OVER (ORDER BY first.place) AS waits
                  FROM (
                    SELECT held.place, held.state, held.state_at FROM onetake_outbox AS held
                     WHERE held.lane = v_lane AND held.ordering = v_later.ordering
                       AND held.state IN ({{LATER}}, {{BEHIND}})
                     ORDER BY held.place + 0 LIMIT most - cardinality(v_due)
                  ) AS first
              ) AS held;
            IF cardinality(v_key) < most - cardinality(v_due) AND v_later.place <> ALL (v_key) THEN
                -- An earlier message of its ordering key waits, and has its own time.
                UPDATE onetake_outbox AS message SET state = {{BEHIND}}, state_at = v_now + v_day
                 WHERE message.place = v_later.place;
            END IF;
            -- Each message once, also if two of an ordering key are due and one between them is not.
            CONTINUE WHEN v_key[1] = ANY (v_due);
            v_due := v_due || v_key;
        END LOOP;

        -- Failed messages get at most half of a turn. If a turn has one message, fresh and failed ones
        -- alternate.
        v_due := v_due[1:most - least(cardinality(v_fresh), (most + v_turn / 2 % 2) / 2)];
        v_fresh := v_fresh[1:most - cardinality(v_due)];
        IF cardinality(v_due) + cardinality(v_fresh) = 0 THEN
            UPDATE onetake_lanes AS lane SET taken_until = 0 WHERE lane.lane = v_lane;
            IF v_left = 0 THEN
                r_lane := v_lane;
                RETURN NEXT;
                RETURN;
            END IF;
            CONTINUE;
        END IF;
        RETURN QUERY
        SELECT v_lane, v_turn, message.place, message.message, message.ordering, message.topic,
               message.headers, message.payload, message.tries, message.created_at
          FROM (
            SELECT chosen.place, row_number() OVER so_far AS number, sum(chosen.size) OVER so_far AS bytes
              FROM (
                SELECT asked.place, asked.rank, asked.is_fresh,
                       (octet_length(message.payload) + octet_length(message.headers)
                         + octet_length(message.topic) + octet_length(message.ordering))::bigint AS size
                  FROM (
                    SELECT due.place, due.rank, false AS is_fresh
                      FROM unnest(v_due) WITH ORDINALITY AS due (place, rank)
                     UNION ALL
                    SELECT fresh.place, fresh.rank, true
                      FROM unnest(v_fresh) WITH ORDINALITY AS fresh (place, rank)
                  ) AS asked
                  JOIN onetake_outbox AS message ON message.place = asked.place
              ) AS chosen
            WINDOW so_far AS (ORDER BY chosen.rank, chosen.is_fresh ROWS UNBOUNDED PRECEDING)
          ) AS counted
          JOIN onetake_outbox AS message ON message.place = counted.place
         WHERE counted.number = 1 OR counted.bytes <= onetake_take_1.bytes;
        RETURN;
    END LOOP;
END
$$;

-- Lets the next held-back message of each settled message's ordering key proceed: it is due now.
-- The caller holds the lane's row.
CREATE FUNCTION onetake_go_on_1 (now bigint, in_lane smallint, orderings text[]) RETURNS void
LANGUAGE sql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $$
    UPDATE onetake_outbox AS message SET state = {{LATER}}, state_at = now
      FROM unnest(orderings) AS key (ordering), LATERAL (
        SELECT held.place, held.state FROM onetake_outbox AS held
         WHERE held.lane = in_lane AND held.ordering = key.ordering AND held.state IN ({{LATER}}, {{BEHIND}})
         ORDER BY held.place + 0 LIMIT 1
      ) AS next
     WHERE message.place = next.place AND next.state = {{BEHIND}}
$$;

-- Records the results of messages, and gives their lane back; false if the lane is no longer this
-- turn's. Giving it back ends the turn, so a repeated report has no effect.
CREATE FUNCTION onetake_delivered_1 (
    shift bigint, lock_wait text, in_lane smallint, in_turn bigint, places bigint[], states smallint[],
    afters bigint[], errors text[]
) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan
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
       SET state = said.state, state_at = v_now + least(said.after, {{HELD_MAX}}),
           tries = message.tries + (said.error IS NOT NULL)::integer, error = said.error
      FROM unnest(places, states, afters, errors) AS said (place, state, after, error)
     WHERE message.place = said.place AND message.lane = in_lane AND message.state IN ({{FRESH}}, {{LATER}}, {{BEHIND}});
    PERFORM onetake_go_on_1(v_now, in_lane, ARRAY(
        SELECT DISTINCT settled.ordering
          FROM unnest(places) AS said (place) JOIN onetake_outbox AS settled ON settled.place = said.place
         WHERE settled.lane = in_lane AND settled.state IN ({{DELIVERED}}, {{PARKED}})));
    -- The lane is free, even if the clock is set back.
    UPDATE onetake_lanes AS lane SET turn = nextval('onetake_turns'), taken_until = 0
     WHERE lane.lane = in_lane;
    RETURN true;
END
$$;

-- Deletes a message that is parked or failing. Returns true if there was one.
CREATE FUNCTION onetake_discard_1 (shift bigint, lock_wait text, in_message bytea) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_set  text := set_config('lock_timeout', lock_wait, true);
    v_lane smallint;
    v_key  text;
BEGIN
    SELECT message.lane INTO v_lane FROM onetake_outbox AS message
     WHERE message.message = in_message AND message.state IN ({{PARKED}}, {{LATER}});
    PERFORM FROM onetake_lanes AS lane WHERE lane.lane = v_lane FOR UPDATE;
    DELETE FROM onetake_outbox AS message
     WHERE message.message = in_message AND message.state IN ({{PARKED}}, {{LATER}})
    RETURNING message.ordering INTO v_key;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM onetake_go_on_1(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift, v_lane, ARRAY[v_key]);
    RETURN true;
END
$$;

-- Deletes messages that were delivered long ago, and returns their number. Corrects times of a
-- clock that was far ahead: a correct clock writes no time that is more than a day ahead.
CREATE FUNCTION onetake_prune_1 (shift bigint, kept bigint, most integer) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now   bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift;
    v_ahead bigint := v_now + 2 * {{HELD_MAX}};
    v_count bigint;
BEGIN
    UPDATE onetake_lanes SET taken_until = 0 WHERE taken_until > v_ahead;
    UPDATE onetake_outbox AS message SET state_at = v_now
      FROM onetake_lanes AS lane, LATERAL (
        SELECT held.place FROM onetake_outbox AS held
         WHERE held.lane = lane.lane AND held.state IN ({{LATER}}, {{BEHIND}}) AND held.state_at > v_ahead
         ORDER BY held.state_at LIMIT most
      ) AS far
     WHERE message.place = far.place AND message.state IN ({{LATER}}, {{BEHIND}}) AND message.state_at > v_ahead;
    WITH old AS MATERIALIZED (
        SELECT message.place FROM onetake_outbox AS message
         WHERE message.state = {{DELIVERED}} AND message.state_at <= v_now - kept
         ORDER BY message.state_at LIMIT most FOR UPDATE SKIP LOCKED
    )
    DELETE FROM onetake_outbox AS message USING old WHERE message.place = old.place;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;

-- Counts waiting messages, the age of the oldest, and parked messages, up to a limit.
CREATE FUNCTION onetake_outbox_counts_1 (shift bigint, most bigint)
RETURNS TABLE (r_waiting bigint, r_lag bigint, r_parked bigint)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $$
    SELECT least(most, (
             SELECT count(*) FROM (
                SELECT FROM onetake_outbox WHERE state = {{FRESH}} ORDER BY lane, place + 0 LIMIT most) AS fresh
           ) + (
             SELECT count(*) FROM (
                SELECT FROM onetake_outbox WHERE state IN ({{LATER}}, {{BEHIND}}) ORDER BY created_at LIMIT most) AS held
           )),
           (SELECT coalesce((extract(epoch FROM clock_timestamp()) * 1000000)::bigint + shift
                            - min(oldest.created_at), 0)
              FROM (
                (SELECT held.created_at FROM onetake_outbox AS held
                  WHERE held.state IN ({{LATER}}, {{BEHIND}}) ORDER BY held.created_at LIMIT 1)
                 UNION ALL
                SELECT fresh.created_at FROM onetake_lanes AS lane, LATERAL (
                    SELECT message.created_at FROM onetake_outbox AS message
                     WHERE message.lane = lane.lane AND message.state = {{FRESH}}
                     ORDER BY message.place + 0 LIMIT 1
                ) AS fresh
              ) AS oldest),
           (SELECT count(*) FROM (
                SELECT FROM onetake_outbox WHERE state = {{PARKED}} ORDER BY place + 0 LIMIT most) AS parked)
$$;
