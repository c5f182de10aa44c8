//! The configuration as a whole: every field, every layer, every message that matters.

mod documentation;
mod ext_proc;
mod fall_through;
mod fields;
mod messages;
mod mutations;
mod precedence;
mod refusals;
mod renamed;
mod schema;
mod stores;
mod variables;

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use http::HeaderName;
use onetake_core::{OnUnknown, Terms};
use onetake_http::json::{Pointer, Selection};
use onetake_http::{
    Disposition, FingerprintMode, FingerprintPolicy, InFlight, KeyFormat, KeyPolicy, KeySource,
    Policy, ProblemFormat, StatusRules,
};

/// The file in the documentation is valid.
#[test]
fn the_documented_file_is_accepted() {
    let page = include_str!("../../../../../docs/CONFIGURATION.md");
    let file = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = load(Some(file), "docs", std::iter::empty(), Overrides::default());
    assert_eq!(config.unwrap_or_else(|error| panic!("{error}")).routes.len(), 1);
}

fn status(code: u16) -> http::StatusCode {
    http::StatusCode::from_u16(code).unwrap()
}

/// A file with every field that this version has.
const EXAMPLE: &str = r#"
[gateway]
listen   = "127.0.0.1:8080"
upstream = "http://127.0.0.1:3000"
trusted_proxies = ["127.0.0.0/8", "::1"]  # whose forwarding and tenant headers count

[admin]
listen = "127.0.0.1:9091"

[store]
url = "postgres://onetake:takes%20one@127.0.0.1:5432/onetake"
filter = "redis://127.0.0.1:6379"
allow_lossy = false

[sweep]
interval = "15m"
batch    = 5000

[defaults]
tenant = { header = "X-Account" }
ttl    = "12h"

[[route]]
match        = "POST /v1/charges"
preset       = "payment"
namespace    = ""
key          = { from = "header", required = true, format = "any", min_length = 16 }
tenant       = "credential"
fingerprint  = { mode = "bytes" }
ttl          = "24h"
lease        = "30s"
grace        = "30s"
in_flight    = "reject"
wait_timeout = "5s"
on_unknown   = "fail"
on_store_down = "fail-closed"
upstream     = "http://127.0.0.1:3001"
upstream_timeout = "30s"
record       = ["2xx", "3xx", "4xx"]
release      = ["404"]
mark_unknown = ["5xx"]
errors       = "problem"
max_request_body  = "1MiB"
max_response_body = 1048576

[[route]]
match       = "PUT,PATCH /v1/orders/{id}"
preset      = "signup"
fingerprint = { mode = "json", exclude = ["/timestamp", "/trace~1id"] }
in_flight   = "wait"

[[route]]
match       = "* /v1/jobs/{*rest}"
preset      = "job"
tenant      = "public"
fingerprint = { mode = "json", include = ["/job"] }
on_unknown  = "retry"
"#;

fn no_env() -> impl Iterator<Item = (String, String)> {
    std::iter::empty()
}

fn env(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect::<Vec<_>>().into_iter()
}

fn input<'a>(
    text: Option<&'a str>,
    file_name: &'a str,
    env: impl Iterator<Item = (String, String)>,
    overrides: Overrides,
) -> Input<'a> {
    Input { text, file_name, env: env.collect(), overrides }
}

fn explain(
    text: &str,
    file_name: &str,
    env: impl Iterator<Item = (String, String)>,
) -> Result<String, ConfigError> {
    input(Some(text), file_name, env, Overrides::default()).explain(Forwarder::Gateway)
}

fn read(text: &str) -> Result<Config, ConfigError> {
    load(Some(text), "onetake.toml", no_env(), Overrides::default())
}

/// The error's text, for a file that must be refused.
fn refused(text: &str) -> String {
    read(text).expect_err(text).to_string()
}

fn header_key() -> KeyPolicy {
    let key = KeyPolicy::default();
    assert_eq!((&key.source, key.required), (&KeySource::Header, false));
    assert_eq!((key.format, key.length_min()), (KeyFormat::Any, 16));
    key
}

fn required_key() -> KeyPolicy {
    let mut key = header_key();
    key.required = true;
    key
}

#[test]
fn the_whole_example_is_accepted() {
    let config = read(EXAMPLE).unwrap();
    assert_eq!(config.routes.len(), 3);
    assert_eq!(config.store.url.to_string(), "postgres://onetake:***@127.0.0.1:5432/onetake");
    let hidden = config.warnings();
    assert_eq!(hidden.len(), 2, "{hidden:?}");
    assert!(hidden[0].contains("preset \"signup\" sets ttl = \"1h\""), "{hidden:?}");
    assert!(hidden[1].contains("preset \"job\" sets ttl = \"30d\""), "{hidden:?}");
    let [charges, orders, jobs] = config.routes.as_slice() else { panic!("three routes") };

    assert_eq!(charges.preset, Some(Preset::Payment));
    assert_eq!(charges.upstream, "http://127.0.0.1:3001");
    let mut key = required_key();
    key.min_length = Some(16);
    assert_eq!(charges.settings.policy.key, key);
    assert_eq!(charges.settings.policy.tenant, Tenant::Credential);
    assert_eq!(charges.settings.policy.terms.ttl, Duration::from_secs(86_400));
    assert_eq!(charges.settings.policy.outcomes.classify(status(404)), Disposition::Release);
    assert_eq!(charges.settings.policy.outcomes.classify(status(409)), Disposition::Release);
    assert_eq!(charges.settings.policy.outcomes.classify(status(422)), Disposition::Record);
    assert_eq!(charges.settings.policy.outcomes.classify(status(503)), Disposition::Unknown);
    assert_eq!(charges.settings.policy.max_response_body, 1 << 20);

    assert_eq!(orders.upstream, "http://127.0.0.1:3000");
    assert_eq!(orders.settings.policy.in_flight, InFlight::Wait(Duration::from_secs(5)));
    let pointers = ["/timestamp", "/trace~1id"].map(|text| Pointer::parse(text).unwrap());
    let exclude = FingerprintMode::Json(Selection::Exclude(pointers.into()));
    assert_eq!(orders.settings.policy.fingerprint.mode, exclude);
    assert_eq!(orders.settings.policy.tenant, Tenant::Header(HeaderName::from_static("x-account")));
    assert!(!orders.settings.policy.key.required);

    assert_eq!(jobs.pattern.methods.to_string(), "POST,PUT,PATCH,DELETE");
    assert_eq!(jobs.pattern.path.to_string(), "/v1/jobs/{*rest}");
    let include = FingerprintMode::Json(Selection::Include(vec![Pointer::parse("/job").unwrap()]));
    assert_eq!(jobs.settings.policy.fingerprint.mode, include);
    assert_eq!(jobs.settings.policy.terms.on_unknown, OnUnknown::Retry);
    assert_eq!(jobs.settings.policy.outcomes.classify(status(500)), Disposition::Release);
}

#[test]
fn a_flag_alone_is_a_working_gateway() {
    let overrides =
        Overrides { upstream: Some("http://127.0.0.1:3000".to_owned()), ..Overrides::default() };
    let config = load(None, "onetake.toml", no_env(), overrides).unwrap();
    assert_eq!(config.gateway.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.admin.listen, "127.0.0.1:9091".parse().unwrap());
    assert_eq!(config.store.url, StoreUrl::Embedded("./onetake-data".into()));
    assert_eq!(config.sweep, Sweep { interval: Duration::from_secs(900), batch: 5000 });
    let trusts = |address: &str| {
        config
            .gateway
            .trusted_proxies
            .iter()
            .any(|cidr| cidr.contains(&address.parse::<std::net::IpAddr>().unwrap()))
    };
    assert!(trusts("127.9.9.9") && trusts("::1") && !trusts("10.0.0.1") && !trusts("::2"));
    let expected = Policy::default();
    assert_eq!(expected.namespace, "");
    assert_eq!(expected.key, header_key());
    assert_eq!(expected.tenant, Tenant::CredentialOrPublic);
    assert_eq!(expected.fingerprint, FingerprintPolicy::default());
    let terms = Terms {
        ttl: Duration::from_secs(86_400),
        lease: Duration::from_secs(30),
        grace: Duration::from_secs(30),
        on_unknown: OnUnknown::Fail,
    };
    assert_eq!(expected.terms, terms);
    assert_eq!(expected.in_flight, InFlight::Reject);
    assert_eq!(expected.on_store_down, OnStoreDown::FailClosed);
    assert_eq!(expected.velocity, []);
    assert_eq!(expected.upstream_timeout, Duration::from_secs(30));
    assert_eq!(expected.outcomes, StatusRules::new());
    assert_eq!(expected.problem_format(), ProblemFormat::default());
    assert_eq!((expected.max_request_body, expected.max_response_body), (1 << 20, 1 << 20));
    let expected = Settings { policy: expected, forward_auth: None, reconcile: None };
    assert_eq!(config.defaults, expected);
    assert_eq!(config.routes, []);
}
