//! Every field: a valid value, and an invalid one whose message names the field.

mod gateway;
mod keys;
mod policies;
mod reconcile;
mod sections;
mod tenants;

use super::*;

/// A file with a line in this section.
pub(super) fn file(section: &str, line: &str) -> String {
    let upstream = "upstream = \"http://127.0.0.1:3000\"\n";
    match section {
        "" => format!("{line}\n"),
        "gateway" if line.starts_with("upstream ") => format!("[gateway]\n{line}\n"),
        "gateway" => format!("[gateway]\n{upstream}{line}\n"),
        "route" if line.starts_with("match") => format!("[gateway]\n{upstream}[[route]]\n{line}\n"),
        "route" => format!("[gateway]\n{upstream}[[route]]\nmatch = \"POST /\"\n{line}\n"),
        _ => format!("[gateway]\n{upstream}[{section}]\n{line}\n"),
    }
}

/// Section, valid lines, and invalid ones with the field that the message must name.
type SectionRow = (&'static str, Lines, Refused);
/// An option that routes and `[defaults]` share: valid lines, and invalid ones with the rest of the
/// path.
type PolicyRow = (Lines, Refused);
type Lines = &'static [&'static str];
type Refused = &'static [(&'static str, &'static str)];

/// Environment variables of the valid lines.
const VARIABLES: &[(&str, &str)] = &[
    ("TEST_STORE", "postgres://db/x"),
    ("TEST_FILTER", "redis://cache"),
    ("TEST_SINK", "nats://broker:4222"),
    ("TEST_SECRET", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
];

const SECTIONS: &[&[SectionRow]] = &[gateway::ROWS, sections::ROWS];

const POLICY: &[&[PolicyRow]] = &[keys::ROWS, tenants::ROWS, reconcile::ROWS, policies::ROWS];

/// Files that are accepted.
pub(super) fn right() -> Vec<String> {
    let own = SECTIONS.iter().copied().flatten().map(|(section, right, _)| (*section, *right));
    let policy = POLICY
        .iter()
        .copied()
        .flatten()
        .flat_map(|(right, _)| [("route", *right), ("defaults", *right)]);
    let files = own
        .chain(policy)
        .flat_map(|(section, lines)| lines.iter().map(move |line| file(section, line)));
    files.collect()
}

/// A file that is refused, with the field that the message names.
pub(super) struct Wrong {
    pub(super) line: &'static str,
    pub(super) text: String,
    pub(super) field: String,
}

/// Files that are refused.
pub(super) fn wrong() -> Vec<Wrong> {
    let own = SECTIONS.iter().copied().flatten().map(|(section, _, wrong)| (*section, "", *wrong));
    let policy =
        POLICY.iter().copied().flatten().flat_map(|(_, wrong)| {
            [("route", "route[0].", *wrong), ("defaults", "defaults.", *wrong)]
        });
    let files = own.chain(policy).flat_map(|(section, path, wrong)| {
        wrong.iter().map(move |(line, field)| Wrong {
            line,
            text: file(section, line),
            field: format!("{path}{field}"),
        })
    });
    files.collect()
}

#[test]
fn every_field_takes_right_values_and_refuses_wrong_ones() {
    let load = |text: &str| load(Some(text), "onetake.toml", env(VARIABLES), Overrides::default());
    for text in right() {
        load(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    }
    for Wrong { text, field, .. } in wrong() {
        let error = load(&text).expect_err(&text);
        let [problem] = error.problems() else { panic!("one fault expected\n{text}\n{error}") };
        assert_eq!(problem.field, field, "{text}\n{error}");
        assert!(problem.place.starts_with("onetake.toml:"), "{text}\n{error}");
        assert!(!problem.fix.is_empty(), "{text}\n{error}");
    }
}
