//! `postgres://` URLs.

use std::path::PathBuf;
use std::str::FromStr;

use onetake_core::{StoreError, StoreErrorKind};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::url::ServerUrl;

/// The protection of the connection (`sslmode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    /// No TLS.
    Off,
    /// TLS if the server offers it. The server's certificate is not verified.
    Prefer,
    /// TLS. The server's certificate is not verified.
    Require,
    /// TLS, and the server's certificate and name are verified with these roots, or with the
    /// system's.
    VerifyFull(Option<PathBuf>),
}

/// The address of the server, and the options of the connection.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) tls: Tls,
    /// The value of `connections=N` in the URL.
    pub(super) connections: Option<usize>,
}

/// The largest number of connections of one node.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// The options in a URL that tokio-postgres reads, beside those that are read here.
const CLIENT_OPTIONS: [&str; 17] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
];

impl Address {
    /// Reads a URL. Options of other programs are ignored, so that several programs can share one
    /// URL. No message shows any part of it that could be a password.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let url = ServerUrl::postgres(url)?;
        let (mut mode, mut roots, mut connections) = (None, None, None);
        let mut rest = Vec::new();
        for (name, value) in url.query() {
            match name {
                "sslmode" => mode = Some(value),
                "sslrootcert" => roots = Some(PathBuf::from(value)),
                "connections" => connections = Some(parse_connections(value)?),
                _ if CLIENT_OPTIONS.contains(&name) => rest.push(format!("{name}={value}")),
                _ => tracing::debug!(option = name, "an option in the PostgreSQL URL is ignored"),
            }
        }
        let base = url.expose().split('?').next().unwrap_or_default();
        let plain =
            if rest.is_empty() { base.into() } else { format!("{base}?{}", rest.join("&")) };
        let mut config = Config::from_str(&plain).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            invalid(format!(
                "not a valid PostgreSQL URL{}; write postgres://USER:PASSWORD@HOST:PORT/DATABASE, \
                 and special characters in the password as %XX",
                cause.unwrap_or_default()
            ))
        })?;
        let tls = match mode {
            Some("disable") => Tls::Off,
            None if roots.is_some() => Tls::VerifyFull(roots),
            None | Some("prefer") => Tls::Prefer,
            Some("require") => Tls::Require,
            Some("verify-full") => Tls::VerifyFull(roots),
            Some(_) => {
                return Err(invalid(
                    "sslmode in the PostgreSQL URL must be disable, prefer, require or verify-full"
                        .into(),
                ));
            }
        };
        Ok(Self::new(&mut config, tls, connections))
    }

    /// The address with its mode of TLS, and with a name that the server's operators see.
    pub(super) fn new(config: &mut Config, tls: Tls, connections: Option<usize>) -> Self {
        config.ssl_mode(match tls {
            Tls::Off => SslMode::Disable,
            Tls::Prefer => SslMode::Prefer,
            Tls::Require | Tls::VerifyFull(_) => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("onetake");
        }
        Self { config: config.clone(), tls, connections }
    }
}

fn parse_connections(text: &str) -> Result<usize, StoreError> {
    text.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count)).ok_or_else(|| {
        invalid(format!("connections in the PostgreSQL URL must be from 1 to {CONNECTIONS_MAX}"))
    })
}

fn invalid(what: String) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let address = Address::parse("postgres://me:s%20x@db:5433/pay?connections=3").unwrap();
        assert_eq!(address.connections, Some(3));
        assert_eq!(address.tls, Tls::Prefer);
        assert_eq!(address.config.get_password(), Some(b"s x".as_slice()));
        let several = "postgres://a,b/pay?target_session_attrs=read-write&sslmode=verify-full";
        let address = Address::parse(several).unwrap();
        assert_eq!(address.config.get_hosts().len(), 2);
        assert_eq!(address.tls, Tls::VerifyFull(None));
        let with_roots = Address::parse("postgres://db/x?sslrootcert=/etc/ca.pem").unwrap();
        assert_eq!(with_roots.tls, Tls::VerifyFull(Some("/etc/ca.pem".into())));
    }

    #[test]
    fn options_of_other_programs_are_ignored() {
        let shared = "postgres://me@db/pay?application_name=shop&statement_cache_capacity=100\
                      &statement-cache-capacity=9&pool_max=3&flag&connections=2";
        let address = Address::parse(shared).unwrap();
        assert_eq!(address.config.get_application_name(), Some("shop"));
        assert_eq!(address.connections, Some(2));
    }

    #[test]
    fn bad_urls_are_explained_without_their_password() {
        for (url, hint) in [
            ("postgres://me:secret@db:port/x", "not a valid port"),
            ("postgres:///x", "host is missing"),
            ("postgres://me:top@secret@db/x", "`@` as %40"),
            ("postgres://me:secret@db/x?sslmode=maybe", "disable, prefer, require or verify-full"),
            ("postgres://me:secret@db/x?connections=0", "from 1 to 64"),
            ("postgres://me:secret@db/x?keepalives_idle=long", "not a valid PostgreSQL URL"),
            ("postgres://me:secret@db/x?target_session_attrs=both", "not a valid PostgreSQL URL"),
        ] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Invalid);
            let said = error.to_string();
            assert!(said.contains(hint), "{url}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
