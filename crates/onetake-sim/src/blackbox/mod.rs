//! Tests of a gateway as its clients see it, over any store.
//!
//! [`run`] starts a gateway through a factory, puts it in front of an [`Upstream`], and runs all
//! cases. As in the store suite, the suite has the list of cases, and a case reports an error by
//! panicking.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a suite says what is wrong by panicking, and catches that itself"
)]

mod bad_input;
mod contract;
mod keys;
mod outcomes;
mod passing;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use onetake_conformance::ConformanceReport;
use onetake_core::{Clock, SystemClock};

use crate::client::Client;
use crate::upstream::Upstream;

/// A gateway under test; it ends when it is dropped.
pub trait Target: Send + Sync + 'static {
    /// Returns the address for clients.
    fn address(&self) -> SocketAddr;
}

/// The properties in which gateways on different stores may differ. Each store documents its own.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// The size of the largest body that the store keeps, in bytes. A larger one is "not
    /// replayable".
    pub body_bytes_max: usize,
    /// The time after its expiry for which a key still counts as used. Stores without a clock of
    /// their own need it.
    pub expiry_margin: Duration,
    /// True if a replay of a response without a content type gets one.
    pub adds_content_type: bool,
    /// The cases that do not apply, by their names.
    pub except: &'static [&'static str],
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            body_bytes_max: usize::MAX,
            expiry_margin: Duration::ZERO,
            adds_content_type: false,
            except: &[],
        }
    }
}

/// A gateway, its upstream and its client.
pub struct World {
    /// The client.
    pub client: Client,
    /// The upstream.
    pub upstream: Upstream,
    /// The gateway.
    pub target: Box<dyn Target>,
    /// An address that is not in use until a case listens on it.
    pub dead: SocketAddr,
    /// The properties of the store.
    pub can: Capabilities,
}

/// Returns the configuration that the cases need; `store` is the store's URL.
#[must_use]
pub fn configuration(upstream: &str, dead: SocketAddr, store: &str) -> String {
    format!(
        r#"
[gateway]
listen = "127.0.0.1:0"
upstream = "{upstream}"

[admin]
listen = "127.0.0.1:0"

[store]
url = "{store}"

# Nothing is mistaken for what a route says: these are longer than any case waits.
[defaults]
wait_timeout = "5m"

[[route]]
match = "POST /wait/{{*rest}}"
in_flight = "wait"
wait_timeout = "20s"

[[route]]
match = "POST /impatient/{{*rest}}"
in_flight = "wait"
wait_timeout = "50ms"

[[route]]
match = "POST /short-lease/{{*rest}}"
lease = "2s"
grace = "2s"

[[route]]
match = "POST /short-ttl/{{*rest}}"
ttl = "4s"

[[route]]
match = "POST /release-5xx/{{*rest}}"
release = ["5xx"]

[[route]]
match = "POST /retry-unknown/{{*rest}}"
on_unknown = "retry"

[[route]]
match = "POST /payment/{{*rest}}"
preset = "payment"
tenant = "credential"

[[route]]
match = "POST /signup/{{*rest}}"
preset = "signup"

[[route]]
match = "POST /account/{{*rest}}"
tenant = {{ header = "X-Account" }}

[[route]]
match = "POST /json/{{*rest}}"
fingerprint = {{ mode = "json", exclude = ["/sent_at"] }}

[[route]]
match = "POST /included/{{*rest}}"
fingerprint = {{ mode = "json", include = ["/amount"] }}

[[route]]
match = "POST /small/{{*rest}}"
max_request_body = "1KiB"
max_response_body = "1KiB"

[[route]]
match = "POST /impatient-upstream/{{*rest}}"
upstream_timeout = "3s"

[[route]]
match = "POST /other-namespace/{{*rest}}"
namespace = "other"

[[route]]
match = "PUT,DELETE /keyed/{{*rest}}"

[[route]]
match = "POST /json-key/{{*rest}}"
key = {{ from = "json", pointer = "/transfer/ref" }}
tenant = "credential"

[[route]]
match = "POST /derived/{{*rest}}"
namespace = "derived"
key = {{ from = "derive", parts = ["json:/merchant", "json:/order"] }}
tenant = "credential"

[[route]]
match = "POST /issued/{{*rest}}"
key = {{ from = "issued" }}
tenant = "credential"

[[route]]
match = "POST /async/{{*rest}}"
in_flight = "async"
wait_timeout = "200ms"
tenant = "credential"

[[route]]
match = "POST /velocity/{{*rest}}"
tenant = "credential"
key = {{ required = true }}
velocity = [{{ by = ["tenant", "json:/card"], limit = "3/h" }}]

[[route]]
match = "POST /stripe/{{*rest}}"
errors = "stripe"

[[route]]
match = "POST /chosen/{{*rest}}"
statuses = {{ mismatch = 409 }}
fingerprint = {{ mode = "bytes", headers = ["X-Shop"] }}

[[route]]
match = "POST /dead/{{*rest}}"
upstream = "http://{dead}"
"#
    )
}

type Case = fn(Arc<World>) -> BoxFuture<'static, ()>;

macro_rules! cases {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        &[$($((concat!(stringify!($module), "::", stringify!($name)), {
            fn boxed(world: Arc<World>) -> BoxFuture<'static, ()> {
                Box::pin(async move { $module::$name(&world).await })
            }
            boxed as Case
        })),+),+]
    };
}

/// Cases that wait for seconds. They run at the same time as each other, and not beside other
/// cases, which count the requests at the upstream.
const WAITING_CASES: &[(&str, Case)] = cases! {
    outcomes: an_operation_may_outlast_its_lease, a_timeout_is_unknown, running_is_not_run_again_past_its_ttl,
        a_key_is_reusable_after_it_expired_with_a_higher_fence;
    contract: a_deadline_ends_the_wait_for_the_upstream;
};

const CASES: &[(&str, Case)] = cases! {
    keys: a_thousand_at_once_wait_for_one_run, a_thousand_at_once_are_told_that_it_runs,
        quoted_and_bare_are_one_operation, another_body_is_refused_in_flight_too,
        another_credential_is_another_operation, another_path_never_gets_the_first_ones_response,
        a_namespace_is_another_operation, a_tenant_header_names_the_tenant,
        an_impatient_waiter_is_told, put_and_delete_are_keyed_where_a_route_says_so;
    outcomes: a_replay_is_the_same_to_the_byte, a_client_that_goes_away_loses_nothing,
        an_upstream_that_refuses_lets_the_retry_run,
        an_upstream_that_closes_makes_it_unknown, an_answer_that_breaks_off_makes_it_unknown,
        a_500_is_unknown_and_not_run_again, a_released_500_runs_again, an_unknown_may_be_retried,
        presets_decide_over_503,
        a_large_response_is_passed_whole_and_not_run_again, an_event_stream_is_passed_on;
    bad_input: bad_keys_are_refused, a_body_over_the_cap_is_refused, bad_json_is_refused,
        json_is_compared_by_value, unstable_and_missing_tenants_are_refused;
    contract: a_member_of_the_body_names_the_operation, parts_of_the_body_name_the_operation,
        only_issued_keys_where_a_route_says_so, a_long_operation_is_answered_later,
        a_deadline_that_is_over_runs_nothing,
        too_many_new_operations_are_refused_and_known_ones_are_not, errors_in_the_words_of_stripe,
        statuses_and_headers_that_a_route_chose,
        the_upstream_gets_the_same_derived_key_in_every_attempt;
    passing: without_a_key_everything_passes, a_websocket_passes, no_other_upgrade_passes, http2_is_the_same,
        forwarding_headers_are_honest, what_could_smuggle_is_refused,
        problems_are_explained_where_they_link_to;
};

async fn pause(milliseconds: u64) {
    SystemClock.sleep(Duration::from_millis(milliseconds)).await;
}

/// Runs all cases. `start` gets the configuration and starts a gateway with it.
pub async fn run<F, T>(start: impl FnOnce(String) -> F, store: &str) -> ConformanceReport
where
    F: Future<Output = T>,
    T: Target,
{
    run_with(start, store, Capabilities::default()).await
}

/// Runs all cases as [`run`] does, on a store with other capabilities.
pub async fn run_with<F, T>(
    start: impl FnOnce(String) -> F,
    store: &str,
    can: Capabilities,
) -> ConformanceReport
where
    F: Future<Output = T>,
    T: Target,
{
    let upstream = Upstream::start().await.expect("there is a free port");
    // A loopback address of its own, on which no other program listens in the meantime.
    let apart = SocketAddr::from(([127, 0, 0, 2], 0));
    let dead = Upstream::start_on(apart, None).await.expect("there is a free port").address();
    let target = start(configuration(&upstream.url(), dead, store)).await;
    let client = Client::new(target.address());
    let world = Arc::new(World { client, upstream, target: Box::new(target), dead, can });
    let applies = |(name, _): &&(&str, Case)| !can.except.contains(name);
    let waiting = WAITING_CASES.iter().filter(applies).map(|(name, case)| {
        let case = case(Arc::clone(&world));
        async move {
            let mut report = ConformanceReport::default();
            report.add(name, case).await;
            report.cases
        }
    });
    let cases = join_all(waiting).await.into_iter().flatten().collect();
    let mut report = ConformanceReport { cases };
    for (name, case) in CASES.iter().filter(applies) {
        report.add(name, case(Arc::clone(&world))).await;
    }
    report
}
