//! The statements. Each is one implicit transaction, sent unnamed with its types, so that PgBouncer
//! may hand every one of them to another server connection.
//!
//! Claiming and settling are functions in the database: planning their statements takes longer than
//! running them, and a function's plans stay with the server connection, whoever it is lent to. Their
//! names end in the version of their text, so that nodes of two versions can run side by side.
//!
//! `clock` is evaluated before anything is written, because everything that is written needs its
//! `now`. It also bounds, for this statement alone, how long another transaction is waited for.

/// Times are microseconds since the epoch, by the server's clock. `$1` is what tests add to it, and
/// `$2` the longest wait for somebody else's lock.
macro_rules! clock {
    () => {
        "clock AS MATERIALIZED (
           SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1::bigint AS now,
                  set_config('lock_timeout', $2::text, true) AS bounded
         )"
    };
}

/// The same for statements that may pass over an owner. `$3` is for how long this node has been in
/// touch with the server, and `$4` until when, by the server's clock, it can still mean that: a
/// statement that was stuck in a broken network is carried out when it heals, and by then nobody has
/// been in touch.
macro_rules! clock_in_touch {
    () => {
        "clock AS MATERIALIZED (
           SELECT now, CASE WHEN now <= $4::bigint THEN $3::bigint ELSE -1 END AS in_touch, bounded
             FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1::bigint AS now,
                          set_config('lock_timeout', $2::text, true) AS bounded OFFSET 0) AS read
         )"
    };
}

pub(super) use {clock, clock_in_touch};

/// The columns of a record, in the order in which `rows` reads them.
macro_rules! record {
    ($of:literal) => {
        concat!(
            $of,
            ".id, ",
            $of,
            ".state, ",
            $of,
            ".attempt, ",
            $of,
            ".fence, ",
            $of,
            ".fingerprint, ",
            $of,
            ".ttl, ",
            $of,
            ".lease, ",
            $of,
            ".grace, ",
            $of,
            ".on_unknown, ",
            $of,
            ".created_at, ",
            $of,
            ".state_at, ",
            $of,
            ".head, ",
            $of,
            ".body, ",
            $of,
            ".code, ",
            $of,
            ".detail"
        )
    };
}

/// Whether the owner of a running record may be passed over: its lease and grace are over, and this
/// node has been in touch with the server for a whole grace, so that an owner that could not reach it
/// either had the time to come back.
macro_rules! over {
    ($of:literal) => {
        concat!(
            "(",
            $of,
            ".state = 0 AND ",
            $of,
            ".state_at + ",
            $of,
            ".grace <= clock.now AND ",
            $of,
            ".grace <= clock.in_touch)"
        )
    };
}

pub(super) use over;

/// The functions, as a migration makes them.
///
/// Their plans are made once and kept, perhaps while the table is still small: only indexes lead to
/// records here, however few there are.
macro_rules! function {
    ($name:literal, $arguments:literal, $body:expr) => {
        concat!(
            "CREATE FUNCTION ", $name, " (bigint, text, bigint, bigint, ", $arguments, ")
             RETURNS TABLE (r_kind smallint, r_now bigint, r_number bigint, r_id bytea, r_state smallint,
                            r_attempt bytea, r_fence bigint, r_fingerprint bytea, r_ttl bigint,
                            r_lease bigint, r_grace bigint, r_on_unknown smallint, r_created_at bigint,
                            r_state_at bigint, r_head bytea, r_body bytea, r_code bytea, r_detail bytea)
             LANGUAGE plpgsql
             SET enable_seqscan = off SET enable_mergejoin = off SET jit = off
             SET plan_cache_mode = force_generic_plan
             AS $function$ BEGIN RETURN QUERY ", $body, "; END $function$;\n"
        )
    };
}

/// Two forms of a claim: one that leaves alone what somebody else holds, for batches, and one that
/// waits for it, for single keys.
pub(super) struct Forms {
    pub(super) skipping: &'static str,
    pub(super) waiting: &'static str,
}

/// When a record that was found may be had: it expired, or it is the same operation and nobody owns
/// it any more.
macro_rules! free {
    ($of:literal) => {
        concat!(
            "(coalesce(",
            $of,
            ".expires_at <= clock.now, false) OR (",
            $of,
            ".fingerprint = asked_fingerprint AND (",
            $of,
            ".state = 3 OR (",
            $of,
            ".state = 4 AND ",
            $of,
            ".on_unknown = 2) OR ",
            over!($of),
            ")))"
        )
    };
}

macro_rules! claim {
    ($skip:literal) => {
        concat!(
            "WITH ",
            clock_in_touch!(),
            ",
    lowest AS MATERIALIZED (SELECT fence FROM onetake_floor LIMIT 1),
    seen AS MATERIALIZED (
      SELECT * FROM unnest($5::bytea[], $6::bytea[], $7::bytea[], $8::bigint[], $9::bigint[], $10::bigint[], $11::smallint[])
        AS asked (asked_id, asked_attempt, asked_fingerprint, asked_ttl, asked_lease, asked_grace, asked_on_unknown)
        LEFT JOIN LATERAL (
          SELECT * FROM onetake_records AS record WHERE record.id = asked_id OFFSET 0
        ) AS record ON true
    ),
    inserted AS (
      INSERT INTO onetake_records AS record
        (id, state, attempt, fence, fingerprint, ttl, lease, grace, on_unknown, created_at, claimed_at, state_at, sweep_at)
      SELECT asked_id, 0, asked_attempt, greatest(lowest.fence + 1, clock.now), asked_fingerprint, asked_ttl,
             asked_lease, asked_grace, asked_on_unknown, clock.now, clock.now, clock.now + asked_lease, clock.now + asked_ttl
        FROM seen, clock, lowest
       WHERE seen.id IS NULL
       ORDER BY asked_id
      ON CONFLICT (id) DO NOTHING
      RETURNING record.id, record.fence
    ),
    free AS MATERIALIZED (
      SELECT seen.*, coalesce(record.expires_at <= clock.now, false) AS expired, ",
            over!("record"),
            " AND record.on_unknown <> 2 AS lost
        FROM clock, seen JOIN onetake_records AS record ON record.id = seen.id
       WHERE ",
            free!("seen"),
            " AND ",
            free!("record"),
            "
       ORDER BY record.id
         FOR NO KEY UPDATE OF record",
            $skip,
            "
    ),
    granted AS (
      UPDATE onetake_records AS record
         SET state = 0, attempt = asked_attempt, fence = greatest(greatest(record.fence, lowest.fence) + 1, clock.now),
             fingerprint = asked_fingerprint, ttl = asked_ttl, lease = asked_lease, grace = asked_grace,
             on_unknown = asked_on_unknown,
             created_at = CASE WHEN free.expired THEN clock.now ELSE record.created_at END,
             claimed_at = clock.now, state_at = clock.now + asked_lease, expires_at = NULL,
             sweep_at = CASE WHEN free.expired THEN clock.now ELSE record.created_at END + asked_ttl,
             watch_at = NULL, head = NULL, body = NULL, code = NULL, detail = NULL
        FROM free, clock, lowest
       WHERE NOT free.lost AND record.id = free.asked_id
      RETURNING record.id, record.fence
    ),
    lost AS (
      UPDATE onetake_records AS record
         SET state = 4, state_at = clock.now, expires_at = clock.now + record.ttl, watch_at = NULL,
             code = 'lease_ended', detail = ''
        FROM free, clock
       WHERE free.lost AND record.id = free.asked_id
      RETURNING ",
            record!("record"),
            "
    )
    SELECT 0::smallint AS kind, clock.now, inserted.fence AS granted, inserted.id,
           NULL::smallint, NULL::bytea, NULL::bigint, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint,
           NULL::smallint, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea
      FROM inserted, clock
    UNION ALL
    SELECT 0::smallint, clock.now, granted.fence, granted.id,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM granted, clock
    UNION ALL
    SELECT 1::smallint, clock.now, NULL, ",
            record!("lost"),
            " FROM lost, clock
    UNION ALL
    SELECT 1::smallint, clock.now, NULL, ",
            record!("seen"),
            " FROM clock, seen WHERE seen.id IS NOT NULL AND NOT ",
            free!("seen")
        )
    };
}

/// Claims many keys. What is found is read without locks; what is absent is inserted; what may be
/// taken is locked without waiting and decided again on what is there by then. A key that is neither
/// granted nor found was in somebody's hands: it is asked for again.
pub(super) const CLAIM: Forms = Forms {
    skipping: "SELECT * FROM onetake_claim_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    waiting: "SELECT * FROM onetake_claim_waiting_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
};

/// Which settlements a record takes: an owner's word is final only once.
macro_rules! takes {
    () => {
        concat!(
            "(record.expires_at IS NULL OR record.expires_at > clock.now)
         AND CASE asked.verb WHEN 0 THEN record.state = 0
                             WHEN 4 THEN record.state = 0
                             WHEN 5 THEN ",
            over!("record"),
            "
                             ELSE record.state IN (0, 4) END"
        )
    };
}

macro_rules! settle {
    () => {
        concat!(
            "WITH ",
            clock_in_touch!(),
            ",
    asked AS MATERIALIZED (
      SELECT * FROM unnest($5::bytea[], $6::bytea[], $7::smallint[], $8::bytea[], $9::bytea[], $10::bytea[], $11::bytea[])
        AS asked (id, attempt, verb, head, body, code, detail)
    ),
    done AS (
      UPDATE onetake_records AS record
         SET state = CASE asked.verb WHEN 5 THEN 4 ELSE asked.verb END,
             state_at = CASE asked.verb WHEN 0 THEN clock.now + record.lease ELSE clock.now END,
             expires_at = CASE WHEN asked.verb = 0 THEN NULL
                               WHEN asked.verb IN (4, 5) THEN clock.now + record.ttl
                               ELSE greatest(record.created_at + record.ttl, clock.now + least(record.ttl, 3600000000)) END,
             watch_at = CASE WHEN asked.verb = 0 AND record.watch_at IS NOT NULL
                             THEN clock.now + record.lease + record.grace END,
             head = asked.head, body = asked.body, code = asked.code, detail = asked.detail
        FROM asked, clock
       WHERE record.id = asked.id AND record.attempt = asked.attempt AND ",
            takes!(),
            "
      RETURNING record.id, record.state, record.attempt, record.fence, record.fingerprint, record.ttl, record.lease,
                record.grace, record.on_unknown, record.created_at, record.state_at
    )
    SELECT 0::smallint AS kind, clock.now, NULL::bigint AS granted, done.id, done.state, done.attempt, done.fence,
           done.fingerprint, done.ttl, done.lease, done.grace, done.on_unknown, done.created_at, done.state_at,
           NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea
      FROM done, clock
    UNION ALL
    SELECT 1::smallint, clock.now, record.expires_at, ",
            record!("record"),
            " FROM clock, asked CROSS JOIN LATERAL (
        SELECT * FROM onetake_records AS record WHERE record.id = asked.id OFFSET 0
      ) AS record
     WHERE NOT EXISTS (SELECT FROM done WHERE done.id = asked.id)"
        )
    };
}

/// Settles many attempts. A row is decided on again once it is ours to write; what was not settled
/// comes back as it stands, for the caller to tell why. Nobody but the owner and the reaper writes
/// here, so a row is hardly ever held, and is waited for, a little: locking without waiting first
/// would write every row twice. Verbs: 0 renew, 1 complete, 2 fail, 3 release, 4 unknown, 5 abandon.
pub(super) const SETTLE: &str =
    "SELECT * FROM onetake_settle_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

/// All functions of version 1.
pub(super) const FUNCTIONS_1: &str = concat!(
    function!(
        "onetake_claim_1",
        "bytea[], bytea[], bytea[], bigint[], bigint[], bigint[], smallint[]",
        claim!(" SKIP LOCKED")
    ),
    function!(
        "onetake_claim_waiting_1",
        "bytea[], bytea[], bytea[], bigint[], bigint[], bigint[], smallint[]",
        claim!("")
    ),
    function!(
        "onetake_settle_1",
        "bytea[], bytea[], smallint[], bytea[], bytea[], bytea[], bytea[]",
        settle!()
    ),
);

/// Reads records that are not expired. It takes `clock`'s parameters like the others.
pub(super) const LOAD: &str = concat!(
    "WITH ",
    clock!(),
    " SELECT 1::smallint AS kind, clock.now, NULL::bigint AS granted, ",
    record!("record"),
    " FROM clock, onetake_records AS record
     WHERE record.id = ANY ($3::bytea[]) AND (record.expires_at IS NULL OR record.expires_at > clock.now)"
);
