//! The changes that create mutants: one operator, constant or clause at a time.

use std::ops::Range;

use super::Language;
use super::token::{Token, TokenKind, tokens};

/// One change of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextChange {
    /// The place of the old text.
    pub(super) at: Range<usize>,
    /// The new text.
    pub(super) with: String,
    /// The change in words, such as `replace < with <=`.
    pub(super) what: String,
}

/// Operators and functions, and their replacements.
const SQL_SWAPS: [(&str, &str); 16] = [
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("=", "<>"),
    ("<>", "="),
    ("+", "-"),
    ("-", "+"),
    ("AND", "OR"),
    ("OR", "AND"),
    ("LEAST", "greatest"),
    ("GREATEST", "least"),
    ("MIN", "max"),
    ("MAX", "min"),
    ("TRUE", "false"),
    ("FALSE", "true"),
];

/// The same for Lua.
const LUA_SWAPS: [(&str, &str); 14] = [
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("==", "~="),
    ("~=", "=="),
    ("+", "-"),
    ("-", "+"),
    ("and", "or"),
    ("or", "and"),
    ("math.min", "math.max"),
    ("math.max", "math.min"),
    ("true", "false"),
    ("false", "true"),
];

/// Words that end a condition of SQL.
const SQL_ENDS: [&str; 23] = [
    "AND",
    "OR",
    "WHERE",
    "ON",
    "WHEN",
    "THEN",
    "ELSE",
    "ORDER",
    "GROUP",
    "LIMIT",
    "FOR",
    "RETURNING",
    "UNION",
    "WINDOW",
    "LOOP",
    "FROM",
    "SELECT",
    "AS",
    "OFFSET",
    "IF",
    ";",
    ",",
    "INTO",
];

/// Words that end a condition of Lua.
const LUA_ENDS: [&str; 14] = [
    "and",
    "or",
    "then",
    "else",
    "elseif",
    "if",
    "return",
    "local",
    "redis.call",
    "end",
    "=",
    ",",
    "while",
    "record.at",
];

/// Clauses that are dropped as a whole, by their first words.
const CLAUSES: [&[&str]; 6] = [
    &["FOR", "UPDATE"],
    &["FOR", "NO", "KEY", "UPDATE"],
    &["SKIP", "LOCKED"],
    &["ORDER", "BY"],
    &["ON", "CONFLICT"],
    &["DISTINCT"],
];

/// Returns every change of a text.
pub(super) fn changes(text: &str, language: Language) -> Vec<TextChange> {
    let tokens = tokens(text, language);
    let mut found = TextSite { text, tokens: &tokens, changes: Vec::new() };
    let assignments = assignments(&tokens, language);
    for at in 0..tokens.len() {
        if assignments.contains(&at) {
            continue;
        }
        if language == Language::Lua {
            found.swap(at, &LUA_SWAPS);
            found.condition(at, &["and", "or"], &LUA_ENDS);
            found.dropped(at, &["not"]);
            found.call(at);
        } else {
            found.swap(at, &SQL_SWAPS);
            found.condition(at, &["AND", "OR"], &SQL_ENDS);
            found.dropped(at, &["NOT", "DESC"]);
            found.clause(at);
        }
        found.number(at);
    }
    found.changes.sort_by_key(|change| (change.at.start, change.at.end));
    found.changes
}

struct TextSite<'a> {
    text: &'a str,
    tokens: &'a [Token],
    changes: Vec<TextChange>,
}

impl TextSite<'_> {
    fn token(&self, at: usize) -> Option<&Token> {
        self.tokens.get(at)
    }

    fn is_at(&self, at: Option<usize>, texts: &[&str]) -> bool {
        at.and_then(|at| self.token(at)).is_some_and(|token| token.is_any(texts))
    }

    fn add(&mut self, at: Range<usize>, with: &str, what: String) {
        self.changes.push(TextChange { at, with: with.to_owned(), what });
    }

    /// Replaces an operator or function.
    fn swap(&mut self, at: usize, swaps: &[(&str, &str)]) {
        let Some(token) = self.token(at).cloned() else { return };
        let Some((from, to)) = swaps.iter().find(|(from, _)| token.is(from)) else { return };
        // The sign of a constant is part of it, and `BETWEEN a AND b` contains an AND that joins no
        // conditions.
        let is_unary = ["+", "-"].contains(from) && !self.is_operand(at.checked_sub(1));
        let is_call = self.is_at(Some(at + 1), &["("]);
        let is_function = ["LEAST", "GREATEST", "MIN", "MAX"].contains(from);
        if is_unary || self.is_of_between(at) || (is_function && !is_call) {
            return;
        }
        self.add(token.at, to, format!("replace {} with {to}", from.to_lowercase()));
    }

    fn is_operand(&self, at: Option<usize>) -> bool {
        const BEFORE_OPERANDS: [&str; 11] =
            ["THEN", "ELSE", "WHEN", "AND", "OR", "NOT", "WHERE", "SELECT", "return", "and", "or"];
        at.and_then(|at| self.token(at)).is_some_and(|token| match token.kind {
            TokenKind::Sign => token.is_any(&[")", "]"]),
            _ => !token.is_any(&BEFORE_OPERANDS),
        })
    }

    fn is_of_between(&self, at: usize) -> bool {
        let Some(token) = self.token(at).filter(|token| token.is("AND")) else { return false };
        let before = self.tokens.iter().take(at).rev();
        let mut same = before.filter(|other| other.depth == token.depth);
        same.find(|other| other.is_any(&["BETWEEN", "AND", "OR", "WHERE", ";"]))
            .is_some_and(|other| other.is("BETWEEN"))
    }

    /// Drops the conditions on both sides of an AND or OR, each once.
    fn condition(&mut self, at: usize, joins: &[&str], ends: &[&str]) {
        let Some(join) = self.token(at).filter(|token| token.is_any(joins)).cloned() else {
            return;
        };
        if self.is_of_between(at) {
            return;
        }
        let right = self.extent(at, ends);
        let right_end = right.and_then(|last| self.token(last)).map(|token| token.at.end);
        if let Some(end) = right_end {
            self.drop_text(join.at.start..end);
        }
        // The left side, unless it is the right side of another join.
        let mut first = None;
        for before in (0..at).rev() {
            let Some(token) = self.token(before) else { break };
            if token.depth < join.depth || (token.depth == join.depth && self.ends(before, ends)) {
                break;
            }
            first = Some((before, token.at.start));
        }
        if let Some((first, start)) = first
            && !self.is_at(first.checked_sub(1), joins)
        {
            self.drop_text(start..join.at.end);
        }
    }

    /// Returns the last token of the condition after a place.
    fn extent(&self, at: usize, ends: &[&str]) -> Option<usize> {
        let depth = self.token(at)?.depth;
        let mut last = None;
        for behind in at + 1..self.tokens.len() {
            let token = self.token(behind)?;
            if token.depth < depth || (token.depth == depth && self.ends(behind, ends)) {
                // A closing bracket of the condition itself has the depth of the condition.
                break;
            }
            last = Some(behind);
        }
        last
    }

    fn ends(&self, at: usize, ends: &[&str]) -> bool {
        let Some(token) = self.token(at) else { return true };
        token.is_any(ends) && !self.is_of_between(at)
            || token.is_any(&["END", "$"]) && !self.closes_case(at)
    }

    /// Returns true for the END of a CASE.
    fn closes_case(&self, at: usize) -> bool {
        let Some(end) = self.token(at).filter(|token| token.is("END")) else { return false };
        let before = self.tokens.iter().take(at).rev();
        before
            .take_while(|token| token.depth >= end.depth)
            .any(|token| token.is("CASE") && token.depth == end.depth)
    }

    /// Drops a word.
    fn dropped(&mut self, at: usize, words: &[&str]) {
        if let Some(token) = self.token(at).filter(|token| token.is_any(words)).cloned() {
            // `NOT NULL` of a column and `IF NOT EXISTS` of a table are not conditions.
            let is_null = self.is_at(Some(at + 1), &["NULL"]);
            let is_test = self.is_at(at.checked_sub(1), &["IS"]);
            let is_table =
                self.is_at(at.checked_sub(1), &["IF"]) && self.is_at(Some(at + 1), &["EXISTS"]);
            if (!is_null || is_test) && !is_table {
                self.drop_text(token.at);
            }
        } else if self.is_at(Some(at), &["NULL"]) && self.is_at(at.checked_sub(1), &["IS"]) {
            let place = self.token(at).map(|token| token.at.start).unwrap_or_default();
            self.add(place..place, "NOT ", "replace is null with is not null".to_owned());
        }
    }

    /// Drops a clause up to its end.
    fn clause(&mut self, at: usize) {
        let begins = |words: &&&[&str]| {
            words.iter().enumerate().all(|(by, word)| self.is_at(Some(at + by), &[word]))
        };
        let Some(words) = CLAUSES.iter().find(begins) else { return };
        let last = at + words.len() - 1;
        let end = match words.first().copied() {
            Some("ORDER") => {
                self.extent(last, &["LIMIT", "FOR", ";", "ON", "ROWS", "UNION", "OFFSET", "LOOP"])
            }
            Some("ON") => self.extent(last, &[";", "RETURNING"]),
            Some("FOR") if self.is_at(Some(last + 1), &["OF"]) => Some(last + 2),
            _ => Some(last),
        };
        let start = self.token(at).map(|token| token.at.start);
        let end = end.and_then(|end| self.token(end)).map(|token| token.at.end);
        if let (Some(start), Some(end)) = (start, end) {
            self.drop_text(start..end);
        }
    }

    /// Drops a Redis command that is alone on its line.
    fn call(&mut self, at: usize) {
        let Some(token) = self.token(at).filter(|token| token.is("redis.call")) else { return };
        let start = token.at.start;
        let line =
            self.text.get(..start).unwrap_or_default().rsplit('\n').next().unwrap_or_default();
        let depth = token.depth;
        let close =
            self.tokens.iter().skip(at + 1).find(|token| token.is(")") && token.depth == depth);
        if let Some(close) = close.filter(|_| line.trim().is_empty()) {
            self.drop_text(start..close.at.end);
        }
    }

    /// Replaces a constant: a small one by the next number, a large one by its half.
    fn number(&mut self, at: usize) {
        let Some(token) = self.token(at).filter(|token| token.kind == TokenKind::Number).cloned()
        else {
            return;
        };
        // Another argument of a script would fail at once.
        let is_argument = self.is_at(at.checked_sub(2), &["KEYS", "ARGV"]);
        if is_argument {
            return;
        }
        let Ok(value) = token.text.parse::<u64>() else { return };
        let other = if value < 100 { value + 1 } else { value / 2 };
        self.add(token.at, &other.to_string(), format!("replace {value} with {other}"));
    }

    fn drop_text(&mut self, at: Range<usize>) {
        let text = self.text.get(at.clone()).unwrap_or_default();
        let what = format!("drop {}", one_line(text));
        self.add(at, "", what);
    }
}

/// Returns the places of `=` that assign: in a SET list, in an option of a function, or in a
/// diagnostic.
fn assignments(tokens: &[Token], language: Language) -> Vec<usize> {
    let mut found = Vec::new();
    if language == Language::Lua {
        return found;
    }
    let mut set_depth = None;
    for (at, token) in tokens.iter().enumerate() {
        if token.is("SET") {
            set_depth = Some(token.depth);
        } else if set_depth == Some(token.depth)
            && token.is_any(&["WHERE", "FROM", ";", "$", "AS", "RETURNING"])
        {
            set_depth = None;
        }
        let is_diagnostic = tokens.get(at + 1).is_some_and(|next| next.is("ROW_COUNT"));
        if token.is("=") && (set_depth == Some(token.depth) || is_diagnostic) {
            found.push(at);
        }
    }
    found
}

/// Returns a text on one line, with single spaces and without comments.
pub(super) fn one_line(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("--").next().unwrap_or_default());
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(text: &str, language: Language) -> Vec<String> {
        let apply = |change: TextChange| {
            let mut new = text.to_owned();
            new.replace_range(change.at, &change.with);
            one_line(&new)
        };
        changes(text, language).into_iter().map(apply).collect()
    }

    #[track_caller]
    fn has(text: &str, language: Language, expected: &[&str]) {
        let found = mutated(text, language);
        for one in expected {
            assert!(found.iter().any(|found| found == one), "{one}\nis not among\n{found:#?}");
        }
        assert_eq!(found.len(), expected.len(), "{found:#?}");
    }

    #[test]
    fn operators_and_conditions() {
        has(
            "SELECT id FROM t WHERE a <= $1 AND b = c",
            Language::Postgres,
            &[
                "SELECT id FROM t WHERE a < $1 AND b = c",
                "SELECT id FROM t WHERE a <= $1 OR b = c",
                "SELECT id FROM t WHERE a <= $1 AND b <> c",
                "SELECT id FROM t WHERE a <= $1",
                "SELECT id FROM t WHERE b = c",
            ],
        );
    }

    #[test]
    fn assignments_and_between_stay() {
        has(
            "UPDATE t SET a = CASE WHEN b = $1 THEN c END WHERE id BETWEEN $2 AND $3",
            Language::Postgres,
            &["UPDATE t SET a = CASE WHEN b <> $1 THEN c END WHERE id BETWEEN $2 AND $3"],
        );
    }

    #[test]
    fn clauses() {
        has(
            "SELECT id FROM t ORDER BY id DESC LIMIT :most FOR UPDATE SKIP LOCKED",
            Language::Sqlite,
            &[
                "SELECT id FROM t LIMIT :most FOR UPDATE SKIP LOCKED",
                "SELECT id FROM t ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED",
                "SELECT id FROM t ORDER BY id DESC LIMIT :most SKIP LOCKED",
                "SELECT id FROM t ORDER BY id DESC LIMIT :most FOR UPDATE",
            ],
        );
    }

    #[test]
    fn constants_and_functions() {
        has(
            "SELECT least(a + 3600, 0) - -1 WHERE +b",
            Language::Postgres,
            &[
                "SELECT greatest(a + 3600, 0) - -1 WHERE +b",
                "SELECT least(a - 3600, 0) - -1 WHERE +b",
                "SELECT least(a + 1800, 0) - -1 WHERE +b",
                "SELECT least(a + 3600, 1) - -1 WHERE +b",
                "SELECT least(a + 3600, 0) + -1 WHERE +b",
                "SELECT least(a + 3600, 0) - -2 WHERE +b",
            ],
        );
    }

    #[test]
    fn nested_conditions() {
        has(
            "SELECT (a OR (b AND NOT c)) AND d IS NULL",
            Language::Postgres,
            &[
                "SELECT (a AND (b AND NOT c)) AND d IS NULL",
                "SELECT (a ) AND d IS NULL",
                "SELECT ( (b AND NOT c)) AND d IS NULL",
                "SELECT (a OR (b OR NOT c)) AND d IS NULL",
                "SELECT (a OR (b )) AND d IS NULL",
                "SELECT (a OR ( NOT c)) AND d IS NULL",
                "SELECT (a OR (b AND c)) AND d IS NULL",
                "SELECT (a OR (b AND NOT c)) OR d IS NULL",
                "SELECT (a OR (b AND NOT c))",
                "SELECT d IS NULL",
                "SELECT (a OR (b AND NOT c)) AND d IS NOT NULL",
            ],
        );
    }

    #[test]
    fn lua() {
        has(
            "if not a and b == 'x' then\n  redis.call('DEL', k)\nend\nreturn math.min(KEYS[1], 0)",
            Language::Lua,
            &[
                "if a and b == 'x' then redis.call('DEL', k) end return math.min(KEYS[1], 0)",
                "if not a or b == 'x' then redis.call('DEL', k) end return math.min(KEYS[1], 0)",
                "if not a then redis.call('DEL', k) end return math.min(KEYS[1], 0)",
                "if b == 'x' then redis.call('DEL', k) end return math.min(KEYS[1], 0)",
                "if not a and b ~= 'x' then redis.call('DEL', k) end return math.min(KEYS[1], 0)",
                "if not a and b == 'x' then end return math.min(KEYS[1], 0)",
                "if not a and b == 'x' then redis.call('DEL', k) end return math.max(KEYS[1], 0)",
                "if not a and b == 'x' then redis.call('DEL', k) end return math.min(KEYS[1], 1)",
            ],
        );
    }

    #[test]
    fn comments_are_left_alone() {
        has("SELECT a -- where b < 3 AND c\n", Language::Postgres, &[]);
        has("return a -- b < 3 and c\n", Language::Lua, &[]);
    }
}
