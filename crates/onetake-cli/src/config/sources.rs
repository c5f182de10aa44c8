//! Lays environment variables, then flags, over the tree of the file.

use super::Overrides;
use super::error::{Fault, Origin, Problems};
use super::reader::join;
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

/// Puts the value of a variable where `${NAME}` stands in a string of the file. `$${` stands for `${`.
pub(super) fn expand(node: &mut Node, path: &str, problems: &mut Problems<'_>) {
    match &mut node.kind {
        Kind::Text(text) if text.contains("${") && matches!(node.at, Origin::File(_)) => {
            let written = text.clone();
            match expanded(&written, problems) {
                Ok(value) => *text = value,
                Err(fault) => problems.add(
                    &node.at,
                    path,
                    Some(format!("\"{}\"", tree::shorten(&written))),
                    fault,
                ),
            }
            node.written = Some(written);
        }
        Kind::List(nodes) => {
            for (index, node) in nodes.iter_mut().enumerate() {
                expand(node, &format!("{path}[{index}]"), problems);
            }
        }
        Kind::Table(entries) => {
            for entry in entries {
                expand(&mut entry.value, &join(path, &entry.name), problems);
            }
        }
        _ => {}
    }
}

fn expanded(text: &str, problems: &Problems<'_>) -> Result<String, Fault> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = behind;
            continue;
        }
        let fix = "write ${NAME}, or $${ for the two characters themselves";
        let (name, behind) = behind.split_once('}').ok_or(Fault::new("`${` is not closed", fix))?;
        let value = problems.variable(name).map_err(|fault| {
            let what = format!("there is no variable `{}`", tree::shorten(name));
            Fault::new(what, format!("{}, or write $${{ for the two characters ${{", fault.fix))
        })?;
        out.push_str(before);
        out.push_str(&value);
        rest = behind;
    }
    Ok(out + rest)
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
