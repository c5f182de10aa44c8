//! Key sets of `jwks_url`: fetched at start, on a period, and when a token names a key that is not
//! known.
//!
//! Fetching is done here and not in `onetake-http`, because the gateway has an HTTP client with TLS
//! already, and the library should not bring one to services that have their own. An endpoint with
//! `https://` is met as upstreams are: by the same roots, and with the same certificate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use metrics::{counter, describe_counter, describe_gauge, gauge};
use onetake_core::Clock;
use onetake_http::{JwtKeySet, Tenant};
use tokio_util::sync::CancellationToken;

use super::Connector;

/// The largest key set, in bytes.
const SET_BYTES_MAX: usize = 256 << 10;
/// The longest time of one fetch.
const FETCH_MAX: Duration = Duration::from_secs(5);
/// The time between two fetches if nothing else causes one.
const PERIOD: Duration = Duration::from_secs(300);
/// The time after a failed fetch.
const RETRY: Duration = Duration::from_secs(5);

const FETCHES: &str = "onetake_jwks_fetches_total";
const FAILING: &str = "onetake_jwks_failing";

/// The key sets that are fetched, each once.
pub(super) fn distinct<'a>(tenants: impl Iterator<Item = &'a Tenant>) -> Vec<JwtKeySet> {
    let mut found = Vec::new();
    for tenant in tenants {
        if let Tenant::Jwt(jwt) = tenant
            && let Some(set) = jwt.key_set()
            && !found.contains(set)
        {
            found.push(set.clone());
        }
    }
    found
}

/// The URL of a key set without its query, for logs and metrics.
pub(super) fn shown(set: &JwtKeySet) -> &str {
    set.source().split('?').next().unwrap_or_default()
}

/// Keeps a key set up to date until it is stopped.
pub(super) async fn keep(
    set: JwtKeySet,
    connector: Connector,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    describe_counter!(FETCHES, "Fetches of a JSON Web Key Set, by result.");
    describe_gauge!(
        FAILING,
        "1 while a JSON Web Key Set cannot be fetched; the last fetched keys stay in use."
    );
    // It follows no redirect.
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .timer(TokioTimer::new())
        .build(connector);
    let mut was_failing = false;
    loop {
        let fetched = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            fetched = fetch(&client, set.source()) => fetched,
            () = clock.sleep(FETCH_MAX) => Err("no response within the timeout".to_owned()),
        };
        let replaced = match fetched {
            Ok(jwks) => set.replace(&jwks, &*clock).map_err(|error| error.to_string()),
            Err(why) => {
                set.failed(&*clock);
                Err(why)
            }
        };
        let (url, failed) = (shown(&set), replaced.is_err());
        counter!(FETCHES, "result" => if failed { "failed" } else { "fetched" }).increment(1);
        gauge!(FAILING, "url" => url.to_owned()).set(if failed { 1.0 } else { 0.0 });
        match replaced {
            Ok(keys) if was_failing => tracing::info!(url, keys, "the key set was fetched again"),
            Ok(keys) => tracing::debug!(url, keys, "the key set was fetched"),
            Err(why) if was_failing => tracing::debug!(url, why, "the key set cannot be fetched"),
            Err(why) if set.is_loaded() => {
                tracing::warn!(
                    url,
                    why,
                    "the key set cannot be fetched; the last fetched keys stay in use"
                );
            }
            Err(why) => tracing::warn!(
                url,
                why,
                "the key set cannot be fetched; tokens that need it are answered with 503"
            ),
        }
        was_failing = failed;
        let pause = if failed { RETRY } else { PERIOD };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = set.wanted() => {}
            () = clock.sleep(pause) => {}
        }
    }
}

/// The text of a key set, or why there is none.
async fn fetch(client: &Client<Connector, Empty<Bytes>>, url: &str) -> Result<Bytes, String> {
    let uri: Uri = url.parse().map_err(|_| "not a valid URL".to_owned())?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    let accept = http::HeaderValue::from_static("application/jwk-set+json, application/json");
    request.headers_mut().insert(http::header::ACCEPT, accept);
    let response = client.request(request).await.map_err(|error| {
        let mut why = "the server cannot be reached".to_owned();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            why = format!("{why}: {cause}");
            source = cause.source();
        }
        why
    })?;
    if response.status() != http::StatusCode::OK {
        return Err(format!("the service answered {}", response.status().as_u16()));
    }
    let body = Limited::new(response.into_body(), SET_BYTES_MAX).collect().await;
    let body = body.map_err(|_| {
        format!("the response ended early, or is larger than {SET_BYTES_MAX} bytes")
    })?;
    Ok(body.to_bytes())
}
