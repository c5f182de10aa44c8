//! The configuration of an external processor of Envoy.

use super::*;

fn read_for_envoy(text: &str) -> Result<Config, ConfigError> {
    input(Some(text), "test", no_env(), Overrides::default()).config(Forwarder::Envoy)
}

#[test]
fn envoy_forwards_so_no_upstream_is_needed() {
    let routes = "[[route]]\nmatch = \"POST /\"\n";
    let config = read_for_envoy(routes).unwrap();
    assert_eq!(config.routes.len(), 1);
    assert_eq!(config.ext_proc.listen.to_string(), "127.0.0.1:9002");
    assert_eq!(config.ext_proc.max_message, 16 << 20);
    assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    assert!(read(routes).is_err(), "a gateway needs one");
    let example = include_str!("../../../../../examples/ext-proc.toml");
    read_for_envoy(example).unwrap();
}

#[test]
fn a_202_behind_envoy_needs_an_upstream() {
    let route = "[[route]]\nmatch = \"POST /\"\nin_flight = \"async\"\n";
    let own = read_for_envoy(&format!("{route}upstream = \"http://a\"")).unwrap();
    let shared = format!("[ext_proc]\n[gateway]\nupstream = \"http://a\"\n{route}");
    let shared = read_for_envoy(&shared).unwrap();
    for config in [own, shared] {
        assert_eq!(config.routes[0].upstream.to_string(), "http://a/");
    }
    for (text, field) in [
        ("[defaults]\nin_flight = \"async\"\ntenant = \"public\"", "defaults.in_flight"),
        ("[[route]]\nmatch = \"POST /\"\nin_flight = \"async\"", "route[0].in_flight"),
    ] {
        let error = read_for_envoy(text).unwrap_err();
        assert!(error.problems().iter().any(|problem| problem.field == field), "{error}");
        let text = format!("[gateway]\nupstream = \"http://a\"\n{text}");
        assert!(read(&text).is_ok(), "a gateway can");
    }
}

#[test]
fn a_gateway_may_have_an_upstream_that_is_called_envoy() {
    let text = "[gateway]\nupstream = \"http://envoy\"\n[defaults]\nin_flight = \"async\"\ntenant = \"public\"";
    assert_eq!(read(text).unwrap().gateway.upstream.unwrap(), "http://envoy/");
}

#[test]
fn sections_show_the_purposes_of_a_file() {
    let of = |text: &str| {
        let found = purposes(text);
        (found.gateway, found.ext_proc, found.relay)
    };
    let route = "[[route]]\nmatch = \"POST /\"\n";
    let gateway = "[gateway]\nupstream = \"http://a\"\n";
    assert_eq!(of(""), (true, false, false));
    assert_eq!(of(route), (true, false, false));
    assert_eq!(of(&format!("[ext_proc]\n{route}")), (false, true, false));
    assert_eq!(of(&format!("[ext_proc]\n{gateway}{route}")), (true, true, false));
    assert_eq!(of("[relay]\n"), (false, false, true));
    assert_eq!(of("[relay]\nbatch = 99999999999999999999\n"), (false, false, true));
    assert_eq!(of(&format!("[relay]\n{route}")), (true, false, true));
    assert_eq!(of(&format!("[relay]\n[ext_proc]\n{route}")), (false, true, true));
}
