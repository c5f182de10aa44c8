//! The effective options of every route, each with the layer that it comes from.

use std::fmt::Write as _;

use onetake_http::json::Selection;
use onetake_http::{Dialect, Disposition, FingerprintMode, KeySource, Preset};

use super::check::BY_ENVOY;
use super::error::Problems;
use super::form::Shape;
use super::policy::PolicyOptions;
use super::table::{OptionInfo, Table as _};
use super::tree::{self, TomlNode, TomlType, shorten};
use super::units::show_duration;
use super::{Config, Route};

/// The options of all routes and of requests without a route, one per line.
pub(super) fn explain(config: &Config, tree: &TomlNode, problems: &Problems<'_>) -> String {
    let mut out = String::new();
    let mut explain = |title: &str, route: Option<(usize, &Route)>| {
        let _infallible = writeln!(out, "{title}");
        for (text, from) in lines(route, config, tree, problems) {
            let _infallible = writeln!(out, "  {text:<52}  # {from}");
        }
        out.push('\n');
    };
    for (index, route) in config.routes.iter().enumerate() {
        let title = format!("route[{index}]: {}", route.pattern);
        explain(&title, Some((index, route)));
    }
    explain("POST and PATCH without a route", None);
    out
}

/// Options with their values, and the layers that the values come from.
fn lines(
    route: Option<(usize, &Route)>,
    config: &Config,
    tree: &TomlNode,
    problems: &Problems<'_>,
) -> Vec<(String, String)> {
    let preset = route.and_then(|(_, route)| route.preset);
    let of_preset = preset.map(preset_values).unwrap_or_default();
    let from_preset = || preset.map(|preset| format!("preset {preset}")).unwrap_or_default();
    let mut lines = Vec::new();
    let mut add = |path: &str, option: &OptionInfo| {
        let own = route.and_then(|(index, _)| tree.get(&format!("route[{index}].{path}")));
        let is_own = route.is_some_and(|(index, _)| is_set(tree, index, path));
        let set = of_preset.iter().find(|(name, _)| *name == path).filter(|_| !is_own);
        let weak = tree.get(&format!("defaults.{path}"));
        // Lists of statuses add up. Other options replace each other.
        let is_of_preset = of_preset.iter().any(|(name, _)| *name == deciding(path));
        let weak = weak.filter(|_| !is_own && !is_of_preset || LISTS.contains(&path));
        let before = lines.len();
        let mut line = |text: &str, from: String| lines.push((format!("{path} = {text}"), from));
        for (node, layer) in
            own.map(|it| (it, "route")).into_iter().chain(weak.map(|it| (it, "[defaults]")))
        {
            line(&written(node, &option.shape), format!("{layer}, {}", problems.place(&node.at)));
        }
        if let Some((_, value)) = set {
            line(value, from_preset());
        }
        if lines.len() == before
            && let Some(value) = built_in(path, option, route, config)
        {
            let is_gateways = path == "upstream" && value.starts_with(" =");
            let from = if is_gateways { "[gateway]" } else { "built-in" };
            lines.push((format!("{path}{value}"), from.to_owned()));
        }
    };
    for option in PolicyOptions::info().options {
        // The options of these tables come from different layers.
        match &option.shape {
            Shape::Table(info) => {
                for inner in info().options {
                    add(&format!("{}.{}", option.name, inner.name), &inner);
                }
            }
            _ => add(option.name, &option),
        }
    }
    let every_5xx = of_preset.iter().find(|(name, _)| *name == "5xx");
    lines.extend(every_5xx.map(|(_, value)| (format!("every 5xx: {value}"), from_preset())));
    lines
}

/// The value of an option that no layer sets: `= VALUE`, or a sentence behind a colon.
fn built_in(
    path: &str,
    option: &OptionInfo,
    route: Option<(usize, &Route)>,
    config: &Config,
) -> Option<String> {
    let policy = &route.map_or(&config.defaults, |(_, route)| &route.settings).policy;
    let upstream = route.map(|(_, route)| &route.upstream).or(config.gateway.upstream.as_ref());
    let value = match path {
        "grace" => format!("\"{}\"", show_duration(policy.terms.grace)),
        "key.min_length" => policy.key.length_min().to_string(),
        "key.required" => policy.key.required.to_string(),
        "statuses.mismatch" if policy.errors == Dialect::Stripe => "400".to_owned(),
        "fingerprint.mode" => "\"bytes\"".to_owned(),
        "upstream" if *upstream? == BY_ENVOY => "Envoy forwards the request".to_owned(),
        "upstream" => format!("\"{}\"", upstream?),
        _ if LISTS.contains(&path) => return None,
        _ => option.default.clone()?,
    };
    let is_toml = tree::parse_built_in(&value).is_some();
    Some(format!("{} {value}", if is_toml { " =" } else { ":" }))
}

const LISTS: [&str; 3] = ["record", "release", "mark_unknown"];

const fn list_of(disposition: Disposition) -> &'static str {
    match disposition {
        Disposition::Record => "record",
        Disposition::Release => "release",
        Disposition::Unknown => "mark_unknown",
    }
}

/// Returns true if a route sets this option, or the option that decides about it.
fn is_set(tree: &TomlNode, index: usize, path: &str) -> bool {
    let has = |path: &str| tree.get(&format!("route[{index}].{path}")).is_some();
    has(path) || has(deciding(path))
}

/// Returns the option that decides about another one. A layer that sets `key.from` also replaces
/// `key.name` of the weaker layers. Other options decide about themselves.
fn deciding(path: &str) -> &str {
    match path {
        "key.name" | "key.pointer" | "key.parts" | "key.field" | "key.field_number" => "key.from",
        "fingerprint.exclude" | "fingerprint.include" => "fingerprint.mode",
        other => other,
    }
}

/// The options that a preset sets, as TOML.
pub(super) fn preset_values(preset: Preset) -> Vec<(&'static str, String)> {
    let values = preset.values();
    let mut set = vec![("ttl", format!("\"{}\"", show_duration(values.ttl)))];
    set.extend(values.key_required.map(|required| ("key.required", required.to_string())));
    if let Some(KeySource::Value(value)) = &values.key_source {
        let value = value.to_string();
        let (from, name) = value.split_once(':').unwrap_or_default();
        let option = if from == "json" { "key.pointer" } else { "key.name" };
        set.extend([("key.from", format!("\"{from}\"")), (option, format!("\"{name}\""))]);
    }
    if let Some(FingerprintMode::Json(Selection::Exclude(all))) = &values.fingerprint {
        let all = all.iter().map(|pointer| format!("\"{}\"", pointer.as_str()));
        let all = all.collect::<Vec<_>>().join(", ");
        set.push(("fingerprint.mode", "\"json\"".to_owned()));
        set.push(("fingerprint.exclude", format!("[{all}]")));
    }
    set.extend(values.on_store_down.map(|_| ("on_store_down", "\"fail-closed\"".to_owned())));
    set.push(("5xx", list_of(values.every_5xx).to_owned()));
    set
}

/// A warning for each value of `[defaults]` that the preset of a route hides.
pub(super) fn hidden_defaults(
    config: &Config,
    tree: &TomlNode,
    problems: &Problems<'_>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, route) in config.routes.iter().enumerate() {
        let Some(preset) = route.preset else { continue };
        let name_of = format!("route[{index}] ({}): preset \"{preset}\"", route.pattern);
        let mut warn = |set: String, name: &str, node: &TomlNode, shown: &str| {
            let place = problems.place(&node.at);
            warnings.push(format!(
                "{name_of} sets {set}, which hides {name} = {shown} of [defaults] ({place}); set {name} in the route to choose"
            ));
        };
        for (name, value) in preset_values(preset) {
            let Some(node) = tree.get(&format!("defaults.{name}")) else { continue };
            let shown = written(node, &Shape::List(Box::new(Shape::Boolean), 0, 0));
            if !is_set(tree, index, name) && shown != value {
                warn(format!("{name} = {value}"), name, node, &shown);
            }
        }
        let every_5xx = list_of(preset.values().every_5xx);
        for name in LISTS.into_iter().filter(|name| *name != every_5xx) {
            let Some(node) = tree.get(&format!("defaults.{name}")) else { continue };
            let shown = written(node, &Shape::List(Box::new(Shape::Boolean), 0, 0));
            if shown.contains("\"5") && tree.get(&format!("route[{index}].{name}")).is_none() {
                warn(format!("every 5xx to {every_5xx}"), name, node, &shown);
            }
        }
    }
    warnings
}

/// A value as it is written in the file, without secrets.
fn written(node: &TomlNode, shape: &Shape) -> String {
    match (&node.kind, shape) {
        (_, Shape::Secret(_)) => "…".to_owned(),
        (_, Shape::OneOf(shapes)) if matches!(node.kind, TomlType::Table(_)) => {
            let table = shapes.iter().find(|shape| matches!(shape, Shape::Table(_)));
            table.map_or_else(|| "…".to_owned(), |shape| written(node, shape))
        }
        (TomlType::Text(text), _) => {
            format!("\"{}\"", shorten(node.written.as_ref().unwrap_or(text)))
        }
        (TomlType::Integer(text, _) | TomlType::Other(_, text), _) => shorten(text),
        (TomlType::Boolean(value), _) => value.to_string(),
        (TomlType::List(nodes), Shape::List(of, ..)) => {
            let all = nodes.iter().map(|node| written(node, of)).collect::<Vec<_>>();
            format!("[{}]", all.join(", "))
        }
        (TomlType::Table(entries), Shape::Table(info)) => {
            let info = info();
            let all = entries.iter().map(|entry| {
                let option = info.all().find(|option| option.name == entry.name);
                let value =
                    option.map_or_else(|| "…".to_owned(), |it| written(&entry.value, &it.shape));
                format!("{} = {value}", entry.name)
            });
            format!("{{ {} }}", all.collect::<Vec<_>>().join(", "))
        }
        _ => "…".to_owned(),
    }
}
