//! Blocks of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::Fault;

/// A block of addresses, such as `10.0.0.0/8`, or a single one, such as `::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Whether an address lies in the block.
    ///
    /// IPv4 addresses that came in as IPv6 ones (`::ffff:10.0.0.1`) count as IPv4: that is how a
    /// listener on `[::]` sees them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                mask4(address, self.prefix) == mask4(network, self.prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                mask6(address, self.prefix) == mask6(network, self.prefix)
            }
            _ => false,
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let fix = "write an address or a block, such as \"10.0.0.0/8\", \"192.0.2.7\" or \"::1\"";
        let bad = |what: &str| Fault::new(what, fix);
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad("not an IP address"))?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => width,
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                let prefix = digits.parse().ok().filter(|prefix| *prefix <= width);
                prefix.ok_or_else(|| bad("more bits than the address has"))?
            }
            Some(_) => return Err(bad("not a number of bits after the slash")),
        };
        let block = Self::new(address, prefix);
        if !text.contains('/') || block.network == address.to_canonical() {
            return Ok(block);
        }
        // Most likely a single host was meant, or a block: either is better than a guess.
        let fix = format!("write \"{block}\" for the block, or \"{address}\" for the one address");
        Err(Fault::new("the address has bits behind its prefix", fix))
    }

    /// The block around an address; mapped IPv4 blocks become IPv4 ones.
    pub(crate) fn new(address: IpAddr, prefix: u8) -> Self {
        match (address, address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(address)) if prefix >= 96 => {
                let prefix = prefix - 96;
                Self { network: mask4(address, prefix).into(), prefix }
            }
            (IpAddr::V6(address), _) => Self { network: mask6(address, prefix).into(), prefix },
            (IpAddr::V4(address), _) => Self { network: mask4(address, prefix).into(), prefix },
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

fn mask4(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    // A shift by the whole width is no shift in Rust; for /0 nothing is kept.
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

fn mask6(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(block: &str, address: &str) -> bool {
        Cidr::parse(block).unwrap().contains(address.parse().unwrap())
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
        assert_eq!(Cidr::parse("::ffff:10.0.0.0/104").unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for text in
            ["", "/", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8", "host"]
        {
            assert!(Cidr::parse(text).is_err(), "{text}");
        }
        let fault = Cidr::parse("10.1.2.3/8").unwrap_err();
        assert!(fault.fix.contains("\"10.0.0.0/8\""), "{fault:?}");
    }
}
