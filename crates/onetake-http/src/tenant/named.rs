//! Tenants by name, for operators that look for a client's key.

use std::net::IpAddr;

use super::{credential, public, tagged};

/// The forms in which an operator can write a tenant.
pub const TENANT_FORMS: &str = "public, bearer:TOKEN (or another scheme than bearer), basic:USER, \
    x-api-key:KEY, header:VALUE, client-ip:ADDRESS, jwt:CLAIM, jwt:ISSUER CLAIM, \
    forward-auth:NAME, or consumer:NAME (for an inbox, with the namespace inbox)";

/// Returns the tenant that the layer would find for such a client, in the form of
/// [`Caller::tenant`](super::Caller::tenant). Returns `None` if the text has none of the
/// [`TENANT_FORMS`].
#[must_use]
pub fn tenant_named(text: &str) -> Option<Vec<u8>> {
    if text == "public" {
        return Some(public().tenant);
    }
    let (kind, value) = text.split_once(':').filter(|(_, value)| !value.is_empty())?;
    let bytes = value.as_bytes();
    Some(match kind {
        kind if credential::STABLE.contains(&kind) => {
            credential::credential_of(kind.as_bytes(), bytes)
        }
        "x-api-key" => credential::api_key_of(bytes),
        "header" => tagged(b"header", bytes),
        "client-ip" => {
            let address: IpAddr = value.parse().ok()?;
            tagged(b"client-ip", address.to_canonical().to_string().as_bytes())
        }
        #[cfg(feature = "jwt")]
        "jwt" => {
            let (issuer, claim) = match value.rsplit_once(' ') {
                Some((issuer, claim)) => (Some(issuer), claim),
                None => (None, value),
            };
            tagged(b"jwt", &super::jwt::name_of(issuer, b's', claim))
        }
        "forward-auth" => tagged(b"asked", bytes),
        "consumer" => tagged(b"consumer", bytes),
        _ => return None,
    })
}
