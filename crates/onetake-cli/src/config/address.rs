//! Addresses: listeners, networks, upstreams and other services, stores, brokers.

use std::net::{IpAddr, SocketAddr};

use http::uri::Authority;
use http::{HeaderValue, Uri};
use ipnet::IpNet;
use onetake_stores::url::SCHEMES;
use onetake_stores::{ServerUrl, StoreUrl};
use rustls::pki_types::ServerName;
use url::Url;

use super::error::ValueError;
use super::sections::UpstreamHost;
use super::table::nearest;

/// Reads the address of a listener.
pub(super) fn parse_listen(text: &str) -> Result<SocketAddr, ValueError> {
    text.parse().map_err(|_| {
        let fix = match text.rsplit_once(':') {
            Some(("" | "*", port)) if port.parse::<u16>().is_ok() => {
                format!("write \"0.0.0.0:{port}\" for all addresses, or \"127.0.0.1:{port}\"")
            }
            Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
                format!("write \"127.0.0.1:{port}\"")
            }
            _ => "write an address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"".into(),
        };
        ValueError::new("not an IP address and a port", fix)
    })
}

/// Reads a network such as `10.0.0.0/8`, or a single address. IPv4-mapped IPv6
/// (`::ffff:10.0.0.0/104`) becomes IPv4, like the addresses of clients before they are compared.
pub(super) fn parse_network(text: &str) -> Result<IpNet, ValueError> {
    let fix = "write an address or a block, such as \"10.0.0.0/8\", \"192.0.2.7\" or \"::1\"";
    let parsed = match text.contains('/') {
        true => text.parse::<IpNet>().ok(),
        false => text.parse::<IpAddr>().ok().map(IpNet::from),
    };
    let what = "not an IP address, or the number of prefix bits is invalid";
    let written = parsed.ok_or(ValueError::new(what, fix))?;
    let mapped = match (written.addr().to_canonical(), written.prefix_len().checked_sub(96)) {
        (address @ IpAddr::V4(_), Some(bits)) if written.addr().is_ipv6() => {
            IpNet::new(address, bits).ok()
        }
        _ => None,
    };
    let network = mapped.unwrap_or(written);
    if network.addr() == network.network() {
        return Ok(network);
    }
    // The user probably meant a single host or the block. An error is better than a guess.
    let (block, address) = (network.trunc(), network.addr());
    let fix = format!("write \"{block}\" for the block, or \"{address}\" for this address only");
    Err(ValueError::new("the address has bits set after its prefix", fix))
}

/// Reads an origin as browsers send it: `https://app.example.com`, or `*`.
pub(super) fn parse_origin(text: &str) -> Result<String, ValueError> {
    const FIX: &str = "write for example \"https://app.example.com\", or \"*\" for all origins";
    let url = Url::parse(text).ok().filter(|url| url.has_host() && text.contains("://"));
    let Some(url) = url else {
        let any = Some(text.to_owned()).filter(|text| text == "*");
        return any.ok_or(ValueError::new("not an origin", FIX));
    };
    // Only http and https have an origin in the sense of that type. Apps have other schemes.
    let sent = match url.origin() {
        url::Origin::Opaque(_) => {
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
        }
        origin => origin.ascii_serialization(),
    };
    let what =
        "an origin is a scheme and a host in lower case, and a port if it is not the usual one";
    let fix = format!("write \"{sent}\", as browsers send it");
    match sent == text {
        true => Ok(sent),
        false => Err(ValueError::new(what, fix).hiding_value(text.contains('@'))),
    }
}

/// Reads an upstream: `http://host:port`, `https://host:port`, or `h2c://host:port` for HTTP/2
/// without TLS, with a path in front of the paths of requests or without.
pub(super) fn parse_upstream(text: &str) -> Result<Uri, ValueError> {
    const FIX: &str = "write for example \"http://127.0.0.1:3000\", or \"h2c://127.0.0.1:50051\" for gRPC without TLS";
    let bad = |what: &str, fix: &str| ValueError::new(what, fix).hiding_value(text.contains('@'));
    if !text.contains(['/', '@']) && http_url(&format!("http://{text}")).is_ok() {
        let fix = format!("did you mean \"http://{text}\"?");
        return Err(bad("the URL has no scheme", &fix));
    }
    if let Some(rest) = text.strip_prefix("h2c://") {
        let mut parts = parse_upstream(&format!("http://{rest}"))?.into_parts();
        parts.scheme = "h2c".parse().ok();
        return Uri::from_parts(parts).map_err(|_| bad("not a valid URL", FIX));
    }
    let url = http_url(text).map_err(|what| bad(what, FIX))?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("the URL of an upstream must not have a query or a fragment", FIX));
    }
    // Not `url.path()`: it has no dot segments any more.
    let path = text.splitn(4, '/').nth(3).unwrap_or_default();
    let is_plain = |segment: &str| {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_~-.".contains(&byte);
        segment.bytes().all(is_word) && !segment.is_empty() && !segment.starts_with('.')
    };
    let segments = path.strip_suffix('/').unwrap_or(path);
    if !path.is_empty() && !segments.split('/').all(is_plain) {
        let fix = "write for example \"http://127.0.0.1:3000/api/v2\", with letters, digits and - _ . ~ alone";
        return Err(bad("the path of an upstream is not plain", fix));
    }
    url.as_str().parse().map_err(|_| bad("not a valid URL", FIX))
}

/// Reads `upstream_host`: the `Host` header that upstreams get.
pub(super) fn parse_upstream_host(text: &str) -> Result<UpstreamHost, ValueError> {
    let is_host = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:[]-".contains(&byte))
        && text.parse::<Authority>().is_ok();
    match (text, HeaderValue::from_str(text)) {
        ("pass", _) => Ok(UpstreamHost::Pass),
        ("upstream", _) => Ok(UpstreamHost::Upstream),
        (_, Ok(host)) if is_host => Ok(UpstreamHost::Name(host)),
        _ => {
            let fix = "write \"pass\" for the client's host, \"upstream\" for the host of the upstream's \
                       URL, or a host such as \"api.example.com\"";
            Err(ValueError::new("not a host", fix))
        }
    }
}

/// Reads the URL of a service for credentials or outcomes; `fix` says what to write instead.
pub(super) fn parse_service(text: &str, fix: &str) -> Result<Uri, ValueError> {
    let bad = |what: &str| ValueError::new(what, fix).hiding_value(text.contains(['@', '?']));
    let url = http_url(text).map_err(bad)?;
    if url.fragment().is_some() {
        return Err(bad("the URL must not have a fragment, because it is never sent"));
    }
    url.as_str().parse().map_err(|_| bad("not a valid URL"))
}

/// Parses an HTTP URL. It is stricter than the `url` crate: white space, a backslash, a missing
/// slash or an empty port is an error, because they are usually mistakes.
fn http_url(text: &str) -> Result<Url, &'static str> {
    const NOT_HTTP: &str = "not an http:// or https:// URL";
    let Some(("http" | "https", rest)) = text.split_once("://") else { return Err(NOT_HTTP) };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || host.starts_with(':') {
        return Err("the host is missing");
    }
    if host.contains('@') {
        return Err("the URL must not have a user or a password, because they are not sent");
    }
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err("not a valid URL");
    }
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::InvalidPort => "not a valid host and port",
        _ => "not a valid URL",
    })?;
    if url.port() == Some(0) || host.ends_with(':') {
        return Err("not a valid host and port");
    }
    let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match url.scheme() == "https" && ServerName::try_from(name).is_err() {
        true => Err("the host cannot be in a certificate"),
        false => Ok(url),
    }
}

/// Reads the URL of a store.
pub(super) fn parse_store(text: &str) -> Result<StoreUrl, ValueError> {
    StoreUrl::parse(text).map_err(|mut error| {
        let (scheme, _) = text.split_once(':').unwrap_or_default();
        if let Some(near) = nearest(scheme, SCHEMES).filter(|near| *near != scheme) {
            error.fix = format!("did you mean `{near}:`?");
        }
        error.into()
    })
}

/// Reads the URL of NATS: one server, or several separated by commas.
pub(super) fn parse_nats(text: &str, fix: &str) -> Result<ServerUrl, ValueError> {
    let url = ServerUrl::parse(text, fix)?;
    if url.servers().is_empty() || !url.path().is_empty() || url.query().next().is_some() {
        let what = "the URL of a NATS server must have a host and a port only";
        return Err(ValueError::new(what, fix).showing(Some(url.to_string())));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams() {
        for text in [
            "http://127.0.0.1:3000",
            "http://api/",
            "http://[::1]:80",
            "http://api.internal:8080",
            "https://api",
            "https://127.0.0.1:3000/",
            "https://[::1]",
            "https://api/v1",
            "http://api/charges_2/v1.2~-/",
        ] {
            assert!(parse_upstream(text).is_ok(), "{text}");
        }
        for (text, hint) in [
            ("", "not an http:// or https:// URL"),
            ("localhost:3000", "did you mean \"http://localhost:3000\"?"),
            ("127.0.0.1:3000", "did you mean \"http://127.0.0.1:3000\"?"),
            ("ftp://api", "not an http:// or https:// URL"),
            ("https://a..b", "in a certificate"),
            ("http://", "host is missing"),
            ("http://:3000", "host is missing"),
            ("http://api:0", "not a valid host and port"),
            ("http://api:99999", "port"),
            ("http://api:", "not a valid host and port"),
            ("http://api/../v1", "not plain"),
            ("http://api/v1%2f", "not plain"),
            ("http://api//v1", "not plain"),
            ("http://api/v1//", "not plain"),
            ("http://api?x", "must not have a query"),
            ("http://api/#x", "must not have a query"),
            ("http://a b", "not a valid URL"),
        ] {
            let fault = parse_upstream(text).unwrap_err();
            let said = format!("{} {}", fault.what, fault.fix);
            assert!(said.contains(hint), "{text}: {said}");
        }
        let fault = parse_upstream("http://me:secret@api").unwrap_err();
        assert_eq!(fault.value_of(|| Some("the value".to_owned())), None);
        assert!(!format!("{fault:?}").contains("secret"), "{fault:?}");
    }

    #[test]
    fn auth_urls() {
        for text in [
            "http://auth",
            "http://127.0.0.1:4180/oauth2/auth",
            "http://[::1]:80/?realm=a",
            "https://auth",
            "https://auth.internal:8443/verify?realm=a",
            "https://[::1]/",
        ] {
            assert!(parse_service(text, "").is_ok(), "{text}");
        }
        for (text, hint) in [
            ("", "not an http:// or https:// URL"),
            ("auth/verify", "not an http:// or https:// URL"),
            ("ftp://auth", "not an http:// or https:// URL"),
            ("https://", "host"),
            ("https://a..b/auth", "in a certificate"),
            ("https://auth/#x", "fragment"),
            ("http://", "host"),
            ("http:///auth", "host"),
            ("http://auth:0/x", "host and port"),
            ("http://auth/#x", "fragment"),
            ("http://auth/a b", "not a valid URL"),
        ] {
            let fault = parse_service(text, "").unwrap_err();
            assert!(fault.what.contains(hint), "{text}: {}", fault.what);
        }
        for text in ["http://me:secret@auth", "https://me:secret@auth"] {
            let fault = parse_service(text, "").unwrap_err();
            assert_eq!(fault.value_of(|| Some("the value".to_owned())), None);
        }
    }

    #[test]
    fn listeners() {
        assert!(parse_listen("127.0.0.1:8080").is_ok());
        assert!(parse_listen("[::]:0").is_ok());
        for (text, hint) in [
            ("localhost:8080", "\"127.0.0.1:8080\""),
            (":8080", "\"0.0.0.0:8080\""),
            ("8080", "an address and a port"),
            ("", "an address and a port"),
        ] {
            assert!(parse_listen(text).unwrap_err().fix.contains(hint), "{text}");
        }
    }

    fn holds(block: &str, address: &str) -> bool {
        parse_network(block).unwrap().contains(&address.parse::<IpAddr>().unwrap().to_canonical())
    }

    #[test]
    fn blocks_hold_their_addresses() {
        assert!(holds("127.0.0.0/8", "127.0.0.1"));
        assert!(holds("127.0.0.0/8", "127.255.255.255"));
        assert!(!holds("127.0.0.0/8", "128.0.0.0"));
        assert!(holds("0.0.0.0/0", "203.0.113.9"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("192.0.2.7", "192.0.2.7"));
        assert!(!holds("192.0.2.7", "192.0.2.8"));
        assert!(holds("::1", "::1"));
        assert!(!holds("::1", "::2"));
        assert!(holds("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!holds("2001:db8::/32", "2001:db9::"));
        assert!(holds("::/0", "2001:db8::1"));
    }

    #[test]
    fn mapped_addresses_count_as_ipv4() {
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(holds("::ffff:10.0.0.0/104", "10.1.2.3"));
        assert!(!holds("::/0", "::ffff:10.1.2.3"), "it is an IPv4 address");
        assert_eq!(parse_network("::ffff:10.0.0.0/104").unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for text in
            ["", "/", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8", "host"]
        {
            assert!(parse_network(text).is_err(), "{text}");
        }
        let fault = parse_network("10.1.2.3/8").unwrap_err();
        assert!(fault.fix.contains("\"10.0.0.0/8\""), "{fault:?}");
    }

    #[test]
    fn a_misspelt_store_is_told_its_name() {
        for (text, near) in [
            ("embeded:data", "embedded:"),
            ("postgre://me:secret@db/x", "postgres:"),
            ("redis-clutser://a", "redis-cluster:"),
            ("dynamo://eu/x", "dynamodb:"),
        ] {
            let fault = parse_store(text).unwrap_err();
            assert_eq!(fault.fix, format!("did you mean `{near}`?"));
            assert!(!format!("{fault:?}").contains("secret"), "{fault:?}");
        }
        assert!(parse_store("mysql://x").unwrap_err().fix.starts_with("use \"embedded:"));
    }
}
