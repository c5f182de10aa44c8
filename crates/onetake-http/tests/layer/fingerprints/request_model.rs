//! A model of whole requests: the spellings of one request, and requests that differ from it.

use std::collections::BTreeMap;
use std::io::Write as _;

use axum::body::Body;
use http::{HeaderName, Request};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::json_model::{Json, json};
use super::seeded_random::Dice;

/// Headers that are part of the fingerprint in these tests.
pub(crate) const CHOSEN: [HeaderName; 2] =
    [HeaderName::from_static("x-account"), HeaderName::from_static("x-tier")];

/// A request. Two are equal if and only if they mean the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Letter {
    method: &'static str,
    path: String,
    /// The values of each name, in order.
    query: BTreeMap<&'static str, Vec<String>>,
    /// The media type and its parameters.
    content_type: Option<(&'static str, BTreeMap<&'static str, String>)>,
    /// The values of each chosen header, in order.
    headers: BTreeMap<&'static str, Vec<String>>,
    pub(crate) body: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Json(Json),
    Bytes(Vec<u8>),
}

pub(crate) fn json_letter() -> impl Strategy<Value = Letter> {
    letter(json().prop_map(Content::Json).boxed())
}

pub(crate) fn plain_letter() -> impl Strategy<Value = Letter> {
    letter(vec(any::<u8>(), 0..40).prop_map(Content::Bytes).boxed())
}

fn letter(body: BoxedStrategy<Content>) -> impl Strategy<Value = Letter> {
    // No server treats two of these names as the same.
    let names = select(&["a", "b", "to", "list[]", "x%20y", "%C3%A9", "z.z"][..]);
    let value = "([a-c0-2+._~-]|%2[06Ff]|%C3%A9|=){0,3}";
    let parameters =
        btree_map(select(&["v", "profile", "charset"][..]), "[a-z0-9;=, -]{0,4}", 0..3);
    let types = select(&["application/json", "application/x-ndjson", "text/plain"][..]);
    (
        select(&["POST", "PATCH"][..]),
        "(/([a-c]|%2[fF]|%20|é|\\.\\.|;v=1|@|:){0,2}){1,3}"
            .prop_map(|path| path.replace('é', "%C3%A9")),
        btree_map(names, vec(value, 1..4), 0..4),
        option::of((types, parameters)),
        btree_map(select(&["x-account", "x-tier"][..]), vec("[a-cA=;\"]{1,3}", 1..4), 0..3),
        body,
    )
        .prop_map(|(method, path, query, content_type, headers, body)| Letter {
            method,
            path,
            query,
            content_type,
            headers,
            body,
        })
}

impl Letter {
    /// Returns one of the many spellings of the request.
    pub(crate) fn spell(&self, key: &str, dice: &mut Dice) -> Request<Body> {
        let target = [&self.path, &spell_query(&self.query, dice)[..]].concat();
        // HTTP/2 requests have the authority in their URI.
        let uri = if dice.flip() { target } else { format!("http://h{}{target}", dice.roll(3)) };
        let mut request = Request::builder().method(self.method).uri(uri);
        request = request.header("idempotency-key", key);
        // These headers are not part of the fingerprint and differ in each attempt.
        request = request.header("traceparent", dice.roll(1000)).header("x-other", dice.roll(1000));
        if let Some((essence, parameters)) = &self.content_type {
            let value = spell_content_type(essence, parameters, dice);
            request = request.header("content-type", value);
        }
        for (name, values) in &self.headers {
            let mut lines: Vec<String> = Vec::new();
            for value in values {
                match lines.last_mut().filter(|_| dice.flip()) {
                    Some(line) => *line = format!("{line}, {value}"),
                    None => lines.push(value.clone()),
                }
            }
            for line in lines {
                request = request.header(*name, line);
            }
        }
        let (encoding, body) = match &self.body {
            Content::Bytes(bytes) => ("", bytes.clone()),
            Content::Json(json) => {
                let text = json.spell(dice).into_bytes();
                match dice.roll(6) {
                    0 => ("gzip", gzip(&text)),
                    1 => ("X-GZIP", gzip(&text)),
                    2 => ("identity", text),
                    _ => ("", text),
                }
            }
        };
        if !encoding.is_empty() {
            request = request.header("content-encoding", encoding);
        }
        request.body(body.into()).unwrap()
    }

    /// Returns a request that differs from this one in one detail.
    pub(crate) fn twist(&self, dice: &mut Dice) -> Self {
        let mut other = self.clone();
        match dice.roll(9) {
            0 => other.method = if self.method == "POST" { "PATCH" } else { "POST" },
            1 => other.path += dice.pick(&["/", "a", "%20", "//"]),
            2 => twist_values(&mut other.query, dice),
            3 => drop(other.query.insert("new", vec![String::new()])),
            4 => twist_content_type(&mut other.content_type, dice),
            5 => twist_values(&mut other.headers, dice),
            6 => drop(other.headers.pop_first()),
            7 => drop(other.headers.entry("x-account").or_insert_with(|| vec![String::new()])),
            _ => {
                other.body = match &self.body {
                    Content::Json(json) => Content::Json(json.twist(dice)),
                    Content::Bytes(bytes) => Content::Bytes(twist_bytes(bytes, dice)),
                }
            }
        }
        // The chosen part had nothing to change.
        if other == *self {
            other.path += "/another";
        }
        other
    }
}

/// Writes the pairs in any order, but keeps the order of values of one name. Adds empty pairs,
/// which do not count.
fn spell_query(query: &BTreeMap<&'static str, Vec<String>>, dice: &mut Dice) -> String {
    let mut left: Vec<_> = query.iter().map(|(name, values)| (*name, values.iter())).collect();
    let mut pairs = Vec::new();
    while !left.is_empty() {
        let at = dice.roll(left.len());
        match left[at].1.next() {
            Some(value) => pairs.push(format!("{}={value}", left[at].0)),
            None => drop(left.swap_remove(at)),
        }
        if dice.roll(8) == 0 {
            pairs.push(String::new());
        }
    }
    if pairs.is_empty() && dice.flip() { String::new() } else { format!("?{}", pairs.join("&")) }
}

fn spell_content_type(
    essence: &str,
    parameters: &BTreeMap<&'static str, String>,
    dice: &mut Dice,
) -> String {
    let mut pieces = Vec::new();
    for (name, value) in parameters {
        let is_token = !value.is_empty() && !value.contains([';', '=', ',', ' ']);
        let value = match *name {
            "charset" if dice.flip() => value.to_uppercase(),
            _ => value.clone(),
        };
        let value = if is_token && dice.flip() { value } else { format!("\"{value}\"") };
        let equals = dice.pick(&["=", "=", " = "]);
        pieces
            .insert(dice.roll(pieces.len() + 1), [&any_case(name, dice), equals, &value].concat());
    }
    pieces.insert(0, any_case(essence, dice));
    if dice.roll(4) == 0 {
        pieces.push(String::new());
    }
    pieces.join(dice.pick(&[";", "; ", " ;  "]))
}

fn any_case(text: &str, dice: &mut Dice) -> String {
    let chars = text.chars();
    chars.map(|char| if dice.flip() { char.to_ascii_uppercase() } else { char }).collect()
}

/// Changes a value, adds one, removes one, or changes the order.
fn twist_values(all: &mut BTreeMap<&'static str, Vec<String>>, dice: &mut Dice) {
    let at = dice.roll(all.len());
    let Some(values) = all.values_mut().nth(at) else { return };
    let at = dice.roll(values.len());
    match dice.roll(4) {
        0 => values.reverse(),
        1 if values.len() > 1 => drop(values.remove(at)),
        2 => values.push("c".into()),
        _ => values[at].push('b'),
    }
}

fn twist_content_type(
    content_type: &mut Option<(&'static str, BTreeMap<&'static str, String>)>,
    dice: &mut Dice,
) {
    match (content_type, dice.roll(4)) {
        (None, _) => {}
        (it, 0) => *it = None,
        (Some((essence, _)), 1) => *essence = "application/json+x",
        (Some((_, parameters)), 2) if !parameters.is_empty() => drop(parameters.pop_last()),
        (Some((_, parameters)), _) => parameters.entry("v").or_default().push_str(";v=2"),
    }
}

fn twist_bytes(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let (mut bytes, at) = (bytes.to_vec(), dice.roll(bytes.len()));
    match bytes.get_mut(at) {
        Some(byte) if dice.flip() => *byte ^= 1 << dice.roll(8),
        Some(_) if dice.flip() => drop(bytes.remove(at)),
        _ => bytes.push(0),
    }
    bytes
}

pub(crate) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}
