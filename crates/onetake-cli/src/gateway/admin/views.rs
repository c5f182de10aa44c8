//! Keys, outcomes and audit entries as the API shows them. Headers and bodies are shown only on
//! request. Client keys, tenants and requests are not in the store, so they cannot be shown.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use onetake_core::audit::AuditEntry;
use onetake_core::engine::Replays;
use onetake_core::hex;
use onetake_core::{OnUnknown, Record, Recording, State, Timestamp};
use onetake_http::recording::{Recorded, recorded};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StateName {
    Running,
    Completed,
    Failed,
    Released,
    Unknown,
}

impl From<&State> for StateName {
    fn from(state: &State) -> Self {
        match state {
            State::Running { .. } => Self::Running,
            State::Completed { .. } => Self::Completed,
            State::Failed { .. } => Self::Failed,
            State::Released { .. } => Self::Released,
            State::Unknown { .. } => Self::Unknown,
        }
    }
}

/// A key. Times are RFC 3339, by the store's clock.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Key {
    /// The reference that clients get in `Idempotency-Reference`.
    #[schema(example = "9B5H-6U57-LCAG")]
    reference: String,
    /// The whole id, for cases where the reference is ambiguous.
    id: String,
    /// The state.
    state: StateName,
    /// The latest attempt. Every change has to name it.
    attempt: String,
    /// The fence of the latest attempt.
    fence: u64,
    /// Number of attempts since the key was first claimed, as far as the history is kept.
    attempts: usize,
    /// A digest of the tenant, the same for all keys of a tenant; empty if it is not recorded.
    tenant: String,
    /// The route as the configuration names it; empty if it is not recorded.
    route: String,
    /// The policy for an unknown outcome: `fail`, `reconcile`, `retry` or `rollback`.
    #[schema(value_type = String)]
    on_unknown: &'static str,
    /// When the key was first claimed.
    created_at: String,
    /// When the latest attempt claimed it.
    claimed_at: String,
    /// Running: the end of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    /// Not running: when the key got its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_at: Option<String>,
    /// When the key expires and can be used again. A running key never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// Completed: the outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    /// Failed: the failure that clients get.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    /// Unknown: the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Unknown, with `reconcile`: the time of the next reconciliation.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_ask_at: Option<String>,
}

/// A recorded outcome.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Outcome {
    /// The HTTP status; absent if the outcome is not from HTTP, or is a typed result.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The size of the body; absent if it was not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_bytes: Option<usize>,
    /// Whether retries get the response. They do if its body was kept.
    replayable: bool,
    /// The headers, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Vec<Header>>,
    /// The body, if requested and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// The body in base64, if requested and not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// A header line.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// The name.
    #[schema(min_length = 1, pattern = "^[A-Za-z0-9-]+$")]
    pub(super) name: String,
    /// The value.
    pub(super) value: String,
}

/// A recorded failure.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Failure {
    /// The error code for machines.
    code: String,
    /// The error text for people.
    detail: String,
}

/// A key and its history.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Life {
    /// The key in its current state.
    key: Key,
    /// The attempts before the latest, earliest first.
    earlier_attempts: Vec<Attempt>,
    /// The number of replays.
    replays: ReplayCount,
    /// Audit entries of the key, newest first; at most a hundred.
    audit: Vec<AuditEntryView>,
}

/// An attempt that was followed by another one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Attempt {
    /// The fence.
    fence: u64,
    /// When it claimed the key.
    claimed_at: String,
    /// When it was settled, or when the next attempt took over.
    ended_at: String,
    /// Its state at that time: `running` if its outcome never reached the store.
    state: StateName,
}

/// Number of replays, counted in memory: by this node, since its start, for the latest tens of
/// thousands of keys.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplayCount {
    /// Number of replays by this node.
    by_this_node: u64,
    /// Time of this node's last replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_at: Option<String>,
}

/// An entry of the audit log.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub(crate) struct AuditEntryView {
    /// The time of the action.
    at: String,
    /// The reference of the key.
    reference: String,
    /// The id of the key.
    id: String,
    /// The attempt that was changed.
    attempt: String,
    /// `release`, `fail`, `resolve` or `forget`; or `abandon`: lease and grace ended without an
    /// outcome.
    #[schema(value_type = String)]
    action: &'static str,
    /// The result of the action. `done`. `stale`: the key had changed, and nothing was done.
    /// `failed`: the store did not respond; check the key. `asked`: the result was not written;
    /// check the key.
    #[schema(value_type = String)]
    ended: &'static str,
    /// The state before the action.
    before: String,
    /// The operator's name as given; `reconciler` and `reaper` are the gateway itself.
    by: String,
    /// The reason.
    reason: String,
}

/// Formats a time. All texts have the same length, so they sort by time.
pub(super) fn moment(at: Timestamp) -> String {
    let (seconds, micros) = (at.as_micros() / 1_000_000, at.as_micros() % 1_000_000);
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let date = OffsetDateTime::from_unix_timestamp(seconds).ok();
    let date = date.and_then(|date| date.format(&Rfc3339).ok());
    let whole = date.as_deref().and_then(|date| date.strip_suffix('Z'));
    // Times after the year 9999 have no RFC 3339 form.
    whole.map_or_else(|| "never".to_owned(), |whole| format!("{whole}.{micros:06}Z"))
}

impl Key {
    pub(super) fn of(record: &Record, with_body: bool) -> Self {
        let mut key = Self {
            reference: record.id.reference().to_string(),
            id: hex::encode(record.id.as_bytes()),
            state: StateName::from(&record.state),
            attempt: hex::encode(record.attempt.as_bytes()),
            fence: record.fence.get(),
            attempts: record.history.attempts().count() + 1,
            tenant: tenant(record),
            route: record.origin.route.to_string(),
            on_unknown: match record.terms.on_unknown {
                OnUnknown::Fail => "fail",
                OnUnknown::Reconcile => "reconcile",
                OnUnknown::Retry => "retry",
                OnUnknown::Rollback => "rollback",
            },
            created_at: moment(record.created_at),
            claimed_at: moment(record.claimed_at),
            lease_until: None,
            settled_at: None,
            expires_at: record.expires_at().map(moment),
            outcome: None,
            failure: None,
            cause: None,
            next_ask_at: record.ask_at().map(moment),
        };
        match &record.state {
            State::Running { lease_until } => key.lease_until = Some(moment(*lease_until)),
            State::Completed { at, recording } => {
                key.settled_at = Some(moment(*at));
                key.outcome = Some(Outcome::of(recording, with_body));
            }
            State::Failed { at, failure } => {
                key.settled_at = Some(moment(*at));
                let (code, detail) = (failure.code.clone(), failure.detail.clone());
                key.failure = Some(Failure { code, detail });
            }
            State::Released { at } => key.settled_at = Some(moment(*at)),
            State::Unknown { at, cause, .. } => {
                key.settled_at = Some(moment(*at));
                key.cause = Some(cause.to_string());
            }
        }
        key
    }
}

fn tenant(record: &Record) -> String {
    let tenant = record.origin.tenant;
    if tenant == onetake_core::TenantDigest::default() { String::new() } else { tenant.to_string() }
}

impl Outcome {
    fn of(recording: &Recording, with_body: bool) -> Self {
        let read = recorded(recording).ok();
        let mut outcome = Self {
            status: read.as_ref().map(|recorded| recorded.status.as_u16()),
            body_bytes: recording.body.as_ref().map(bytes::Bytes::len),
            replayable: recording.body.is_some(),
            headers: None,
            body: None,
            body_base64: None,
        };
        if with_body {
            outcome.headers = read.as_ref().map(header_lines);
            match recording.body.as_ref().map(|body| std::str::from_utf8(body)) {
                Some(Ok(text)) => outcome.body = Some(text.to_owned()),
                Some(Err(_)) => {
                    outcome.body_base64 = recording.body.as_ref().map(|b| STANDARD.encode(b))
                }
                None => {}
            }
        }
        outcome
    }
}

fn header_lines(recorded: &Recorded) -> Vec<Header> {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| Header {
        name: name.to_string(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
    };
    recorded.headers.iter().map(line).collect()
}

impl Life {
    pub(super) fn of(
        record: &Record,
        with_body: bool,
        replays: Replays,
        entries: &[AuditEntry],
    ) -> Self {
        let attempt = |past: onetake_core::origin::PastAttempt| Attempt {
            fence: past.fence.get(),
            claimed_at: moment(past.claimed_at),
            ended_at: moment(past.ended_at),
            state: match past.stood {
                "released" => StateName::Released,
                "unknown" => StateName::Unknown,
                _ => StateName::Running,
            },
        };
        Self {
            key: Key::of(record, with_body),
            earlier_attempts: record.history.attempts().map(attempt).collect(),
            replays: ReplayCount {
                by_this_node: replays.count,
                last_at: replays.last_at.map(moment),
            },
            audit: entries.iter().map(AuditEntryView::of).collect(),
        }
    }
}

impl AuditEntryView {
    pub(super) fn of(note: &AuditEntry) -> Self {
        Self {
            at: moment(note.place.at()),
            reference: note.id.reference().to_string(),
            id: hex::encode(note.id.as_bytes()),
            attempt: hex::encode(note.attempt.as_bytes()),
            action: note.action.name(),
            ended: note.ended.name(),
            before: note.before.clone(),
            by: note.by.clone(),
            reason: note.reason.clone(),
        }
    }
}

/// The age of a key by the node's clock.
pub(super) fn age(record: &Record, now: Timestamp) -> Duration {
    now.since(record.created_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_sort_as_texts() {
        let texts: Vec<String> = [0, 999_999, 1_000_000, 1_000_001, 1_794_777_603_500_000]
            .map(|micros| moment(Timestamp::from_micros(micros)))
            .into();
        assert!(texts.is_sorted(), "{texts:?}");
        assert_eq!(texts[4], "2026-11-15T21:20:03.500000Z");
        assert_eq!(moment(Timestamp::from_micros(u64::MAX)), "never");
    }

    #[test]
    fn only_what_is_to_be_reconciled_is_asked_for() {
        let at = Timestamp::from_micros(1_794_777_603_500_000);
        let record = |on_unknown| Record {
            id: onetake_core::RecordId::from_bytes([1; 16]),
            attempt: onetake_core::AttemptId::from_bytes([2; 16]),
            fence: onetake_core::Fence::new(1),
            fingerprint: onetake_core::Fingerprint::of(b"pay"),
            terms: onetake_core::Terms { on_unknown, ..onetake_core::Terms::default() },
            origin: onetake_core::Origin::default(),
            created_at: at,
            claimed_at: at,
            history: onetake_core::origin::AttemptHistory::default(),
            state: State::Unknown { at, cause: onetake_core::Cause::TimedOut, ask_at: at },
        };
        let told = |on_unknown| {
            let key = serde_json::to_value(Key::of(&record(on_unknown), false)).unwrap();
            (key["on_unknown"].as_str().unwrap().to_owned(), key.get("next_ask_at").cloned())
        };
        let asked = Some(serde_json::json!("2026-11-15T21:20:03.500000Z"));
        assert_eq!(told(OnUnknown::Reconcile), ("reconcile".to_owned(), asked));
        assert_eq!(told(OnUnknown::Fail), ("fail".to_owned(), None));
        assert_eq!(told(OnUnknown::Rollback), ("rollback".to_owned(), None));
    }
}
