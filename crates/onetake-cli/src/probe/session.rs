//! Requests of one run, and the comparison of their responses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Uri};
use onetake_core::{Rng, hex};
use serde_json::Value;

use super::arguments::{Settings, render};
use super::client::{Exchange, NoResponse, OpenConnection, ProbeClient};
use super::counter::{self, CounterError};

/// Largest part of a response body in the evidence, in characters.
const SHOWN_CHARS_MAX: usize = 60;
/// Pause before the counter is read after a request.
const SETTLE: Duration = Duration::from_millis(100);

/// The target and everything that requests need.
pub(super) struct Session<'a> {
    pub(super) settings: &'a Settings,
    pub(super) client: ProbeClient,
    pub(super) rng: Arc<dyn Rng>,
}

/// The error of a check that could not be finished.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    NoResponse(#[from] NoResponse),
    #[error(transparent)]
    Counter(#[from] CounterError),
}

/// One request of the probe.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The value of the key's header, as it is written.
    pub(super) key: Option<Vec<u8>>,
    pub(super) body: Bytes,
    pub(super) url: Uri,
    /// True for the second credential.
    pub(super) is_other_client: bool,
}

/// The first operation, with which later requests are compared.
pub(super) struct Baseline {
    pub(super) key: String,
    pub(super) body: Bytes,
    pub(super) response: Exchange,
    /// True if the API accepts quoted keys only.
    pub(super) is_quoted: bool,
    /// True if two operations have different responses.
    pub(super) tells_apart: bool,
}

impl Baseline {
    /// A key in the form that the API accepts.
    pub(super) fn written(&self, key: &str) -> Vec<u8> {
        if self.is_quoted { quoted(key) } else { key.into() }
    }

    /// True if runs of operations can be seen, by a counter or by their responses.
    pub(super) fn sees_runs(&self, runs: Option<u64>) -> bool {
        runs.is_some() || self.tells_apart
    }
}

/// A key as a structured-field string.
pub(super) fn quoted(key: &str) -> Vec<u8> {
    format!("\"{key}\"").into_bytes()
}

impl Session<'_> {
    /// A new key: a version 4 UUID.
    pub(super) fn new_key(&self) -> String {
        let mut bytes = [0; 16];
        self.rng.fill(&mut bytes);
        let digits = hex::encode(&bytes);
        let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
        format!(
            "{}-{}-4{}-a{}-{}",
            part(0, 8),
            part(8, 12),
            part(13, 16),
            part(17, 20),
            part(20, 32)
        )
    }

    /// Renders a body with a fresh number.
    pub(super) fn render(&self, template: &str) -> Bytes {
        let mut bytes = [0; 4];
        self.rng.fill(&mut bytes);
        render(template, u32::from_le_bytes(bytes) % 1_000_000_000)
    }

    /// A new body of the operation.
    pub(super) fn new_body(&self) -> Bytes {
        self.render(&self.settings.body)
    }

    /// A request of the first client.
    pub(super) fn call(&self, key: Vec<u8>, body: &Bytes) -> Call {
        let url = self.settings.url.clone();
        Call { key: Some(key), body: body.clone(), url, is_other_client: false }
    }

    /// The request as HTTP.
    pub(super) fn request(&self, call: &Call) -> Request<Bytes> {
        let settings = self.settings;
        let mut request = Request::new(call.body.clone());
        *request.method_mut() = settings.method.clone();
        *request.uri_mut() = call.url.clone();
        *request.headers_mut() = settings.headers.clone();
        let credential =
            if call.is_other_client { &settings.other_credential } else { &settings.credential };
        if let Some((name, value)) = credential {
            request.headers_mut().insert(name, value.clone());
        }
        let key = call.key.as_ref().and_then(|key| HeaderValue::from_bytes(key).ok());
        if let Some(key) = key {
            request.headers_mut().insert(&settings.key_header, key);
        }
        request
    }

    /// Sends a request.
    pub(super) async fn send(&self, call: &Call) -> Result<Exchange, NoResponse> {
        self.client.send(self.request(call)).await
    }

    /// Opens a connection for a request that is sent later.
    pub(super) async fn open(&self) -> Result<OpenConnection<'_>, NoResponse> {
        self.client.open(&self.settings.url).await
    }

    /// Reads the counter, if there is one.
    pub(super) async fn count(&self) -> Result<Option<u64>, CounterError> {
        match &self.settings.count {
            Some(url) => counter::read(&self.client, self, url).await.map(Some),
            None => Ok(None),
        }
    }

    /// Sends a request. Returns also how many operations ran meanwhile, if there is a counter.
    pub(super) async fn observe(&self, call: &Call) -> Result<(Exchange, Option<u64>), StepError> {
        let before = self.count().await?;
        let response = self.send(call).await?;
        let runs = self.runs_since(before, SETTLE).await?;
        Ok((response, runs))
    }

    /// Waits, and returns how many operations have run since the counter was read.
    pub(super) async fn runs_since(
        &self,
        before: Option<u64>,
        settle: Duration,
    ) -> Result<Option<u64>, CounterError> {
        let Some(before) = before else { return Ok(None) };
        self.client.clock().sleep(settle).await;
        Ok(self.count().await?.map(|now| now.saturating_sub(before)))
    }

    /// True if two responses are those of the same operation: the ids are equal if there is a
    /// pointer to them, else status and body.
    pub(super) fn is_same_operation(&self, one: &Exchange, other: &Exchange) -> bool {
        match &self.settings.id_pointer {
            Some(pointer) => {
                let id = id(one, pointer);
                id.is_some() && id == self::id(other, pointer)
            }
            None => one.status == other.status && is_same_body(one, other),
        }
    }

    /// A response in the evidence: the status and the beginning of the body.
    pub(super) fn shown(&self, response: &Exchange) -> String {
        let text = self.settings.without_credentials(&String::from_utf8_lossy(&response.body));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut shown: String = words.chars().take(SHOWN_CHARS_MAX).collect();
        shown = shown.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
        if shown.len() < words.len() {
            shown.push('…');
        }
        match shown.is_empty() {
            true => format!("{} without a body", response.status.as_u16()),
            false => format!("{} {shown}", response.status.as_u16()),
        }
    }
}

/// True if two bodies are equal, as bytes or as JSON values.
pub(super) fn is_same_body(one: &Exchange, other: &Exchange) -> bool {
    let value = |exchange: &Exchange| serde_json::from_slice::<Value>(&exchange.body).ok();
    one.body == other.body || value(one).is_some_and(|first| Some(first) == value(other))
}

fn id(response: &Exchange, pointer: &str) -> Option<Value> {
    let value: Value = serde_json::from_slice(&response.body).ok()?;
    value.pointer(pointer).filter(|id| !id.is_null()).cloned()
}

/// The number of runs in the evidence.
pub(super) fn counted(runs: Option<u64>) -> String {
    runs.map_or_else(String::new, |runs| format!("; the counter rose by {runs}"))
}
