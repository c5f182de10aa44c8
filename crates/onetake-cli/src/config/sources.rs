//! Environment variables and flags that override the tree of the file.

use super::Overrides;
use super::error::{Origin, Problems, ValueError};
use super::tree::{self, TomlNode};

/// Prefix of variables. Two underscores in a name stand for a dot in a path.
const PREFIX: &str = "ONETAKE__";

/// Maximum depth of a field: the deepest is `defaults.key.required`.
const DEPTH_MAX: usize = 3;

/// Puts every `ONETAKE__SECTION__KEY` into the tree. Unknown fields are found later.
pub(super) fn apply_env(tree: &mut TomlNode, problems: &Problems<'_>) {
    let ours = problems.env.iter().filter(|(name, _)| name.starts_with(PREFIX));
    let mut variables = ours.collect::<Vec<_>>();
    // The environment has no fixed order, so the variables are sorted.
    variables.sort();
    for (name, text) in variables {
        match parse_name(name) {
            Ok(path) => tree.set(&path, tree::parse_variable(name, text)),
            Err(fault) => problems.add(&Origin::Env(name.clone()), "", None, fault),
        }
    }
}

/// Replaces `${NAME}` in a string of the file with the value of the variable. `$${` stands for
/// `${`. Messages show the string of the file, because a variable may hold a secret.
pub(super) fn expanded(text: &str, problems: &Problems<'_>) -> Result<String, ValueError> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = behind;
            continue;
        }
        let fix = "write ${NAME}, or $${ for a literal ${";
        let (name, behind) =
            behind.split_once('}').ok_or(ValueError::new("`${` is not closed", fix))?;
        let value = problems.variable(name).map_err(|fault| {
            let what = format!("the environment variable `{}` is not set", tree::shorten(name));
            ValueError::new(what, format!("{}, or write $${{ for a literal ${{", fault.fix))
        })?;
        out.push_str(before);
        out.push_str(&value);
        rest = behind;
    }
    Ok(out + rest)
}

/// Puts every flag into the tree.
pub(super) fn apply_flags(tree: &mut TomlNode, overrides: Overrides) {
    let Overrides { listen, upstream, admin_listen, store, sink } = overrides;
    let text = |listen: std::net::SocketAddr| listen.to_string();
    if upstream.is_some() {
        // The flag replaces the common upstream in both places where it can be set.
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
            tree.set(&path, TomlNode::text(value, Origin::Flag(flag)));
        }
    }
}

/// The text that corrects a misspelt field, in the source where it was written.
///
/// `path` is the path of the wrong field. For a variable the result is the whole correct name of
/// the variable.
pub(super) fn rename(at: &Origin, path: &str, near: &str) -> String {
    let Origin::Env(name) = at else {
        return near.to_owned();
    };
    let depth = path.matches('.').count();
    let mut parts = name.strip_prefix(PREFIX).unwrap_or(name).split("__").collect::<Vec<_>>();
    let right = near.to_uppercase();
    match parts.get_mut(depth) {
        Some(part) => *part = &right,
        // The field is inside an inline table in the variable's value.
        None => return near.to_owned(),
    }
    format!("{PREFIX}{}", parts.join("__"))
}

fn parse_name(name: &str) -> Result<Vec<String>, ValueError> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let path = rest.split("__").map(str::to_lowercase).collect::<Vec<_>>();
    if matches!(path.first().map(String::as_str), Some("route" | "routes")) {
        return Err(ValueError::new(
            "routes cannot be set by environment variables",
            "write them in the file; ONETAKE__DEFAULTS__TTL and similar variables apply to all routes",
        ));
    }
    if path.len() < 2 || path.len() > DEPTH_MAX || path.iter().any(String::is_empty) {
        let fix = "write ONETAKE__SECTION__FIELD, such as ONETAKE__GATEWAY__LISTEN";
        return Err(ValueError::new("the variable does not name a section and a field", fix));
    }
    Ok(path)
}
