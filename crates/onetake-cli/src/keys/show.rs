//! Text output of `onetake keys`.

use std::fmt::Write as _;

use serde_json::Value;

/// Replaces all characters that could control the reader's terminal, except line breaks.
pub(super) fn lines(text: &str) -> String {
    let directs = |sign: char| matches!(sign, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_odd = |sign: char| (sign.is_control() && sign != '\n') || directs(sign);
    text.chars().map(|sign| if is_odd(sign) { '\u{fffd}' } else { sign }).collect()
}

/// A text of the API as one line, without characters that control a terminal.
fn text(value: &Value, name: &str) -> String {
    let raw = value.get(name).and_then(Value::as_str).unwrap_or_default();
    lines(raw).replace('\n', "\u{fffd}")
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

fn each<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// A table with columns as wide as their widest cell.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut out = line(head.to_vec());
    for row in rows {
        out.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    out
}

/// A time, to the second.
fn moment(value: &Value, name: &str) -> String {
    let at = text(value, name);
    match (at.get(..19), at.ends_with('Z')) {
        (Some(seconds), true) => format!("{seconds}Z"),
        _ => at.to_owned(),
    }
}

pub(super) fn list(page: &Value) -> String {
    let row = |key: &Value| {
        let tenant = text(key, "tenant");
        let since = match text(key, "state").as_str() {
            "running" => format!("lease until {}", moment(key, "lease_until")),
            _ => moment(key, "settled_at"),
        };
        vec![
            text(key, "reference"),
            text(key, "state"),
            number(key, "attempts").to_string(),
            text(key, "route"),
            tenant.chars().take(8).collect(),
            moment(key, "created_at"),
            since,
        ]
    };
    let rows: Vec<Vec<String>> = each(page, "keys").map(row).collect();
    let head = ["REFERENCE", "STATE", "ATTEMPTS", "ROUTE", "TENANT", "CREATED", "SINCE"];
    let mut out = if rows.is_empty() { "no keys\n".to_owned() } else { table(&head, &rows) };
    if number(page, "unreadable") > 0 {
        let _infallible = writeln!(
            out,
            "{} keys could not be read: damaged, or encrypted with a key that is not configured",
            number(page, "unreadable")
        );
    }
    if !text(page, "cursor").is_empty() {
        let _infallible = writeln!(out, "there are more: --cursor {}", text(page, "cursor"));
    }
    out
}

pub(super) fn counts(sums: &Value) -> String {
    let states = ["running", "completed", "failed", "released", "unknown"];
    let rows: Vec<Vec<String>> = states
        .iter()
        .map(|state| vec![(*state).to_owned(), number(sums, state).to_string()])
        .collect();
    let mut out = table(&["STATE", "KEYS"], &rows);
    let _infallible = writeln!(out, "{} keys read", number(sums, "looked_at"));
    if number(sums, "unreadable") > 0 {
        let _infallible = writeln!(out, "{} could not be read", number(sums, "unreadable"));
    }
    out
}

pub(super) fn audit(entries: &Value) -> String {
    let row = |entry: &Value| {
        vec![
            moment(entry, "at"),
            text(entry, "reference"),
            text(entry, "action"),
            text(entry, "ended"),
            text(entry, "before"),
            text(entry, "by"),
            text(entry, "reason"),
        ]
    };
    let rows: Vec<Vec<String>> = each(entries, "entries").map(row).collect();
    if rows.is_empty() {
        return "no operator actions\n".to_owned();
    }
    table(&["AT", "REFERENCE", "ACTION", "ENDED", "BEFORE", "BY", "REASON"], &rows)
}

pub(super) fn changed(key: &Value) -> String {
    format!("{} is now {}\n", text(key, "reference"), text(key, "state"))
}

pub(super) fn forgotten(key: &Value) -> String {
    format!(
        "{} is forgotten: the next request with this key runs the operation\n",
        text(key, "reference")
    )
}

/// The state of a key and its history, earliest event first.
pub(super) fn life(life: &Value) -> String {
    let none = Value::Null;
    let key = life.get("key").unwrap_or(&none);
    let mut facts = vec![
        ("reference", text(key, "reference")),
        ("id", text(key, "id")),
        ("state", standing(key)),
        ("attempt", text(key, "attempt")),
        ("fence", number(key, "fence").to_string()),
        ("route", text(key, "route")),
        ("tenant", text(key, "tenant")),
        ("on unknown", text(key, "on_unknown")),
        ("reconcile", moment(key, "next_ask_at")),
        ("expires", moment(key, "expires_at")),
    ];
    facts.retain(|(_, fact)| !fact.is_empty());
    let mut out = String::new();
    for (name, fact) in facts {
        let _infallible = writeln!(out, "{name:<11} {fact}");
    }
    let mut events = events(life, key);
    events.sort_by(|one, other| one.0.cmp(&other.0));
    out.push('\n');
    for (at, what) in events {
        let seconds = at.get(..23).map_or(at.clone(), |millis| format!("{millis}Z"));
        let _infallible = writeln!(out, "{seconds:<24}  {what}");
    }
    let replays = life.get("replays").unwrap_or(&none);
    let _infallible = match number(replays, "by_this_node") {
        0 => writeln!(out, "{:<24}  no replays by this node are known since its start", ""),
        count => writeln!(
            out,
            "{:<24}  replayed {count} {} by this node, the last time at {}",
            "",
            if count == 1 { "time" } else { "times" },
            moment(replays, "last_at")
        ),
    };
    if let Some(outcome) = key.get("outcome") {
        out.push_str(&recording(outcome));
    }
    out
}

fn standing(key: &Value) -> String {
    let state = text(key, "state");
    match state.as_str() {
        "running" => format!("running, lease until {}", moment(key, "lease_until")),
        "unknown" => format!("unknown: {}", text(key, "cause")),
        "failed" => {
            let failure = key.get("failure").unwrap_or(&Value::Null);
            format!("failed: {} ({})", text(failure, "detail"), text(failure, "code"))
        }
        "completed" => {
            let outcome = key.get("outcome").unwrap_or(&Value::Null);
            let status = outcome.get("status").and_then(Value::as_u64);
            let status = status.map_or("recorded".to_owned(), |status| status.to_string());
            match outcome.get("body_bytes").and_then(Value::as_u64) {
                Some(bytes) => format!("completed: {status}, a body of {bytes} bytes"),
                None => format!("completed: {status}, its body was not kept"),
            }
        }
        state => state.to_owned(),
    }
}

/// All events that have a time.
fn events(life: &Value, key: &Value) -> Vec<(String, String)> {
    let mut events = Vec::new();
    let mut attempts = 0;
    for attempt in each(life, "earlier_attempts") {
        attempts += 1;
        let fence = number(attempt, "fence");
        let claimed = format!("attempt {attempts} began (fence {fence})");
        events.push((text(attempt, "claimed_at"), claimed));
        let ended = match text(attempt, "state").as_str() {
            "running" => format!("attempt {attempts} was replaced: its outcome was not reported"),
            state => format!("attempt {attempts} was {state}"),
        };
        events.push((text(attempt, "ended_at"), ended));
    }
    attempts += 1;
    let fence = number(key, "fence");
    let claimed = format!("attempt {attempts} began (fence {fence})");
    events.push((text(key, "claimed_at"), claimed));
    if !text(key, "settled_at").is_empty() {
        let settled = format!("attempt {attempts} is {}", standing(key));
        events.push((text(key, "settled_at"), settled));
    }
    for entry in each(life, "audit") {
        let (action, by, reason) =
            (text(entry, "action"), text(entry, "by"), text(entry, "reason"));
        let what = format!("{action} by {by}: {} ({reason})", text(entry, "ended"));
        events.push((text(entry, "at"), what));
    }
    events
}

fn recording(outcome: &Value) -> String {
    let mut out = String::new();
    if outcome.get("headers").is_some() {
        out.push('\n');
    }
    for header in each(outcome, "headers") {
        let _infallible = writeln!(out, "{}: {}", text(header, "name"), text(header, "value"));
    }
    let body = outcome.get("body").and_then(Value::as_str);
    let body = body.map_or_else(|| text(outcome, "body_base64"), lines);
    if !body.is_empty() {
        let _infallible = writeln!(out, "\n{body}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_life_is_told_in_order() {
        let told = life(&json!({
            "key": { "reference": "ABCD-EFGH-JKLM", "state": "completed", "attempt": "aa", "fence": 9,
                "claimed_at": "2026-01-01T00:00:05.000000Z", "settled_at": "2026-01-01T00:00:06.000000Z",
                "outcome": { "status": 201, "body_bytes": 3, "body": "a\u{1b}[2Jb" } },
            "earlier_attempts": [{ "fence": 5, "state": "running",
                "claimed_at": "2026-01-01T00:00:01.000000Z", "ended_at": "2026-01-01T00:00:05.000000Z" }],
            "replays": { "by_this_node": 2, "last_at": "2026-01-01T00:00:07.5Z" },
            "audit": [{ "at": "2026-01-01T00:00:05.500000Z", "action": "resolve", "by": "me",
                "ended": "done", "reason": "why" }],
        }));
        let order = [
            "attempt 1 began",
            "was replaced",
            "attempt 2 began",
            "resolve by me",
            "201",
            "replayed 2 times",
        ];
        let mut rest = told.split_once("\n\n").unwrap().1;
        for what in order {
            rest = rest.split_once(what).unwrap_or_else(|| panic!("{what} in\n{told}")).1;
        }
        assert!(told.contains("a\u{fffd}[2Jb\n"), "{told}");
    }

    #[test]
    fn when_an_unknown_one_is_asked_for_is_told() {
        let key = json!({ "state": "unknown", "cause": "it took too long", "on_unknown": "reconcile",
            "next_ask_at": "2026-01-01T00:00:05.000000Z" });
        let told = life(&json!({ "key": key }));
        assert!(told.contains("reconcile   2026-01-01T00:00:05Z\n"), "{told}");
    }

    #[test]
    fn nothing_that_is_told_moves_the_terminal() {
        // CSI in seven and in eight bits, a bell, an operating system command, a forged line, and a
        // character that reverses the text direction.
        let evil = "a\u{1b}[2J\u{9b}2J\u{7}\u{1b}]0;x\u{7}\nforged\r\u{202e}b";
        let key = json!({ "reference": "ABCD-EFGH-JKLM", "state": "unknown", "cause": evil, "route": evil,
            "tenant": "0123456789abcdef", "attempts": 1, "created_at": "2026-01-01T00:00:00Z",
            "claimed_at": "2026-01-01T00:00:00Z", "settled_at": "2026-01-01T00:00:01Z" });
        let mut failed = key.clone();
        failed["state"] = json!("failed");
        failed["failure"] = json!({ "code": evil, "detail": evil });
        let mut completed = key.clone();
        completed["state"] = json!("completed");
        completed["outcome"] = json!({ "status": 200, "body_bytes": 1, "body": "x\u{202e}y",
            "headers": [{ "name": "x-a", "value": evil }] });
        let entry = json!({ "at": "2026-01-01T00:00:00Z", "reference": "ABCD-EFGH-JKLM",
            "action": "fail", "ended": "done", "before": "unknown", "by": evil, "reason": evil });
        let mut wrong = Vec::new();
        for (what, told) in [
            ("list", list(&json!({ "keys": [key] }))),
            ("audit", audit(&json!({ "entries": [entry] }))),
            ("get unknown", life(&json!({ "key": key, "audit": [entry] }))),
            ("get failed", life(&json!({ "key": failed }))),
            ("get completed", life(&json!({ "key": completed }))),
        ] {
            let moves = |sign: char| (sign.is_control() && sign != '\n') || sign == '\u{202e}';
            if told.chars().any(moves) || told.lines().any(|line| line.starts_with("forged")) {
                wrong.push(what);
            }
        }
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn tables_are_aligned() {
        let key = |route: &str| {
            json!({ "reference": "ABCD-EFGH-JKLM", "state": "unknown",
            "attempts": 1, "route": route, "tenant": "0123456789abcdef", "created_at":
            "2026-01-01T00:00:00.123456Z", "settled_at": "2026-01-01T00:00:01Z" })
        };
        let told = list(&json!({ "keys": [key("POST /größe"), key("-")], "cursor": "next" }));
        let lines: Vec<&str> = told.lines().collect();
        let column = |line: &str| line.chars().collect::<String>().find("0123").unwrap_or_default();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("REFERENCE") && lines[3].contains("--cursor next"));
        assert_eq!(lines[1].chars().count(), lines[2].chars().count());
        assert!(column(lines[1]) > 0);
        assert_eq!(list(&json!({ "keys": [] })), "no keys\n");
    }
}
