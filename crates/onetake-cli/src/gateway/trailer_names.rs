//! Names of the trailers that a client may send.

use http::header::{HeaderMap, HeaderName, HeaderValue, TRAILER};

use super::edge::is_alike;
use super::plan::Plans;

/// Removes the names of trailers that a client must not send. Trailers without a name in `Trailer`
/// are not forwarded. A server may merge trailers into the headers, so no trailer may be one that
/// the gateway sets, checks or removes.
pub(super) fn check_trailer_names(plans: &Plans, headers: &mut HeaderMap) {
    if !headers.contains_key(TRAILER) {
        return;
    }
    let values = headers.get_all(TRAILER).into_iter();
    let names = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    let names = names.filter_map(|name| name.trim().parse::<HeaderName>().ok());
    let allowed: Vec<_> = names.filter(|name| !is_protected(plans, name)).collect();
    let allowed = allowed.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
    headers.remove(TRAILER);
    if let Ok(names) = HeaderValue::from_str(&allowed)
        && !names.is_empty()
    {
        headers.insert(TRAILER, names);
    }
}

/// True if only the head of a request may have this header.
fn is_protected(plans: &Plans, name: &HeaderName) -> bool {
    let folded = name.as_str().replace('_', "-");
    let families = [
        "content-",
        "transfer-",
        "idempotency-",
        "x-idempotency-",
        "x-forwarded-",
        "x-request-",
        "proxy-",
        "sec-",
        "if-",
    ];
    let names = [
        "authorization",
        "connection",
        "cookie",
        "expect",
        "forwarded",
        "grpc-timeout",
        "host",
        "keep-alive",
        "onetake-outcome",
        "origin",
        "range",
        "te",
        "trailer",
        "traceparent",
        "tracestate",
        "upgrade",
        "x-api-key",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-real-ip",
    ];
    names.contains(&folded.as_str())
        || families.iter().any(|family| folded.starts_with(family))
        || [&plans.tenant_headers, &plans.key_headers]
            .into_iter()
            .flatten()
            .any(|known| is_alike(known.as_str(), name.as_str()))
}
