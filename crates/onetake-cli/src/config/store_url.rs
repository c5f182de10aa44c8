//! Where records are kept. What may hold a password is never shown whole.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::Fault;
use super::fields::nearest;

/// Where records are kept.
///
/// Its `Display` and `Debug` forms are for logs and messages: they show no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `embedded:FOLDER`: in a folder of this machine.
    Embedded(PathBuf),
    /// `memory:`: in this process, for tests; a restart forgets everything.
    Memory,
    /// `sqlite:FILE`: in a file of this machine.
    Sqlite(PathBuf),
    /// `postgres://…` or `postgresql://…`
    Postgres(ServerUrl),
    /// `redis://…` or `redis-cluster://…`; with `rediss` over TLS.
    Redis(ServerUrl),
    /// `dynamodb://REGION/TABLE[?endpoint=…]`
    DynamoDb(ServerUrl),
}

/// The URL of a server: whole for who connects, and without its password for everybody else.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ServerUrl {
    text: String,
    shown: String,
}

impl ServerUrl {
    /// The URL as it was written, its password included: to connect, never to show.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
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

const FIX: &str = "use \"embedded:FOLDER\", \"sqlite:FILE\", \"postgres://HOST/DATABASE\", \
                   \"redis://HOST\", \"redis-cluster://HOST,HOST\", \"dynamodb://REGION/TABLE\", \
                   or \"memory:\" for tests";
const SCHEMES: [&str; 10] = [
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
/// What means something in a URL, and what to write instead.
const ENCODE: &str = "in a user or a password write `@` as %40, `/` as %2F, `?` as %3F, `#` as \
                      %23 and `%` as %25";

/// Reads where NATS is: one server, or several separated by commas.
pub(super) fn nats(text: &str, fix: &str) -> Result<ServerUrl, Fault> {
    let (scheme, rest) = text.split_once(':').unwrap_or_default();
    let parts = Parts::split(text, scheme, rest)?;
    check_hosts(text, parts.hosts, fix)?;
    if parts.hosts.is_empty() || !parts.path.is_empty() || !parts.query.is_empty() {
        let what = "a server of NATS is a host and a port, and nothing behind them";
        return Err(Fault::new(what, fix).showing(shown(text)));
    }
    Ok(parts.keep(text))
}

/// By how much the clocks of nodes may differ in front of DynamoDB, as its store has it.
const DYNAMODB_SKEW_MAX: Duration = Duration::from_secs(600);

impl StoreUrl {
    /// By how much the clocks of nodes may differ, where the store has none of its own.
    #[must_use]
    pub const fn clock_skew_max(&self) -> Duration {
        match self {
            Self::DynamoDb(_) => DYNAMODB_SKEW_MAX,
            _ => Duration::ZERO,
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let bad = |what: &str, fix: &str| Err(Fault::new(what, fix).showing(shown(text)));
        let Some((scheme, rest)) = text.split_once(':') else {
            return bad("not the URL of a store", FIX);
        };
        match scheme {
            "embedded" => Ok(Self::Embedded(path(text, rest, "folder", "/var/lib/onetake")?)),
            "sqlite" if rest == ":memory:" => {
                bad("it would forget everything with the process", "use \"memory:\" for tests")
            }
            "sqlite" => Ok(Self::Sqlite(path(text, rest, "file", "/var/lib/onetake.sqlite")?)),
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => bad("the memory store takes nothing behind the colon", FIX),
            "postgres" | "postgresql" => Ok(Self::Postgres(postgres(text, scheme, rest)?)),
            "redis" | "rediss" | "redis-cluster" | "rediss-cluster" => {
                Ok(Self::Redis(redis(text, scheme, rest)?))
            }
            "dynamodb" => Ok(Self::DynamoDb(dynamodb(text, rest)?)),
            _ => match nearest(scheme, SCHEMES) {
                Some(near) => bad("there is no such store", &format!("did you mean `{near}:`?")),
                None => bad("there is no such store", FIX),
            },
        }
    }
}

fn path(text: &str, rest: &str, what: &str, example: &str) -> Result<PathBuf, Fault> {
    let scheme = text.split(':').next().unwrap_or_default();
    let fix = format!("write the {what} right behind the colon: \"{scheme}:{example}\"");
    if rest.trim().is_empty() {
        return Err(Fault::new(format!("the {what} is missing"), fix));
    }
    if rest.starts_with("//") {
        return Err(Fault::new(format!("a {what} has no host"), fix));
    }
    if rest.contains('\0') {
        return Err(Fault::new(format!("not the name of a {what}"), fix));
    }
    Ok(PathBuf::from(rest))
}

fn postgres(text: &str, scheme: &str, rest: &str) -> Result<ServerUrl, Fault> {
    const EXAMPLE: &str = "write for example \"postgres://USER:PASSWORD@HOST:5432/DATABASE\"";
    let url = Parts::split(text, scheme, rest)?;
    let bad = |what: &str| Err(Fault::new(what, EXAMPLE).showing(shown(text)));
    // A socket's folder cannot stand where a host does.
    let host_in_query = url.query.split('&').any(|pair| pair.starts_with("host="));
    if url.hosts.is_empty() && !host_in_query {
        return bad("the host is missing");
    }
    check_hosts(text, url.hosts, EXAMPLE)?;
    if url.path.contains('/') {
        return bad("a database's name has no `/`");
    }
    Ok(url.keep(text))
}

fn redis(text: &str, scheme: &str, rest: &str) -> Result<ServerUrl, Fault> {
    let is_cluster = scheme.ends_with("-cluster");
    let example = match is_cluster {
        true => format!("write for example \"{scheme}://HOST:6379,HOST:6379,HOST:6379\""),
        false => format!("write for example \"{scheme}://HOST:6379\""),
    };
    let url = Parts::split(text, scheme, rest)?;
    let bad = |what: &str, fix: &str| Err(Fault::new(what, fix).showing(shown(text)));
    if url.hosts.is_empty() {
        return bad("the host is missing", &example);
    }
    if url.hosts.contains(',') && !is_cluster {
        let fix = format!("write one host, or {scheme}-cluster:// if they are a cluster");
        return bad("it names several hosts", &fix);
    }
    check_hosts(text, url.hosts, &example)?;
    match (url.path, is_cluster) {
        ("" | "0", _) => {}
        (_, true) => return bad("a cluster has one database only", &example),
        (number, false) if number.parse::<u16>().is_ok() => {}
        _ => return bad("a database of Redis is a number", &example),
    }
    Ok(url.keep(text))
}

fn dynamodb(text: &str, rest: &str) -> Result<ServerUrl, Fault> {
    const EXAMPLE: &str = "write for example \"dynamodb://eu-central-1/onetake\"";
    let url = Parts::split(text, "dynamodb", rest)?;
    let bad = |what: &str, fix: &str| Err(Fault::new(what, fix).showing(shown(text)));
    if url.user.is_some() {
        let fix = "remove what stands before `@`: credentials come from AWS's own sources (the \
                   environment, a profile, a role)";
        return bad("credentials do not belong here", fix);
    }
    let region = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if url.hosts.is_empty() || !url.hosts.chars().all(region) {
        return bad("not the name of a region", EXAMPLE);
    }
    let table = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if url.path.is_empty() {
        return bad("the table is missing", EXAMPLE);
    }
    if !(3..=255).contains(&url.path.len()) || !url.path.chars().all(table) {
        let fix = "write 3 to 255 letters, digits and - _ . behind the region's `/`";
        return bad("not the name of a table", fix);
    }
    if !url.query.is_empty() {
        let endpoint = url.query.strip_prefix("endpoint=").and_then(|url| {
            let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
            Some(rest.strip_suffix('/').unwrap_or(rest))
        });
        let fix = "write ?endpoint=http://HOST:PORT, or nothing for AWS's own";
        match endpoint {
            Some(host) if !host.contains(['@', '/', '?', '&', '#', ',']) => {
                check_hosts(text, host, fix)?;
            }
            _ => return bad("not an endpoint", fix),
        }
    }
    // There is no password in it.
    Ok(ServerUrl { text: text.to_owned(), shown: text.to_owned() })
}

/// `scheme://[user[:password]@]hosts[/path][?query]`
struct Parts<'t> {
    scheme: &'t str,
    user: Option<&'t str>,
    has_password: bool,
    hosts: &'t str,
    path: &'t str,
    query: &'t str,
}

impl<'t> Parts<'t> {
    fn split(text: &'t str, scheme: &'t str, rest: &'t str) -> Result<Self, Fault> {
        let bad = |what: &str, fix: &str| Err(Fault::new(what, fix).showing(shown(text)));
        let Some(rest) = rest.strip_prefix("//") else {
            return bad(
                "`//` is missing",
                &format!("write \"{scheme}://\" and the rest behind it"),
            );
        };
        if rest.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return bad("there is white space in it", "remove it, or write it as %20");
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let (user, password) = match credentials.map(|both| both.split_once(':').ok_or(both)) {
            None => (None, None),
            Some(Ok((user, password))) => (Some(user), Some(password)),
            Some(Err(user)) => (Some(user), None),
        };
        let plain = |part: &str| !part.contains('@') && is_encoded(part);
        if ![user, password].into_iter().flatten().all(plain) {
            return bad("the user or the password is not encoded", ENCODE);
        }
        if tail.contains('#') || (credentials.is_none() && tail.contains('@')) {
            return bad("something behind the host does not belong there", ENCODE);
        }
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let path = path.strip_prefix('/').unwrap_or(path);
        let has_password = password.is_some_and(|password| !password.is_empty());
        Ok(Self { scheme, user, has_password, hosts, path, query })
    }

    fn keep(&self, text: &str) -> ServerUrl {
        ServerUrl { text: text.to_owned(), shown: self.to_string() }
    }
}

/// Without the password, and without the query, which may hold one.
impl fmt::Display for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        match (self.user, self.has_password) {
            (None, _) => {}
            (Some(user), true) => write!(f, "{user}:***@")?,
            // Redis's password is often written where a user belongs.
            (Some(user), false) if self.scheme.starts_with("postgres") => write!(f, "{user}@")?,
            (Some(_), false) => f.write_str("***@")?,
        }
        f.write_str(self.hosts)?;
        if !self.path.is_empty() {
            write!(f, "/{}", self.path)?;
        }
        Ok(())
    }
}

/// A refused URL as a message may repeat it: without its password; not at all if nobody can tell
/// where in it the password would be.
fn shown(text: &str) -> Option<String> {
    let Some((scheme, rest)) = text.split_once(':') else {
        return (!text.contains('@')).then(|| text.to_owned());
    };
    if ["embedded", "sqlite", "memory"].contains(&scheme) {
        return Some(text.to_owned());
    }
    // No text: what these would show is not needed here.
    let parts = Parts::split("", scheme, rest).ok()?;
    check_hosts("", parts.hosts, "").ok()?;
    Some(parts.to_string())
}

/// Whether every `%` begins an encoded byte.
fn is_encoded(part: &str) -> bool {
    let hex = |c: Option<char>| c.is_some_and(|c| c.is_ascii_hexdigit());
    part.split('%').skip(1).all(|rest| {
        let mut characters = rest.chars();
        hex(characters.next()) && hex(characters.next())
    })
}

/// Hosts and ports, separated by commas.
fn check_hosts(text: &str, hosts: &str, fix: &str) -> Result<(), Fault> {
    let bad = |what: &str| Err(Fault::new(what, fix).showing(shown(text)));
    for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
        let (name, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((address, port)) if address.parse::<Ipv6Addr>().is_ok() => ("v6", port),
            Some(_) => return bad("not an IPv6 address between the brackets"),
            None => host.split_at_checked(host.find(':').unwrap_or(host.len())).unwrap_or_default(),
        };
        let letter = |c: char| c.is_ascii_alphanumeric() || "-._%".contains(c);
        if name.is_empty() {
            return bad("the host is missing");
        }
        if !name.chars().all(letter) || !is_encoded(name) {
            return bad("not the name of a host");
        }
        let good_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(good_port) {
            return bad("not a valid port");
        }
    }
    Ok(())
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

    /// What is wrong, a part of what is said, and how the value is repeated.
    const WRONG: &[(&str, &str, Option<&str>)] = &[
        ("memory", "not the URL", Some("memory")),
        ("memory:x", "nothing behind", Some("memory:x")),
        ("embedded:", "folder is missing", None),
        ("embedded://data", "right behind the colon: \"embedded:/", None),
        ("sqlite:", "file is missing", None),
        ("sqlite::memory:", "use \"memory:\" for tests", None),
        ("embeded:data", "did you mean `embedded:`?", None),
        ("mysql://x", "no such store", Some("mysql://x")),
        ("postgre://me:secret@db/x", "did you mean `postgres:`?", Some("postgre://me:***@db/x")),
        ("redis-clutser://a", "did you mean `redis-cluster:`?", Some("redis-clutser://a")),
        ("dynamo://eu/x", "did you mean `dynamodb:`?", Some("dynamo://eu/x")),
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
        ("postgres://db/x/y", "no `/`", Some("postgres://db/x/y")),
        ("postgres://[::g]/x", "not an IPv6 address", None),
        ("postgres://a,,b/x", "host is missing", None),
        ("redis://", "host is missing", Some("redis://")),
        ("redis://:secret", "host is missing", None),
        ("redis://:secret@a,b", "redis-cluster://", Some("redis://:***@a,b")),
        ("redis://a/first", "is a number", Some("redis://a/first")),
        ("redis-cluster://a,b/3", "one database only", Some("redis-cluster://a,b/3")),
        ("dynamodb:eu-central-1/x", "`//` is missing", None),
        ("dynamodb://eu-central-1", "table is missing", Some("dynamodb://eu-central-1")),
        ("dynamodb://EU/onetake", "name of a region", Some("dynamodb://EU/onetake")),
        ("dynamodb:///onetake", "name of a region", Some("dynamodb:///onetake")),
        ("dynamodb://eu-central-1/ab", "name of a table", Some("dynamodb://eu-central-1/ab")),
        ("dynamodb://eu-central-1/a/b", "name of a table", Some("dynamodb://eu-central-1/a/b")),
        ("dynamodb://AKIA:secret@eu/x", "AWS's own sources", Some("dynamodb://AKIA:***@eu/x")),
        ("dynamodb://eu/onetake?endpoint=localhost", "?endpoint=http://", None),
        ("dynamodb://eu/onetake?endpoint=http://a:b", "not a valid port", None),
        ("dynamodb://eu/onetake?region=eu", "not an endpoint", None),
    ];

    #[test]
    fn wrong_ones_say_what_to_write_and_repeat_no_password() {
        for (text, hint, value) in WRONG {
            let fault = StoreUrl::parse(text).expect_err(text);
            let said = format!("{} {}", fault.what, fault.fix);
            assert!(said.contains(hint), "{text}: {said}");
            let repeated = fault.value_of(|| Some((*text).to_owned()));
            for part in ["secret", "cret", "100%"] {
                assert!(!format!("{fault:?} {repeated:?}").contains(part), "{text}: {fault:?}");
            }
            if value.is_some() {
                assert_eq!(repeated.as_deref(), value.map(|v| format!("\"{v}\"")).as_deref());
            }
        }
    }
}
