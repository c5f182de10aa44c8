//! Redis URLs.

use std::time::Duration;

use onetake_core::{StoreError, StoreErrorKind};
use redis::{Client, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use url::Url;

use crate::url::ServerUrl;

/// An option that every URL may have: the file with the root certificates for the server.
const ROOTS: &str = "sslrootcert";

/// The servers to connect to, with their credentials.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The first servers: one server, or some nodes of a cluster, which name the others.
    pub(super) seeds: Vec<ConnectionInfo>,
    pub(super) cluster: bool,
    pub(super) tls: bool,
}

/// The options after the `?` of a URL.
pub(crate) type Query = Vec<(String, String)>;

impl Address {
    /// Parses `redis://[user:password@]host[:port][/db]`, `rediss://…` (TLS),
    /// `redis-cluster://host[:port],host[:port]` and `rediss-cluster://…`. Options that are not in
    /// `known` are rejected, except `sslrootcert`, which belongs to TLS.
    ///
    /// # Errors
    /// If the URL has another form. The message never shows the user and password.
    pub(crate) fn parse(url: &str, known: &[&str]) -> Result<(Self, Query), StoreError> {
        let url = ServerUrl::redis(url)?;
        let tls = url.scheme().starts_with("rediss");
        let seed = |server: &Url| {
            let mut server = server.clone();
            server.set_query(None);
            let text = server.as_str().replacen("-cluster://", "://", 1);
            text.into_connection_info().map_err(|error| {
                invalid(format!("a server in {url} is not a host and a port ({error})"))
            })
        };
        let mut seeds = url.servers().iter().map(seed).collect::<Result<Vec<_>, _>>()?;
        let mut query = options(&url, known)?;
        for (_, file) in query.extract_if(.., |(name, _)| name == ROOTS) {
            if !tls {
                let what = format!("{ROOTS} in the Redis URL needs TLS: use a rediss:// URL");
                return Err(invalid(what));
            }
            seeds = checked_by(seeds, &file)?;
        }
        Ok((Self { seeds, cluster: url.scheme().ends_with("-cluster"), tls }, query))
    }
}

/// Returns the same servers, whose certificates are then verified with the roots of a file and no
/// others.
fn checked_by(seeds: Vec<ConnectionInfo>, file: &str) -> Result<Vec<ConnectionInfo>, StoreError> {
    let bad = || invalid(format!("{ROOTS}: no certificates could be read from {file}"));
    let found = CertificateDer::pem_file_iter(file).map_err(|error| bad().with_source(error))?;
    if found.filter_map(Result::ok).next().is_none() {
        return Err(bad());
    }
    let roots = std::fs::read(file).map_err(|error| bad().with_source(error))?;
    let check = |seed| {
        let roots = TlsCertificates { client_tls: None, root_cert: Some(roots.clone()) };
        let client = Client::build_with_tls(seed, roots);
        client.map(|client| client.get_connection_info().clone()).map_err(|e| bad().with_source(e))
    };
    seeds.into_iter().map(check).collect()
}

fn options(url: &ServerUrl, known: &[&str]) -> Result<Query, StoreError> {
    let mut options = Query::new();
    for (name, value) in url.query() {
        if !known.contains(&name) && name != ROOTS {
            let known = known.iter().chain([&ROOTS]).copied().collect::<Vec<_>>().join(", ");
            let what = format!("the Redis URL has an unknown option `{name}` (known: {known})");
            return Err(invalid(what));
        }
        options.push((name.to_owned(), value.to_owned()));
    }
    Ok(options)
}

/// Parses a duration such as `100ms` or `2s`.
pub(crate) fn duration(name: &str, value: &str) -> Result<Duration, StoreError> {
    let digits = value.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = value.strip_prefix(digits).unwrap_or_default();
    let read = digits.parse::<u32>().ok().and_then(|count| match unit {
        "ms" => Some(Duration::from_millis(count.into())),
        "s" => Some(Duration::from_secs(count.into())),
        _ => None,
    });
    let what = format!("`{name}={value}` in the Redis URL is not a time such as 100ms or 2s");
    read.ok_or_else(|| invalid(what))
}

/// Parses a whole number.
pub(crate) fn number(name: &str, value: &str) -> Result<u32, StoreError> {
    let what = format!("`{name}={value}` in the Redis URL is not a whole number");
    value.parse().map_err(|_| invalid(what))
}

fn invalid(what: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(url: &str) -> Vec<String> {
        let (address, _) = Address::parse(url, &["a"]).unwrap();
        address.seeds.iter().map(|seed| seed.addr().to_string()).collect()
    }

    #[test]
    fn urls_of_every_form_are_read() {
        assert_eq!(seeds("redis://localhost"), ["localhost:6379"]);
        assert_eq!(seeds("rediss://cache.example:7000/3"), ["cache.example:7000"]);
        assert_eq!(seeds("redis://[::1]:7000"), ["::1:7000"]);
        assert_eq!(seeds("redis-cluster://a:1,b:2,c"), ["a:1", "b:2", "c:6379"]);
        assert_eq!(seeds("rediss-cluster://u:p@a:1,b:2/?a=1"), ["a:1", "b:2"]);
        let (address, query) = Address::parse("redis://me:p%40ss@h/5?a=1&a=2", &["a"]).unwrap();
        let settings = address.seeds[0].redis_settings();
        let said = (settings.username(), settings.password(), settings.db());
        assert_eq!(said, (Some("me"), Some("p@ss"), 5));
        assert_eq!(query, [("a".into(), "1".into()), ("a".into(), "2".into())]);
        assert!(!address.cluster && !address.tls);
    }

    #[test]
    fn a_wrong_url_is_refused_without_showing_its_password() {
        for (url, says) in [
            ("http://localhost", "start it with redis://"),
            ("redis", "`//` is missing"),
            ("redis://", "host is missing"),
            ("redis://u:secret@/1", "host is missing"),
            ("redis://u:secret@a,b", "redis-cluster://"),
            ("redis://u:secret@a:99999", "not a valid port"),
            ("redis://u:secret@a/x", "must be a number"),
            ("redis-cluster://u:secret@a/1", "only the database 0"),
            ("redis://u:sec/ret@a", "%2F"),
            ("redis://u:sec?ret@a", "%3F"),
            ("redis://u:sec@ret@a", "%40"),
            ("redis-cluster://u:secret@", "host is missing"),
            ("redis-cluster://u:secret@a:1,,", "host is missing"),
            ("redis://u:secret@a?sslrootcert=/ca.pem", "use a rediss:// URL"),
            ("rediss://u:secret@a?sslrootcert=/nowhere.pem", "read from /nowhere.pem"),
            ("redis://u:secret@a?waits=1", "unknown option `waits` (known: a, sslrootcert)"),
        ] {
            let error = Address::parse(url, &["a"]).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Invalid);
            let message = error.to_string();
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("sec"), "{url}: {message}");
        }
    }

    #[test]
    fn times_and_numbers_are_read() {
        assert_eq!(duration("t", "100ms").unwrap(), Duration::from_millis(100));
        assert_eq!(duration("t", "2s").unwrap(), Duration::from_secs(2));
        for wrong in ["", "5", "ms", "5h", "-1s", "1.5s"] {
            assert!(duration("t", wrong).unwrap_err().to_string().contains("100ms"), "{wrong}");
        }
        assert_eq!(number("n", "3").unwrap(), 3);
        number("n", "x").unwrap_err();
    }
}
