//! What went wrong, by what is done about it.

use onetake_core::{StoreError, StoreErrorKind};
use tokio_postgres::error::SqlState;

/// Why a statement did not do what it was sent for.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another transaction holds one of the keys: ask for each key by itself.
    Held,
    /// The server asks to send the very same again.
    Again,
    /// The server refused something in it: ask for each item by itself.
    Refused(StoreError),
    /// The server is not there, or not in a state to serve.
    Store(StoreError),
}

/// Whether a lost answer leaves open what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

impl Effect {
    /// The answer to what was sent got lost.
    pub(super) fn lost(self, why: &str) -> StoreError {
        match self {
            Self::Reads => StoreError::new(StoreErrorKind::Unavailable, why),
            Self::Writes => StoreError::new(StoreErrorKind::Indeterminate, why),
        }
    }
}

impl Fault {
    /// Whether the store was not there, as opposed to having answered something unwelcome.
    pub(super) fn is_away(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() != StoreErrorKind::Invalid)
    }

    /// The same as an answer for one item that cannot be split any further.
    pub(super) fn for_one(self) -> StoreError {
        match self {
            Self::Held => {
                let what = "another transaction in PostgreSQL holds this key; it may end soon";
                StoreError::new(StoreErrorKind::Unavailable, what)
            }
            Self::Again => {
                let what = "PostgreSQL asked too often to try this key again (SQLSTATE 40001)";
                StoreError::new(StoreErrorKind::Unavailable, what)
            }
            Self::Refused(error) | Self::Store(error) => error,
        }
    }

    /// What a statement's error means. An error that the server reports has undone the statement;
    /// it is only when the connection goes that nobody knows.
    pub(super) fn of_statement(error: tokio_postgres::Error, effect: Effect) -> Self {
        let Some(code) = error.code().cloned() else {
            return Self::Store(
                effect.lost("the connection to PostgreSQL broke").with_source(error),
            );
        };
        let message = error.as_db_error().map(|error| error.message().to_owned());
        let said = format!("{} (SQLSTATE {})", message.unwrap_or_default(), code.code());
        let store = |kind, what: String| Self::Store(StoreError::new(kind, what));
        match code {
            SqlState::LOCK_NOT_AVAILABLE => Self::Held,
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => Self::Again,
            // The server ends this connection: it may have committed just before.
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::IDLE_SESSION_TIMEOUT => {
                Self::Store(effect.lost(&format!("PostgreSQL ends the connection: {said}")))
            }
            SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN => {
                store(StoreErrorKind::Invalid, missing(&said))
            }
            SqlState::INSUFFICIENT_PRIVILEGE => store(
                StoreErrorKind::Invalid,
                format!(
                    "PostgreSQL does not let this role use onetake's tables: {said}; grant it SELECT, \
                     INSERT, UPDATE and DELETE on them"
                ),
            ),
            SqlState::DISK_FULL => store(
                StoreErrorKind::Unavailable,
                format!("PostgreSQL's disk is full: {said}; nothing was written; make room on it"),
            ),
            SqlState::READ_ONLY_SQL_TRANSACTION => {
                store(StoreErrorKind::Unavailable, read_only(&said))
            }
            // Resources, an operator's word, a system's trouble: the whole server's.
            _ if ["53", "57", "58", "XX", "08", "25"]
                .iter()
                .any(|c| code.code().starts_with(c)) =>
            {
                store(StoreErrorKind::Unavailable, format!("PostgreSQL cannot serve: {said}"))
            }
            _ => Self::Refused(StoreError::new(
                StoreErrorKind::Invalid,
                format!("PostgreSQL refused the statement: {said}"),
            )),
        }
    }

    /// What an error while connecting means. Nothing was sent.
    pub(super) fn of_connecting(error: tokio_postgres::Error, server: &str) -> StoreError {
        let Some(refusal) = error.as_db_error() else {
            let text = describe(&error);
            let tls = text.contains("TLS") || text.contains("certificate");
            return if tls {
                StoreError::new(
                    StoreErrorKind::Invalid,
                    format!(
                        "no TLS with PostgreSQL at {server}: {text}; check sslmode and sslrootcert in \
                         the URL"
                    ),
                )
            } else if text.contains("password missing") || text.contains("authentication") {
                let what = format!("PostgreSQL at {server} asks for a password: {text}");
                StoreError::new(StoreErrorKind::Invalid, what)
            } else {
                StoreError::new(
                    StoreErrorKind::Unavailable,
                    format!(
                        "PostgreSQL at {server} cannot be reached: {text}; check that it runs, and the \
                         host and port in the URL"
                    ),
                )
            };
        };
        let said = format!("{} (SQLSTATE {})", refusal.message(), refusal.code().code());
        let (kind, what) = match *refusal.code() {
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => (
                StoreErrorKind::Invalid,
                format!(
                    "PostgreSQL at {server} refused: {said}; check user and password in the URL"
                ),
            ),
            SqlState::INVALID_CATALOG_NAME => (
                StoreErrorKind::Invalid,
                format!(
                    "PostgreSQL at {server} refused: {said}; create it, or name another in the URL"
                ),
            ),
            SqlState::TOO_MANY_CONNECTIONS => (
                StoreErrorKind::Unavailable,
                format!(
                    "PostgreSQL at {server} refused: {said}; lower `connections=` in the URL, or raise \
                     max_connections"
                ),
            ),
            _ => (
                StoreErrorKind::Unavailable,
                format!("PostgreSQL at {server} takes no connection now: {said}"),
            ),
        };
        StoreError::new(kind, what)
    }
}

/// The tables are not there.
pub(super) fn missing(said: &str) -> String {
    format!("onetake's tables are not in this database: {said}; run `onetake migrate --store URL`")
}

/// The server is a replica.
pub(super) fn read_only(said: &str) -> String {
    format!(
        "this PostgreSQL takes no writes ({said}): name the primary in the URL, or several hosts with \
         target_session_attrs=read-write"
    )
}

/// An error with what is below it.
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
