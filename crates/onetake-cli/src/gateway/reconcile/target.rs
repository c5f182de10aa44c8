//! The URL of a reconciliation question.

use std::fmt::Write;

use http::Uri;
use http::uri::PathAndQuery;
use onetake_core::Reference;
use onetake_http::MemoValues;

use crate::config::{Piece, Placeholder, Template};

/// Fills in the template; `None` if a value is unknown or cannot be written, or the URL would be
/// too long.
pub(super) fn fill(template: &Template, known: &MemoValues, reference: Reference) -> Option<Uri> {
    let mut target = String::new();
    for piece in &template.pieces {
        match piece {
            Piece::Text(text) => target.push_str(text),
            Piece::Place(Placeholder::DerivedKey) => {
                encode(known.derived_key?.to_string().as_bytes(), &mut target)?;
            }
            Piece::Place(Placeholder::Key) => {
                encode(known.key.as_ref()?.as_bytes(), &mut target)?;
            }
            Piece::Place(Placeholder::Tenant) => encode(known.tenant.as_ref()?, &mut target)?,
            Piece::Place(Placeholder::Reference) => {
                encode(reference.to_string().as_bytes(), &mut target)?;
            }
        }
    }
    let mut parts = template.server.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target).ok()?);
    Uri::from_parts(parts).ok()
}

/// Encodes all bytes but the unreserved ones of RFC 3986, so that a value stays inside its segment
/// or parameter. `None` for one or two dots alone: they are a step in the path even if encoded.
fn encode(value: &[u8], out: &mut String) -> Option<()> {
    if matches!(value, b"." | b"..") {
        return None;
    }
    for byte in value {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~' | b'.') {
            out.push(char::from(*byte));
        } else {
            write!(out, "%{byte:02X}").ok()?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use onetake_core::{Key, RecordId, Scope};

    use super::*;

    fn template(pieces: Vec<Piece>) -> Template {
        Template { server: "http://a:81".parse().unwrap(), pieces }
    }

    fn filled(text: &str) -> Uri {
        try_filled(text).unwrap()
    }

    fn try_filled(text: &str) -> Option<Uri> {
        let key = Key::new(text).unwrap();
        let reference = RecordId::derive(&Scope::new("t"), &key).reference();
        let known = MemoValues {
            key: Some(text.to_owned()),
            tenant: Some(text.to_owned().into()),
            ..MemoValues::default()
        };
        let (place, text) = (Piece::Place, |text: &str| Piece::Text(text.to_owned()));
        let pieces = vec![
            text("/by/"),
            place(Placeholder::Key),
            text("/x?t="),
            place(Placeholder::Tenant),
            text("&r="),
            place(Placeholder::Reference),
        ];
        fill(&template(pieces), &known, reference)
    }

    #[test]
    fn what_is_filled_in_stays_where_it_was_put() {
        for (key, written) in [
            ("abc-_.~1", "abc-_.~1"),
            ("../../x?y#z%2f", "..%2F..%2Fx%3Fy%23z%252f"),
            ("...", "..."),
            ("a b&c=d;e+f", "a%20b%26c%3Dd%3Be%2Bf"),
            ("ü\0\n", "%C3%BC%00%0A"),
            ("@host:80", "%40host%3A80"),
        ] {
            let uri = filled(key);
            assert_eq!(uri.path(), format!("/by/{written}/x"));
            assert!(uri.query().unwrap().starts_with(&format!("t={written}&r=")));
            assert_eq!(uri.authority().unwrap().as_str(), "a:81");
        }
    }

    #[test]
    fn a_step_in_the_path_is_never_asked_for() {
        assert!([".", ".."].iter().all(|dots| try_filled(dots).is_none()));
    }

    #[test]
    fn what_is_not_known_cannot_be_asked_for() {
        let reference = RecordId::from_bytes([1; 16]).reference();
        for (place, is_known) in [
            (Placeholder::DerivedKey, false),
            (Placeholder::Key, false),
            (Placeholder::Tenant, false),
            (Placeholder::Reference, true),
        ] {
            let template = template(vec![Piece::Text("/".to_owned()), Piece::Place(place)]);
            let uri = fill(&template, &MemoValues::default(), reference);
            assert_eq!(uri.is_some(), is_known, "{place:?}");
        }
    }

    #[test]
    fn any_key_is_one_segment() {
        let all = || (0..=u8::MAX).map(char::from);
        for (one, two) in all().flat_map(|one| all().map(move |two| (one, two))) {
            let text = format!("{one}{two}");
            if text == ".." {
                continue; // See above.
            }
            let uri = filled(&text);
            let segments: Vec<_> = uri.path().split('/').collect();
            assert_eq!(segments.len(), 4, "{one:?}{two:?}");
            assert!(!["", ".", ".."].contains(&segments[2]), "{one:?}{two:?}");
            assert_eq!(uri.query().unwrap().split('&').count(), 2, "{one:?}{two:?}");
        }
    }
}
