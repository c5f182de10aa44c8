//! The hook that rolls back half-done work before an operation runs again.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::origin::PastAttempt;
use crate::record::{Cause, Record};

use super::Engine;
use super::lease::{Lease, Settling};
use super::operation::{Answer, Attempt, Begin, EngineError};

/// An operation that is about to run again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Again {
    /// The attempt that is about to run.
    pub attempt: Attempt,
    /// The attempts before it that are remembered, the earliest first.
    pub earlier: Vec<PastAttempt>,
}

/// A hook that rolls back the half-done work of earlier attempts before the next attempt starts. It
/// runs under the next attempt's lease. It may be called more than once for the same earlier
/// attempt, and must allow for that.
#[derive(Clone)]
pub struct OnRetry(Arc<Hook>);

type Hook = dyn Fn(Again) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

impl OnRetry {
    /// Creates a hook. If it returns an error (a text for people, without secrets), the operation
    /// does not run. Its outcome stays unknown, and the next attempt calls the hook again.
    pub fn new<F, Fut>(hook: F) -> Self
    where
        F: Fn(Again) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self(Arc::new(move |again| Box::pin(hook(again))))
    }
}

/// Two hooks are equal if they are clones of one hook.
impl PartialEq for OnRetry {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for OnRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRetry")
    }
}

/// Returns the earlier attempts of a record if one of them may have had an effect. Released
/// attempts had none.
fn may_have_left_something(record: &Record) -> Option<Vec<PastAttempt>> {
    let earlier: Vec<PastAttempt> = record.history.attempts().collect();
    earlier.iter().any(|past| past.stood != "released").then_some(earlier)
}

/// Calls the hook of a granted claim if an earlier attempt may have had an effect. It runs in the
/// operation's own task: if the caller is dropped, a slow hook still runs to its end.
pub(super) async fn roll_back(
    engine: &Engine,
    lease: Lease,
    hook: &OnRetry,
    run_max: Duration,
) -> Result<Begin, EngineError> {
    let record = match engine.inner.read_from_store(lease.id()).await {
        Ok(record) => record,
        Err(error) => {
            // Nothing was started. The earlier attempts are still in the history.
            drop(lease.release().await);
            return Err(error.into());
        }
    };
    let Some(own) = record.filter(|record| record.attempt == lease.attempt()) else {
        // Another attempt has the key by now: its own claim finds what is left to roll back.
        drop(lease.release().await);
        return Ok(Begin::Answer(Answer::InFlight));
    };
    let Some(earlier) = may_have_left_something(&own) else {
        return Ok(Begin::Run(lease));
    };
    lease.renew_for(run_max);
    let attempt = Attempt { id: lease.id(), attempt: lease.attempt(), fence: lease.fence() };
    let rolled_back = tokio::select! {
        biased;
        rolled_back = AssertUnwindSafe(async { (hook.0)(Again { attempt, earlier }).await }).catch_unwind() => {
            rolled_back.unwrap_or_else(|_| Err("the rollback panicked".to_owned()))
        }
        () = engine.inner.clock.sleep(run_max) => Err(format!("the rollback took longer than {run_max:?}")),
    };
    let Err(why) = rolled_back else {
        // The duration of the hook does not count for the operation.
        lease.renew_for(run_max);
        return Ok(Begin::Run(lease));
    };
    tracing::error!(
        reference = %lease.id().reference(), %why,
        "the effects of an earlier attempt could not be rolled back: the operation does not run again yet"
    );
    let cause = Cause::Reported(format!("an earlier attempt could not be rolled back: {why}"));
    Ok(match lease.unknown(cause).await {
        Settling::Recorded(record) => {
            Begin::Answer(Answer::of(&record).unwrap_or(Answer::InFlight))
        }
        Settling::Stale(_) | Settling::Pending => Begin::Answer(Answer::InFlight),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_equals_its_clones_alone() {
        let hook = || OnRetry::new(|_| async { Ok(()) });
        let one = hook();
        assert_eq!(one, one.clone());
        assert_ne!(one, hook());
    }
}
