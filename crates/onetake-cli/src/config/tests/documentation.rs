//! The tables of options in docs/CONFIGURATION.md: written from the declarations, and checked to be
//! current.
//!
//! `ONETAKE_WRITE_DOCS=1 cargo test -p onetake-cli --lib documentation` writes them.

use super::*;
use crate::config::form::Shape;
use crate::config::policy::{PolicyOptions, RouteOptions};
use crate::config::table::{OptionInfo, TableInfo};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");

/// The accepted values of an option; empty if its description names them.
fn values(shape: &Shape) -> String {
    match shape {
        Shape::Boolean => "`true` or `false`".to_owned(),
        Shape::Integer(min, max) => format!("{min} to {max}"),
        Shape::Duration(min, max) => format!("`{min}` to `{max}`"),
        Shape::Size("1B", max) => format!("up to `{max}`, with a unit or in bytes"),
        Shape::Size(min, max) => format!("`{min}` to `{max}`, with a unit or in bytes"),
        Shape::Words(words) => {
            words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
        }
        Shape::List(of, _, max) if *max < usize::MAX => match values(of) {
            one if one.is_empty() => format!("at most {max}"),
            one => format!("at most {max} of {one}"),
        },
        Shape::List(of, ..) => values(of),
        Shape::Table(info) => {
            format!("`{{ {} }}`", info().names().collect::<Vec<_>>().join(", "))
        }
        Shape::OneOf(shapes) => {
            let one = |shape: &Shape| match shape {
                Shape::Text(_) => "text".to_owned(),
                _ => values(shape),
            };
            shapes.iter().map(one).collect::<Vec<_>>().join(" or ")
        }
        Shape::Secret(of) => values(of),
        Shape::Text(_) | Shape::File | Shape::Headers(..) => String::new(),
    }
}

fn table_of(options: &[OptionInfo]) -> String {
    let mut out =
        "\n| option | meaning | values | default |\n| --- | --- | --- | --- |\n".to_owned();
    for option in options {
        let default = match option.default.as_deref() {
            _ if option.is_required => "required".to_owned(),
            None => "none".to_owned(),
            Some(text) if tree::parse_built_in(text).is_some() => format!("`{text}`"),
            Some(text) => text.to_owned(),
        };
        let values = values(&option.shape);
        let row = format!("| `{}` | {} | {values} | {default} |\n", option.name, option.about);
        assert_eq!(row.matches(" | ").count(), 3, "{row}");
        out.push_str(&row);
    }
    out
}

/// The table with this label, at any depth.
fn find(info: TableInfo, label: &str) -> Option<Vec<OptionInfo>> {
    fn inner(shape: &Shape, label: &str) -> Option<Vec<OptionInfo>> {
        match shape {
            Shape::Table(info) => find(info(), label),
            Shape::List(of, ..) | Shape::Secret(of) => inner(of, label),
            Shape::OneOf(shapes) => shapes.iter().find_map(|shape| inner(shape, label)),
            _ => None,
        }
    }
    if info.label == label {
        return Some(info.options.into_iter().chain(info.shared).collect());
    }
    info.all().find_map(|option| inner(&option.shape, label))
}

#[test]
fn the_tables_of_the_page_are_those_of_the_declaration() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut written = String::new();
    let mut rest = page.as_str();
    let mut labels = Vec::new();
    while let Some((before, behind)) = rest.split_once("<!-- options of ") {
        let (label, behind) = behind.split_once(" -->\n").unwrap();
        let (_, behind) = behind.split_once("<!-- end of options -->").unwrap();
        let options = find(File::info(), label).unwrap_or_else(|| panic!("no table {label}"));
        written.push_str(before);
        written.push_str(&format!(
            "<!-- options of {label} -->\n{}\n<!-- end of options -->",
            table_of(&options)
        ));
        labels.push(label.to_owned());
        rest = behind;
    }
    written.push_str(rest);
    for label in [
        "[gateway]",
        "[admin]",
        "[store]",
        "[sweep]",
        "[limits]",
        "[ext_proc]",
        "[relay]",
        "[secrets]",
        "[[route]]",
        "key",
        "fingerprint",
        "statuses",
        "velocity",
        "duplicate_payload",
        "cors",
        "tls",
        "upstream_tls",
        "a secret",
        "tenant",
        "jwt",
        "a key of jwt",
        "forward_auth",
        "reconcile",
    ] {
        assert!(labels.contains(&label.to_owned()), "the page has no table of {label}");
    }
    if std::env::var_os("ONETAKE_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &written).unwrap();
    }
    assert!(written == page, "write the tables with ONETAKE_WRITE_DOCS=1, see above");
    assert_eq!(RouteOptions::info().shared.len(), PolicyOptions::info().options.len());
}

#[test]
fn the_table_of_presets_is_that_of_the_code() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let section = page.split("## Presets").nth(1).unwrap();
    for (word, preset) in Preset::ALL {
        let values = preset.values();
        let row = section.lines().find(|line| line.starts_with(&format!("| `{word}` |")));
        let row = row.unwrap_or_else(|| panic!("no row for {word}"));
        assert!(row.contains(&format!("`{}`", units::show_duration(values.ttl))), "{row}");
        assert_eq!(row.contains("required"), values.key_required == Some(true), "{row}");
        let place = match values.key_source {
            Some(KeySource::Value(RequestValue::Header(name))) => format!("`{name}`"),
            Some(KeySource::Value(RequestValue::Json(pointer))) => {
                format!("`{}`", pointer.as_str())
            }
            _ => "key".to_owned(),
        };
        let key = row.split(" | ").nth(2).unwrap().to_lowercase();
        assert!(key.contains(&place) || place == "key" && !key.contains('`'), "{row}");
        let is_unknown = values.every_5xx == Disposition::Unknown;
        assert_eq!(row.contains("unknown"), is_unknown, "{row}");
        assert_eq!(row.contains("fail-closed"), values.on_store_down.is_some(), "{row}");
    }
}
