//! The effective options of every route, each with the layer that it comes from.

use onetake_http::Dialect;

use super::check::{BY_ENVOY, Checks};
use super::form::Shape;
use super::policy::{LISTS, PolicyOptions};
use super::presets;
use super::table::{OptionInfo, Table as _};
use super::tree::{self, TomlNode, TomlType};
use super::units::show_duration;
use super::{Config, Route};

/// The options of all routes and of requests without a route, one per line.
pub(super) fn explain(config: &Config, checks: &Checks<'_>) -> String {
    let mut out = String::new();
    let mut explain = |title: &str, route: Option<(usize, &Route)>| {
        let lines = lines(route, config, checks).into_iter();
        let lines = lines.map(|(text, from)| format!("  {text:<52}  # {from}\n"));
        out.extend([title.to_owned(), "\n".to_owned()].into_iter().chain(lines));
        out.push('\n');
    };
    for (index, route) in config.routes.iter().enumerate() {
        explain(&format!("route[{index}]: {}", route.pattern), Some((index, route)));
    }
    explain("POST and PATCH without a route", None);
    out
}

/// Options with their values, and the layers that the values come from.
fn lines(
    route: Option<(usize, &Route)>,
    config: &Config,
    checks: &Checks<'_>,
) -> Vec<(String, String)> {
    let own = route.and_then(|(index, _)| checks.tree.get(&format!("route[{index}]")));
    let preset = route.and_then(|(_, route)| route.preset);
    let of_preset = preset.map(presets::layer);
    let from_preset = preset.map(|preset| format!("preset {preset}")).unwrap_or_default();
    let layers = [
        ("route", own),
        (from_preset.as_str(), of_preset.as_ref()),
        ("[defaults]", checks.tree.get("defaults")),
    ];
    let layers = layers.into_iter().filter_map(|(name, layer)| Some((name, layer?)));
    let layers = layers.collect::<Vec<_>>();
    let mut lines = Vec::new();
    let mut add = |path: &str, option: &OptionInfo| {
        let (before, is_list) = (lines.len(), is_list(path));
        let deciding = layers.iter().position(|(_, layer)| is_set(layer, path) && !is_list);
        let shown = deciding.map_or(0..layers.len(), |one| one..one + 1);
        for (name, layer) in layers.get(shown).unwrap_or_default() {
            let Some(node) = layer.get(path) else { continue };
            let place = match *name == from_preset {
                true => String::new(),
                false => format!(", {}", checks.problems.place(&node.at)),
            };
            let text = format!("{path} = {}", written(node, &option.shape));
            lines.push((text, format!("{name}{place}")));
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
    let every_5xx = preset.map(presets::list_of_5xx);
    lines.extend(every_5xx.map(|list| (format!("every 5xx: {list}"), from_preset.clone())));
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
        _ if is_list(path) => return None,
        _ => option.default.clone()?,
    };
    let is_toml = tree::parse_built_in(&value).is_some();
    Some(format!("{} {value}", if is_toml { " =" } else { ":" }))
}

fn is_list(path: &str) -> bool {
    LISTS.iter().any(|(name, _)| *name == path)
}

/// Returns true if a layer sets this option, or the option that decides about it.
fn is_set(layer: &TomlNode, path: &str) -> bool {
    layer.get(path).is_some() || layer.get(deciding(path)).is_some()
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

/// A warning for each value of `[defaults]` that the preset of a route hides.
pub(super) fn hidden_defaults(config: &Config, checks: &Checks<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(defaults) = checks.tree.get("defaults") else { return warnings };
    for (index, route) in config.routes.iter().enumerate() {
        let own = checks.tree.get(&format!("route[{index}]"));
        let (Some(preset), Some(own)) = (route.preset, own) else { continue };
        let every_5xx = presets::list_of_5xx(preset);
        let of_5xx = LISTS.into_iter().map(|(name, _)| name).filter(|name| *name != every_5xx);
        let of_5xx = of_5xx.map(|name| (name, format!("every 5xx to {every_5xx}")));
        let values = presets::values(preset).into_iter();
        let values = values.map(|(name, value)| (name, format!("{name} = {value}")));
        for (name, set) in values.chain(of_5xx) {
            let Some(node) = defaults.get(name).filter(|_| !is_set(own, name)) else { continue };
            let shown = written(node, &Shape::List(Box::new(Shape::Boolean), 0, 0));
            let is_hidden = match is_list(name) {
                true => shown.contains("\"5"),
                false => set != format!("{name} = {shown}"),
            };
            if is_hidden {
                let (pattern, place) = (&route.pattern, checks.problems.place(&node.at));
                warnings.push(format!(
                    "route[{index}] ({pattern}): preset \"{preset}\" sets {set}, which hides {name} = {shown} of [defaults] ({place}); set {name} in the route to choose"
                ));
            }
        }
    }
    warnings
}

/// A value as it is written in the file, without secrets.
fn written(node: &TomlNode, shape: &Shape) -> String {
    match (&node.kind, shape) {
        (_, Shape::Secret(_)) => "…".to_owned(),
        (TomlType::Table(_), Shape::OneOf(shapes)) => {
            let table = shapes.iter().find(|shape| matches!(shape, Shape::Table(_)));
            table.map_or_else(|| "…".to_owned(), |shape| written(node, shape))
        }
        (TomlType::List(nodes), Shape::List(of, ..)) => {
            let all = nodes.iter().map(|node| written(node, of)).collect::<Vec<_>>();
            format!("[{}]", all.join(", "))
        }
        (TomlType::Table(entries), Shape::Table(info)) => {
            let info = info();
            let all = entries.iter().filter_map(|entry| {
                let option = info.all().find(|option| option.name == entry.name)?;
                Some(format!("{} = {}", entry.name, written(&entry.value, &option.shape)))
            });
            format!("{{ {} }}", all.collect::<Vec<_>>().join(", "))
        }
        _ => node.shown().unwrap_or_else(|| "…".to_owned()),
    }
}
