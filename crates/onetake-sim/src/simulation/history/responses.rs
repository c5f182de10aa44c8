//! Checks of the responses to clients.

use bytes::Bytes;
use onetake_core::{RecordId, State};

use super::{Actor, Facts, History, outcome_prefix};
use crate::simulation::plan::Mode;
use crate::simulation::timeline::{Micros, SECOND};

/// The maximum duration of a claim. A caller that joins it gets an answer of the store from before
/// its request was sent.
const CLAIM_MAX: Micros = 5 * SECOND;

/// A request of a client.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    /// The operation's number.
    pub operation: usize,
    /// The route.
    pub mode: Mode,
    /// The tenant.
    pub tenant: u8,
    /// The key.
    pub key: String,
    /// The payload.
    pub payload: u8,
    /// The number of seconds that the client prefers to wait.
    pub wait_seconds: Option<u32>,
    /// The time at which it was sent.
    pub sent_at: Micros,
}

/// A response to a client.
#[derive(Clone, Debug)]
pub struct ReceivedResponse {
    /// The node that answered.
    pub node: usize,
    /// The status.
    pub status: u16,
    /// The code of a problem.
    pub code: Option<String>,
    /// The key's reference.
    pub reference: Option<String>,
    /// The address of the outcome, for later.
    pub location: Option<String>,
    /// True if it says that the operation still runs.
    pub is_running: bool,
    /// True if it is marked as a replay.
    pub is_replay: bool,
    /// The body.
    pub body: Bytes,
}

impl ReceivedResponse {
    /// Returns true if it is an outcome of the operation: not a problem, not a 202, and not a
    /// response that says that nothing was done. The last is an outcome if it is replayed: then an
    /// outcome had been promised.
    #[must_use]
    pub fn is_outcome(&self) -> bool {
        let is_first = matches!(self.status, 200 | 402);
        self.code.is_none() && !self.is_running && (is_first || self.is_replay)
    }
}

impl History {
    /// Records and checks a response.
    pub fn heard(&self, at: Micros, asked: &ClientRequest, heard: &ReceivedResponse) {
        let facts = &mut *self.lock();
        let ClientRequest { operation, tenant, ref key, payload, .. } = *asked;
        facts.event(at, "heard", &[operation as u64, u64::from(heard.status)], || {
            let ReceivedResponse { status, code, is_replay, .. } = heard;
            format!("operation {operation} payload {payload}: {status} {code:?} replay {is_replay}")
        });
        if heard.is_outcome() {
            facts.check_outcome(at, asked, heard);
        }
        match heard.code.as_deref() {
            Some("idempotency_payload_mismatch") => {
                let asked_for = facts.payloads.get(&(tenant, key.clone()));
                if asked_for.is_some_and(|payloads| payloads.len() == 1) {
                    let what = format!("{key} was refused although all requests are the same");
                    facts.violate(at, "no false mismatch", what);
                }
            }
            Some("previous_attempt_failed") => facts.check_refusal(at, asked, heard),
            _ => {}
        }
        if heard.status == 202 {
            facts.promised(heard);
        }
    }
}

impl Facts {
    /// Returns the record that a reference names.
    fn referred(&self, reference: Option<&str>) -> Option<RecordId> {
        let reference = reference?;
        self.keys.keys().copied().find(|id| id.reference().to_string() == reference)
    }

    /// Checks that an outcome is the client's own (S8, S9), that the store held it at some time
    /// between request and response (S4, S6), and that a run of the operation produced it (S17).
    fn check_outcome(&mut self, at: Micros, asked: &ClientRequest, heard: &ReceivedResponse) {
        let ClientRequest { mode, tenant, ref key, payload, sent_at, .. } = *asked;
        let text = String::from_utf8_lossy(&heard.body).into_owned();
        if !text.starts_with(&outcome_prefix(tenant, key, payload)) {
            let what = format!("{key}/{payload} of tenant {tenant} was answered with {text}");
            self.violate(at, "S8, S9", what);
            return;
        }
        if !self.ran(tenant, key, payload, &text) {
            self.violate(at, "S17", format!("{key} was answered with {text}, which never ran"));
            return;
        }
        if self.is_unrecorded(&text) && self.fails_open(mode) && !heard.is_replay {
            return;
        }
        let Some(id) = self.referred(heard.reference.as_deref()) else {
            self.violate(at, "S6", format!("{key} was answered without a known reference"));
            return;
        };
        // Nodes measure the age of a cached outcome by clocks that are a little too slow.
        let drift = self.cache_age_max / 50;
        let was_recorded = self.keys.get(&id).is_some_and(|history| {
            history.recorded.iter().any(|it| {
                // The node that forgot it does not show it to requests that were sent after its
                // answer to the operator.
                let until = match it.forgotten_by {
                    Some((node, at)) if node == heard.node => it.until.min(at),
                    _ => it.until,
                };
                it.body == heard.body && it.from <= at && until.saturating_add(drift) >= sent_at
            })
        });
        if !was_recorded {
            let what = format!("{key} was answered with {text}, which the store did not hold");
            self.violate(at, "S6", what);
        }
    }

    /// Checks that an attempt is reported as failed or unknown only if the store says so.
    fn check_refusal(&mut self, at: Micros, asked: &ClientRequest, heard: &ReceivedResponse) {
        let Some(id) = self.referred(heard.reference.as_deref()) else { return };
        let is_true = self.keys.get(&id).is_some_and(|history| {
            history.refused.iter().any(|(from, until)| {
                *from <= at && until.saturating_add(CLAIM_MAX) >= asked.sent_at
            })
        });
        // A service that fails in the middle reports that itself. A handle reports that its attempt
        // was released.
        let text = String::from_utf8_lossy(&heard.body);
        let exceptions = ["failed while it was running", "ended without an outcome"];
        if !is_true && !exceptions.iter().any(|exception| text.contains(exception)) {
            let what = format!("{} was refused as unknown or failed, and is not", asked.key);
            self.violate(at, "no false refusal", what);
        }
    }

    /// Records the promise of a 202. The node that runs the attempt promises that it is not
    /// released. Another node cannot promise that: a release may be on its way to the store.
    fn promised(&mut self, heard: &ReceivedResponse) {
        let Some(id) = self.referred(heard.reference.as_deref()) else { return };
        let key = self.key(id);
        if let Some(record) =
            key.record.as_ref().filter(|record| matches!(record.state, State::Running { .. }))
        {
            let attempt = record.attempt;
            let runs_here =
                |actor: &Actor| matches!(actor, Actor::Node(it, _) if *it == heard.node);
            if key.owners.get(&attempt).is_some_and(runs_here) {
                key.promised.insert(attempt);
            }
        }
    }
}
