//! Options that were renamed: the message names the new one.

use super::*;

#[test]
fn a_former_name_is_told_its_new_one() {
    let reconcile =
        "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", ";
    for (section, line, field, new) in [
        (
            "gateway",
            "tls = { certificate = \"a\", key = \"b\" }".to_owned(),
            "gateway.tls.key",
            "private_key",
        ),
        (
            "gateway",
            "upstream_tls = { certificate = \"a\", key = \"b\" }".to_owned(),
            "gateway.upstream_tls.key",
            "private_key",
        ),
        ("secrets", "fingerprint = []".to_owned(), "secrets.fingerprint", "request_digests"),
        (
            "secrets",
            "encryption = [{ id = \"a\", key = \"b\" }]".to_owned(),
            "secrets.encryption[0].key",
            "secret",
        ),
        ("defaults", "unknown = [\"5xx\"]".to_owned(), "defaults.unknown", "mark_unknown"),
        (
            "defaults",
            "tenant = { jwt = { key = \"AAAA\" } }".to_owned(),
            "defaults.tenant.jwt.key",
            "verification_key",
        ),
        (
            "defaults",
            format!("{reconcile}limit = \"1h\" }}"),
            "defaults.reconcile.limit",
            "give_up_after",
        ),
        (
            "defaults",
            format!("{reconcile}headers = {{}} }}"),
            "defaults.reconcile.headers",
            "request_headers",
        ),
    ] {
        let error = read(&fields::file(section, &line)).expect_err(&line);
        let [problem] = error.problems() else { panic!("one fault expected\n{error}") };
        assert_eq!(problem.field, field, "{error}");
        assert_eq!(problem.what, format!("the field was renamed to `{new}`"), "{error}");
        assert_eq!(problem.fix, format!("write `{new}`"), "{error}");
    }
    let variables = env(&[("ONETAKE__DEFAULTS__UNKNOWN", "[\"5xx\"]")]);
    let error = load(None, "f", variables, Overrides::default()).unwrap_err();
    assert!(error.to_string().contains("write `ONETAKE__DEFAULTS__MARK_UNKNOWN`"), "{error}");
}
