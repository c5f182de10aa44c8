//! The sink for NATS JetStream.
//!
//! A message is a request to the subject that its topic names. The stream of that subject answers
//! when it has stored the message. `Nats-Msg-Id` is the message's id: the stream drops duplicates
//! within its `duplicate_window`.

mod sizes;

use std::sync::Arc;
use std::time::Duration;

use async_nats::client::{Request, RequestErrorKind};
use async_nats::connection::State;
use async_nats::header::{HeaderName, HeaderValue};
use async_nats::{Client, ConnectOptions, HeaderMap, ServerAddr};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::Clock;
use onetake_core::outbox::{Message, PendingMessage};

use self::sizes::Sizes;
use crate::sink::{Sink, SinkError, in_order};

const MESSAGE_ID: &str = "Nats-Msg-Id";
/// JetStream's error code for a message that is larger than its stream accepts.
const TOO_LARGE_FOR_STREAM: u64 = 10_054;

/// The options of a NATS sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsOptions {
    /// The prefix of subjects, before the topic, for example `onetake.`.
    pub subject_prefix: String,
    /// The timeout of a stream's acknowledgement.
    pub ack_timeout: Duration,
    /// The number of messages with different ordering keys that are sent at once.
    pub at_once: usize,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self { subject_prefix: String::new(), ack_timeout: Duration::from_secs(10), at_once: 64 }
    }
}

/// The error for a text that is not the URL of NATS servers.
#[derive(Debug, thiserror::Error)]
#[error("{0}; write nats://HOST:4222 or tls://HOST:4222 for each server")]
pub struct NatsUrlError(String);

/// A sink that publishes to JetStream.
#[derive(Debug)]
pub struct NatsSink {
    client: Client,
    sizes: Arc<Sizes>,
    clock: Arc<dyn Clock>,
    options: NatsOptions,
}

impl NatsSink {
    /// Creates a sink for the servers with these URLs, each with its own scheme, user and password.
    /// It connects in the background, now and after every lost connection, so the servers need not
    /// be reachable yet.
    ///
    /// # Errors
    /// If a URL is wrong.
    pub async fn connect<U: AsRef<str>>(
        servers: impl IntoIterator<Item = U>,
        options: NatsOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, NatsUrlError> {
        let servers = addresses(servers)?;
        let sizes = Arc::new(Sizes::default());
        let hearing = Arc::clone(&sizes);
        let connected = ConnectOptions::new()
            .name("onetake relay")
            .event_callback(move |event| {
                hearing.hear(&event);
                std::future::ready(())
            })
            .retry_on_initial_connect()
            // The number of messages in progress is bounded: without a connection, nothing is
            // passed to the client.
            .client_capacity(options.at_once.max(1))
            .connect(servers)
            .await;
        let client = connected.map_err(|error| NatsUrlError(error.to_string()))?;
        Ok(Self { client, sizes, clock, options })
    }

    async fn publish(&self, waiting: &PendingMessage) -> Result<(), SinkError> {
        let subject = subject(&self.options.subject_prefix, &waiting.message.topic)?;
        let mut headers = headers(&waiting.message)?;
        headers.insert(MESSAGE_ID, waiting.id.to_string());
        if self.client.connection_state() != State::Connected {
            return Err(no_connection());
        }
        let way = self.sizes.go(sizes::size(&waiting.message)).ok_or_else(too_large)?;
        let request =
            Request::new().headers(headers).payload(waiting.message.payload.clone()).timeout(None);
        let patience = self.options.ack_timeout;
        // The timeout covers the whole call. The client's own timeout begins when it has accepted
        // the message, and without a connection it accepts only a few.
        let answered = tokio::select! {
            biased;
            answered = self.client.send_request(subject.clone(), request) => Some(answered),
            () = self.clock.sleep(patience) => None,
        };
        let is_connected = self.client.connection_state() == State::Connected;
        let answered = match answered {
            Some(answered) => answered,
            None if way.is_refused() => return Err(too_large()),
            None if !is_connected => return Err(no_connection()),
            None => {
                let said = format!("NATS did not acknowledge the message within {patience:?}");
                return Err(SinkError::retry(said));
            }
        };
        let answer = answered.map_err(|error| match error.kind() {
            _ if way.is_refused() => too_large(),
            RequestErrorKind::NoResponders => SinkError::retry(format!(
                "no NATS JetStream stream has the subject {subject}: create one, for example with \
                 `nats stream add --subjects '{}>'`",
                self.options.subject_prefix
            )),
            RequestErrorKind::MaxPayloadExceeded => SinkError::poison(format!(
                "the message and its headers exceed max_payload of the NATS server ({} bytes): \
                 raise max_payload and retry the message, or discard it",
                self.client.max_payload()
            )),
            RequestErrorKind::InvalidSubject => SinkError::poison(no_subject(&subject)),
            _ if !is_connected => no_connection(),
            RequestErrorKind::TimedOut | RequestErrorKind::Other => {
                SinkError::retry(format!("the request to NATS failed: {error}"))
            }
        })?;
        acknowledged(&answer.payload, &subject)
    }
}

impl Sink for NatsSink {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn patience(&self) -> Duration {
        self.options.ack_timeout
    }

    fn deliver<'a>(
        &'a self,
        batch: &'a [PendingMessage],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        // The next message of a key waits for the acknowledgement, because a stream may refuse the
        // first and accept the second.
        let publish = |waiting| self.publish(waiting);
        let (at_once, patience) = (self.options.at_once, self.options.ack_timeout);
        in_order(batch, at_once, &*self.clock, (within, patience), publish).boxed()
    }
}

fn too_large() -> SinkError {
    SinkError::poison(
        "the message and its headers exceed max_payload of the NATS account: raise it, restart the \
         relay and retry the message, or discard it",
    )
}

fn no_connection() -> SinkError {
    SinkError::away("not connected to NATS")
}

/// Returns the subject of a topic. An invalid topic, or one of the server itself (`$…`), is poison.
fn subject(prefix: &str, topic: &str) -> Result<String, SinkError> {
    let subject = format!("{prefix}{topic}");
    let is_word = |word: &str| {
        let plain = |c: char| !c.is_whitespace() && !c.is_control();
        !word.is_empty() && word != "*" && word != ">" && word.chars().all(plain)
    };
    if topic.is_empty() || subject.starts_with('$') || !subject.split('.').all(is_word) {
        return Err(SinkError::poison(no_subject(&subject)));
    }
    Ok(subject)
}

fn no_subject(subject: &str) -> String {
    format!(
        "{subject:?} is not a valid NATS subject: use words separated by dots, without spaces or \
         wildcards, not beginning with $"
    )
}

fn headers(message: &Message) -> Result<HeaderMap, SinkError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers {
        if name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
            return Err(SinkError::poison(format!(
                "the header {name} is reserved by NATS: rename it"
            )));
        }
        let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>())
        else {
            return Err(SinkError::poison(format!(
                "the header {name:?} is not a valid NATS header"
            )));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// A stream's answer.
#[derive(serde::Deserialize)]
struct Acknowledgement {
    stream: Option<String>,
    error: Option<Refusal>,
}

#[derive(serde::Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

fn acknowledged(answer: &[u8], subject: &str) -> Result<(), SinkError> {
    match serde_json::from_slice(answer) {
        Ok(Acknowledgement { error: Some(refusal), .. }) => {
            let said =
                format!("NATS refused the message: {} ({})", refusal.description, refusal.err_code);
            let is_poison = refusal.err_code == TOO_LARGE_FOR_STREAM;
            Err(if is_poison { SinkError::poison(said) } else { SinkError::retry(said) })
        }
        Ok(Acknowledgement { stream: Some(_), error: None }) => Ok(()),
        _ => Err(SinkError::retry(format!(
            "the subject {subject} is answered by a service that is not a NATS JetStream stream"
        ))),
    }
}

/// Returns the addresses of servers by their URLs.
fn addresses<U: AsRef<str>>(
    servers: impl IntoIterator<Item = U>,
) -> Result<Vec<ServerAddr>, NatsUrlError> {
    let addresses: Result<Vec<ServerAddr>, _> =
        servers.into_iter().map(|server| server.as_ref().parse()).collect();
    addresses.map_err(|error| NatsUrlError(format!("not a valid NATS URL: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::SinkErrorKind;

    /// The URL of the file has its scheme and its user once, for all servers.
    #[test]
    fn every_server_has_the_scheme_and_the_user_of_the_url() {
        let url =
            onetake_stores::ServerUrl::parse("tls://me:word@a:4223,b,[::1]:4225", "").unwrap();
        let addresses = addresses(url.servers()).unwrap();
        let places: Vec<_> = addresses.iter().map(|it| (it.host(), it.port())).collect();
        assert_eq!(places, [("a", 4223), ("b", 4222), ("::1", 4225)]);
        for address in &addresses {
            assert!(address.tls_required(), "{address:?}");
            assert_eq!((address.username(), address.password()), (Some("me"), Some("word")));
        }
        assert!(super::addresses(["ftp://a"]).is_err());
    }

    #[test]
    fn topics_are_subjects_or_poison() {
        assert_eq!(subject("", "a.b-c.ü").as_deref(), Ok("a.b-c.ü"));
        assert_eq!(subject("x.", "a").as_deref(), Ok("x.a"));
        for topic in
            ["", ".", "a.", ".a", "a..b", "a b", "a\r\n", "*", "a.>", "$JS.API.STREAM.DELETE.X"]
        {
            let refused = subject("", topic).unwrap_err();
            assert_eq!(refused.kind, SinkErrorKind::Poison, "{topic:?}");
        }
        assert!(subject("x.", "").is_err());
    }

    #[test]
    fn headers_that_would_change_more_are_poison() {
        let with = |name, value| headers(&Message::new("t", "o", "p").with_header(name, value));
        assert!(with("Content-Type", "a/b").is_ok());
        for (name, value) in
            [("nats-Rollup", "all"), ("a b", "c"), ("a", "b\r\nc: d"), ("a:b", "c")]
        {
            assert_eq!(with(name, value).unwrap_err().kind, SinkErrorKind::Poison, "{name:?}");
        }
    }

    #[test]
    fn only_a_stream_acknowledges() {
        let kind = |answer: &str| acknowledged(answer.as_bytes(), "s").map_err(|error| error.kind);
        assert_eq!(kind(r#"{"stream":"S","seq":1}"#), Ok(()));
        assert_eq!(kind(r#"{"stream":"S","seq":1,"duplicate":true}"#), Ok(()));
        let full =
            r#"{"error":{"code":503,"err_code":10077,"description":"full"},"stream":"S","seq":0}"#;
        assert_eq!(kind(full), Err(SinkErrorKind::Retry));
        let large =
            r#"{"error":{"code":400,"err_code":10054,"description":"large"},"stream":"S","seq":0}"#;
        assert_eq!(kind(large), Err(SinkErrorKind::Poison));
        for nobody in ["", "ok", "{}", "null"] {
            assert_eq!(kind(nobody), Err(SinkErrorKind::Retry), "{nobody:?}");
        }
    }
}
