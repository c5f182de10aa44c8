//! Problems for the engine's answers and errors that have no outcome to replay.

use onetake_core::engine::{Answer, EngineError, RecordWith};
use onetake_core::transaction::UNFINISHED;
use onetake_core::{Cause, Reference, StoreErrorKind};

use crate::problem::{Code, Problem};

pub(crate) fn overloaded() -> Problem {
    let detail =
        "Too many operations are under way at once. Nothing was run; retry with the same key.";
    Problem::new(Code::Overloaded, detail).retry_after(1)
}

pub(crate) fn in_progress() -> Problem {
    Problem::new(
        Code::RequestInProgress,
        "An attempt with this key is running, or has just ended without an outcome. Retry with the same key.",
    )
    .retry_after(1)
}

pub(crate) fn problem_of(answer: &Answer) -> Problem {
    match answer {
        Answer::Mismatch => Problem::new(
            Code::IdempotencyPayloadMismatch,
            "This key came with another request before (another method, path, query, content type or encoding, body, or password). Use a new key for a new operation. Nothing was run.",
        ),
        Answer::WaitTimeout => Problem::new(
            Code::InProgressTimeout,
            "An attempt with this key is still running. Retry with the same key.",
        )
        .retry_after(1),
        Answer::Unknown(record) => unknown(record),
        Answer::Failed(record) if record.part().code == UNFINISHED => Problem::new(
            Code::PreviousAttemptFailed,
            "An earlier attempt with this key ended without an outcome, and may have had its effect. It is not run again.",
        ),
        Answer::Failed(record) => Problem::new(
            Code::PreviousAttemptFailed,
            format!("An earlier attempt with this key failed for good: {}", record.part().detail),
        ),
        Answer::InFlight | Answer::Replay(_) => in_progress(),
    }
}

/// Returns the problem of an attempt whose outcome is unknown. Its detail has the cause, and the
/// configuration that would change the answer.
fn unknown(record: &RecordWith<Cause>) -> Problem {
    if record.terms.on_unknown == onetake_core::OnUnknown::Reconcile {
        let detail = "An earlier attempt's outcome is being looked up. Retry with the same key.";
        return Problem::new(Code::OutcomeUnknown, detail).retry_after(5);
    }
    let cause = record.part();
    let released = match cause {
        Cause::Status(status) => format!(
            "release = [\"{status}\"] on this route, if that status means that nothing was changed; or "
        ),
        _ => String::new(),
    };
    Problem::new(
        Code::PreviousAttemptFailed,
        format!(
            "An earlier attempt with this key started, and its outcome is not known: {cause}. It is not run again, because it may have had its effect. What would change that: {released}on_unknown = \"retry\", if the operation is safe to run twice."
        ),
    )
}

pub(crate) fn problem_of_error(error: &EngineError, reference: Reference) -> Problem {
    match error {
        // The store answers, but cannot serve this key. Without the log entry, the operator would
        // not notice that.
        EngineError::Store(store) if store.kind() == StoreErrorKind::Invalid => {
            tracing::error!(%reference, %error, "the store cannot serve this key");
            let detail = "The store that remembers keys cannot serve this one, so nothing was run. The operator finds the reason in the log.";
            Problem::new(Code::StoreUnavailable, detail).retry_after(2)
        }
        EngineError::Store(store) if store.kind() == StoreErrorKind::Busy => in_progress(),
        EngineError::Overloaded => overloaded(),
        EngineError::Closing => Problem::new(
            Code::Overloaded,
            "This node is shutting down. Nothing was run; retry with the same key.",
        )
        .retry_after(1),
        _ => Problem::new(
            Code::StoreUnavailable,
            "The store that remembers keys does not answer, so nothing was run. Retry with the same key.",
        )
        .retry_after(2),
    }
}
