//! The exact text of frequent messages.

use super::*;

#[test]
fn a_misspelt_field() {
    let text = "[gateway]\nupstream = \"http://a\"\n\n[[route]]\nmatch = \"POST /a\"\n\n\
                [[route]]\nmatch = \"POST /b\"\nfingerprint = { mod = \"json\" }\n";
    assert_eq!(
        refused(text),
        "the configuration has 1 error:\n\nonetake.toml:9:17: route[1].fingerprint.mod: unknown \
         field\n    did you mean `mode`?"
    );
}

#[test]
fn a_value_out_of_bounds_and_a_wrong_type_together() {
    let text = "[gateway]\nupstream = \"http://a\"\n[defaults]\nttl = \"500d\"\nlease = 30\n";
    assert_eq!(
        refused(text),
        "the configuration has 2 errors:\n\n\
         onetake.toml:4:7: defaults.ttl = \"500d\": longer than the maximum of 400d\n    \
         write a number and a unit (ms, s, m, h or d), from 1s to 400d, such as \"24h\"\n\n\
         onetake.toml:5:9: defaults.lease = 30: expected a string but found an integer\n    \
         write for example lease = \"30s\""
    );
}

#[test]
fn a_missing_upstream() {
    let error = load(None, "onetake.toml", no_env(), Overrides::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the configuration has 1 error:\n\nconfiguration: gateway.upstream: missing, so requests \
         cannot be forwarded\n    start with --upstream http://127.0.0.1:3000, or write upstream \
         = \"http://127.0.0.1:3000\" below [gateway]"
    );
    assert!(refused("[[route]]\nmatch = \"POST /\"\n").contains(
        "onetake.toml: gateway.upstream: missing, and route[0] has no upstream of its own"
    ));
}

#[test]
fn a_payment_without_a_tenant() {
    let text = "[gateway]\nupstream = \"http://a\"\n[[route]]\nmatch = \"POST /\"\n\
                preset = \"payment\"\n";
    assert_eq!(
        refused(text),
        "the configuration has 1 error:\n\nonetake.toml:5:10: route[0].tenant: a route with preset \
         \"payment\" must name its tenant, because a wrong guess could mix payments of two \
         customers\n    write tenant = \"credential\", \"public\" or { header = \"X-Account\" } \
         in this route or in [defaults]"
    );
    let named = format!("{text}[defaults]\ntenant = \"public\"\n");
    assert_eq!(read(&named).unwrap().routes[0].settings.policy.tenant, Tenant::Public);
}

#[test]
fn a_reconciler_that_would_be_told_a_credential() {
    let text = "[gateway]\nupstream = \"http://a\"\n[[route]]\nmatch = \"POST /\"\ntenant = \"credential\"\n\
                on_unknown = \"reconcile\"\nreconcile = \"GET http://b/{tenant}/{key}\"\n";
    assert_eq!(
        refused(text),
        "the configuration has 1 error:\n\nonetake.toml:7:13: route[0].reconcile: the tenant is a \
         credential, and {tenant} would put it into a URL and into logs\n    use {derived_key}: \
         the upstream receives it with the operation as Idempotency-Derived-Key"
    );
}

#[test]
fn a_syntax_error() {
    let said = refused("[gateway]\nupstream = http://a\n");
    assert!(said.contains("onetake.toml:2:"), "{said}");
    assert!(said.contains("not valid TOML: "), "{said}");
    let said = refused("[gateway]\nlisten = \"a\"\nlisten = \"b\"\n");
    assert!(said.contains("onetake.toml:3:1: not valid TOML: duplicate key"), "{said}");
}

#[test]
fn a_variable() {
    let load = |name: &str, value: &str| {
        load(None, "onetake.toml", env(&[(name, value)]), Overrides::default())
    };
    let said = |name, value| load(name, value).unwrap_err().problems()[0].to_string();
    assert_eq!(
        said("ONETAKE__GATEWAY__LISTN", "127.0.0.1:80"),
        "ONETAKE__GATEWAY__LISTN: gateway.listn: unknown field\n    did you mean \
         `ONETAKE__GATEWAY__LISTEN`?"
    );
    assert_eq!(
        said("ONETAKE__GATWAY__LISTEN", "127.0.0.1:80"),
        "ONETAKE__GATWAY__LISTEN: gatway: unknown field\n    did you mean \
         `ONETAKE__GATEWAY__LISTEN`?"
    );
    assert_eq!(
        said("ONETAKE__DEFAULTS__TTL", "soon"),
        "ONETAKE__DEFAULTS__TTL: defaults.ttl = \"soon\": not a duration\n    \
         write a number and a unit (ms, s, m, h or d), from 1s to 400d, such as \"24h\""
    );
    assert_eq!(
        said("ONETAKE__DEFAULTS__KEY__REQUIRED", "yes"),
        "ONETAKE__DEFAULTS__KEY__REQUIRED: defaults.key.required = \"yes\": expected true or false, \
         without quotes, but found a string\n    \
         write for example ONETAKE__DEFAULTS__KEY__REQUIRED='true'"
    );
    assert_eq!(
        said("ONETAKE__DEFAULTS__KEY", "{ requird = true }"),
        "ONETAKE__DEFAULTS__KEY: defaults.key.requird: unknown field\n    did you mean `required`?"
    );
    assert_eq!(
        said("ONETAKE__ROUTE__0__TTL", "1h"),
        "ONETAKE__ROUTE__0__TTL: routes cannot be set by environment variables\n    write them in \
         the file; ONETAKE__DEFAULTS__TTL and similar variables apply to all routes"
    );
    for name in ["ONETAKE__GATEWAY", "ONETAKE__", "ONETAKE____LISTEN", "ONETAKE__GATEWAY__"] {
        assert!(said(name, "x").contains("write ONETAKE__SECTION__FIELD"), "{name}");
    }
}

#[test]
fn a_flag() {
    let overrides = Overrides { upstream: Some("api:80".into()), ..Overrides::default() };
    let error = load(Some(EXAMPLE), "onetake.toml", no_env(), overrides).unwrap_err();
    assert_eq!(
        error.problems()[0].to_string(),
        "--upstream: gateway.upstream = \"api:80\": the URL has no scheme\n    \
         did you mean \"http://api:80\"?"
    );
}

#[test]
fn credentials_and_control_characters_are_not_repeated() {
    let said = refused("[gateway]\nupstream = \"http://me:secret@a\"\n");
    assert!(!said.contains("secret"), "{said}");
    let said = refused("[admin]\ntoken = \"secret\"\n[secrets]\nx = \"secret\"\n");
    assert!(!said.contains("\"secret\""), "{said}");
    let said = refused("[defaults]\nttl = \"\\u001b[31m\\u202e\"\n");
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said}");
    let said = refused(&format!("[defaults]\nttl = \"{}\"\n", "9".repeat(5000)));
    assert!(said.len() < 400, "{said}");
}
