//! The tokens of SQL and Lua.

use std::ops::Range;

use super::Language;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A keyword or name, with dots: `record.state`.
    Word,
    /// A number.
    Number,
    /// A text in quotes.
    Text,
    /// A parameter: `$1`, `?1`, `:name`.
    Parameter,
    /// An operator, a bracket or another sign.
    Sign,
}

/// One token and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) at: Range<usize>,
    /// The text; words of SQL are in upper case.
    pub(super) text: String,
    /// The number of open brackets and `CASE`s around it.
    pub(super) depth: usize,
}

impl Token {
    /// Returns true if it is this word or sign.
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, TokenKind::Word | TokenKind::Sign)
    }

    /// Returns true if it is one of these.
    pub(super) fn is_any(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.is(text))
    }
}

/// Signs of two and three characters.
const LONG_SIGNS: [&str; 15] =
    ["...", "<=", ">=", "<>", "!=", "==", "~=", ":=", "::", "||", "..", "=>", "->", "<<", ">>"];

/// Splits a text into tokens. Comments are skipped.
pub(super) fn tokens(text: &str, language: Language) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let (kind, length) = next(rest, language);
        let Some(kind) = kind else {
            at += length;
            continue;
        };
        let written = rest.get(..length).unwrap_or_default();
        let is_sql_word = kind == TokenKind::Word && language != Language::Lua;
        let text = if is_sql_word { written.to_uppercase() } else { written.to_owned() };
        let ends =
            matches!(text.as_str(), ")" | "]" | "}") || (is_sql_word && text == "END" && depth > 0);
        if ends && matches!(kind, TokenKind::Sign | TokenKind::Word) {
            depth = depth.saturating_sub(1);
        }
        let opens = matches!(text.as_str(), "(" | "[" | "{") && kind == TokenKind::Sign
            || (is_sql_word && text == "CASE");
        found.push(Token { kind, at: at..at + length, text, depth });
        if opens {
            depth += 1;
        }
        at += length;
    }
    found
}

/// Returns the kind and length of the next token; no kind for white space and comments.
fn next(rest: &str, language: Language) -> (Option<TokenKind>, usize) {
    let first = rest.chars().next().unwrap_or(' ');
    let run = |from: usize, is_part: fn(char) -> bool| {
        let tail = rest.get(from..).unwrap_or_default();
        from + tail.find(|sign: char| !is_part(sign)).unwrap_or(tail.len())
    };
    let is_name = |sign: char| sign.is_alphanumeric() || sign == '_';
    if first.is_whitespace() {
        return (None, run(0, char::is_whitespace));
    }
    if rest.starts_with("--") {
        return (None, rest.find('\n').unwrap_or(rest.len()));
    }
    if first == '\'' {
        return (Some(TokenKind::Text), quoted(rest, language));
    }
    if first.is_ascii_digit() {
        return (Some(TokenKind::Number), run(0, |sign| sign.is_ascii_digit() || sign == '.'));
    }
    if is_name(first) {
        return (
            Some(TokenKind::Word),
            run(0, |sign| sign.is_alphanumeric() || "_.".contains(sign)),
        );
    }
    let second = rest.chars().nth(1).unwrap_or(' ');
    if language != Language::Lua && "$?:".contains(first) && is_name(second) {
        return (Some(TokenKind::Parameter), run(1, |sign| sign.is_alphanumeric() || sign == '_'));
    }
    let long = LONG_SIGNS.iter().find(|sign| rest.starts_with(**sign));
    (Some(TokenKind::Sign), long.map_or(first.len_utf8(), |sign| sign.len()))
}

/// Returns the length of a text in quotes.
fn quoted(rest: &str, language: Language) -> usize {
    let mut signs = rest.char_indices().skip(1).peekable();
    while let Some((at, sign)) = signs.next() {
        if sign == '\\' && language == Language::Lua {
            signs.next();
        } else if sign == '\'' {
            let doubled =
                language != Language::Lua && signs.peek().is_some_and(|(_, next)| *next == '\'');
            if !doubled {
                return at + 1;
            }
            signs.next();
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql() {
        let found = tokens(
            "SELECT a.b <= $1 -- x < y\n AND c = 'it''s <' (CASE d WHEN 3 END)",
            Language::Postgres,
        );
        let texts: Vec<_> = found.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "SELECT",
                "A.B",
                "<=",
                "$1",
                "AND",
                "C",
                "=",
                "'it''s <'",
                "(",
                "CASE",
                "D",
                "WHEN",
                "3",
                "END",
                ")"
            ]
        );
        let depths: Vec<_> = found.iter().skip(8).map(|token| token.depth).collect();
        assert_eq!(depths, [0, 1, 2, 2, 2, 1, 0]);
    }

    #[test]
    fn lua() {
        let found = tokens("if a ~= 'it\\'s' then b = c .. 1.5 end -- no", Language::Lua);
        let texts: Vec<_> = found.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(texts, ["if", "a", "~=", "'it\\'s'", "then", "b", "=", "c", "..", "1.5", "end"]);
    }
}
