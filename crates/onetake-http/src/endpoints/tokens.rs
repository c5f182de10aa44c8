//! `POST /idempotency-tokens`: issues a key for one method and path.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body;

use crate::body::{self, BodyRead};
use crate::identify::incomplete;
use crate::issued::{self, Use};
use crate::layer::LayerState;
use crate::policy::{KeySource, Policy};
use crate::problem::{Code, Problem, ProblemFormat};

/// Issues a key. The tenant is resolved by the policy of the route that the key is for.
pub(super) async fn issue<Req>(shared: &LayerState, parts: &Parts, body: Req) -> Response<Bytes>
where
    Req: Body<Data = Bytes>,
{
    let (clock, rng) = (shared.engine.clock(), &**shared.engine.rng());
    let refused = |problem| ProblemFormat::default().tell_with(problem, None, rng);
    let read = tokio::select! {
        biased;
        read = body::read(body, issued::BODY_MAX) => read,
        () = clock.sleep(Policy::default().request_timeout) => {
            return refused(incomplete("did not arrive in time"));
        }
    };
    let data = match read {
        Ok(BodyRead::Whole { data, .. }) => data,
        Ok(BodyRead::TooLarge { .. }) => {
            let detail = format!(
                "The body has more than {} bytes. Send only the method and path that the key is for.",
                issued::BODY_MAX
            );
            return refused(Problem::new(Code::RequestBodyTooLarge, detail));
        }
        Err(_) => return refused(incomplete("ended early")),
    };
    let wanted = match issued::parse_key_request(&data) {
        Ok(wanted) => wanted,
        Err(problem) => return refused(problem),
    };
    let policy = shared.policies.resolve_for(&wanted.method, &wanted.path, parts);
    let policy = policy
        .filter(|policy| policy.key.source == KeySource::Issued && policy.is_keyed(&wanted.method));
    let Some(policy) = policy else {
        tracing::debug!(
            "a key was requested for a method and path without a route that has key = {{ from = \"issued\" }}"
        );
        let detail = "No route accepts issued keys for this `method` and `path`. Check both, or create the key yourself.";
        return refused(Problem::new(Code::RequestBodyInvalid, detail));
    };
    if let Err(problem) = shared.check_policy(&policy, &wanted.method) {
        return policy.problem_format().tell_with(problem, None, rng);
    }
    match policy.tenant.resolve(parts, &**clock).await {
        Err(problem) => {
            if let Some(advice) = problem.advice() {
                shared.warnings.warn(advice, &policy.label);
            }
            policy.problem_format().tell_with(problem, None, rng)
        }
        Ok(caller) => {
            let used = Use::of(&policy, &caller.tenant, &wanted.method, &wanted.path);
            match shared.secrets.issued_keys.first() {
                Some(key) => {
                    let ttl = policy.terms.ttl;
                    let (key, expires_at) = issued::issue(key, &used, ttl, clock.now(), rng);
                    issued::issued(&key, expires_at)
                }
                None => policy.problem_format().tell_with(issued::invalid(), None, rng),
            }
        }
    }
}
