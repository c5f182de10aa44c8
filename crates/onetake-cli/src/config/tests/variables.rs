//! `${NAME}` in strings, paths relative to the file, warnings about presets, and the explanation of
//! a policy.

use super::*;

fn with(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load(Some(text), "/etc/onetake/onetake.toml", env(variables), Overrides::default())
}

#[test]
fn variables_are_put_into_any_string() {
    let file = "[gateway]\nupstream = \"http://${HOST}:${PORT}\"\ntrusted_proxies = [\"${NET}/8\"]\n\
                [defaults]\nttl = \"${TTL}\"\nnamespace = \"a${EMPTY}b\"\nerrors = \"${ERRORS}\"\n";
    let variables = [
        ("HOST", "api"),
        ("PORT", "81"),
        ("NET", "10.0.0.0"),
        ("TTL", "2h"),
        ("EMPTY", ""),
        ("ERRORS", "stripe"),
    ];
    let config = with(file, &variables).unwrap();
    assert_eq!(config.gateway.upstream.unwrap(), "http://api:81");
    assert_eq!(config.gateway.trusted_proxies, ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(config.defaults.policy.terms.ttl, Duration::from_secs(7200));
    assert_eq!(config.defaults.policy.namespace, "ab");
    assert_eq!(config.defaults.policy.errors, onetake_http::Dialect::Stripe);
}

#[test]
fn a_variable_that_is_not_there_and_one_that_is_wrong() {
    let base = "[gateway]\nupstream = \"http://a\"\n[defaults]\n";
    let said = |line: &str, variables: &[(&str, &str)]| {
        let error = with(&format!("{base}{line}\n"), variables).unwrap_err();
        assert_eq!(error.problems().len(), 1, "{error}");
        error.problems()[0].to_string()
    };
    assert_eq!(
        said("ttl = \"${TTL}\"", &[]),
        "/etc/onetake/onetake.toml:4:7: defaults.ttl = \"${TTL}\": the environment variable `TTL` is not set\n    \
         set it in the environment of this process, or name another variable, or write $${ for a \
         literal ${"
    );
    assert!(said("ttl = \"${TTL\"", &[]).contains("`${` is not closed"));
    // A variable may hold a secret: a message quotes the file, and not the variable.
    let wrong = said("ttl = \"${TTL}\"", &[("TTL", "hush-hush")]);
    assert!(
        wrong.contains("defaults.ttl = \"${TTL}\": not a duration") && !wrong.contains("hush"),
        "{wrong}"
    );
    let url = format!("{base}[store]\nurl = \"postgres://me:${{PW}}@db:x/y\"\n");
    let wrong = with(&url, &[("PW", "hush")]).unwrap_err().to_string();
    assert!(wrong.contains("not a valid port") && !wrong.contains("hush"), "{wrong}");
    let url = format!("{base}[store]\nurl = \"postgres://me:hush@${{HOST}}:x/y\"\n");
    let wrong = with(&url, &[("HOST", "db")]).unwrap_err().to_string();
    assert!(wrong.contains("not a valid port") && !wrong.contains("hush"), "{wrong}");
    let wrong = said("upstream = \"${API}\"", &[("API", "hush:80")]);
    assert!(
        wrong.contains("did you mean \"http://${API}\"?") && !wrong.contains("hush"),
        "{wrong}"
    );
    // Two dollars stand for one, and `ONETAKE__…` variables are not expanded.
    let literal = said("ttl = \"$${TTL}\"", &[("TTL", "1h")]);
    assert!(literal.contains("not a duration"), "{literal}");
    let outside = [("ONETAKE__DEFAULTS__NAMESPACE", "${TTL}"), ("TTL", "1h")];
    assert!(with(base, &outside).unwrap_err().to_string().contains("not a namespace"));
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let file = "[gateway]\nupstream = \"https://a\"\ntls = { certificate = \"c.pem\", private_key = \"/k.pem\" }\n\
                upstream_tls = { roots = \"../ca.pem\" }\n[store]\nurl = \"sqlite:keys.sqlite\"\njournal = \"j\"\n";
    let config = with(file, &[]).unwrap();
    let tls = config.gateway.tls.unwrap();
    assert_eq!(tls.certificate, PathBuf::from("/etc/onetake/c.pem"));
    assert_eq!(tls.private_key, PathBuf::from("/k.pem"));
    assert_eq!(config.gateway.upstream_tls.roots, Some("/etc/onetake/../ca.pem".into()));
    assert_eq!(config.store.url, StoreUrl::Sqlite("/etc/onetake/keys.sqlite".into()));
    assert_eq!(config.store.journal, Some("/etc/onetake/j".into()));
    // Flags, variables and built-in values are relative to the folder of the process.
    let flags = Overrides { store: Some("embedded:data".into()), ..Overrides::default() };
    let config = load(Some(file), "/etc/onetake/onetake.toml", no_env(), flags).unwrap();
    assert_eq!(config.store.url, StoreUrl::Embedded("data".into()));
    let variables = [("ONETAKE__STORE__URL", "embedded:data")];
    assert_eq!(with(file, &variables).unwrap().store.url, StoreUrl::Embedded("data".into()));
    let plain = "[gateway]\nupstream = \"http://a\"\n";
    assert_eq!(with(plain, &[]).unwrap().store.url, StoreUrl::Embedded("./onetake-data".into()));
}

#[test]
fn a_secret_file_is_found_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "sixteen-letters!\n").unwrap();
    let name = folder.path().join("onetake.toml").display().to_string();
    let admin = input(
        Some("[admin]\ntoken = { file = \"token\" }\n"),
        &name,
        no_env(),
        Overrides::default(),
    )
    .admin();
    assert_eq!(admin.unwrap().token, Token::new("sixteen-letters!"));
}

const LAYERS: &str = "[gateway]\nupstream = \"http://a\"\n[defaults]\nttl = \"12h\"\ntenant = \"public\"\nlease = \"9s\"\n\
                      [[route]]\nmatch = \"POST /pay\"\npreset = \"payment\"\nlease = \"7s\"\n\
                      [[route]]\nmatch = \"POST /own\"\npreset = \"payment\"\nttl = \"1h\"\n\
                      [[route]]\nmatch = \"POST /plain\"\n";

#[test]
fn a_preset_that_hides_a_default_is_a_warning() {
    assert_eq!(
        with(LAYERS, &[]).unwrap().warnings(),
        [
            "route[0] (POST /pay): preset \"payment\" sets ttl = \"24h\", which hides ttl = \"12h\" of [defaults] \
          (/etc/onetake/onetake.toml:4:7); set ttl in the route to choose"
        ]
    );
    let same = LAYERS.replace("12h", "24h");
    assert_eq!(with(&same, &[]).unwrap().warnings(), Vec::<String>::new());
    let open =
        LAYERS.replace("ttl = \"12h\"", "on_store_down = \"fail-open\"\nrelease = [\"500\"]");
    let warnings = with(&open, &[]).unwrap().warnings();
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    assert!(warnings[0].contains("hides on_store_down = \"fail-open\""), "{warnings:?}");
    assert!(
        warnings[1].contains("every 5xx") && warnings[1].contains("release = [\"500\"]"),
        "{warnings:?}"
    );
}

#[test]
fn every_value_is_explained_with_its_layer() {
    let said = explain(LAYERS, "f.toml", no_env()).unwrap();
    let of = |route: &str| {
        let from = said.find(route).unwrap();
        let text = said[from..].split("\n\n").next().unwrap();
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let pay = of("route[0]: POST /pay");
    for line in [
        "ttl = \"24h\" # preset payment",
        "lease = \"7s\" # route, f.toml:10:9",
        "tenant = \"public\" # [defaults], f.toml:5:10",
        "key.required = true # preset payment",
        "request_timeout = \"30s\" # built-in",
        "upstream_timeout = \"30s\" # built-in",
        "upstream = \"http://a/\" # [gateway]",
        "grace = \"7s\" # built-in",
        "on_store_down = \"fail-closed\" # preset payment",
        "every 5xx: mark_unknown # preset payment",
    ] {
        assert!(pay.contains(&line.to_owned()), "{line}\n{said}");
    }
    assert!(
        of("route[1]: POST /own").contains(&"ttl = \"1h\" # route, f.toml:14:7".to_owned()),
        "{said}"
    );
    assert!(
        of("route[2]: POST /plain").contains(&"ttl = \"12h\" # [defaults], f.toml:4:7".to_owned()),
        "{said}"
    );
    assert!(
        of("POST and PATCH without")
            .contains(&"lease = \"9s\" # [defaults], f.toml:6:9".to_owned()),
        "{said}"
    );
    let plain = of("route[2]: POST /plain");
    assert!(plain.contains(&"key.required = false # built-in".to_owned()), "{said}");
}

#[test]
fn the_key_of_a_preset_is_explained_unless_the_route_has_its_own() {
    let file = "[gateway]\nupstream = \"http://a\"\n[defaults]\ntenant = \"public\"\n\
        [[route]]\nmatch = \"POST /stripe\"\npreset = \"stripe-webhook\"\n\
        [[route]]\nmatch = \"POST /own\"\npreset = \"github\"\nkey = { from = \"json\", pointer = \"/n\" }\n";
    let said = explain(file, "f", no_env()).unwrap();
    let lines: Vec<_> =
        said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "key.from = \"json\" # preset stripe-webhook",
        "key.pointer = \"/id\" # preset stripe-webhook",
        "fingerprint.mode = \"json\" # preset stripe-webhook",
        "fingerprint.exclude = [\"/pending_webhooks\"] # preset stripe-webhook",
        "key.pointer = \"/n\" # route, f:11:34",
    ] {
        assert!(lines.contains(&line.to_owned()), "{line}\n{said}");
    }
    assert!(!said.contains("x-github-delivery"), "{said}");
    let hidden =
        file.replace("\"public\"\n", "\"public\"\nkey = { from = \"json\", pointer = \"/a\" }\n");
    let warnings = with(&hidden, &[]).unwrap().warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("sets key.pointer = \"/id\", which hides"), "{warnings:?}");
}

#[test]
fn an_explanation_shows_no_secret() {
    let file = "[gateway]\nupstream = \"http://a\"\n[defaults]\n\
        tenant = { jwt = { verification_key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\", issuer = \"${ISSUER}\" } }\n\
        on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { X-Key = \"hush\" } }\n";
    let said = explain(file, "f", env(&[("ISSUER", "hush")])).unwrap();
    assert!(said.contains("issuer = \"${ISSUER}\", verification_key = …"), "{said}");
    assert!(!said.contains("AAAA") && !said.contains("hush"), "{said}");
}
