//! Search for a secret in many encodings.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// The forms in which a secret may be written by accident.
pub(crate) fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let every: String = secret.iter().map(|byte| format!("%{byte:02X}")).collect();
    let needed: String = secret
        .iter()
        .map(|&byte| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect();
    let numbers = secret.iter().map(u8::to_string).collect::<Vec<_>>();
    let escaped: String = String::from_utf8_lossy(secret).escape_debug().collect();
    let mut forms = vec![
        secret.to_vec(),
        hex.to_uppercase().into_bytes(),
        hex.into_bytes(),
        every.to_lowercase().into_bytes(),
        every.into_bytes(),
        needed.into_bytes(),
        numbers.join(", ").into_bytes(),
        numbers.join(",").into_bytes(),
        escaped.into_bytes(),
    ];
    // Inside a longer text, the base64 of a secret depends on what comes before it.
    for before in 0..3 {
        let whole = [&b"\0\0\0"[..before], secret].concat();
        for text in [STANDARD_NO_PAD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
            let from = [0, 2, 3][before];
            let until = whole.len() / 3 * 4;
            forms.push(text.as_bytes()[from..until].to_vec());
        }
    }
    forms
}

/// True if the text contains the secret in any form.
pub(crate) fn holds(text: &[u8], secret: &str) -> bool {
    forms(secret.as_bytes()).iter().any(|form| memchr::memmem::find(text, form).is_some())
}

#[test]
fn the_search_finds_what_is_there() {
    let secret = "a-secret/with+all%of it";
    for form in forms(secret.as_bytes()) {
        let text = [b"before ", &form[..], b" behind"].concat();
        assert!(holds(&text, secret), "{}", String::from_utf8_lossy(&text));
    }
    for prefix in ["", "x", "xy", "xyz"] {
        let text = STANDARD_NO_PAD.encode(format!("{prefix}{secret}:password"));
        assert!(holds(text.as_bytes(), secret), "{text}");
    }
    assert!(!holds(b"a-secret/with+all%of", secret));
}
