//! `reconcile`: the service that knows the outcomes of attempts.

use std::time::Duration;

use http::header::{HOST, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode, Uri};
use onetake_http::recording::strip_hop_by_hop;

use super::address::parse_service;
use super::error::ValueError;
use super::form::{Form, Shape, duration, list, secret, shorthand, text};
use super::reader::Value;
use super::table::table;
use super::tree::{TomlType, shorten};

/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 16;
/// Maximum length of the URL template.
const URL_LENGTH_MAX: usize = 2048;
const EXAMPLE: &str = "\"GET http://127.0.0.1:3000/charges/by-key/{derived_key}\"";

table! {
    /// `reconcile`
    pub struct Reconcile [Clone, Debug, PartialEq, Eq]
        ("reconcile", "{ request = \"GET http://127.0.0.1:3000/charges/by-key/{derived_key}\" }") {
        /// `GET` and a URL, with `{derived_key}` or `{key}` in its path or query; `{tenant}` and
        /// `{reference}` may be there too. `reconcile = "GET …"` is short for it alone.
        request: Template = request().required(),
        /// `"404"`, `"410"` or both, if they say **for certain** that the operation had no effect
        /// and never will.
        not_executed: Vec<StatusCode> = list(text("404|410", "\"404\"", parse_status), (0, usize::MAX), "[\"404\"]").or("[]"),
        /// Headers of the request, at most 16: text, `{ env = "NAME" }` or `{ file = "…" }`.
        request_headers: HeaderMap = headers().or("{}").formerly("headers"),
        /// The time for one response.
        timeout: Duration = duration("10ms", "60s", "5s").or("\"5s\""),
        /// The time after which an operation is recorded as failed, at most half of `ttl`.
        give_up_after: Duration = duration("1s", "30d", "1h").or("\"1h\"").formerly("limit"),
    }
}

/// `reconcile`: a request alone, or a table with more.
pub(super) fn reconcile() -> Form<Reconcile> {
    shorthand(request(), "request")
}

/// A URL with placeholders in its path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The URL without path and query.
    pub server: Uri,
    /// Path and query, in pieces.
    pub pieces: Vec<Piece>,
}

/// A piece of a path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text as it was written.
    Text(String),
    /// A placeholder to be filled in.
    Place(Placeholder),
}

/// A placeholder.
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

const PLACEHOLDERS: [(&str, Placeholder); 4] = [
    ("derived_key", Placeholder::DerivedKey),
    ("tenant", Placeholder::Tenant),
    ("key", Placeholder::Key),
    ("reference", Placeholder::Reference),
];

impl Template {
    /// True if the template has this placeholder.
    #[must_use]
    pub fn has(&self, wanted: Placeholder) -> bool {
        self.pieces.contains(&Piece::Place(wanted))
    }
}

fn request() -> Form<Template> {
    let pattern = r"\s*GET\s+https?://(\[[^/?#@\[\]{}\s]+\]|[^/?#@:\[\]{}\s]+)(:[0-9]+)?[/?][^#\s]*\{(derived_key|key)\}[^#\s]*\s*";
    text(pattern, EXAMPLE, parse_request)
}

fn parse_request(text: &str) -> Result<Template, ValueError> {
    let fix = format!("write for example {EXAMPLE}");
    let bad = |what: &str| ValueError::new(what, &*fix).hiding_value(text.contains(['@', '?']));
    let (method, url) =
        text.trim().split_once(char::is_whitespace).ok_or(bad("not a method and a URL"))?;
    if method != "GET" {
        return Err(bad("the method must be GET, because reconciliation must not change anything"));
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
        let what = "a placeholder is only allowed in the path and the query, because elsewhere it would choose the server";
        return Err(bad(what));
    }
    let pieces = pieces(target).map_err(|what| bad(&what))?;
    let has = |place| pieces.contains(&Piece::Place(place));
    // Services keep these two with their effects. A tenant has many operations.
    if !has(Placeholder::DerivedKey) && !has(Placeholder::Key) {
        let what = "the URL has neither {derived_key} nor {key}, so the upstream cannot identify the operation";
        return Err(bad(what));
    }
    // Values are percent-encoded, so if the URL is valid with a letter, it is valid with any value.
    let sample = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => text.as_str(),
        Piece::Place(_) => "a",
    });
    parse_service(&format!("{server}{}", sample.collect::<String>()), &fix)?;
    let server = server.parse().map_err(|_| bad("not a valid URL"))?;
    Ok(Template { server, pieces })
}

/// Splits a path and query into its text and its placeholders.
fn pieces(target: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let slash = if target.starts_with('/') { "" } else { "/" };
    let mut rest = format!("{slash}{target}");
    while let Some(from) = rest.find(['{', '}']) {
        let (before, behind) = rest.split_at_checked(from).unwrap_or((&rest, ""));
        let name = behind.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, after) = name.ok_or("a brace without its counterpart")?;
        let place = PLACEHOLDERS.iter().find(|(known, _)| *known == name);
        let (_, place) = place.ok_or_else(|| {
            let name = shorten(name);
            format!("unknown placeholder {{{name}}}; the placeholders are {{derived_key}}, {{tenant}}, {{key}} and {{reference}}")
        })?;
        pieces.extend([Piece::Text(before.to_owned()), Piece::Place(*place)]);
        rest = after.to_owned();
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| *piece != Piece::Text(String::new()));
    Ok(pieces)
}

/// Allows only these two statuses, because only they are about the operation. Others are about the
/// request (401, 429) or come from a proxy in between (502), and would make every operation run
/// again at once.
fn parse_status(text: &str) -> Result<StatusCode, ValueError> {
    let what = "not a status that proves that the operation was not executed";
    let fix = "write \"404\" or \"410\"; for other statuses the service can send the header Onetake-Outcome: release";
    match text {
        "404" => Ok(StatusCode::NOT_FOUND),
        "410" => Ok(StatusCode::GONE),
        _ => Err(ValueError::new(what, fix)),
    }
}

/// Names of headers, and their values.
fn headers() -> Form<HeaderMap> {
    let one = secret(r"\s*[!-~]([ !-~]*[!-~])?\s*", parse_header);
    let (shape, read) = (Shape::Headers(Box::new(one.shape), HEADERS_MAX), one.read);
    Form::new(shape, move |value| {
        let TomlType::Table(entries) = &value.node.kind else {
            return value.wrong_type("a table", "{ Authorization = { env = \"CHARGES_TOKEN\" } }");
        };
        if entries.len() > HEADERS_MAX {
            let fault = ValueError::new("too many headers", format!("write at most {HEADERS_MAX}"));
            return value.refuse(fault);
        }
        let mut headers = HeaderMap::new();
        for entry in entries {
            let path = value.path_of(&entry.name);
            let fault = match parse_name(&entry.name) {
                Ok(name) if headers.contains_key(&name) => {
                    ValueError::new("the header is listed twice", "keep one of them")
                }
                Ok(name) => {
                    let sent = read(&Value { node: &entry.value, path, ..*value });
                    headers.extend(sent.map(|sent| (name, sent)));
                    continue;
                }
                Err(fault) => fault,
            };
            value.problems.add(&entry.at, &path, None, fault);
        }
        (headers.len() == entries.len()).then_some(headers)
    })
}

/// Refuses headers that the gateway sets itself, and those that belong to a connection.
fn parse_name(text: &str) -> Result<HeaderName, ValueError> {
    let fix = "write for example Authorization or X-Api-Key";
    let name = text.parse::<HeaderName>().map_err(|_| ValueError::new("not a header name", fix))?;
    let mut sent = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static("x"))]);
    strip_hop_by_hop(&mut sent);
    let ours = [HOST, http::header::CONTENT_LENGTH, http::header::ACCEPT_ENCODING];
    match sent.is_empty() || ours.contains(&name) {
        true => Err(ValueError::new("the gateway sets this header itself", "remove it")),
        false => Ok(name),
    }
}

fn parse_header(text: &str) -> Result<HeaderValue, ValueError> {
    let fault =
        ValueError::new("not a header value", "write visible ASCII characters, at least one");
    let mut value = HeaderValue::from_str(text).ok().filter(|_| !text.is_empty()).ok_or(fault)?;
    value.set_sensitive(true);
    Ok(value)
}
