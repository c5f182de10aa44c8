//! Failures of statements, by how they are handled.

use onetake_core::{StoreError, StoreErrorKind};
use tokio_postgres::error::{Severity, SqlState};

/// The reason why a statement failed.
#[derive(Debug)]
pub(super) enum StatementError {
    /// Another transaction holds one of the keys. Each key must be sent by itself.
    Held,
    /// Another transaction inserted one of the keys at the same moment.
    Taken,
    /// The server asks to send the same statement again.
    Again,
    /// The server refused a part of the statement. Each item must be sent by itself.
    Refused(StoreError),
    /// The server answered that it cannot run any of it now.
    Trouble(StoreError),
    /// The server is unreachable, or not in a state to serve.
    Store(StoreError),
}

/// The effect of a statement. It decides whether a lost answer leaves the result unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

impl Effect {
    /// The error for a lost answer.
    pub(super) fn lost(self, why: &str) -> StoreError {
        match self {
            Self::Reads => StoreError::new(StoreErrorKind::Unavailable, why),
            Self::Writes => StoreError::new(StoreErrorKind::Indeterminate, why),
        }
    }
}

impl StatementError {
    /// Returns the error if the store was unreachable, and `None` if it answered with an error.
    pub(super) fn away(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }

    /// Converts the failure to the error of one item, which cannot be split any further.
    pub(super) fn for_one(self) -> StoreError {
        match self {
            Self::Held => {
                let what = "another transaction in PostgreSQL has locked this key; try again";
                StoreError::new(StoreErrorKind::Busy, what)
            }
            Self::Again | Self::Taken => {
                let what = "PostgreSQL refused this key too often because of concurrent changes (SQLSTATE 40001); try again";
                StoreError::new(StoreErrorKind::Busy, what)
            }
            Self::Refused(error) | Self::Trouble(error) | Self::Store(error) => error,
        }
    }

    /// Classifies the error of a statement. An error that the server reports has undone the
    /// statement. The effect is unknown only if the connection was lost: a fatal error, or a
    /// pooler's report of a lost server connection.
    pub(super) fn of_statement(error: tokio_postgres::Error, effect: Effect) -> Self {
        let Some(refusal) = error.as_db_error() else {
            return Self::Store(
                effect.lost("the connection to PostgreSQL broke").with_source(error),
            );
        };
        let code = refusal.code();
        let said = format!("{} (SQLSTATE {})", refusal.message(), code.code());
        let class = code.code().get(..2).unwrap_or_default();
        // The unparsed severity is in the server's language.
        let is_error = match refusal.parsed_severity() {
            Some(severity) => severity == Severity::Error,
            None => refusal.severity() == "ERROR",
        };
        let undone = is_error && class != "08";
        if !undone {
            return Self::Store(effect.lost(&format!("PostgreSQL closed the connection: {said}")));
        }
        let error = |kind, what: String| StoreError::new(kind, what);
        match *code {
            SqlState::LOCK_NOT_AVAILABLE => Self::Held,
            SqlState::UNIQUE_VIOLATION => Self::Taken,
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => Self::Again,
            SqlState::UNDEFINED_TABLE
            | SqlState::UNDEFINED_COLUMN
            | SqlState::UNDEFINED_FUNCTION => {
                Self::Trouble(error(StoreErrorKind::Invalid, missing(&said)))
            }
            SqlState::INSUFFICIENT_PRIVILEGE => Self::Trouble(error(
                StoreErrorKind::Invalid,
                format!(
                    "the role has no permission for the tables of onetake: {said}; grant it the \
                     rights that docs/STORES.md lists for its task (PostgreSQL, Rights), or run \
                     `onetake migrate` as the owner of the tables"
                ),
            )),
            // The refused write needs no space, so other writes may succeed.
            SqlState::DISK_FULL => Self::Refused(error(
                StoreErrorKind::Unavailable,
                format!(
                    "the disk of PostgreSQL is full: {said}; nothing was written; free some space"
                ),
            )),
            // Another server may have become the primary. A new connection finds it.
            SqlState::READ_ONLY_SQL_TRANSACTION => {
                Self::Store(error(StoreErrorKind::Unavailable, read_only(&said)))
            }
            // An operator's intervention, or a session in the wrong state.
            _ if ["57", "25"].contains(&class) => Self::Store(error(
                StoreErrorKind::Unavailable,
                format!("PostgreSQL is unavailable: {said}"),
            )),
            // A damaged row, or too little memory for one. Other rows may be fine.
            _ if ["53", "58", "XX"].contains(&class) => Self::Refused(error(
                StoreErrorKind::Unavailable,
                format!("PostgreSQL cannot read or write this key: {said}"),
            )),
            _ => Self::Refused(error(
                StoreErrorKind::Invalid,
                format!("PostgreSQL refused the statement: {said}"),
            )),
        }
    }

    /// Classifies an error of connecting. Nothing was sent.
    pub(super) fn of_connecting(error: tokio_postgres::Error, server: &str) -> StoreError {
        let Some(refusal) = error.as_db_error() else {
            let text = describe(&error);
            let tls = text.contains("TLS") || text.contains("certificate");
            return if tls {
                StoreError::new(
                    StoreErrorKind::Invalid,
                    format!(
                        "TLS with PostgreSQL at {server} failed: {text}; check sslmode and \
                         sslrootcert in the URL"
                    ),
                )
            } else if text.contains("password missing") || text.contains("authentication") {
                let what = format!(
                    "PostgreSQL at {server} requires a password: {text}; write it in the URL"
                );
                StoreError::new(StoreErrorKind::Invalid, what)
            } else {
                StoreError::new(
                    StoreErrorKind::Unavailable,
                    format!(
                        "PostgreSQL at {server} cannot be reached: {text}; check that it is \
                         running, and check the host and port in the URL"
                    ),
                )
            };
        };
        let said = format!("{} (SQLSTATE {})", refusal.message(), refusal.code().code());
        let (kind, what) = match *refusal.code() {
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => (
                StoreErrorKind::Invalid,
                format!(
                    "PostgreSQL at {server} refused the connection: {said}; check the user and password in the URL"
                ),
            ),
            SqlState::INVALID_CATALOG_NAME => (
                StoreErrorKind::Invalid,
                format!(
                    "PostgreSQL at {server} refused the connection: {said}; create the database, or name another in the URL"
                ),
            ),
            SqlState::TOO_MANY_CONNECTIONS => (
                StoreErrorKind::Unavailable,
                format!(
                    "PostgreSQL at {server} refused the connection: {said}; lower `connections=` \
                     in the URL, or raise max_connections"
                ),
            ),
            _ => (
                StoreErrorKind::Unavailable,
                format!("PostgreSQL at {server} accepts no connections now: {said}"),
            ),
        };
        StoreError::new(kind, what)
    }
}

/// The message for missing tables.
pub(super) fn missing(said: &str) -> String {
    format!(
        "the tables of onetake are not in this database: {said}; run `onetake migrate --store URL`"
    )
}

/// The message for a server that is a replica.
pub(super) fn read_only(said: &str) -> String {
    format!(
        "this PostgreSQL accepts no writes ({said}): name the primary in the URL, or several hosts \
         with target_session_attrs=read-write"
    )
}

/// Returns the text of an error with all its sources.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        below = error.source();
    }
    text
}
