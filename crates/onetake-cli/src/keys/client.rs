//! Client of the admin API.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use indicatif::ProgressBar;
use onetake_core::{Clock, SystemClock};
use serde_json::Value;

use crate::config::{Admin, Token, UpstreamTls};
use crate::gateway::Connector;

/// Timeout of one request: a change makes up to five store calls, ten seconds each.
const PATIENCE: Duration = Duration::from_secs(60);
/// Path for looking a key up by its tenant and text.
pub(super) const LOOKUP: &str = "/v1/keys/lookup";
/// Maximum size of a response: a page of keys, or one body.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Maximum number of tries of a request that is answered with `Retry-After`.
const RETRIES_MAX: u32 = 20;
/// Longest pause before a retry, in seconds.
const PAUSE_MAX: u64 = 10;

/// A client of one admin API.
pub(super) struct AdminClient {
    base: String,
    token: Option<Token>,
    http: legacy::Client<Connector, Full<Bytes>>,
    clock: Arc<dyn Clock>,
    bar: Option<ProgressBar>,
}

/// The error of a request without a successful response.
#[derive(Debug)]
pub(super) struct RequestError {
    /// The status; `None` if there was no response.
    pub(super) status: Option<u16>,
    pub(super) what: String,
}

impl AdminClient {
    /// A client of the API at the URL `asked`, else at the configured address.
    pub(super) fn new(asked: Option<&str>, admin: Admin) -> Result<Self, String> {
        let mut listen = admin.listen;
        if listen.ip().is_unspecified() {
            listen.set_ip(if listen.is_ipv4() {
                std::net::Ipv4Addr::LOCALHOST.into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            });
        }
        let base = asked.map_or_else(|| format!("http://{listen}"), str::to_owned);
        let base = base.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().ok().filter(is_plain).ok_or_else(|| {
            format!("--admin {base}: write a scheme and a host, such as http://127.0.0.1:9091")
        })?;
        if admin.token.is_some() && uri.scheme_str() == Some("http") && !is_loopback(&uri) {
            eprintln!("onetake: warning: the token goes to {base} unencrypted; use https://");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let tls = (uri.scheme_str() == Some("https")).then(UpstreamTls::default);
        let connector =
            Connector::new(tls, Arc::clone(&clock)).map_err(|error| error.to_string())?;
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        let bar = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        Ok(Self { base, token: admin.token, http, clock, bar })
    }

    pub(super) async fn get(
        &self,
        path: &str,
        params: &[(&str, String)],
    ) -> Result<Value, RequestError> {
        let query: Vec<String> =
            params.iter().map(|(name, value)| format!("{name}={}", segment(value))).collect();
        let path = format!("{path}?{}", query.join("&"));
        let mut tries = 0;
        loop {
            tries += 1;
            match self.send(Method::GET, &path, Bytes::new()).await {
                Err((_, Some(pause))) if tries < RETRIES_MAX => {
                    self.clock.sleep(Duration::from_secs(pause.min(PAUSE_MAX))).await;
                }
                answer => return answer.map_err(|(refusal, _)| refusal),
            }
        }
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, RequestError> {
        let sent = self.send(Method::POST, path, Bytes::from(body.to_string())).await;
        sent.map_err(|(refusal, _)| refusal)
    }

    /// Sends a request. An error comes with the seconds of `Retry-After`, if the response has it.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Value, (RequestError, Option<u64>)> {
        let none = |what: String| (RequestError { status: None, what }, None);
        // Not a change: a lookup is a POST only because key and tenant belong in a body, where no
        // log shows them.
        let changes = method == Method::POST && path != LOOKUP;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            let shown = HeaderValue::try_from(format!("Bearer {}", token.as_str()));
            let mut shown = shown.map_err(|error| none(error.to_string()))?;
            shown.set_sensitive(true);
            request = request.header(AUTHORIZATION, shown);
        }
        let request = request.body(Full::new(body)).map_err(|error| none(error.to_string()))?;
        let asked = async {
            let response = self.http.request(request).await;
            let response = response.map_err(|error| (!error.is_connect(), root(&error)))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            Ok((head, body.map_err(|error| (true, error.to_string()))?.to_bytes()))
        };
        let answered = tokio::select! {
            answered = asked => answered,
            () = self.clock.sleep(PATIENCE) => Err((true, "no response in time".to_owned())),
        };
        let (head, body) = answered.map_err(|(was_sent, why): (bool, String)| {
            none(if changes && was_sent {
                format!(
                    "the admin API at {} did not respond: {why}. The change may have been made: check with \
                     `onetake keys get` before you retry",
                    self.base
                )
            } else {
                format!(
                    "the admin API at {} cannot be reached: {why}. Is the gateway running? Choose \
                     another address with --admin URL",
                    self.base
                )
            })
        })?;
        let read: Option<Value> = serde_json::from_slice(&body).ok();
        if head.status.is_success()
            && let Some(value) = read
        {
            return Ok(value);
        }
        let detail = read.as_ref().and_then(|problem| problem.get("detail")?.as_str());
        let mut what = detail.map_or_else(
            || format!("{} answered {}, but it is not an admin API", self.base, head.status),
            str::to_owned,
        );
        if head.status.as_u16() == 401 {
            what = match self.token {
                Some(_) => "The token is wrong: check the file of --config, or ONETAKE_ADMIN_TOKEN.",
                None => "The gateway requires a token: name the gateway's file with --config FILE, or set ONETAKE_ADMIN_TOKEN.",
            }
            .to_owned();
        }
        for name in ["attempt", "state", "ids"] {
            if let Some(value) = read.as_ref().and_then(|problem| problem.get(name)) {
                what.push_str(&format!("\n{name}: {value}"));
            }
        }
        let pause =
            head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err((RequestError { status: Some(head.status.as_u16()), what }, pause))
    }

    /// Shows how many keys were read so far.
    pub(super) fn progress(&self, looked_at: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{looked_at} keys read"));
            bar.tick();
        }
    }

    pub(super) fn progress_over(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn is_plain(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some()
        && matches!(uri.path(), "" | "/")
        && uri.query().is_none()
}

/// True if the host of a URL is this machine.
pub(crate) fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The innermost cause of an error.
fn root(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// Percent-encodes a text for a path segment or a query value.
pub(super) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    // A segment of dots alone would be read as a relative path.
    if matches!(out.as_str(), "." | "..") { out.replace('.', "%2E") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_stays_in_its_place() {
        assert_eq!(segment("9B5H-6U57-LCAG"), "9B5H-6U57-LCAG");
        assert_eq!(segment("a/b?c=d&e#f ü"), "a%2Fb%3Fc%3Dd%26e%23f%20%C3%BC");
        assert_eq!(segment(".."), "%2E%2E");
    }

    #[test]
    fn where_the_api_is() {
        let admin = |listen: &str| Admin { listen: listen.parse().unwrap(), token: None };
        let base = |asked, listen| AdminClient::new(asked, admin(listen)).map(|client| client.base);
        assert_eq!(base(None, "0.0.0.0:1").unwrap(), "http://127.0.0.1:1");
        assert_eq!(base(None, "[::]:1").unwrap(), "http://[::1]:1");
        assert_eq!(base(Some("http://h:2/"), "0.0.0.0:1").unwrap(), "http://h:2");
        for wrong in ["h:2", "ftp://h", "http://h/x", "http://h?x", ""] {
            assert!(base(Some(wrong), "0.0.0.0:1").is_err(), "{wrong}");
        }
    }
}
