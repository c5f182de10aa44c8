//! Fields that are not there: not yet, or never.

use super::fields::file;
use super::*;

/// What the design names and this version does not have.
pub(super) const NOT_YET: &[(&str, &str, &str)] = &[
    ("route", "on_unknown = \"reconcile\"", "route[0].on_unknown"),
    ("route", "reconcile = \"GET http://x\"", "route[0].reconcile"),
    ("defaults", "reconcile = \"GET http://x\"", "defaults.reconcile"),
];

#[test]
fn what_is_not_there_yet_says_so() {
    for (section, line, field) in NOT_YET {
        let text = file(section, line);
        let error = read(&text).expect_err(&text);
        let problem = error.problems().iter().find(|problem| problem.field == *field);
        let problem = problem.unwrap_or_else(|| panic!("{text}\n{error}"));
        assert!(problem.what.contains("this version does not support"), "{error}");
        assert!(problem.what.contains("yet") && !problem.fix.is_empty(), "{error}");
    }
}

#[test]
fn sections_of_the_wrong_shape() {
    for (text, field) in [
        ("gateway = 1", "gateway"),
        ("[[gateway]]", "gateway"),
        ("[route]\nmatch = \"POST /\"", "route"),
        ("route = [1]", "route[0]"),
        ("[routes]", "routes"),
        ("listen = \"127.0.0.1:1\"", "listen"),
        ("\"a.b \\u0000\" = 1", "\"a.b \\0\""),
        ("[[route]]\nttl = \"1h\"", "route[0].match"),
    ] {
        let error = read(text).expect_err(text);
        assert_eq!(error.problems()[0].field, field, "{error}");
    }
    assert!(refused("[route]\nmatch = \"POST /\"").contains("write [[route]]"));
    assert!(refused("listen = \"127.0.0.1:1\"").contains("belongs to [gateway] or [admin]"));
}

#[test]
fn a_form_of_keys_that_would_be_without_effect() {
    let json = "[gateway]\nupstream = \"http://a\"\n[defaults]\ntenant = \"credential\"\n\
        key = { from = \"json\", pointer = \"/id\" }\n[[route]]\nmatch = \"POST /\"\n";
    for form in ["format = \"uuid\"", "min_length = 20"] {
        let error = read(&format!("{json}key = {{ {form} }}")).unwrap_err();
        assert_eq!(error.problems()[0].field, "route[0].key", "{error}");
        read(&format!("{json}key = {{ from = \"header\", {form} }}")).unwrap();
    }
}

#[test]
fn upstream_tls_is_of_use_to_whoever_is_https() {
    let warnings = |upstream: &str, tenant: &str| {
        let text = format!(
            "[gateway]\nupstream = \"{upstream}\"\nupstream_tls = {{ roots = \"ca.pem\" }}\n{tenant}"
        );
        read(&text).unwrap().warnings().concat()
    };
    let auth = |place: &str, scheme: &str| {
        format!("{place}\ntenant = {{ forward_auth = \"{scheme}://auth\" }}")
    };
    let route = "[[route]]\nmatch = \"POST /\"";
    assert_eq!(warnings("https://a", ""), "");
    assert_eq!(warnings("http://a", &auth("[defaults]", "https")), "");
    assert_eq!(warnings("http://a", &auth(route, "https")), "");
    for tenant in [String::new(), auth("[defaults]", "http"), auth(route, "http")] {
        assert!(warnings("http://a", &tenant).contains("without effect"), "{tenant}");
    }
}
