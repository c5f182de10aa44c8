//! The client address of a request.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;

use super::forwarding::X_FORWARDED_FOR;

/// Returns the client's address: the peer, or the address that trusted proxies report in
/// `X-Forwarded-For`.
///
/// The header is read from the right, because each proxy appends the address that it saw. Reading
/// stops at the first address that is not a trusted proxy. Entries further left came from that
/// address, and it can write anything there.
///
/// Returns `None` if a trusted proxy reports something that is not an address.
pub(super) fn client_of(
    peer: IpAddr,
    headers: &HeaderMap,
    trusts: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut client = peer.to_canonical();
    if !trusts(client) {
        return Some(client);
    }
    for line in headers.get_all(X_FORWARDED_FOR).iter().rev() {
        let entries = line.to_str().ok()?.rsplit(',').map(str::trim);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            client = address(entry)?;
            if !trusts(client) {
                return Some(client);
            }
        }
    }
    Some(client)
}

/// Parses an address. Some proxies write it with a port or in brackets.
fn address(entry: &str) -> Option<IpAddr> {
    let bare = || entry.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    let with_port = || entry.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address = entry.parse::<IpAddr>().ok().or_else(with_port).or_else(bare)?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use ipnet::IpNet;

    fn client(peer: &str, lines: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_str(line).unwrap());
        }
        let trusted = ["10.0.0.0/8", "2001:db8::/32"].map(|text| text.parse::<IpNet>().unwrap());
        let trusts = |address: IpAddr| trusted.iter().any(|block| block.contains(&address));
        client_of(peer.parse().unwrap(), &headers, trusts).map(|address| address.to_string())
    }

    #[test]
    fn a_stranger_is_who_they_are_whatever_they_say() {
        for peer in ["203.0.113.9", "::1", "127.0.0.1", "2001:db9::1"] {
            for lines in [&[][..], &["192.0.2.1"], &["10.0.0.1"], &["rubbish"], &["", "192.0.2.1"]]
            {
                assert_eq!(client(peer, lines).as_deref(), Some(peer), "{lines:?}");
            }
        }
        assert_eq!(client("::ffff:203.0.113.9", &["1.2.3.4"]).as_deref(), Some("203.0.113.9"));
    }

    #[test]
    fn trusted_proxies_are_believed_up_to_the_first_stranger() {
        for (lines, expected) in [
            (&["192.0.2.1"][..], "192.0.2.1"),
            (&["192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            // A client's own entries are to the left of its address.
            (&["198.51.100.7, 192.0.2.1"], "192.0.2.1"),
            (&["rubbish, 192.0.2.1, 10.0.0.2, 2001:db8::5"], "192.0.2.1"),
            (&["198.51.100.7", "192.0.2.1", "10.0.0.2"], "192.0.2.1"),
            (&["10.9.9.9, 192.0.2.1"], "192.0.2.1"),
            (&["::ffff:192.0.2.1"], "192.0.2.1"),
            (&["192.0.2.1:5000"], "192.0.2.1"),
            (&["[2001:db9::7]:5000"], "2001:db9::7"),
            (&["[2001:db9::7]"], "2001:db9::7"),
            (&["2001:db9:0:0::7 ,"], "2001:db9::7"),
            // All are trusted inside the network: the outermost address is the client.
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (&[], "10.1.2.3"),
            (&[""], "10.1.2.3"),
        ] {
            for peer in ["10.1.2.3", "::ffff:10.1.2.3"] {
                assert_eq!(client(peer, lines).as_deref(), Some(expected), "{lines:?}");
            }
        }
    }

    #[test]
    fn what_is_no_address_names_nobody() {
        for line in
            ["unknown", "192.0.2.1, unknown", "_hidden", "192.0.2.256", "é", "1.2.3.4 5.6.7.8"]
        {
            assert_eq!(client("10.1.2.3", &[line]), None, "{line}");
        }
    }
}
