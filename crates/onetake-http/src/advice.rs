//! Advice for operators: a warning in the log for each route and cause.
//!
//! A problem tells the client what the client can do. Some refusals end only if the operator
//! changes the route. The log says so once, because every such request is refused in the same way.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The most warnings of one layer. A closure can return any number of policies.
const WARNINGS_MAX: usize = 1_000;

/// The cause of a refusal that a change of the route would end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Advice {
    /// The request has cookies and no other credential, and the route names no tenant.
    CookiesOnly,
    /// The credential of the request may change with every request.
    UnstableCredential,
    /// The body is larger than the maximum of the route.
    LargeBody,
    /// The route takes issued keys, and the layer has no secret for them.
    NoIssuingKey,
}

/// The warnings that a layer has logged.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<BTreeSet<(Advice, Box<str>)>>);

impl Warnings {
    /// Logs the advice, unless it was logged before for the same route.
    pub(crate) fn warn(&self, advice: Advice, route: &str) {
        if !self.is_new(advice, route) {
            return;
        }
        match advice {
            Advice::CookiesOnly => tracing::warn!(
                route,
                "a request was refused because it has cookies and no other credential: name the tenant of its route. In the file: tenant = {{ header = \"X-Account\" }}. In Rust: Tenant::extension, with authentication outside the layer. Or tenant = \"public\", if keys cannot be guessed. This is logged once"
            ),
            // The scheme is not logged: a client may send a bare secret without one.
            Advice::UnstableCredential => tracing::warn!(
                route,
                "a request was refused because its Authorization scheme may sign each request: name another tenant for its route. In the file: tenant = {{ header = \"X-Account\" }}. In Rust: Tenant::extension, with authentication outside the layer. Or tenant = \"public\", if keys cannot be guessed. This is logged once"
            ),
            Advice::LargeBody => tracing::warn!(
                route,
                "a request was refused because its body is larger than max_request_body of its route: raise max_request_body if clients send such bodies. This is logged once"
            ),
            Advice::NoIssuingKey => tracing::warn!(
                route,
                "a request was refused because its route takes issued keys and the layer has no secret for them: call .secrets(Secrets::default().issued_keys(…)) on the builder. This is logged once"
            ),
        }
    }

    fn is_new(&self, advice: Advice, route: &str) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < WARNINGS_MAX && logged.insert((advice, route.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_new_once_for_each_route_and_cause_and_are_bounded() {
        let warnings = Warnings::default();
        for _ in 0..2 {
            for (advice, route) in [
                (Advice::CookiesOnly, "POST /a"),
                (Advice::CookiesOnly, "POST /b"),
                (Advice::LargeBody, "POST /a"),
            ] {
                let is_first = !warnings.0.lock().unwrap().contains(&(advice, route.into()));
                assert_eq!(warnings.is_new(advice, route), is_first, "{advice:?} {route}");
            }
        }
        assert_eq!(warnings.0.lock().unwrap().len(), 3);
        for number in 0..2 * WARNINGS_MAX {
            warnings.is_new(Advice::CookiesOnly, &number.to_string());
        }
        assert_eq!(warnings.0.lock().unwrap().len(), WARNINGS_MAX);
    }
}
