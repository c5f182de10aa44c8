//! Reading of one parameter of a query.
//!
//! Servers disagree about queries: some take the first of two parameters with one name, others the
//! last; some ignore letter case, some split at semicolons, and some read `id[]` as `id`. A query
//! that two servers could read differently is refused.

/// Returns the value of a parameter, decoded once. Returns `None` if the query does not have it.
///
/// # Errors
/// The reason, if two servers could read the parameter differently, or if it is not UTF-8.
pub(super) fn parameter(query: &str, name: &str) -> Result<Option<String>, &'static str> {
    const SEVERAL: &str = "The query must name it once, in one spelling and without semicolons.";
    let mut found = None;
    for (pair, has_semicolon) in query.split('&').flat_map(pieces) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(key) = decode(key) else { continue };
        if !is_alike(&key, name.as_bytes()) {
            continue;
        }
        if found.is_some() || has_semicolon || key != name.as_bytes() {
            return Err(SEVERAL);
        }
        let value = decode(value).ok_or("It has a percent sign without two digits behind it.")?;
        found = Some(String::from_utf8(value).map_err(|_| "It must be UTF-8.")?);
    }
    Ok(found)
}

/// Splits a pair at its semicolons. The flag is true if there are any.
fn pieces(pair: &str) -> impl Iterator<Item = (&str, bool)> {
    let has_semicolon = pair.contains(';');
    pair.split(';').map(move |piece| (piece, has_semicolon))
}

/// Returns true if a server could take a name for another: they differ in letter case, or by
/// brackets at the end.
fn is_alike(one: &[u8], other: &[u8]) -> bool {
    let bare = |name: &[u8]| match name.iter().position(|byte| *byte == b'[') {
        Some(length) if name.ends_with(b"]") => name.get(..length).unwrap_or_default().to_vec(),
        _ => name.to_vec(),
    };
    bare(one).eq_ignore_ascii_case(&bare(other))
}

/// Decodes a name or value: `+` is a space, and `%` is followed by two digits. Returns `None` if
/// they are missing.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_parameter_is_read() {
        for query in ["id=a%20b", "x=1&id=a+b", "id=a%20b&y", "%69d=a+b&ide=2&i=3", "&&id=a+b&"] {
            assert_eq!(parameter(query, "id"), Ok(Some("a b".to_owned())), "{query}");
        }
        for query in ["", "x=1", "ide=1", "x=id", "x%3Did=1"] {
            assert_eq!(parameter(query, "id"), Ok(None), "{query}");
        }
        assert_eq!(parameter("id", "id"), Ok(Some(String::new())));
        assert_eq!(parameter("x;y=1&id=2", "id"), Ok(Some("2".to_owned())));
    }

    #[test]
    fn a_query_with_two_readings_is_refused() {
        for query in [
            "id=1&id=1",
            "id=1&id=2",
            "id=1&ID=2",
            "ID=2",
            "id[]=1",
            "id=1&id%5B%5D=2",
            "id=1;x=2",
            "x=2;id=1",
            "id=1&x=2;id=3",
            "id=%FF",
            "id=%2",
            "id=%zz",
        ] {
            assert!(parameter(query, "id").is_err(), "{query}");
        }
    }
}
