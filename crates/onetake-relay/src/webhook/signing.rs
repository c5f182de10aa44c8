//! Signatures of Standard Webhooks: HMAC-SHA-256 over id, time and payload.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The prefix of secrets.
const PREFIX: &str = "whsec_";
/// The permitted length of a secret in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The shared secret of a webhook.
#[derive(Clone)]
pub struct WebhookSecret(hmac::Key);

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret")
    }
}

/// The error for a text that is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a webhook secret is {PREFIX} followed by 24 to 64 bytes in base64")]
pub struct WebhookSecretError;

impl FromStr for WebhookSecret {
    type Err = WebhookSecretError;

    fn from_str(text: &str) -> Result<Self, WebhookSecretError> {
        let bytes = text.strip_prefix(PREFIX).and_then(|secret| STANDARD.decode(secret).ok());
        let bytes = bytes.filter(|bytes| SECRET_BYTES.contains(&bytes.len()));
        let bytes = bytes.ok_or(WebhookSecretError)?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// Returns the value of `webhook-signature`: a signature by each secret.
pub(super) fn signature(
    secrets: &[WebhookSecret],
    id: &str,
    timestamp: &str,
    payload: &[u8],
) -> String {
    let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", payload].concat();
    let one =
        |secret: &WebhookSecret| format!("v1,{}", STANDARD.encode(hmac::sign(&secret.0, &signed)));
    secrets.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the specification's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn the_published_vector() {
        let secret = SECRET.parse::<WebhookSecret>().unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = |secrets: &[WebhookSecret]| {
            signature(secrets, id, "1614265330", br#"{"test": 2432232314}"#)
        };
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signed(std::slice::from_ref(&secret)), expected);
        let other = format!("whsec_{}", STANDARD.encode([7; 32])).parse().unwrap();
        let both = signed(&[other, secret]);
        assert!(both.starts_with("v1,") && both.ends_with(&format!(" {expected}")), "{both}");
        assert_eq!(signed(&[]), "");
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        let long = format!("whsec_{}", STANDARD.encode([7; 65]));
        for text in ["", "whsec_", "whsec_%", &SECRET[6..], &short, &long] {
            assert!(text.parse::<WebhookSecret>().is_err(), "{text}");
        }
        assert!(!format!("{:?}", SECRET.parse::<WebhookSecret>()).contains("MfKQ"));
    }
}
