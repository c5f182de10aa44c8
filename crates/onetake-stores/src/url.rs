//! URLs of stores.
//!
//! Each store has one parser. The configuration file, the command line and the stores use it, so
//! they accept the same URLs. The `url` crate parses the part of each server. Three rules are
//! stricter than the crate, because a malformed password must be rejected and never shown: user and
//! password are percent-encoded, white space is rejected, and several hosts are separated by
//! commas.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::url::{ParseError, Url};
use onetake_core::{StoreError, StoreErrorKind};

/// The location of a store.
///
/// The `Display` and `Debug` forms are for logs and messages. They show no password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// `embedded:FOLDER`: a folder on this machine.
    Embedded(PathBuf),
    /// `memory:`: the memory of this process, for tests. A restart loses everything.
    Memory,
    /// `sqlite:FILE`: a file on this machine.
    Sqlite(PathBuf),
    /// `postgres://…` or `postgresql://…`
    Postgres(ServerUrl),
    /// `redis://…` or `redis-cluster://…`; `rediss` and `rediss-cluster` use TLS.
    Redis(ServerUrl),
    /// `dynamodb://REGION/TABLE[?endpoint=…]`
    DynamoDb(ServerUrl),
}

/// The URL of one server or of several servers.
///
/// The `Display` and `Debug` forms show neither the password nor the query, which may contain one.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    text: String,
    shown: String,
    scheme: String,
    servers: Vec<Url>,
    path: String,
    query: String,
    has_user: bool,
}

/// A URL that was rejected: the fault, the fix, and the URL without its password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {fix}")]
pub struct UrlError {
    /// The fault.
    pub what: String,
    /// The fix.
    pub fix: String,
    /// The URL without its password; `None` if the password cannot be found in it.
    pub shown: Option<String>,
}

impl From<UrlError> for StoreError {
    fn from(error: UrlError) -> Self {
        let what = format!("the store's URL is wrong: {error}");
        Self::new(StoreErrorKind::Invalid, what)
    }
}

/// The schemes of all stores.
pub const SCHEMES: [&str; 10] = [
    "embedded",
    "memory",
    "sqlite",
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "redis-cluster",
    "rediss-cluster",
    "dynamodb",
];
const FIX: &str = "use \"embedded:FOLDER\", \"sqlite:FILE\", \"postgres://HOST/DATABASE\", \
                   \"redis://HOST\", \"redis-cluster://HOST,HOST\", \"dynamodb://REGION/TABLE\", \
                   or \"memory:\" for tests";
/// The characters that have a meaning in a URL, and their encoded forms.
const ENCODE: &str = "in a user or a password write `@` as %40, `/` as %2F, `?` as %3F, `#` as \
                      %23 and `%` as %25";
/// The largest clock difference between nodes on DynamoDB, unless the store's options say otherwise.
pub(crate) const DYNAMODB_SKEW_MAX: Duration = Duration::from_secs(600);

impl StoreUrl {
    /// Parses the URL of a store.
    ///
    /// # Errors
    /// If the text is not such a URL. The error contains the fault and the fix, and no password.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(refused(text, "not a store URL", FIX));
        };
        match scheme {
            "embedded" => path(text, rest, "folder", "/var/lib/onetake").map(Self::Embedded),
            "sqlite" if rest == ":memory:" => {
                let what = "an SQLite database in memory is lost when the process ends";
                Err(refused(text, what, "use \"memory:\" for tests"))
            }
            "sqlite" => path(text, rest, "file", "/var/lib/onetake.sqlite").map(Self::Sqlite),
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(refused(text, "the memory store has no text after the colon", FIX)),
            "postgres" | "postgresql" => ServerUrl::postgres(text).map(Self::Postgres),
            "redis" | "rediss" | "redis-cluster" | "rediss-cluster" => {
                ServerUrl::redis(text).map(Self::Redis)
            }
            "dynamodb" => ServerUrl::dynamodb(text).map(Self::DynamoDb),
            _ => Err(refused(text, "unknown kind of store", FIX)),
        }
    }

    /// The largest clock difference between nodes, for a store that has no clock of its own; else
    /// zero.
    #[must_use]
    pub const fn clock_skew_max(&self) -> Duration {
        match self {
            Self::DynamoDb(_) => DYNAMODB_SKEW_MAX,
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(folder) => write!(f, "embedded:{}", folder.display()),
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            Self::Postgres(url) | Self::Redis(url) | Self::DynamoDb(url) => url.fmt(f),
        }
    }
}

impl ServerUrl {
    /// Parses `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/PATH][?QUERY]`. Hosts may be
    /// missing.
    ///
    /// # Errors
    /// If the text is not such a URL. The error contains the fault and the fix, and no password.
    /// `example` is the fix for a wrong host.
    pub fn parse(text: &str, example: &str) -> Result<Self, UrlError> {
        Self::split(text, example).map_err(|(what, fix)| refused(text, &what, &fix))
    }

    /// As [`parse`](Self::parse), with only the fault and the fix in the error.
    fn split(text: &str, example: &str) -> Result<Self, (String, String)> {
        let bad = |what: &str, fix: &str| Err((what.to_owned(), fix.to_owned()));
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(rest) = rest.strip_prefix("//") else {
            let fix = format!("write \"{scheme}://\" followed by the rest");
            return bad("`//` is missing", &fix);
        };
        if rest.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return bad("the URL has white space", "remove the white space, or write it as %20");
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains('@') || !is_encoded(user)) {
            return bad("the user or the password has characters that must be encoded", ENCODE);
        }
        if tail.contains('#') || (user.is_none() && tail.contains('@')) {
            return bad("the part after the host has a character that must be encoded", ENCODE);
        }
        let mut servers = Vec::new();
        for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
            let user = user.map(|user| format!("{user}@")).unwrap_or_default();
            let server = server(host, &format!("{scheme}://{user}{host}{tail}"));
            servers.push(server.map_err(|what| (what.to_owned(), example.to_owned()))?);
        }
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let path = path.strip_prefix('/').unwrap_or(path);
        Ok(Self {
            text: text.to_owned(),
            shown: shown(scheme, user, hosts, path),
            scheme: scheme.to_owned(),
            servers,
            path: path.to_owned(),
            query: query.to_owned(),
            has_user: user.is_some(),
        })
    }

    /// Parses `postgres://[USER[:PASSWORD]@]HOST[:PORT][,…][/DATABASE][?OPTIONS]`. The host may be
    /// in the options instead.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn postgres(text: &str) -> Result<Self, UrlError> {
        const EXAMPLE: &str = "write for example \"postgres://USER:PASSWORD@HOST:5432/DATABASE\"";
        let url = Self::parse(text, EXAMPLE)?;
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return Err(refused(text, "not a PostgreSQL URL", EXAMPLE));
        }
        // The folder of a Unix socket can only be named in the options.
        if url.servers.is_empty() && !url.query().any(|(name, _)| name == "host") {
            return Err(refused(text, "the host is missing", EXAMPLE));
        }
        match url.path.contains('/') {
            true => Err(refused(text, "the name of a database must not have a `/`", EXAMPLE)),
            false => Ok(url),
        }
    }

    /// Parses `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, `rediss://…` (TLS),
    /// `redis-cluster://HOST,HOST` and `rediss-cluster://…`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn redis(text: &str) -> Result<Self, UrlError> {
        let scheme = text.split(':').next().unwrap_or_default();
        let is_cluster = scheme.ends_with("-cluster");
        let example = match (scheme, is_cluster) {
            ("redis" | "rediss", _) => format!("write for example \"{scheme}://HOST:6379\""),
            ("redis-cluster" | "rediss-cluster", _) => {
                format!("write for example \"{scheme}://HOST:6379,HOST:6379,HOST:6379\"")
            }
            _ => {
                let fix = "start it with redis://, rediss:// (TLS), redis-cluster:// or rediss-cluster://";
                return Err(refused(text, "not a Redis URL", fix));
            }
        };
        let url = Self::parse(text, &example)?;
        let bad = |what: &str, fix: &str| Err(refused(text, what, fix));
        match url.servers.len() {
            0 => return bad("the host is missing", &example),
            1 => {}
            _ if is_cluster => {}
            _ => {
                let fix =
                    format!("write one host, or {scheme}-cluster:// if the hosts are a cluster");
                return bad("the URL has several hosts", &fix);
            }
        }
        match (url.path(), is_cluster) {
            ("" | "0", _) => Ok(url),
            (_, true) => bad("a Redis Cluster has only the database 0", &example),
            (number, false) if number.parse::<u32>().is_ok() => Ok(url),
            _ => bad("the database of a Redis URL must be a number", &example),
        }
    }

    /// Parses `dynamodb://REGION/TABLE[?endpoint=http://HOST:PORT]`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn dynamodb(text: &str) -> Result<Self, UrlError> {
        const EXAMPLE: &str = "write for example \"dynamodb://eu-central-1/onetake\"";
        let mut url = Self::parse(text, EXAMPLE)?;
        let bad = |what: &str, fix: &str| Err(refused(text, what, fix));
        if url.scheme() != "dynamodb" {
            return bad("not a DynamoDB URL", EXAMPLE);
        }
        if url.has_user {
            let fix = "remove the text before `@`: credentials come from the environment, an AWS \
                       profile or a role";
            return bad("the URL must not have credentials", fix);
        }
        let region = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if url.region().is_empty() || !url.region().chars().all(region) {
            return bad("not the name of a region", EXAMPLE);
        }
        let table = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if url.path.is_empty() {
            return bad("the table is missing", EXAMPLE);
        }
        if !(3..=255).contains(&url.path.len()) || !url.path.chars().all(table) {
            let fix = "write 3 to 255 letters, digits and - _ . after the `/` of the region";
            return bad("not the name of a table", fix);
        }
        if !url.query.is_empty() {
            let fix = "write ?endpoint=http://HOST:PORT, or remove it to use AWS";
            let endpoint = url.endpoint().filter(|endpoint| {
                let rest = endpoint.split_once("://").map_or("", |(_, rest)| rest);
                let host = rest.strip_suffix('/').unwrap_or(rest);
                endpoint.starts_with("http") && !host.contains(['@', '/', '?', '&', '#', ','])
            });
            let Some(endpoint) = endpoint else { return bad("not a valid endpoint", fix) };
            let host = endpoint.split("://").nth(1).unwrap_or_default().trim_end_matches('/');
            if let Err(what) = server(host, endpoint) {
                return bad(what, fix);
            }
        }
        // It contains no password.
        url.shown.clone_from(&url.text);
        Ok(url)
    }

    /// The URL as it was written, with its password: for connecting, never for logs or messages.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// One complete URL for each host, each with the user, the password, the path and the query.
    #[must_use]
    pub fn servers(&self) -> &[Url] {
        &self.servers
    }

    /// The path without its leading slash: a database or a table.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The options after the `?`, as they were written.
    pub fn query(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    /// The region of a DynamoDB URL.
    #[must_use]
    pub fn region(&self) -> &str {
        self.servers.first().and_then(Url::host_str).unwrap_or_default()
    }

    /// The endpoint of a DynamoDB URL, if there is one.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.query.strip_prefix("endpoint=")
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({})", self.shown)
    }
}

fn path(text: &str, rest: &str, what: &str, example: &str) -> Result<PathBuf, UrlError> {
    let scheme = text.split(':').next().unwrap_or_default();
    let fix = format!("write the {what} directly after the colon: \"{scheme}:{example}\"");
    let fault = match rest {
        _ if rest.trim().is_empty() => format!("the {what} is missing"),
        _ if rest.starts_with("//") => format!("the URL of a {what} must not have a host"),
        _ if rest.contains('\0') => format!("not a {what} name"),
        _ => return Ok(PathBuf::from(rest)),
    };
    Err(refused(text, &fault, &fix))
}

/// Parses the URL of one server. `whole` is its URL, `host` the host and port in it.
fn server(host: &str, whole: &str) -> Result<Url, &'static str> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-._%[]:".contains(c);
    let port_at = host.rfind(']').unwrap_or_default();
    let port = host.get(port_at..).and_then(|tail| tail.split_once(':')).map(|(_, port)| port);
    if host.is_empty() || host.starts_with(':') {
        return Err("the host is missing");
    }
    // Unlike the `url` crate, this rejects an empty port and port 0.
    if port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port == 0) || port.is_empty()) {
        return Err("not a valid port");
    }
    if !host.chars().all(letter) && !host.contains(']') || !is_encoded(host) {
        return Err("not the name of a host");
    }
    Url::parse(whole).map_err(|error| match error {
        ParseError::InvalidPort => "not a valid port",
        ParseError::InvalidIpv6Address => "not an IPv6 address between the brackets",
        ParseError::EmptyHost => "the host is missing",
        _ => "not the name of a host",
    })
}

/// Returns a URL without its password, and without its query, which may contain one.
fn shown(scheme: &str, user: Option<&str>, hosts: &str, path: &str) -> String {
    let user = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
        None => String::new(),
        // A Redis password is often written in the place of the user.
        Some((user, "")) if scheme.starts_with("postgres") => format!("{user}@"),
        Some((_, "")) => "***@".to_owned(),
        Some((user, _)) => format!("{user}:***@"),
    };
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{scheme}://{user}{hosts}{slash}{path}")
}

/// The error for a URL. It repeats the URL only if the password can be found in it and removed.
fn refused(text: &str, what: &str, fix: &str) -> UrlError {
    let is_local = ["embedded:", "sqlite:", "memory:"].iter().any(|local| text.starts_with(local));
    let shown = match text.contains(':') {
        _ if is_local => Some(text.to_owned()),
        false => (!text.contains('@')).then(|| text.to_owned()),
        true => ServerUrl::split(text, "").ok().map(|url| url.shown),
    };
    UrlError { what: what.to_owned(), fix: fix.to_owned(), shown }
}

/// Returns true if every `%` begins an encoded byte.
fn is_encoded(part: &str) -> bool {
    let hex = |c: Option<char>| c.is_some_and(|c| c.is_ascii_hexdigit());
    part.split('%').skip(1).all(|rest| {
        let mut characters = rest.chars();
        hex(characters.next()) && hex(characters.next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_ones_are_read_and_shown_without_a_password() {
        for (text, shown) in [
            ("memory:", "memory:"),
            ("embedded:/var/lib/onetake", "embedded:/var/lib/onetake"),
            ("sqlite:./keys.sqlite", "sqlite:./keys.sqlite"),
            ("postgres://db/onetake", "postgres://db/onetake"),
            ("postgresql://me@db:5433/x", "postgresql://me@db:5433/x"),
            ("postgres://me:secret@db/x?sslmode=require", "postgres://me:***@db/x"),
            ("postgres://me:se:cr%40et@[::1]:5432/x", "postgres://me:***@[::1]:5432/x"),
            ("postgres://me@a:1,b:2/x?password=secret", "postgres://me@a:1,b:2/x"),
            ("postgres://me:secret@/x?host=/run/postgresql", "postgres://me:***@/x"),
            ("postgres://%2Frun%2Fpostgresql/x", "postgres://%2Frun%2Fpostgresql/x"),
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("rediss://:secret@cache:6380/3", "rediss://:***@cache:6380/3"),
            ("redis://secret@cache", "redis://***@cache"),
            ("redis-cluster://a:1,b:2,c", "redis-cluster://a:1,b:2,c"),
            ("rediss-cluster://me:secret@a,b/0", "rediss-cluster://me:***@a,b/0"),
            ("dynamodb://eu-central-1/onetake", "dynamodb://eu-central-1/onetake"),
            (
                "dynamodb://local/one_take.v1?endpoint=http://127.0.0.1:8000/",
                "dynamodb://local/one_take.v1?endpoint=http://127.0.0.1:8000/",
            ),
        ] {
            let url = StoreUrl::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?} {url}").contains("secret"), "{url:?}");
            if let StoreUrl::Postgres(url) | StoreUrl::Redis(url) | StoreUrl::DynamoDb(url) = &url {
                assert_eq!(url.expose(), text);
            }
        }
    }

    /// A wrong URL, a part of its error message, and the URL as the message shows it.
    const WRONG: &[(&str, &str, Option<&str>)] = &[
        ("memory", "not a store URL", Some("memory")),
        ("memory:x", "no text after", Some("memory:x")),
        ("embedded:", "folder is missing", None),
        ("embedded://data", "directly after the colon: \"embedded:/", None),
        ("sqlite:", "file is missing", None),
        ("sqlite::memory:", "use \"memory:\" for tests", None),
        ("embeded:data", "unknown kind of store", None),
        ("mysql://x", "unknown kind of store", Some("mysql://x")),
        ("postgre://me:secret@db/x", "unknown kind of store", Some("postgre://me:***@db/x")),
        ("redis-clutser://a", "unknown kind of store", Some("redis-clutser://a")),
        ("dynamo://eu/x", "unknown kind of store", Some("dynamo://eu/x")),
        ("postgres:db/x", "`//` is missing", None),
        ("postgres:me:secret@db", "write \"postgres://\"", None),
        ("postgres:///x", "host is missing", Some("postgres:///x")),
        ("postgres://me:secret@/x", "host is missing", Some("postgres://me:***@/x")),
        ("postgres://me:secret@:5432/x", "host is missing", None),
        ("postgres://me:se@cret@db/x", "`@` as %40", None),
        ("postgres://me:se/cret@db/x", "`/` as %2F", None),
        ("postgres://me:se#cret@db/x", "`#` as %23", None),
        ("postgres://me:se?cret@db/x", "`?` as %3F", None),
        ("postgres://me:100%secret@db/x", "`%` as %25", None),
        ("postgres://me:secret@db:0/x", "not a valid port", None),
        ("postgres://me:secret", "not a valid port", None),
        ("postgres://me:secret@d b/x", "white space", None),
        ("postgres://db/x/y", "not have a `/`", Some("postgres://db/x/y")),
        ("postgres://[::g]/x", "not an IPv6 address", None),
        ("postgres://a,,b/x", "host is missing", None),
        ("redis://", "host is missing", Some("redis://")),
        ("redis://:secret", "host is missing", None),
        ("redis://:secret@a,b", "redis-cluster://", Some("redis://:***@a,b")),
        ("redis://a/first", "must be a number", Some("redis://a/first")),
        ("redis-cluster://a,b/3", "only the database 0", Some("redis-cluster://a,b/3")),
        ("dynamodb:eu-central-1/x", "`//` is missing", None),
        ("dynamodb://eu-central-1", "table is missing", Some("dynamodb://eu-central-1")),
        ("dynamodb://EU/onetake", "name of a region", Some("dynamodb://EU/onetake")),
        ("dynamodb:///onetake", "name of a region", Some("dynamodb:///onetake")),
        ("dynamodb://eu-central-1/ab", "name of a table", Some("dynamodb://eu-central-1/ab")),
        ("dynamodb://eu-central-1/a/b", "name of a table", Some("dynamodb://eu-central-1/a/b")),
        ("dynamodb://AKIA:secret@eu/x", "an AWS profile", Some("dynamodb://AKIA:***@eu/x")),
        ("dynamodb://eu/onetake?endpoint=localhost", "?endpoint=http://", None),
        ("dynamodb://eu/onetake?endpoint=http://a:b", "not a valid port", None),
        ("dynamodb://eu/onetake?region=eu", "not a valid endpoint", None),
    ];

    #[test]
    fn wrong_ones_say_what_to_write_and_repeat_no_password() {
        for (text, hint, value) in WRONG {
            let error = StoreUrl::parse(text).expect_err(text);
            assert!(error.to_string().contains(hint), "{text}: {error}");
            for part in ["secret", "cret", "100%"] {
                assert!(!format!("{error:?}").contains(part), "{text}: {error:?}");
            }
            if value.is_some() {
                assert_eq!(error.shown.as_deref(), *value);
            }
        }
    }
}
