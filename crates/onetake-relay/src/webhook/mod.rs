//! The sink for signed webhooks, by [Standard Webhooks](https://www.standardwebhooks.com): a POST
//! of the payload with `webhook-id` (the message's id), `webhook-timestamp` and
//! `webhook-signature`.
//!
//! Any 2xx means that the message was delivered. 410 Gone and 413 Content Too Large park the
//! message. After any other answer, also a redirect, it is tried again.

mod signing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::Connect;
use onetake_core::Clock;
use onetake_core::outbox::{Message, PendingMessage};

use crate::sink::{Sink, SinkError, in_order};

pub use signing::{WebhookSecret, WebhookSecretError};

/// The number of bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 4 << 10;
/// The number of characters of an answer in error messages.
const SAID_CHARS_MAX: usize = 200;
/// The header for the topic, for receivers that need it before they read the payload.
const TOPIC: &str = "onetake-topic";
/// The headers that the request itself or its signature uses.
const OURS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    TOPIC,
];

/// The body of an answer, of any client.
pub type AnswerBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The reason why a call has no answer, for messages. It must not contain secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There was no connection. Nothing was sent, and no other message would be delivered.
    #[error("{0}")]
    Away(String),
    /// The call failed, and the endpoint may have received it.
    #[error("{0}")]
    Failed(String),
}

/// A client that sends a request and returns the head of its answer. It follows no redirect.
pub trait HttpClient: Send + Sync + 'static {
    /// Sends a request.
    fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> BoxFuture<'_, Result<Response<AnswerBody>, CallError>>;
}

impl<C: Connect + Clone + Send + Sync + 'static> HttpClient for Client<C, Full<Bytes>> {
    fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> BoxFuture<'_, Result<Response<AnswerBody>, CallError>> {
        async move {
            let answer = self.request(request).await.map_err(|error| {
                let kind = if error.is_connect() { CallError::Away } else { CallError::Failed };
                kind(chain(&error))
            })?;
            Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
        }
        .boxed()
    }
}

/// The options of a webhook sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookOptions {
    /// The timeout of an answer.
    pub answer_timeout: Duration,
    /// The number of calls for different ordering keys at once.
    pub at_once: usize,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self { answer_timeout: Duration::from_secs(10), at_once: 16 }
    }
}

/// A sink that calls one endpoint.
pub struct WebhookSink {
    url: Uri,
    secrets: Vec<WebhookSecret>,
    client: Arc<dyn HttpClient>,
    clock: Arc<dyn Clock>,
    options: WebhookOptions,
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may contain a secret.
        f.debug_struct("WebhookSink").field("host", &self.url.host()).finish_non_exhaustive()
    }
}

impl WebhookSink {
    /// Creates a sink that calls `url` and signs with all of `secrets`. During a rotation there are
    /// two secrets for a while.
    #[must_use]
    pub fn new(
        url: Uri,
        secrets: Vec<WebhookSecret>,
        client: Arc<dyn HttpClient>,
        clock: Arc<dyn Clock>,
        options: WebhookOptions,
    ) -> Self {
        Self { url, secrets, client, clock, options }
    }

    async fn call(&self, waiting: &PendingMessage) -> Result<(), SinkError> {
        let request = self.request(waiting)?;
        let called = async {
            let answer = self.client.send(request).await;
            let answer = answer.map_err(uncalled)?;
            let (head, body) = answer.into_parts();
            // A 2xx is enough. The rest of the answer is not read.
            let said = if head.status.is_success() { String::new() } else { beginning(body).await };
            Ok((head.status, head.headers, said))
        };
        let (status, headers, said) = tokio::select! {
            biased;
            answer = called => answer?,
            () = self.clock.sleep(self.options.answer_timeout) => {
                let patience = self.options.answer_timeout;
                return Err(SinkError::retry(format!("the endpoint did not respond within {patience:?}")));
            }
        };
        judge(status, &headers, &said)
    }

    fn request(&self, waiting: &PendingMessage) -> Result<Request<Full<Bytes>>, SinkError> {
        let (id, message) = (waiting.id.to_string(), &waiting.message);
        let timestamp = (self.clock.now().as_micros() / 1_000_000).to_string();
        let signature = signing::signature(&self.secrets, &id, &timestamp, &message.payload);
        let mut headers = passed_on(message)?;
        let ours = [
            ("webhook-id", id),
            ("webhook-timestamp", timestamp),
            ("webhook-signature", signature),
            (TOPIC, visible(&message.topic)),
        ];
        for (name, value) in ours {
            let value = HeaderValue::try_from(value).map_err(|_| {
                SinkError::poison(format!("the {name} of the message is not a valid header value"))
            })?;
            headers.insert(HeaderName::from_static(name), value);
        }
        let otherwise = [(CONTENT_TYPE, "application/json"), (USER_AGENT, "onetake")];
        for (name, value) in otherwise {
            headers.entry(name).or_insert(HeaderValue::from_static(value));
        }
        let mut request = Request::new(Full::new(message.payload.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl Sink for WebhookSink {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn patience(&self) -> Duration {
        self.options.answer_timeout
    }

    fn deliver<'a>(
        &'a self,
        batch: &'a [PendingMessage],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        let call = |waiting| self.call(waiting);
        let (at_once, patience) = (self.options.at_once, self.options.answer_timeout);
        in_order(batch, at_once, &*self.clock, (within, patience), call).boxed()
    }
}

/// The error for a call without an answer.
fn uncalled(error: CallError) -> SinkError {
    let said = format!("the request to the endpoint failed: {error}");
    match error {
        CallError::Away(_) => SinkError::away(said),
        CallError::Failed(_) => SinkError::retry(said),
    }
}

/// Interprets an answer.
fn judge(status: StatusCode, headers: &HeaderMap, said: &str) -> Result<(), SinkError> {
    if status.is_success() {
        return Ok(());
    }
    match status {
        StatusCode::GONE => Err(SinkError::poison("the endpoint no longer exists (410 Gone)")),
        StatusCode::PAYLOAD_TOO_LARGE => Err(SinkError::poison(
            "the message is too large for the endpoint (413): raise the endpoint's limit and retry the message, or discard it",
        )),
        _ => {
            let said = if said.is_empty() { String::new() } else { format!(": {said}") };
            let what = match status.is_redirection() {
                true => {
                    "the endpoint answered with a redirect, which is not followed: configure the target URL itself"
                }
                false => "the endpoint answered",
            };
            let mut error = SinkError::retry(format!("{what} ({}){said}", status.as_u16()));
            // Only seconds are supported. A date would need the receiver's clock.
            let after = headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok());
            error.after = after.and_then(|after| after.parse().ok()).map(Duration::from_secs);
            Err(error)
        }
    }
}

/// The message's own headers.
fn passed_on(message: &Message) -> Result<HeaderMap, SinkError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers {
        let lower = name.to_ascii_lowercase();
        if OURS.contains(&lower.as_str()) || lower.starts_with("webhook-") {
            return Err(SinkError::poison(format!(
                "the header {name} is set by the relay itself: rename it"
            )));
        }
        let (Ok(known), Ok(value)) = (HeaderName::try_from(lower), HeaderValue::try_from(value))
        else {
            return Err(SinkError::poison(format!(
                "the header {name:?} is not a valid HTTP header"
            )));
        };
        headers.append(known, value);
    }
    Ok(headers)
}

/// Returns text that is valid in a header. Other characters are percent-encoded.
fn visible(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'!'..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// Returns the beginning of an answer in one line. The rest is not read, and the connection is
/// closed.
async fn beginning(mut body: AnswerBody) -> String {
    let mut read = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { break };
        let room = ANSWER_BYTES_MAX.saturating_sub(read.len());
        read.extend(data.iter().take(room));
        if data.len() > room {
            break;
        }
    }
    let text = String::from_utf8_lossy(&read);
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(SAID_CHARS_MAX).collect::<String>().trim().to_owned()
}

/// Returns the text of an error with all its sources.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        text = format!("{text}: {error}");
        below = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::SinkErrorKind::{Poison, Retry};

    #[test]
    fn only_what_is_final_parks() {
        let kind = |status| {
            let status = StatusCode::from_u16(status).unwrap();
            judge(status, &HeaderMap::new(), "why").map_err(|error| error.kind)
        };
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(kind(status), Ok(()));
        }
        for status in [410, 413] {
            assert_eq!(kind(status), Err(Poison));
        }
        for status in [301, 302, 307, 400, 401, 404, 408, 425, 429, 500, 502, 503] {
            assert_eq!(kind(status), Err(Retry));
        }
    }

    #[test]
    fn a_receiver_may_ask_for_time() {
        let after = |value: &'static str| {
            let headers = [(RETRY_AFTER, HeaderValue::from_static(value))].into_iter().collect();
            judge(StatusCode::SERVICE_UNAVAILABLE, &headers, "").unwrap_err().after
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(after("-1"), None);
    }

    #[test]
    fn headers_that_would_change_more_are_poison() {
        let with = |name, value| passed_on(&Message::new("t", "o", "p").with_header(name, value));
        assert!(with("Content-Type", "a/b").is_ok());
        for (name, value) in [
            ("Host", "x"),
            ("Webhook-Id", "x"),
            ("content-length", "1"),
            ("a b", "c"),
            ("a", "b\r\nc: d"),
        ] {
            assert_eq!(with(name, value).unwrap_err().kind, Poison, "{name:?}");
        }
        assert_eq!(visible("pay ✓%"), "pay%20%E2%9C%93%25");
    }
}
