//! Addresses: where to listen, and where requests go.

use std::net::SocketAddr;

use http::Uri;
use rustls::pki_types::ServerName;

use super::error::Fault;

/// Reads where to listen.
pub(super) fn parse_listen(text: &str) -> Result<SocketAddr, Fault> {
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
        Fault::new("not an IP address and a port", fix)
    })
}

/// Reads where requests go: `http://host:port` or `https://host:port`, and nothing else.
pub(super) fn parse_upstream(text: &str) -> Result<Uri, Fault> {
    const FIX: &str = "write for example \"http://127.0.0.1:3000\"";
    let bad = |what: &str, fix: &str| Fault::new(what, fix).hiding_value(text.contains('@'));
    let Some((scheme, rest)) = text.split_once("://") else {
        let fix = format!("did you mean \"http://{text}\"?");
        return Err(match format!("http://{text}").parse::<Uri>() {
            Ok(_) if !text.contains(['/', '@']) => bad("the URL has no scheme", &fix),
            _ => bad("not an http:// or https:// URL", FIX),
        });
    };
    if !matches!(scheme, "http" | "https") {
        return Err(bad("not an http:// or https:// URL", FIX));
    }
    if rest.contains(['?', '#']) {
        return Err(bad("an upstream has no query and no fragment", FIX));
    }
    let uri: Uri = text.parse().map_err(|_| bad("not a valid URL", FIX))?;
    let Some(authority) = uri.authority() else {
        return Err(bad("the host is missing", FIX));
    };
    if authority.as_str().contains('@') {
        return Err(bad("an upstream has no user and no password", FIX));
    }
    if authority.host().is_empty() {
        return Err(bad("the host is missing", FIX));
    }
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let good_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(good_port) {
        return Err(bad("not a valid port", FIX));
    }
    if !matches!(uri.path(), "" | "/") {
        let fix = format!("write \"{scheme}://{authority}\": requests keep their own paths");
        return Err(bad("an upstream has no path", &fix));
    }
    let host = authority.host().trim_matches(['[', ']']);
    if scheme == "https" && ServerName::try_from(host).is_err() {
        let fix = "write the name or the address that the upstream's certificate is for";
        return Err(bad("no certificate can be for this host", fix));
    }
    Ok(uri)
}

/// Reads where credentials are asked about: `http://host:port/path?query`, or `https://…`.
pub(super) fn parse_auth_url(text: &str) -> Result<Uri, Fault> {
    parse_asked_url(text, "write for example \"http://127.0.0.1:4180/auth\"")
}

/// Reads where something is asked; `fix` says what to write instead.
pub(super) fn parse_asked_url(text: &str, fix: &str) -> Result<Uri, Fault> {
    let bad = |what: &str| Fault::new(what, fix).hiding_value(text.contains(['@', '?']));
    let Some((scheme @ ("http" | "https"), rest)) = text.split_once("://") else {
        return Err(bad("not an http:// or https:// URL"));
    };
    if rest.contains('#') {
        return Err(bad("a fragment is never sent"));
    }
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    if host.contains('@') {
        return Err(bad("a user and a password are not sent"));
    }
    if parse_upstream(&format!("http://{host}")).is_err() {
        return Err(bad("not a valid host and port"));
    }
    if parse_upstream(&format!("{scheme}://{host}")).is_err() {
        return Err(bad("no certificate can be for this host"));
    }
    text.parse().map_err(|_| bad("not a valid URL"))
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
        ] {
            assert!(parse_upstream(text).is_ok(), "{text}");
        }
        for (text, hint) in [
            ("", "not an http:// or https:// URL"),
            ("localhost:3000", "did you mean \"http://localhost:3000\"?"),
            ("127.0.0.1:3000", "did you mean \"http://127.0.0.1:3000\"?"),
            ("ftp://api", "not an http:// or https:// URL"),
            ("https://api/v1", "write \"https://api\""),
            ("https://a..b", "no certificate"),
            ("http://", "not a valid URL"),
            ("http://:3000", "host is missing"),
            ("http://api:0", "not a valid port"),
            ("http://api:99999", "port"),
            ("http://api:", "not a valid port"),
            ("http://api/v1", "write \"http://api\""),
            ("http://api?x", "no query"),
            ("http://api/#x", "no query"),
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
            assert!(parse_auth_url(text).is_ok(), "{text}");
        }
        for (text, hint) in [
            ("", "not an http:// or https:// URL"),
            ("auth/verify", "not an http:// or https:// URL"),
            ("ftp://auth", "not an http:// or https:// URL"),
            ("https://", "host"),
            ("https://a..b/auth", "no certificate"),
            ("https://auth/#x", "fragment"),
            ("http://", "host"),
            ("http:///auth", "host"),
            ("http://auth:0/x", "host and port"),
            ("http://auth/#x", "fragment"),
            ("http://auth/a b", "not a valid URL"),
        ] {
            let fault = parse_auth_url(text).unwrap_err();
            assert!(fault.what.contains(hint), "{text}: {}", fault.what);
        }
        for text in ["http://me:secret@auth", "https://me:secret@auth"] {
            let fault = parse_auth_url(text).unwrap_err();
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
}
