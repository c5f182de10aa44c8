//! String literals in Rust sources.

/// A string literal of a Rust source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Literal {
    /// The value.
    pub(super) value: String,
    /// The constant, macro or function that contains it.
    pub(super) owner: String,
}

/// Words that are followed by a name.
const NAMED: [&str; 4] = ["const ", "fn ", "macro_rules! ", "static "];

/// Returns all string literals of a Rust source before its unit tests.
pub(super) fn literals(source: &str) -> Vec<Literal> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or(source);
    let mut found = Vec::new();
    let (mut owner, mut at) = (String::new(), 0);
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let starts_word =
            at == 0 || !source.as_bytes().get(at - 1).is_some_and(u8::is_ascii_alphanumeric);
        if let Some(name) = named(rest).filter(|_| starts_word) {
            name.clone_into(&mut owner);
        }
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some((value, length)) = text(rest).filter(|_| starts_word) {
            found.extend(value.map(|value| Literal { value, owner: owner.clone() }));
            length
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            4.min(rest.len()) - usize::from(rest.starts_with("'\"'"))
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        at += length;
    }
    found
}

fn named(rest: &str) -> Option<&str> {
    let behind = NAMED.iter().find_map(|word| rest.strip_prefix(word))?;
    let end = behind.find(|sign: char| !sign.is_alphanumeric() && sign != '_')?;
    behind.get(..end).filter(|name| !name.is_empty())
}

/// Returns the value of a literal that begins here, if it is a plain one, and its length in the
/// source.
fn text(rest: &str) -> Option<(Option<String>, usize)> {
    if let Some(hashes) = rest.strip_prefix('r').and_then(|raw| raw.find('"')) {
        let marks = rest.get(1..=hashes)?;
        if marks.bytes().all(|byte| byte == b'#') {
            let (open, close) = (hashes + 2, format!("\"{marks}"));
            let length = rest.get(open..)?.find(&close)?;
            return Some((
                Some(rest.get(open..open + length)?.to_owned()),
                open + length + close.len(),
            ));
        }
    }
    let inside = rest.strip_prefix('"')?;
    let (mut value, mut is_plain) = (String::new(), true);
    let mut signs = inside.char_indices().peekable();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return Some((is_plain.then_some(value), at + 2)),
            '\\' => match signs.next().map(|(_, sign)| sign) {
                Some('\n') => while signs.next_if(|(_, sign)| sign.is_whitespace()).is_some() {},
                Some('n') => value.push('\n'),
                Some(sign @ ('"' | '\\' | '\'')) => value.push(sign),
                _ => is_plain = false,
            },
            sign => value.push(sign),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_owners() {
        let source = r##"
            // "no"
            const ONE: &str = "SELECT \
                a";
            fn two() { let sign = '"'; run(r#"SELECT "b""#, "c\n") }
            "##;
        let found = literals(source);
        let found: Vec<_> =
            found.iter().map(|one| (one.owner.as_str(), one.value.as_str())).collect();
        assert_eq!(found, [("ONE", "SELECT a"), ("two", "SELECT \"b\""), ("two", "c\n")]);
    }

    #[test]
    fn unit_tests_are_left_out() {
        assert_eq!(literals("const A: &str = \"x\";\n#[cfg(test)]\nmod tests { \"y\" }").len(), 1);
    }
}
