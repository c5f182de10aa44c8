//! Options that do not exist or have no effect.

use super::*;

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
    assert!(refused("[route]\nmatch = \"POST /\"").contains("write the section header [[route]]"));
    assert!(refused("listen = \"127.0.0.1:1\"").contains("is a field of [gateway] or [admin]"));
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
        assert!(warnings("http://a", &tenant).contains("has no effect"), "{tenant}");
    }
}

#[test]
fn a_reconcile_of_defaults_is_checked_where_it_is_used() {
    let text = |route: &str| {
        format!(
            "[gateway]\nupstream = \"http://a\"\n[defaults]\ntenant = \"public\"\non_unknown = \"reconcile\"\n\
             reconcile = \"GET http://a/{{key}}\"\n[[route]]\nmatch = \"POST /\"\n{route}"
        )
    };
    let config = read(&text("")).unwrap();
    assert_eq!(config.routes[0].settings.reconcile, config.defaults.reconcile);
    let config = read(&text("on_unknown = \"fail\"\ntenant = \"credential\"")).unwrap();
    assert_eq!(config.routes[0].settings.reconcile, None, "no service is asked");
    let error = read(&text("tenant = \"credential\"")).unwrap_err();
    assert_eq!(error.problems()[0].field, "route[0].reconcile", "{error}");
    assert!(error.to_string().contains("use {derived_key}"), "{error}");
    let nobody = "[gateway]\nupstream = \"http://a\"\n[defaults]\non_unknown = \"reconcile\"\n[[route]]\nmatch = \"POST /\"";
    assert_eq!(read(nobody).unwrap_err().problems().len(), 1, "it is told once");
}

#[test]
fn each_route_is_told_of_its_own_mistake_with_the_values_of_defaults() {
    let defaults = "[gateway]\nupstream = \"http://a\"\n[defaults]\ntenant = \"public\"\non_unknown = \"reconcile\"\n\
                    reconcile = \"GET http://a/{key}\"\n";
    let route = |path: &str| {
        format!("[[route]]\nmatch = \"POST /{path}\"\ntenant = \"client-ip\"\nttl = \"100s\"\n")
    };
    let error = read(&format!("{defaults}{}{}", route("a"), route("b"))).unwrap_err();
    let mut fields = error.problems().iter().map(|it| it.field.as_str()).collect::<Vec<_>>();
    fields.sort_unstable();
    let all = ["route[0].reconcile", "route[0].ttl", "route[1].reconcile", "route[1].ttl"];
    assert_eq!(fields, all, "{error}");
}

#[test]
fn what_reconcilers_are_sent_is_not_repeated() {
    let line = "{ request = \"GET http://a/{derived_key}\", request_headers = { X-Key = \"hush\\n\", \"bad name\" = \"hush\" } }";
    let text = format!(
        "[gateway]\nupstream = \"http://a\"\n[defaults]\non_unknown = \"reconcile\"\nreconcile = {line}"
    );
    let said = refused(&text);
    assert!(!said.contains("hush"), "{said}");
    let good = text.replace("hush\\n", "hush").replace("\"bad name\"", "x-good");
    let shown = format!("{:?}", read(&good).unwrap());
    assert!(shown.contains("x-good") && !shown.contains("hush"), "{shown}");
}
