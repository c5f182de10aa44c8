//! File < variables < flags, and built-in < `[defaults]` < preset < route.

use super::*;

const FILE: &str = "[gateway]\nlisten = \"127.0.0.1:1\"\nupstream = \"http://file\"\n\
                    [admin]\nlisten = \"127.0.0.1:11\"\n[store]\nurl = \"embedded:file\"\n\
                    [sweep]\nbatch = 7\n[defaults]\nttl = \"1h\"\n";

#[test]
fn variables_stand_above_the_file_and_flags_above_variables() {
    let variables = [
        ("ONETAKE__GATEWAY__LISTEN", "127.0.0.1:2"),
        ("ONETAKE__GATEWAY__UPSTREAM", "http://env"),
        ("ONETAKE__ADMIN__LISTEN", "127.0.0.1:12"),
        ("ONETAKE__STORE__URL", "embedded:env"),
        ("ONETAKE__SWEEP__BATCH", "8"),
        ("ONETAKE__DEFAULTS__TTL", "2h"),
        ("ONETAKE_ADMIN_TOKEN", "another program's"),
        ("HOME", "/root"),
    ];
    let flags = Overrides {
        listen: Some("127.0.0.1:3".parse().unwrap()),
        upstream: Some("http://flag".into()),
        admin_listen: Some("127.0.0.1:13".parse().unwrap()),
        store: Some("memory:".into()),
        sink: None,
    };
    let got = |variables: &[(&str, &str)], flags: Overrides| {
        let config = load(Some(FILE), "f", env(variables), flags).unwrap();
        let ttl = config.defaults.policy.terms.ttl.as_secs() / 3600;
        let upstream = config.gateway.upstream.unwrap().host().unwrap().to_owned();
        let ports = (config.gateway.listen.port(), config.admin.listen.port());
        (ports, upstream, config.store.url.to_string(), config.sweep.batch, ttl)
    };
    let none = Overrides::default;
    assert_eq!(got(&[], none()), ((1, 11), "file".into(), "embedded:file".into(), 7, 1));
    assert_eq!(got(&variables, none()), ((2, 12), "env".into(), "embedded:env".into(), 8, 2));
    assert_eq!(got(&variables, flags), ((3, 13), "flag".into(), "memory:".into(), 8, 2));
}

#[test]
fn variables_hold_toml_values_or_text() {
    let policy = |variables: &[(&str, &str)]| {
        let text = "[gateway]\nupstream = \"http://a\"\n[defaults]\ntenant = \"public\"\n\
                    key = { min_length = 20 }\n";
        load(Some(text), "f", env(variables), Overrides::default()).unwrap().defaults.policy
    };
    assert_eq!(policy(&[("ONETAKE__DEFAULTS__NAMESPACE", "\"a\"")]).namespace, "a");
    assert_eq!(policy(&[("ONETAKE__DEFAULTS__NAMESPACE", "a")]).namespace, "a");
    assert_eq!(policy(&[("ONETAKE__DEFAULTS__NAMESPACE", "2024-01-02")]).namespace, "2024-01-02");
    assert_eq!(policy(&[("ONETAKE__DEFAULTS__NAMESPACE", "007")]).namespace, "007");
    assert_eq!(policy(&[("ONETAKE__DEFAULTS__NAMESPACE", "")]).namespace, "");
    assert_eq!(policy(&[("ONETAKE__DEFAULTS__MAX_REQUEST_BODY", "9")]).max_request_body, 9);
    assert_eq!(policy(&[("ONETAKE__DEFAULTS__MAX_REQUEST_BODY", "9KiB")]).max_request_body, 9216);
    let list = policy(&[("ONETAKE__DEFAULTS__RELEASE", "[\"5xx\"]")]);
    assert_eq!(list.outcomes.classify(status(500)), Disposition::Release);
    let key = policy(&[("ONETAKE__DEFAULTS__KEY__REQUIRED", "true")]).key;
    assert_eq!((key.min_length, &key.source), (Some(20), &KeySource::Header), "one more field");
    assert!(key.required);
    let key = policy(&[("ONETAKE__DEFAULTS__KEY", "{ required = true }")]).key;
    assert_eq!(key, required_key(), "the whole table");
    let tenant = policy(&[("ONETAKE__DEFAULTS__TENANT__HEADER", "X-A")]).tenant;
    assert_eq!(tenant, Tenant::Header(HeaderName::from_static("x-a")));
}

/// The policy of one route with these defaults.
fn route(defaults: &str, route: &str) -> Policy {
    let text = format!(
        "[gateway]\nupstream = \"http://a\"\n[defaults]\ntenant = \"public\"\n{defaults}\n\
         [[route]]\nmatch = \"POST /\"\n{route}\n"
    );
    read(&text).unwrap_or_else(|error| panic!("{error}")).routes.remove(0).settings.policy
}

#[test]
fn route_stands_above_preset_above_defaults_above_built_in() {
    let hours = |defaults: &str, own: &str| route(defaults, own).terms.ttl.as_secs() / 3600;
    assert_eq!(hours("", ""), 24);
    assert_eq!(hours("ttl = \"2h\"", ""), 2);
    assert_eq!(hours("ttl = \"2h\"", "preset = \"job\""), 720);
    assert_eq!(hours("ttl = \"2h\"", "preset = \"job\"\nttl = \"3h\""), 3);
    for (preset, expected) in
        [("payment", 24), ("signup", 1), ("webhook", 168), ("job", 720), ("high-consequence", 72)]
    {
        assert_eq!(hours("ttl = \"2h\"", &format!("preset = \"{preset}\"")), expected, "{preset}");
    }
}

/// Written in a route, the values that `onetake check --explain` names for a preset make its policy.
#[test]
fn the_explained_values_of_a_preset_are_all_of_its_values() {
    for (name, preset) in Preset::ALL {
        let of_preset = route("", &format!("preset = \"{name}\""));
        let values = super::super::presets::values(preset).into_iter();
        let options = values.map(|(option, value)| format!("{option} = {value}\n"));
        let mut written = route("", &options.collect::<String>());
        written.outcomes = of_preset.outcomes.clone();
        assert_eq!(written, of_preset, "{name}");
        let in_rust = Policy::preset(preset);
        written.tenant = in_rust.tenant.clone();
        let rest = |policy: Policy| {
            let Policy { terms, key, tenant, fingerprint, on_store_down, .. } = policy;
            (terms, key, tenant, fingerprint, on_store_down)
        };
        assert_eq!(of_preset.outcomes, in_rust.outcomes, "{name}");
        assert_eq!(rest(written), rest(in_rust), "{name}");
    }
}

#[test]
fn a_key_is_required_by_preset_or_by_word() {
    let required = |defaults, own: &str| route(defaults, own).key.required;
    assert!(!required("", ""));
    assert!(!required("", "preset = \"signup\""));
    assert!(required("", "preset = \"payment\""));
    assert!(required("", "preset = \"high-consequence\"\nkey = { min_length = 20 }"));
    assert!(!required("", "preset = \"payment\"\nkey = { required = false }"));
    assert!(required("key = { required = true }", "preset = \"signup\"\nkey.min_length = 9"));
    assert!(required("key = { required = false }", "preset = \"payment\""));
    assert_eq!(route("key.min_length = 40", "preset = \"payment\"").key.min_length, Some(40));
}

#[test]
fn a_key_has_the_source_of_the_route_else_that_of_the_preset() {
    let source = |defaults, own: &str| route(defaults, own).key.source;
    let svix = KeySource::header("svix-id").unwrap();
    let of_defaults = "key = { from = \"json\", pointer = \"/id\" }";
    assert_eq!(source("", "preset = \"svix\""), svix);
    assert_eq!(source(of_defaults, "preset = \"svix\""), svix);
    assert_eq!(source(of_defaults, "preset = \"svix\"\nkey = { format = \"uuid\" }"), svix);
    assert_eq!(source(of_defaults, "preset = \"webhook\""), KeySource::json("/id").unwrap());
    let own = "preset = \"svix\"\nkey = { from = \"query\", name = \"event\" }";
    assert_eq!(source(of_defaults, own), KeySource::query("event"));
    assert!(route("key = { required = false }", "preset = \"svix\"").key.required);
    assert!(!route("", "preset = \"svix\"\nkey = { required = false }").key.required);
}

#[test]
fn grace_is_one_lease_unless_it_is_named() {
    let seconds = |defaults, own| route(defaults, own).terms.grace.as_secs();
    assert_eq!(seconds("", ""), 30);
    assert_eq!(seconds("", "lease = \"7s\""), 7);
    assert_eq!(seconds("lease = \"9s\"", ""), 9);
    assert_eq!(seconds("grace = \"5s\"", "lease = \"7s\""), 5);
    assert_eq!(seconds("grace = \"5s\"", "lease = \"7s\"\ngrace = \"0s\""), 0);
}

#[test]
fn statuses_by_layer() {
    use Disposition::{Record, Release, Unknown};
    for (defaults, own, expected) in [
        ("", "", [Release, Unknown, Record]),
        ("", "preset = \"payment\"", [Unknown, Unknown, Record]),
        ("", "preset = \"high-consequence\"", [Unknown, Unknown, Record]),
        ("", "preset = \"signup\"", [Release, Release, Record]),
        ("", "preset = \"webhook\"", [Release, Release, Record]),
        ("", "preset = \"job\"", [Release, Release, Record]),
        ("", "release = [\"5xx\"]", [Release, Release, Record]),
        ("", "preset = \"payment\"\nrelease = [\"5xx\"]", [Release, Release, Record]),
        ("", "preset = \"payment\"\nrelease = [\"503\"]", [Release, Unknown, Record]),
        ("release = [\"500\"]", "", [Release, Release, Record]),
        ("release = [\"500\", \"404\"]", "preset = \"payment\"", [Unknown, Unknown, Release]),
        ("release = [\"404\"]", "record = [\"4xx\"]", [Release, Unknown, Release]),
        ("release = [\"404\"]", "record = [\"404\"]", [Release, Unknown, Record]),
        ("mark_unknown = [\"503\"]", "preset = \"job\"", [Release, Release, Record]),
    ] {
        let rules = route(defaults, own).outcomes;
        let got = [503, 500, 404].map(|status| rules.classify(super::status(status)));
        assert_eq!(got, expected, "[{defaults}] [{own}]");
    }
}

#[test]
fn one_upstream_for_all_that_name_none() {
    let upstream = |text: &str, flag: Option<&str>| {
        let flags = Overrides { upstream: flag.map(str::to_owned), ..Overrides::default() };
        let config = load(Some(text), "f", no_env(), flags).map_err(|error| error.to_string())?;
        let own = config.routes.first().map(|route| route.upstream.to_string());
        Ok::<_, String>((config.gateway.upstream.map(|uri| uri.to_string()), own))
    };
    let route = "[[route]]\nmatch = \"POST /\"\n";
    let defaults = "[defaults]\nupstream = \"http://d\"\n";
    let a = Some("http://a/".to_owned());
    let d = Some("http://d/".to_owned());
    let own = format!("{route}upstream = \"http://a\"\n");
    assert_eq!(upstream(&own, None), Ok((None, a.clone())), "every route names its own");
    assert_eq!(upstream(&format!("{defaults}{route}"), None), Ok((d.clone(), d.clone())));
    assert_eq!(upstream(&format!("{defaults}{own}"), None), Ok((d, a.clone())));
    let flag = Some("http://a");
    assert_eq!(upstream(&format!("{defaults}{route}"), flag), Ok((a.clone(), a)));
    let both = format!("[gateway]\nupstream = \"http://g\"\n{defaults}");
    let said = upstream(&both, None).unwrap_err();
    assert!(said.contains("f:4:12: defaults.upstream = \"http://d/\""), "{said}");
    assert!(said.contains("differs from gateway.upstream (f:2:12)"), "{said}");
    assert!(
        upstream(&format!("{own}{route}"), None).unwrap_err().contains("route[1] has no upstream")
    );
}
