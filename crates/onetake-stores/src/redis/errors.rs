//! Conversion of Redis errors to store errors.

use onetake_core::{StoreError, StoreErrorKind};
use redis::{ErrorKind, RedisError, ServerError};

/// The error for a command that the server refused. It had no effect.
pub(super) fn refused(server: &str, error: &ServerError) -> StoreError {
    use StoreErrorKind::{Invalid, Unavailable};
    let (kind, fix) = match error.code() {
        "OOM" => (Unavailable, "its memory is full: raise maxmemory, or shorten ttl"),
        "MISCONF" => {
            (Unavailable, "it cannot write to its disk: check its log, and free some space")
        }
        "NOREPLICAS" => {
            (Unavailable, "fewer replicas are connected than min-replicas-to-write requires")
        }
        "READONLY" => (Unavailable, "the server is a replica: name the primary in the URL"),
        "NOSCRIPT" => (Unavailable, "allow this user SCRIPT LOAD"),
        "LOADING" => (Unavailable, "the server is still loading its data"),
        "BUSY" => (Unavailable, "a script of another program blocks the server"),
        "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" => {
            (Unavailable, "the cluster is being reconfigured")
        }
        "NOAUTH" | "WRONGPASS" => (Invalid, "write the user and the password in the URL"),
        "NOPERM" => (
            Invalid,
            "allow this user EVALSHA, SCRIPT LOAD, TIME, WAIT, SCAN and the commands on hashes, sorted \
            sets and keys that begin with onetake: (for a filter GETRANGE, SET and UNLINK)",
        ),
        "WRONGTYPE" => {
            (Invalid, "another program uses the same keys: give onetake a database of its own")
        }
        _ => (Invalid, ""),
    };
    let said = format!("{} {}", error.code(), error.details().unwrap_or_default());
    StoreError::new(kind, sentence(server, "refused: ", said.trim(), fix))
}

/// The error for a connection that failed. Nothing was sent.
pub(super) fn not_connected(server: &str, error: &RedisError) -> StoreError {
    if let Ok(error) = ServerError::try_from(error.clone())
        && error.code() != "ERR"
    {
        return refused(server, &error);
    }
    let said = error.to_string();
    let (kind, fix) = match error.kind() {
        ErrorKind::AuthenticationFailed => {
            (StoreErrorKind::Invalid, "correct the user and the password in the URL")
        }
        _ if said.contains("certificate") => (
            StoreErrorKind::Invalid,
            "its certificate must be for this host name, and signed by a root certificate of this \
             system or of sslrootcert=FILE in the URL",
        ),
        _ if error.is_connection_refusal() => (
            StoreErrorKind::Unavailable,
            "check that it is running, and check the host and port in the URL",
        ),
        ErrorKind::InvalidClientConfig => (StoreErrorKind::Invalid, ""),
        _ => (
            StoreErrorKind::Unavailable,
            "check the host and port in the URL, and its scheme (rediss:// with TLS, redis:// \
            without)",
        ),
    };
    StoreError::new(kind, sentence(server, "cannot be reached: ", &said, fix))
        .with_source(error.clone())
}

/// The error for a connection that took too long. Nothing was sent.
pub(super) fn connect_timeout(server: &str, within: std::time::Duration) -> StoreError {
    let what = format!("did not accept a connection within {within:?}");
    let fix = "check the host and port in the URL, its scheme (rediss:// with TLS, redis:// \
               without), and firewalls on the way";
    StoreError::new(StoreErrorKind::Unavailable, sentence(server, &what, "", fix))
}

/// The error for a connection that is still being opened. Nothing was sent.
pub(super) fn not_yet_connected(server: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, sentence(server, "is not connected yet", "", ""))
}

/// The error for a lost answer. The command may have been executed.
pub(super) fn lost(server: &str, why: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Indeterminate, sentence(server, "did not respond: ", why, ""))
}

/// Converts the error of a command that writes nothing, such as a read: a lost answer is harmless.
pub(crate) fn wrote_nothing(error: StoreError) -> StoreError {
    if error.kind() == StoreErrorKind::Indeterminate {
        return StoreError::new(StoreErrorKind::Unavailable, error.to_string()).with_source(error);
    }
    error
}

fn sentence(server: &str, what: &str, said: &str, fix: &str) -> String {
    let gap = if fix.is_empty() { "" } else { "; " };
    format!("Redis at {server} {what}{said}{gap}{fix}")
}

/// Returns true if the server as a whole cannot serve now, so that no owner can renew its lease.
pub(super) fn is_outage(error: &ServerError) -> bool {
    matches!(error.code(), "LOADING" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "BUSY")
}

/// Returns true if every write is refused for now, while reads work. (A full server still accepts
/// renewals and outcomes: see the scripts.)
pub(super) fn refuses_writes(error: &ServerError) -> bool {
    matches!(error.code(), "MISCONF" | "NOREPLICAS")
}
