//! The options of presets, as TOML: for the policies of routes, and for explanations.

use onetake_http::json::Selection;
use onetake_http::{FingerprintMode, KeySource, Preset};

use super::error::Origin;
use super::policy::{LISTS, PolicyOptions};
use super::reader::read_built_in;
use super::table::Table as _;
use super::tree::{self, TomlNode};
use super::units::show_duration;

/// The name of the list of statuses to which a preset adds every 5xx.
pub(super) fn list_of_5xx(preset: Preset) -> &'static str {
    let every_5xx = preset.values().every_5xx;
    LISTS.into_iter().find(|(_, of)| *of == every_5xx).map_or("", |(name, _)| name)
}

/// The options that a preset sets. Its rule for 5xx is not an option.
pub(super) fn options(preset: Preset) -> PolicyOptions {
    read_built_in(&layer(preset), PolicyOptions::read_fields).unwrap_or_default()
}

/// The options that a preset sets, as a table like that of a route.
pub(super) fn layer(preset: Preset) -> TomlNode {
    let mut layer = TomlNode::table(Origin::Absent);
    for (path, value) in values(preset) {
        let path = path.split('.').map(str::to_owned).collect::<Vec<_>>();
        if let Some(value) = tree::parse_built_in(&value) {
            layer.put(&path, value);
        }
    }
    layer
}

/// The options that a preset sets, as TOML.
pub(super) fn values(preset: Preset) -> Vec<(&'static str, String)> {
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
    set
}
