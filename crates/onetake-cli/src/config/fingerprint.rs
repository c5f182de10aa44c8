//! `fingerprint`: what makes two requests the same.

use http::HeaderName;

use super::FingerprintConfig;
use super::error::{Fault, Problems};
use super::fields;
use super::reader::{Section, Value};

/// The words of `fingerprint.mode`, and whether it is JSON.
pub(super) const MODES: [(&str, bool); 2] = [("bytes", false), ("json", true)];

/// Headers that no two attempts have in common.
const CHANGING: [&str; 7] = [
    "date",
    "traceparent",
    "x-request-id",
    "x-request-deadline",
    "x-request-timeout-ms",
    "grpc-timeout",
    "content-length",
];

/// Reads `fingerprint`: how the body counts, and which headers do.
pub(super) fn read(
    value: &Value<'_>,
    problems: &mut Problems<'_>,
) -> (Option<FingerprintConfig>, Option<Vec<HeaderName>>) {
    let example = "{ mode = \"json\", exclude = [\"/timestamp\"] }";
    let Some(table) = Section::open(value, &fields::FINGERPRINT, example, problems) else {
        return (None, None);
    };
    let headers = table.get("headers").and_then(|value| read_headers(&value, problems));
    (read_mode(value, &table, problems), headers)
}

fn read_headers(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Vec<HeaderName>> {
    let elements = value.list("[\"X-Account\"]", problems)?;
    let names = elements.iter().map(|element| {
        element.parse("\"X-Account\"", problems, |text| {
            let bad = |_| Fault::new("not the name of a header", "write for example \"X-Account\"");
            let name = HeaderName::from_bytes(text.as_bytes()).map_err(bad)?;
            match CHANGING.contains(&name.as_str()) {
                false => Ok(name),
                true => Err(Fault::new(
                    "it changes from one attempt to the next, so that every retry would be refused",
                    "leave it out",
                )),
            }
        })
    });
    let names = names.collect::<Vec<_>>();
    names.into_iter().collect()
}

fn read_mode(
    value: &Value<'_>,
    table: &Section<'_>,
    problems: &mut Problems<'_>,
) -> Option<FingerprintConfig> {
    let exclude = table.get("exclude");
    let include = table.get("include");
    let Some(mode) = table.get("mode") else {
        if !table.has_faults() {
            let fix = "write mode = \"bytes\" or mode = \"json\"";
            value.refuse(Fault::new("`mode` is missing", fix), problems);
        }
        return None;
    };
    let is_json = mode.choice(&MODES, problems)?;
    match (is_json, exclude, include) {
        (false, None, None) => Some(FingerprintConfig::Bytes),
        (false, Some(pointers), _) | (false, None, Some(pointers)) => {
            let fix = "write mode = \"json\", or leave the pointers out";
            pointers.refuse(Fault::new("mode \"bytes\" compares every byte", fix), problems);
            None
        }
        (true, Some(_), Some(include)) => {
            let what = "cannot be combined with `exclude`";
            include.refuse(Fault::new(what, "keep one of the two"), problems);
            None
        }
        (true, None, None) => Some(FingerprintConfig::JsonExclude(Vec::new())),
        (true, Some(exclude), None) => {
            read_pointers(&exclude, problems).map(FingerprintConfig::JsonExclude)
        }
        (true, None, Some(include)) => {
            let pointers = read_pointers(&include, problems)?;
            if pointers.is_empty() {
                let what = "nothing of the body would be compared";
                include.refuse(Fault::new(what, "name at least one pointer"), problems);
                return None;
            }
            Some(FingerprintConfig::JsonInclude(pointers))
        }
    }
}

pub(super) fn read_pointers(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let elements = value.list("[\"/timestamp\"]", problems)?;
    let pointers =
        elements.iter().map(|element| element.parse("\"/timestamp\"", problems, parse_pointer));
    // Collected before they are judged, so that every bad one is reported.
    let pointers = pointers.collect::<Vec<_>>();
    pointers.into_iter().collect()
}

/// A JSON Pointer (RFC 6901), other than the empty one, which names the whole body.
pub(super) fn parse_pointer(text: &str) -> Result<String, Fault> {
    let fix = "write a JSON Pointer, such as \"/order/timestamp\" (`~1` for `/`, `~0` for `~`)";
    if text.is_empty() {
        return Err(Fault::new("the empty pointer names the whole body", fix));
    }
    if !text.starts_with('/') {
        return Err(Fault::new("a JSON Pointer starts with `/`", fix));
    }
    if text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
        return Err(Fault::new("`~` without 0 or 1 behind it", fix));
    }
    Ok(text.to_owned())
}
