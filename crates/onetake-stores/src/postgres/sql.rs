//! The statements. Each is one implicit transaction, sent unnamed with its types, so that PgBouncer
//! may hand every one of them to another server connection.
//!
//! Claiming and settling are functions in the database: see `functions.sql` and
//! `version_3.sql`. Of the others, `clock` is
//! evaluated before anything is written, because everything that is written needs its `now`. It also
//! bounds, for this statement alone, how long another transaction is waited for.

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

/// Goes through all keys.
pub(super) const IDS: &str = "SELECT id FROM onetake_records WHERE id > $1 ORDER BY id LIMIT $2";

/// The keys whose reference it is.
pub(super) const WITH_REFERENCE: &str =
    "SELECT id FROM onetake_records WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3";

/// Claims many keys.
pub(super) const CLAIM: &str =
    "SELECT * FROM onetake_claim_3($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// Settles many attempts.
pub(super) const SETTLE: &str =
    "SELECT * FROM onetake_settle_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// Reads records that are not expired. It takes `clock`'s parameters like the others.
pub(super) const LOAD: &str = concat!(
    "WITH ",
    clock!(),
    " SELECT 1::smallint, clock.now, NULL::bigint, record.id,
             ARRAY[record.state, record.fence, record.ttl, record.lease, record.grace, record.on_unknown,
                   record.created_at, record.state_at, record.claimed_at, record.ask_at],
             ARRAY[record.attempt, record.fingerprint, record.origin, convert_to(record.history, 'UTF8'),
                   record.code, record.detail], record.head, record.body
        FROM clock, onetake_records AS record
     WHERE record.id = ANY ($3::bytea[]) AND (record.expires_at IS NULL OR record.expires_at > clock.now)"
);
