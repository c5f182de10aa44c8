//! `velocity`: how many new operations a route allows in a while.

use onetake_http::velocity::Rate;
use onetake_http::{By, Velocity};

use super::error::{Fault, Problems};
use super::fields;
use super::key::parse_part;
use super::reader::{Section, Value};

/// The most limits of one route.
pub(super) const LIMITS_MAX: usize = 8;
/// The most parts that one limit is counted by.
pub(super) const BY_MAX: usize = 8;

pub(super) fn read(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Vec<Velocity>> {
    let example = "[{ by = [\"tenant\", \"json:/card\"], limit = \"5/min\" }]";
    let elements = value.list(example, problems)?;
    if elements.len() > LIMITS_MAX {
        let fix = format!("write at most {LIMITS_MAX}");
        value.refuse(Fault::new("too many limits", fix), problems);
    }
    let limits = elements.iter().map(|element| read_one(element, problems));
    // Collected before they are judged, so that every bad one is reported.
    let limits = limits.collect::<Vec<_>>();
    limits.into_iter().collect()
}

fn read_one(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Velocity> {
    let example = "{ by = [\"tenant\"], limit = \"5/min\" }";
    let table = Section::open(value, &fields::VELOCITY, example, problems)?;
    let mut needed = |name: &str| {
        let found = table.get(name);
        if found.is_none() && !table.has_faults() {
            let fault = Fault::new("it is missing", format!("write for example {example}"));
            problems.add(&value.node.at, &table.path_of(name), None, fault);
        }
        found
    };
    let (by, limit) = (needed("by"), needed("limit"));
    let by = read_by(&by?, problems);
    let limit = limit?.parse("\"5/min\"", problems, |text| {
        let fix = "write a number and a unit (s, min, h or d), such as \"5/min\"";
        text.parse::<Rate>().map_err(|error| Fault::new(error.to_string(), fix))
    });
    Some(Velocity { by: by?, limit: limit? })
}

fn read_by(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Vec<By>> {
    let example = "[\"tenant\", \"json:/card\"]";
    let elements = value.list(example, problems)?;
    if elements.len() > BY_MAX {
        let fix = format!("name at most {BY_MAX}, such as {example}");
        value.refuse(Fault::new("too many parts", fix), problems);
    }
    let parts = elements.iter().map(|element| {
        element.parse("\"tenant\"", problems, |text| match text {
            "tenant" => Ok(By::Tenant),
            part => parse_part(part).map(By::Json).map_err(|mut fault| {
                fault.fix.push_str(", or \"tenant\"");
                fault
            }),
        })
    });
    let parts = parts.collect::<Vec<_>>();
    parts.into_iter().collect()
}
