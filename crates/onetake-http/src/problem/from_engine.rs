//! Problems for the engine's answers and errors that have no outcome to replay.

use onetake_core::engine::{Answer, EngineError, RecordWith};
use onetake_core::transaction::UNFINISHED;
use onetake_core::{Cause, Reference, StoreErrorKind};

use crate::problem::{Code, Problem};

pub(crate) fn overloaded() -> Problem {
    let detail = "Too many operations are running. Nothing was run. Retry with the same key after Retry-After.";
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
            "This key was used before with another request (another method, path, query, content type or encoding, body, or password). Use a new key for a new operation. To retry, send the same request again. Nothing was run.",
        ),
        Answer::WaitTimeout => Problem::new(
            Code::InProgressTimeout,
            "An attempt with this key is still running. Retry with the same key.",
        )
        .retry_after(1),
        Answer::Unknown(record) => unknown(record),
        Answer::Failed(record) if record.part().code == UNFINISHED => Problem::new(
            Code::PreviousAttemptFailed,
            "An earlier attempt with this key ended without an outcome, and may have had its effect. The operation is not run again. Find out its outcome before you use a new key.",
        ),
        Answer::Failed(record) => Problem::new(
            Code::PreviousAttemptFailed,
            format!(
                "An earlier attempt with this key failed, and the operation is not run again: {}",
                record.part().detail
            ),
        ),
        Answer::InFlight | Answer::Replay(_) => in_progress(),
    }
}

/// Returns the problem of an attempt whose outcome is unknown, with the cause. The configuration
/// that would change the answer is advice for operators, so it is logged.
fn unknown(record: &RecordWith<Cause>) -> Problem {
    if record.terms.on_unknown == onetake_core::OnUnknown::Reconcile {
        let detail = "The outcome of an earlier attempt with this key is being reconciled. Retry with the same key after Retry-After.";
        return Problem::new(Code::OutcomeUnknown, detail).retry_after(5);
    }
    let (reference, cause) = (record.id.reference(), record.part());
    match cause {
        Cause::Status(status) => tracing::debug!(
            %reference, status,
            "a retry was refused because the outcome is unknown: if the status means that nothing was changed, add it to `release` of the route; if the operation is safe to run twice, set on_unknown = \"retry\""
        ),
        cause => tracing::debug!(
            %reference, %cause,
            "a retry was refused because the outcome is unknown: if the operation is safe to run twice, set on_unknown = \"retry\" on the route"
        ),
    }
    Problem::new(
        Code::PreviousAttemptFailed,
        format!(
            "An earlier attempt with this key started, and its outcome is unknown: {cause}. It may have had its effect, so it is not run again. Find out its outcome before you use a new key."
        ),
    )
}

pub(crate) fn problem_of_error(error: &EngineError, reference: Reference) -> Problem {
    match error {
        // The store answers, but cannot serve this key. Without the log entry, the operator would
        // not notice that.
        EngineError::Store(store) if store.kind() == StoreErrorKind::Invalid => {
            tracing::error!(%reference, %error, "the store cannot read or write the record of a key, so its requests are refused");
            let detail = "The idempotency store cannot read the record of this key, so this request was not run. Give the reference to the operator of this service.";
            Problem::new(Code::StoreUnavailable, detail).retry_after(2)
        }
        EngineError::Store(store) if store.kind() == StoreErrorKind::Busy => in_progress(),
        EngineError::Overloaded => overloaded(),
        EngineError::Closing => Problem::new(
            Code::Overloaded,
            "This node is shutting down. Nothing was run. Retry with the same key.",
        )
        .retry_after(1),
        _ => Problem::new(
            Code::StoreUnavailable,
            "The idempotency store is unavailable, so this request was not run. Retry with the same key.",
        )
        .retry_after(2),
    }
}
