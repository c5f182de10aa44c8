//! Lays environment variables, then flags, over the tree of the file.

use super::Overrides;
use super::error::{Fault, Origin, Problems};
use super::fields;
use super::reader::{Section, Value};
use super::tree::{self, Kind, Node};

/// What the names of variables start with; two underscores stand where a path has a dot.
const PREFIX: &str = "ONETAKE__";

/// The deepest field is `defaults.key.required`; what is deeper is a mistake.
const DEPTH_MAX: usize = 3;

/// Puts every `ONETAKE__SECTION__KEY` into the tree; whether such a field exists is seen later.
pub(super) fn apply_env(tree: &mut Node, env: &[(String, String)], problems: &mut Problems<'_>) {
    let ours = env.iter().filter(|(name, _)| name.starts_with(PREFIX));
    let mut variables = ours.collect::<Vec<_>>();
    // The order of an environment is accidental; ours must not be.
    variables.sort();
    for (name, text) in variables {
        match parse_name(name) {
            Ok(path) => tree.set(&path, tree::parse_variable(name, text)),
            Err(fault) => problems.add(&Origin::Env(name.clone()), "", None, fault),
        }
    }
}

/// Fields that may hold a password, and so may be `{ env = "NAME" }` instead.
const FROM_ENV: [(&str, &str); 3] = [("store", "url"), ("store", "filter"), ("relay", "sink")];

/// Puts what the variable holds where `{ env = "NAME" }` stands.
pub(super) fn follow_env(tree: &mut Node, env: &[(String, String)], problems: &mut Problems<'_>) {
    for (section, name) in FROM_ENV {
        let Some(node) = tree.field(section, name) else { continue };
        if !matches!(node.kind, Kind::Table(_)) {
            continue;
        }
        let value = Value { node, path: format!("{section}.{name}") };
        match from_env(&value, env, problems) {
            Some(found) => tree.set(&[section.to_owned(), name.to_owned()], found),
            // Its fault is reported; the reader would only find another.
            None => tree.remove(section, name),
        }
    }
}

fn from_env(
    value: &Value<'_>,
    env: &[(String, String)],
    problems: &mut Problems<'_>,
) -> Option<Node> {
    let table = Section::open(value, &fields::FROM_ENV, "{ env = \"NAME\" }", problems)?;
    let Some(variable) = table.get("env") else {
        if !table.has_faults() {
            let fix = "write { env = \"NAME\" }, or the URL itself";
            value.refuse(Fault::new("names no variable", fix), problems);
        }
        return None;
    };
    let name = variable.text("\"NAME\"", problems)?;
    match env.iter().find(|(known, _)| known == name) {
        Some((_, text)) => Some(Node::text(text.clone(), Origin::Env(name.to_owned()))),
        None => {
            let fix = "set it for this process, or write the URL itself";
            variable.refuse(Fault::new("there is no such variable", fix), problems);
            None
        }
    }
}

/// Puts every flag into the tree.
pub(super) fn apply_flags(tree: &mut Node, overrides: Overrides) {
    let Overrides { listen, upstream, admin_listen, store, sink } = overrides;
    let text = |listen: std::net::SocketAddr| listen.to_string();
    if upstream.is_some() {
        // The flag names the one upstream for all that name none, wherever that was said before.
        tree.remove("defaults", "upstream");
    }
    for (flag, section, key, value) in [
        ("--listen", "gateway", "listen", listen.map(text)),
        ("--upstream", "gateway", "upstream", upstream),
        ("--admin-listen", "admin", "listen", admin_listen.map(text)),
        ("--store", "store", "url", store),
        ("--sink", "relay", "sink", sink),
    ] {
        if let Some(value) = value {
            let path = [section.to_owned(), key.to_owned()];
            tree.set(&path, Node::text(value, Origin::Flag(flag)));
        }
    }
}

/// How to write the right name of a misspelt field, where it came from.
///
/// `path` is the wrong field's; for a variable the answer is the variable's whole right name.
pub(super) fn rename(at: &Origin, path: &str, near: &str) -> String {
    let Origin::Env(name) = at else {
        return near.to_owned();
    };
    let depth = path.matches('.').count();
    let mut parts = name.strip_prefix(PREFIX).unwrap_or(name).split("__").collect::<Vec<_>>();
    let right = near.to_uppercase();
    match parts.get_mut(depth) {
        Some(part) => *part = &right,
        // Inside an inline table that the variable holds.
        None => return near.to_owned(),
    }
    format!("{PREFIX}{}", parts.join("__"))
}

fn parse_name(name: &str) -> Result<Vec<String>, Fault> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let path = rest.split("__").map(str::to_lowercase).collect::<Vec<_>>();
    if matches!(path.first().map(String::as_str), Some("route" | "routes")) {
        return Err(Fault::new(
            "routes cannot be set by a variable",
            "write them in the file; ONETAKE__DEFAULTS__TTL and the like hold for all of them",
        ));
    }
    if path.len() < 2 || path.len() > DEPTH_MAX || path.iter().any(String::is_empty) {
        let fix = "write ONETAKE__SECTION__KEY, such as ONETAKE__GATEWAY__LISTEN";
        return Err(Fault::new("the name is not one of a section and a key", fix));
    }
    Ok(path)
}
