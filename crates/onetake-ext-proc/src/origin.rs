//! The origin of a response: the upstream, or Envoy itself.
//!
//! Envoy's router answers 503 or 504 in place of an upstream that does not. By its status such an
//! answer looks like the upstream's own. The attributes of the response tell them apart.

use std::collections::HashMap;

use crate::messages::{Kind, Struct, Value};

/// Why Envoy sent the response: `via_upstream`, or the reason of its own answer.
const DETAILS: &str = "response.code_details";
/// How many requests the router made.
const ATTEMPTS: &str = "upstream.request_attempt_count";

/// The reasons of a reset before anything was sent to the upstream.
const BEFORE_SENDING: [&str; 4] =
    ["local_connection_failure", "remote_connection_failure", "connection_timeout", "overflow"];

/// The answers of the router before it chooses a host.
const WITHOUT_HOST: [&str; 6] = [
    "no_healthy_upstream",
    "cluster_not_found",
    "route_not_found",
    "maintenance_mode",
    "drop_overload",
    "unconditional_drop_overload",
];

/// The origin of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The upstream.
    Upstream,
    /// Envoy. It did not send the request to an upstream.
    NotSent,
    /// Envoy. The upstream did not answer in time.
    TimedOut,
    /// Envoy. The upstream may have got the request.
    Interrupted,
    /// The filter does not send the attributes that tell.
    Unverified,
}

/// The origin of a response, and the number of requests that Envoy made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) origin: Origin,
    pub(crate) attempts: Option<u64>,
}

/// Reads the attributes of a response.
pub(crate) fn evidence(attributes: &HashMap<String, Struct>) -> Evidence {
    let value = |name: &str| {
        let value = attributes.values().find_map(|fields| fields.fields.get(name));
        value.and_then(|Value { kind }| kind.as_ref())
    };
    let attempts = match value(ATTEMPTS) {
        Some(Kind::Number(number)) if (0.0..1e9).contains(number) => Some(*number as u64),
        Some(Kind::Text(text)) => text.parse().ok(),
        _ => None,
    };
    let origin = match value(DETAILS) {
        Some(Kind::Text(details)) => origin(details, attempts),
        _ => Origin::Unverified,
    };
    Evidence { origin, attempts }
}

/// After more than one request, only the last one is known.
fn origin(details: &str, attempts: Option<u64>) -> Origin {
    if details == "via_upstream" {
        return Origin::Upstream;
    }
    let (word, reason) = details.split_once('{').unwrap_or((details, ""));
    let is_unsent = WITHOUT_HOST.contains(&word)
        || (word == "upstream_reset_before_response_started"
            && BEFORE_SENDING.iter().any(|before| reason.starts_with(before)));
    match attempts {
        // The router was not reached, or did not make a request.
        Some(0) => Origin::NotSent,
        Some(1) if is_unsent => Origin::NotSent,
        _ if word.contains("timeout") || word.contains("duration_reached") => Origin::TimedOut,
        _ => Origin::Interrupted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(details: Option<&str>, attempts: Option<f64>) -> Evidence {
        let field = |name: &str, kind| (name.to_owned(), Value { kind: Some(kind) });
        let details = details.map(|text| field(DETAILS, Kind::Text(text.to_owned())));
        let attempts = attempts.map(|number| field(ATTEMPTS, Kind::Number(number)));
        let fields = details.into_iter().chain(attempts).collect();
        evidence(&[("envoy.filters.http.ext_proc".to_owned(), Struct { fields })].into())
    }

    #[test]
    fn only_what_was_certainly_not_sent_counts_as_unsent() {
        let reset = |why: &str| format!("upstream_reset_before_response_started{{{why}}}");
        for (details, attempts, expected) in [
            ("via_upstream", Some(1.0), Origin::Upstream),
            ("via_upstream", Some(2.0), Origin::Upstream),
            ("via_upstream", None, Origin::Upstream),
            ("no_healthy_upstream", Some(1.0), Origin::NotSent),
            ("no_healthy_upstream", Some(2.0), Origin::Interrupted),
            ("no_healthy_upstream", None, Origin::Interrupted),
            ("request_rate_limited", Some(0.0), Origin::NotSent),
            ("request_rate_limited", None, Origin::Interrupted),
            ("response_timeout", Some(1.0), Origin::TimedOut),
            ("upstream_per_try_timeout", Some(1.0), Origin::TimedOut),
            (
                &reset("remote_connection_failure|delayed_connect_error:_111"),
                Some(1.0),
                Origin::NotSent,
            ),
            (&reset("connection_timeout"), Some(1.0), Origin::NotSent),
            (&reset("remote_connection_failure"), Some(2.0), Origin::Interrupted),
            (&reset("connection_termination"), Some(1.0), Origin::Interrupted),
            (&reset("remote_reset"), Some(1.0), Origin::Interrupted),
            ("anything else", Some(1.0), Origin::Interrupted),
        ] {
            assert_eq!(found(Some(details), attempts).origin, expected, "{details} {attempts:?}");
        }
        assert_eq!(found(None, Some(1.0)).origin, Origin::Unverified);
        assert_eq!(found(None, Some(3.0)).attempts, Some(3));
        assert_eq!(evidence(&HashMap::new()).origin, Origin::Unverified);
    }
}
