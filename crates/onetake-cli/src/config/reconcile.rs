//! `reconcile`: who is asked what became of an attempt, and how.

use std::fmt;
use std::time::Duration;

use http::header::{HOST, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode, Uri};
use onetake_http::recording::strip_hop_by_hop;

use super::error::{Fault, Problems};
use super::fields;
use super::reader::{Section, Value};
use super::secrets::{Env, Found, elsewhere};
use super::tree::Kind;
use super::units::{self, duration};
use super::url::parse_asked_url;

/// The most headers that a question may have.
pub(super) const HEADERS_MAX: usize = 16;
/// The longest URL, before anything is filled in.
pub(super) const URL_LENGTH_MAX: usize = 2048;

const TIMEOUT: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(3600);
const EXAMPLE: &str = "\"GET http://127.0.0.1:3000/charges/by-key/{derived_key}\"";

/// `reconcile`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// What is asked for.
    pub target: Template,
    /// Statuses that say for certain that the operation had no effect and never will.
    pub not_executed: Vec<StatusCode>,
    /// What is sent along.
    pub headers: Headers,
    /// How long one answer may take.
    pub timeout: Duration,
    /// For how long to go on asking before the operation is recorded as failed.
    pub limit: Duration,
}

/// Headers that may hold secrets: only their names are shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(pub HeaderMap);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A URL with places in its path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Where it is: a URL without path and query.
    pub server: Uri,
    /// Path and query, in pieces.
    pub pieces: Vec<Piece>,
}

/// A piece of a path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As it was written.
    Text(String),
    /// To be filled in.
    Place(Placeholder),
}

/// What can be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// `{derived_key}`
    DerivedKey,
    /// `{tenant}`
    Tenant,
    /// `{key}`
    Key,
    /// `{reference}`
    Reference,
}

/// The words of placeholders.
pub(super) const PLACEHOLDERS: [(&str, Placeholder); 4] = [
    ("derived_key", Placeholder::DerivedKey),
    ("tenant", Placeholder::Tenant),
    ("key", Placeholder::Key),
    ("reference", Placeholder::Reference),
];

impl Placeholder {
    /// Whether the upstream was told it, and no other operation's is the same. It never hears of a reference.
    const fn names_the_operation(self) -> bool {
        matches!(self, Self::DerivedKey | Self::Key)
    }
}

impl Template {
    /// Whether this is filled in somewhere.
    #[must_use]
    pub fn has(&self, wanted: Placeholder) -> bool {
        self.pieces.contains(&Piece::Place(wanted))
    }
}

/// A line alone, or a table with more.
pub(super) fn read(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<Reconcile> {
    let reconcile = |target| Reconcile {
        target,
        not_executed: Vec::new(),
        headers: Headers::default(),
        timeout: TIMEOUT,
        limit: LIMIT,
    };
    if !matches!(value.node.kind, Kind::Table(_)) {
        return value.parse(EXAMPLE, problems, parse_request).map(reconcile);
    }
    let example = format!("{{ request = {EXAMPLE} }}");
    let table = Section::open(value, &fields::RECONCILE, &example, problems)?;
    let Some(request) = table.get("request") else {
        if !table.has_faults() {
            let fix = format!("write for example reconcile = {example}");
            value.refuse(Fault::new("`request` is missing", fix), problems);
        }
        return None;
    };
    // All are read before any is judged, so that every fault is told.
    let target = request.parse(EXAMPLE, problems, parse_request);
    let not_executed = match table.get("not_executed") {
        Some(value) => read_not_executed(&value, problems),
        None => Some(Vec::new()),
    };
    let headers = match table.get("headers") {
        Some(value) => read_headers(&value, env, problems),
        None => Some(Headers::default()),
    };
    let mut time = |name, limits, usual| match table.get(name) {
        Some(value) => duration(&value, limits, problems),
        None => Some(usual),
    };
    let timeout = time("timeout", &units::RECONCILE_TIMEOUT, TIMEOUT);
    let limit = time("limit", &units::RECONCILE_LIMIT, LIMIT);
    Some(Reconcile {
        not_executed: not_executed?,
        headers: headers?,
        timeout: timeout?,
        limit: limit?,
        ..reconcile(target?)
    })
}

fn parse_request(text: &str) -> Result<Template, Fault> {
    let bad = |what: &str| {
        let fix = format!("write for example {EXAMPLE}");
        Fault::new(what, fix).hiding_value(text.contains(['@', '?']))
    };
    let Some((method, url)) = text.trim().split_once(char::is_whitespace) else {
        return Err(bad("not a method and a URL"));
    };
    if method != "GET" {
        return Err(bad("asking must change nothing, so the method is GET"));
    }
    let url = url.trim_start();
    if url.len() > URL_LENGTH_MAX {
        return Err(bad(&format!("the URL is longer than {URL_LENGTH_MAX} characters")));
    }
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let rest = url.get(after_scheme..).unwrap_or_default();
    let server_end = rest.find(['/', '?', '#']).map_or(url.len(), |at| after_scheme + at);
    let (server, target) = url.split_at_checked(server_end).unwrap_or((url, ""));
    if server.contains(['{', '}']) {
        return Err(bad("nothing is filled in before the path: it would choose who is asked"));
    }
    let pieces = pieces(target).map_err(|what| bad(&what))?;
    if !pieces
        .iter()
        .any(|piece| matches!(piece, Piece::Place(place) if place.names_the_operation()))
    {
        return Err(bad(
            "it has neither {derived_key} nor {key}, by which the upstream knows the operation: others would get its outcome, or nobody",
        ));
    }
    // What is filled in is percent-encoded: if it is a URL with a letter there, it is one with anything.
    let sample: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Place(_) => "a",
        })
        .collect();
    let fix = format!("write for example {EXAMPLE}");
    parse_asked_url(&format!("{server}{sample}"), &fix)?;
    let server = server.parse().map_err(|_| bad("not a valid URL"))?;
    Ok(Template { server, pieces })
}

fn pieces(target: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let text = |text: &str| (!text.is_empty()).then(|| Piece::Text(text.to_owned()));
    let mut rest = match target.starts_with('/') {
        true => target.to_owned(),
        false => format!("/{target}"),
    };
    while let Some(from) = rest.find(['{', '}']) {
        let (before, behind) = rest.split_at_checked(from).unwrap_or((&rest, ""));
        let name = behind.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let Some((name, after)) = name else {
            return Err("a brace is not closed, or not opened".to_owned());
        };
        let Some((_, place)) = PLACEHOLDERS.iter().find(|(known, _)| *known == name) else {
            return Err(format!(
                "there is no placeholder {{{}}}: there are {{derived_key}}, {{tenant}}, {{key}} and {{reference}}",
                super::tree::shorten(name)
            ));
        };
        pieces.extend(text(before));
        pieces.push(Piece::Place(*place));
        rest = after.to_owned();
    }
    pieces.extend(text(&rest));
    Ok(pieces)
}

/// Of all statuses these two alone speak of what was asked for. Others speak of the ask (401, 429), or come from
/// whatever is in between (502), and would have every operation run again at once.
fn read_not_executed(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Vec<StatusCode>> {
    let elements = value.list("[\"404\"]", problems)?;
    let statuses = elements.iter().map(|element| {
        element.parse("\"404\"", problems, |text| match text {
            "404" => Ok(StatusCode::NOT_FOUND),
            "410" => Ok(StatusCode::GONE),
            _ => Err(Fault::new(
                "not a status that can only mean that nothing was executed",
                "write \"404\" or \"410\"; any other answer says it by the header Onetake-Outcome: release",
            )),
        })
    });
    let statuses = statuses.collect::<Vec<_>>();
    statuses.into_iter().collect()
}

/// Names, and what they say: text, or where it is.
fn read_headers(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<Headers> {
    const EXAMPLE: &str = "{ Authorization = { env = \"CHARGES_TOKEN\" } }";
    let Kind::Table(entries) = &value.node.kind else {
        value.wrong_type("a table", EXAMPLE, problems);
        return None;
    };
    if entries.len() > HEADERS_MAX {
        let fault = Fault::new("too many headers", format!("write at most {HEADERS_MAX}"));
        value.refuse(fault.hiding_value(true), problems);
        return None;
    }
    let mut headers = HeaderMap::new();
    let mut is_whole = true;
    for entry in entries {
        let path = super::reader::join(&value.path, &entry.name);
        let name = match parse_name(&entry.name) {
            Ok(name) => name,
            Err(fault) => {
                problems.add(&entry.at, &path, None, fault);
                is_whole = false;
                continue;
            }
        };
        let written = Value { node: &entry.value, path };
        match read_header(&written, env, problems) {
            Some(_) if headers.contains_key(&name) => {
                let fault = Fault::new("it is there twice", "keep one of them");
                problems.add(&entry.at, &written.path, None, fault);
                is_whole = false;
            }
            Some(value) => drop(headers.insert(name, value)),
            None => is_whole = false,
        }
    }
    is_whole.then_some(Headers(headers))
}

/// Headers that the gateway itself sets, or that belong to a connection, are not to be set.
fn parse_name(text: &str) -> Result<HeaderName, Fault> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
        Fault::new("not the name of a header", "write for example Authorization or X-Api-Key")
    })?;
    let mut sent = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static("x"))]);
    strip_hop_by_hop(&mut sent);
    let ours = [HOST, http::header::CONTENT_LENGTH, http::header::ACCEPT_ENCODING];
    match sent.is_empty() || ours.contains(&name) {
        true => Err(Fault::new("the gateway sets this one itself", "leave it out")),
        false => Ok(name),
    }
}

fn read_header(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<HeaderValue> {
    let Found { text, at, path } = match &value.node.kind {
        Kind::Text(text) => Found::here(text, value),
        _ => {
            let example = "{ env = \"CHARGES_TOKEN\" }";
            let table = Section::open(value, &fields::SECRET_KEY, example, problems)?;
            elsewhere(&table, value, env, problems)?
        }
    };
    let text = text.trim();
    let made = HeaderValue::from_str(text).ok().filter(|_| !text.is_empty());
    match made {
        Some(mut made) => {
            made.set_sensitive(true);
            Some(made)
        }
        None => {
            let fix = "write visible ASCII characters, at least one";
            let fault = Fault::new("not the value of a header", fix);
            problems.add(&at, &path, None, fault);
            None
        }
    }
}
