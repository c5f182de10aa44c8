//! Reconciliation: asks for the outcomes of unknown attempts, and settles them by the answer.
//!
//! A node first postpones the record in the store ([`Transition::PostponeReconcile`]), so that only one of
//! several nodes reconciles it. If that node dies, the record is due again later. Every settlement
//! is fenced by the attempt: if the owner returns first, its outcome counts, and the reconciliation
//! changes nothing.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

use crate::clock::Timestamp;
use crate::record::{Failure, Record, Recording, State};
use crate::store::{Due, DueAttempt, Settled, Settlement, StoreError, StoreErrorKind, Transition};

use super::housekeeping::pause_unless_stopped;
use super::metrics::RECONCILED;
use super::operators::{Intervened, Intervention, OperatorAction};
use super::{Engine, Inner};

/// The author of the audit entries of reconciliation.
const BY: &str = "reconciler";

/// The longest pause for a record that the reconciler of this node knows nothing about.
const NO_INQUIRY_PAUSE_MAX: Duration = Duration::from_secs(300);
/// The shortest pause for such a record.
const NO_INQUIRY_PAUSE_MIN: Duration = Duration::from_secs(2);

/// A source that knows the outcomes of operations, or can find them out.
pub trait Reconcile: fmt::Debug + Send + Sync + 'static {
    /// Returns the time limits for this record. `None` if this node cannot find out its outcome,
    /// for example because its route was removed. The record then stays unknown, and another node
    /// may be able to.
    fn inquiry(&self, record: &Record) -> Option<Inquiry>;

    /// Asks for the outcome. The future is dropped after [`Inquiry::timeout`], and asked again
    /// later, perhaps by another node.
    fn ask(&self, record: Arc<Record>) -> BoxFuture<'_, ReconcileAnswer>;
}

/// The time limits of a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// The pause between the moment at which the outcome became unknown and the first ask. By then,
    /// the requests of the attempt must have arrived, or they never will.
    ///
    /// An attempt may start long after its claim, because its lease is renewed. The store does not
    /// know the time of the start, but it was before the outcome became unknown: the attempt itself
    /// reports an unknown outcome after its start, and the reaper acts after the last lease, on
    /// which nothing can start any more. If a store has no clock of its own (DynamoDB), add the
    /// maximum difference between clocks.
    pub after: Duration,
    /// The maximum duration of one ask.
    pub timeout: Duration,
    /// The shortest pause between two asks. The pauses grow with the time for which the outcome has
    /// been unknown.
    pub pause_min: Duration,
    /// The longest pause between two asks.
    pub pause_max: Duration,
    /// The time, after the first ask is allowed, within which the outcome must be found; at most
    /// half of the key's ttl. Then the record becomes failed. An engine that started a moment ago
    /// asks some more first.
    pub limit: Duration,
}

impl Default for Inquiry {
    fn default() -> Self {
        Self {
            after: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_secs(300),
            limit: Duration::from_secs(3600),
        }
    }
}

/// The result of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReconcileAnswer {
    /// The outcome of the operation.
    Completed(Recording),
    /// The operation failed permanently.
    Failed(Failure),
    /// The operation certainly had no effect and never will: another attempt may run (S16).
    NotExecuted,
    /// The outcome is not known yet; the reason, for people. It must contain nothing secret.
    Unclear(String),
    /// No request was made; the reason, for people. It does not end the reconciliation, unless the
    /// key is about to expire.
    NotAsked(String),
}

/// The interval, batch size and parallelism of reconciliation.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileOptions {
    /// The pause between two searches for records that are due.
    pub interval: Duration,
    /// The number of records taken at a time.
    pub batch: usize,
    /// The number of asks at once.
    pub at_once: usize,
}

impl Default for ReconcileOptions {
    fn default() -> Self {
        // A whole batch at once: a service that hangs delays the others by one timeout only.
        Self { interval: Duration::from_secs(1), batch: 64, at_once: 64 }
    }
}

impl Engine {
    /// Reconciles all unknown records under [`OnUnknown::Reconcile`](crate::OnUnknown::Reconcile)
    /// with `reconciler`, from now on and until the engine ends.
    pub fn reconcile_with(&self, reconciler: Arc<dyn Reconcile>, asking: ReconcileOptions) {
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.spawn(async move {
            loop {
                while reconcile(&inner, &*reconciler, asking).await >= asking.batch.max(1) {}
                if !pause_unless_stopped(&inner, asking.interval).await {
                    return;
                }
            }
        });
    }

    /// Reconciles the records that are due, once. Returns the number of records that are no longer
    /// due.
    pub async fn reconcile(&self, reconciler: &dyn Reconcile, asking: ReconcileOptions) -> usize {
        reconcile(&self.inner, reconciler, asking).await
    }
}

async fn reconcile(engine: &Inner, reconciler: &dyn Reconcile, asking: ReconcileOptions) -> usize {
    let due = match engine.store.due(Due::Reconcile, asking.batch.max(1)).await {
        Ok(due) => due,
        Err(error) => {
            engine.failed(&error);
            tracing::warn!(%error, "searching for unknown outcomes failed; this is tried again");
            return 0;
        }
    };
    let moved_on = futures_util::stream::iter(due)
        .map(|lost| async move {
            if engine.stopped.is_cancelled() {
                return false;
            }
            reconcile_one(engine, reconciler, lost).await.unwrap_or_else(|error| {
                tracing::warn!(
                    reference = %lost.id.reference(), %error,
                    "an unknown outcome could not be reconciled; this is tried again"
                );
                false
            })
        })
        .buffer_unordered(asking.at_once.max(1))
        .filter(|moved_on| std::future::ready(*moved_on));
    moved_on.count().await
}

/// Reconciles one record, unless another node does. Returns true if the record is due later now. If
/// it is false, the next search finds the record again.
async fn reconcile_one(
    engine: &Inner,
    reconciler: &dyn Reconcile,
    lost: DueAttempt,
) -> Result<bool, StoreError> {
    let record = match engine.read_from_store(lost.id).await {
        // A record that cannot be read must not block others.
        Err(error) if error.kind() == StoreErrorKind::Invalid => {
            defer(engine, lost, NO_INQUIRY_PAUSE_MAX).await?;
            return Err(error);
        }
        found => found?,
    };
    let Some(record) = record else { return Ok(false) };
    let State::Unknown { at, .. } = record.state else { return Ok(false) };
    if record.attempt != lost.attempt {
        return Ok(false);
    }
    let inquiry = catch_unwind(AssertUnwindSafe(|| reconciler.inquiry(&record)));
    let inquiry = inquiry.unwrap_or_else(|_| {
        tracing::error!(reference = %record.id.reference(), "the reconciler panicked");
        None
    });
    let inquiry = inquiry
        .map(|inquiry| Inquiry { limit: inquiry.limit.min(record.terms.ttl / 2), ..inquiry });
    // This node's clock may differ from the store's. It only determines the pause.
    let here = engine.clock.now();
    // An engine that started a moment ago does not know earlier answers, and the service that it
    // asks may be starting too.
    let uptime = engine.clock.monotonic().saturating_sub(engine.began);
    let hold = postpone_for(&record, at, inquiry, here, uptime);
    // An attempt that is under way in this process is not over, whatever the store says. Its own
    // report is better.
    let is_under_way = engine.flights.runs(&record.id);
    let Settled::Done { record, now } = defer(engine, lost, hold).await? else {
        return Ok(false); // Another node reconciles it, or it is settled.
    };
    let Some(inquiry) = inquiry else {
        tracing::warn!(
            reference = %record.id.reference(), route = &*record.origin.route,
            "an unknown outcome cannot be reconciled on this node: its route has no reconciler any more"
        );
        return Ok(true);
    };
    // Both clocks count, the store's and this node's. A node that asks too early postpones the
    // record only until the reconciliation is due.
    let is_early = [now, here].iter().any(|now| !too_early(at, inquiry, *now).is_zero());
    let is_last = last_moment(&record, at) <= now;
    if is_under_way || (is_early && !is_last) {
        return Ok(true);
    }
    let found = if is_early {
        ReconcileAnswer::NotAsked(
            "the key expires before the first reconciliation is due: raise the ttl of the route"
                .to_owned(),
        )
    } else {
        ask(engine, reconciler, &record, inquiry).await
    };
    let is_over =
        ends(&record, at, inquiry) <= now && uptime >= inquiry.limit.min(inquiry.pause_max);
    let found = match found {
        ReconcileAnswer::Unclear(why) if is_over || is_last => {
            ReconcileAnswer::Failed(not_reconciled(inquiry, &why))
        }
        ReconcileAnswer::NotAsked(why) if is_last => {
            ReconcileAnswer::Failed(not_reconciled(inquiry, &why))
        }
        found => found,
    };
    settle(engine, &record, found).await?;
    Ok(true)
}

fn not_reconciled(inquiry: Inquiry, why: &str) -> Failure {
    Failure {
        code: "not_reconciled".to_owned(),
        detail: format!(
            "the outcome could not be reconciled within {:?}; last result: {why}",
            inquiry.limit
        ),
    }
}

/// Postpones the record, so that no other node reconciles it meanwhile.
async fn defer(engine: &Inner, lost: DueAttempt, hold: Duration) -> Result<Settled, StoreError> {
    let defer = Settlement {
        id: lost.id,
        attempt: lost.attempt,
        transition: Transition::PostponeReconcile(hold),
    };
    engine.within_timeout(Box::pin(engine.settles.submit(defer))).await
}

/// Returns the end of the limit, which begins when the first ask is allowed.
fn ends(record: &Record, at: Timestamp, inquiry: Inquiry) -> Timestamp {
    at.plus(inquiry.after).plus(inquiry.limit).min(last_moment(record, at))
}

/// Returns the time by which the record must become failed, with or without an ask: a key that
/// expires while unknown could run again.
fn last_moment(record: &Record, at: Timestamp) -> Timestamp {
    at.plus(record.terms.ttl / 4 * 3)
}

/// Returns the time until the first ask is allowed: see [`Inquiry::after`].
fn too_early(at: Timestamp, inquiry: Inquiry, now: Timestamp) -> Duration {
    at.plus(inquiry.after).since(now)
}

/// Returns the time by which the record is postponed: until the first ask is allowed, or for the
/// duration of an ask and a pause.
fn postpone_for(
    record: &Record,
    at: Timestamp,
    inquiry: Option<Inquiry>,
    now: Timestamp,
    uptime: Duration,
) -> Duration {
    let Some(inquiry) = inquiry else {
        // Another node may be able to find out the outcome, and must get its turns in time.
        return now.since(at).max(NO_INQUIRY_PAUSE_MIN).min(NO_INQUIRY_PAUSE_MAX);
    };
    let shortest = inquiry.timeout.saturating_add(inquiry.pause_min);
    let too_early = too_early(at, inquiry, now);
    if !too_early.is_zero() {
        // The pause is bounded in case this node's clock is wrong: another node may have the right
        // time.
        let to_last = last_moment(record, at).since(now).max(inquiry.pause_min);
        return too_early.min(inquiry.after).min(to_last);
    }
    // The last ask is made at the limit. After the limit, the next ask is due when this engine has
    // asked for long enough to give up, and then before the key expires.
    let ends = ends(record, at, inquiry);
    let enough = inquiry.limit.min(inquiry.pause_max);
    let (asked_for, left) = if ends > now {
        (now.since(at), ends.since(now))
    } else if uptime < enough {
        (uptime, enough.saturating_sub(uptime))
    } else {
        (uptime, last_moment(record, at).since(now))
    };
    let pause = asked_for.max(inquiry.pause_min).min(inquiry.pause_max);
    inquiry.timeout.saturating_add(pause).min(left.max(shortest))
}

async fn ask(
    engine: &Inner,
    reconciler: &dyn Reconcile,
    record: &Arc<Record>,
    inquiry: Inquiry,
) -> ReconcileAnswer {
    tokio::select! {
        biased;
        found = AssertUnwindSafe(async { reconciler.ask(Arc::clone(record)).await }).catch_unwind() => {
            found.unwrap_or_else(|_| ReconcileAnswer::Unclear("the reconciler panicked".to_owned()))
        }
        () = engine.clock.sleep(inquiry.timeout) => {
            ReconcileAnswer::Unclear(format!("no response within {:?}", inquiry.timeout))
        }
    }
}

async fn settle(
    engine: &Inner,
    record: &Arc<Record>,
    found: ReconcileAnswer,
) -> Result<(), StoreError> {
    let reference = record.id.reference();
    let (word, action, reason) = match found {
        ReconcileAnswer::Unclear(why) | ReconcileAnswer::NotAsked(why) => {
            metrics::counter!(RECONCILED, "found" => "unclear").increment(1);
            tracing::warn!(%reference, %why, "the outcome of an operation is still unknown after a reconciliation");
            return Ok(());
        }
        ReconcileAnswer::Completed(recording) => {
            ("completed", OperatorAction::Resolve(recording), "the outcome was found".to_owned())
        }
        ReconcileAnswer::NotExecuted => {
            ("released", OperatorAction::Release, "the operation was not executed".to_owned())
        }
        ReconcileAnswer::Failed(failure) => {
            let reason = failure.detail.clone();
            ("failed", OperatorAction::Fail(failure), reason)
        }
    };
    let (id, attempt, by) = (record.id, record.attempt, BY.to_owned());
    let wanted = Intervention { id, attempt, action, by, reason };
    match engine.carry_out(wanted, record).await? {
        Intervened::Done(_) => {
            metrics::counter!(RECONCILED, "found" => word).increment(1);
            tracing::info!(%reference, found = word, "an unknown outcome was settled");
        }
        _ => {
            tracing::info!(%reference, "an unknown outcome was settled by another node or an operator")
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::record::{AttemptId, Cause, Fence, Terms};
    use crate::scope::{RecordId, Scope};

    const SECOND: Duration = Duration::from_secs(1);

    /// Before the limit, the pause grows with the time since the outcome became unknown. After the
    /// limit, the time counts for which this engine has asked; once that is enough, the last moment
    /// before the key expires counts.
    #[test]
    fn the_pause_is_bounded_by_what_ends_next() {
        let at = Timestamp::from_micros(1_000_000_000);
        let inquiry = Inquiry {
            after: 60 * SECOND,
            timeout: 5 * SECOND,
            pause_min: SECOND,
            pause_max: 30 * SECOND,
            limit: 600 * SECOND,
        };
        let terms = Terms { ttl: 4_000 * SECOND, ..Terms::default() };
        let record = Record {
            id: RecordId::derive(&Scope::new("hold"), &Key::new("a").unwrap()),
            attempt: AttemptId::from_bytes([1; 16]),
            fence: Fence::new(1),
            fingerprint: crate::Fingerprint::of(b"pay"),
            terms,
            origin: crate::Origin::default(),
            created_at: at,
            claimed_at: at,
            history: crate::origin::AttemptHistory::default(),
            state: State::Unknown { at, cause: Cause::TimedOut, ask_at: at },
        };
        let seconds = |after_unknown: u32, uptime: u32| {
            let now = at.plus(after_unknown * SECOND);
            postpone_for(&record, at, Some(inquiry), now, uptime * SECOND).as_secs()
        };
        assert_eq!(seconds(0, 0), 60, "it is too early");
        assert_eq!(seconds(70, 70), 35, "30 seconds are the longest pause");
        assert_eq!(seconds(650, 650), 10, "the limit is in 10 seconds");
        assert_eq!(seconds(660, 10), 15, "this engine has asked for 10 of 30 seconds");
        assert_eq!(seconds(660, 29), 6, "it has to ask for one second more");
        assert_eq!(seconds(660, 30), 35, "it has asked for long enough");
        assert_eq!(seconds(2_990, 30), 10, "the key is about to expire");
    }
}
