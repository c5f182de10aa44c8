//! Jobs: operations that use the engine directly, as consumers and schedulers do.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use onetake_core::engine::{
    Answer, Attempt, Begin, Engine, NotDone, Operation, Outcome, Settling, Verdict, WhileRunning,
};
use onetake_core::{
    Cause, Completion, Fingerprint, Key, Lease, Record, Recording, Scope, State, StoreError,
};

use super::history::{ClientRequest, ReceivedResponse};
use super::node::terms;
use super::plan::{Mode, NodePlan, WaitMode};
use super::upstream::{Conduct, Exchange, SIMULATED_PANIC};
use super::world::World;

/// The way in which a job uses the engine.
#[derive(Clone, Copy)]
enum Style {
    /// `Engine::run`.
    Run,
    /// `Engine::begin`, and a pause before the start.
    BeginLate,
    /// `Engine::begin`, and the lease is dropped.
    BeginAndDrop,
    /// `Engine::transact`: the effect commits with the outcome (mode T).
    Transact,
    /// `Engine::is_known`, and nothing else.
    Look,
}

/// The way in which the work of a transaction ends.
#[derive(Clone, Copy, Debug)]
enum TransactionEnd {
    /// It commits, or its commit fails, or the answer to its commit is lost.
    Commit,
    /// It rolls back, and says so.
    RollBack,
    /// It says that it has committed, and has not.
    NoCommit,
    /// It never ends, and has no effect.
    Hang,
    /// It panics, without an effect.
    Panic,
}

/// Makes one try of a job.
pub async fn job(
    world: Arc<World>,
    process: (usize, u64),
    plan: NodePlan,
    engine: Engine,
    asked: ClientRequest,
) -> Option<ReceivedResponse> {
    let node = process.0;
    let key = Key::new(&asked.key).ok()?;
    let scope = Scope::new(format!("tenant {}", asked.tenant));
    let fingerprint = Fingerprint::of(&[asked.payload]);
    let in_flight = match plan.waiting {
        WaitMode::Reject => WhileRunning::Reject,
        WaitMode::Wait(wait) => WhileRunning::Wait(wait),
    };
    let operation = Operation::new(&scope, &key, fingerprint)
        .terms(terms(&plan, Mode::Job))
        .in_flight(in_flight)
        .run_max(plan.run_max);
    let is_calm = world.is_calm();
    let style = world.decide("job", |random| match random.below(12) {
        _ if is_calm => Style::Run,
        0..=2 => Style::Run,
        3..=5 => Style::BeginLate,
        6 => Style::BeginAndDrop,
        7..=10 => Style::Transact,
        _ => Style::Look,
    });
    let reference = operation.id.reference().to_string();
    let answer = match style {
        Style::Run => {
            let asked = asked.clone();
            let ran = engine.run(operation, move |attempt| {
                let world = Arc::clone(&world);
                async move {
                    let exchange = work(&world, node, attempt, &asked).await;
                    verdict(&exchange)
                }
            });
            match ran.await {
                Ok(Outcome::Ran(settling)) => settled(&settling),
                Ok(Outcome::Answered(answer)) => answered(&answer),
                Err(_) => (503, Some("idempotency_store_unavailable"), None),
            }
        }
        Style::Transact => transact(&world, process, engine, operation, asked).await,
        Style::Look => {
            let is_known = engine.is_known(&operation).await;
            world.history.event(world.now(), "is_known", &[], || format!("{is_known:?}"));
            (409, Some("request_in_progress"), None)
        }
        Style::BeginLate | Style::BeginAndDrop => match engine.begin(&operation).await {
            Ok(Begin::Run(lease)) => {
                begun(&world, node, &plan, lease, &asked, matches!(style, Style::BeginLate)).await
            }
            Ok(Begin::Answer(answer)) => answered(&answer),
            Err(_) => (503, Some("idempotency_store_unavailable"), None),
        },
    };
    let (status, code, body) = answer;
    let (code, body) = (code.map(str::to_owned), body.unwrap_or_default());
    let (is_running, is_replay) = (false, false);
    let (reference, location) = (Some(reference), None);
    Some(ReceivedResponse { node, status, code, reference, location, is_running, is_replay, body })
}

type JobAnswer = (u16, Option<&'static str>, Option<Bytes>);

/// Runs the work in a transaction that also writes the outcome.
async fn transact(
    world: &Arc<World>,
    process: (usize, u64),
    engine: Engine,
    operation: Operation,
    asked: ClientRequest,
) -> JobAnswer {
    let (world, sealing) = (Arc::clone(world), engine.clone());
    let work = move |attempt| async move {
        let whose = (asked.tenant, &*asked.key, asked.payload);
        let (run, text) =
            world.history.started(world.now(), process.0, Some(attempt), whose, Mode::Job);
        let completion = match sealing.seal(&attempt, Completion::new(Recording::new(text))) {
            Ok(completion) => completion,
            Err(error) => {
                world.history.run_ended(world.now(), run);
                return Err(TransactionError::Unsealed(error));
            }
        };
        let end = transaction_end(&world);
        if !matches!(end, TransactionEnd::Commit) {
            let length = world.decide("transactions", |random| random.below(world.plan.delay_max));
            world.timeline.sleep(length, process.0 + 1).await;
            world.history.event(world.now(), "transaction", &[run as u64], || format!("{end:?}"));
            world.history.run_ended(world.now(), run);
        }
        match end {
            TransactionEnd::Commit => match world.commit(process, run, attempt, completion).await {
                Some(true) => Ok(()),
                Some(false) => Err(TransactionError::RolledBack),
                None => Err(TransactionError::NoAnswer),
            },
            TransactionEnd::RollBack => Err(TransactionError::RolledBack),
            TransactionEnd::NoCommit => Ok(()),
            TransactionEnd::Hang => std::future::pending().await,
            #[expect(clippy::panic, reason = "the panic of the work is what is simulated")]
            TransactionEnd::Panic => panic!("{SIMULATED_PANIC}"),
        }
    };
    match engine.transact(operation, work).await {
        Ok(Outcome::Ran(settling)) => settled(&settling),
        Ok(Outcome::Answered(answer)) => answered(&answer),
        Err(NotDone::Engine(_)) => (503, Some("idempotency_store_unavailable"), None),
        Err(NotDone::NotCommitted) => (500, Some("transaction_not_committed"), None),
        Err(_) => (409, Some("request_in_progress"), None),
    }
}

/// The reason why the work of a transaction has no outcome.
#[derive(Debug, thiserror::Error)]
enum TransactionError {
    #[error("the transaction was rolled back")]
    RolledBack,
    #[error("the answer to the commit was lost")]
    NoAnswer,
    #[error("the completion could not be sealed")]
    Unsealed(#[source] StoreError),
}

fn transaction_end(world: &World) -> TransactionEnd {
    let noise = if world.is_calm() { 0 } else { world.plan.upstream.noise_per_mille };
    world.decide("transaction ends", |random| match random.below(6) {
        _ if !random.chance(noise) => TransactionEnd::Commit,
        0 | 1 => TransactionEnd::RollBack,
        2 => TransactionEnd::NoCommit,
        3 => TransactionEnd::Hang,
        4 => TransactionEnd::Panic,
        _ => TransactionEnd::Commit,
    })
}

/// Runs the work under a lease, after a pause.
async fn begun(
    world: &Arc<World>,
    node: usize,
    plan: &NodePlan,
    lease: Lease,
    asked: &ClientRequest,
    runs: bool,
) -> JobAnswer {
    let length = onetake_core::clock::micros(plan.terms.lease);
    let pause = world.decide("late starts", |random| {
        let late = random.pick(&[length / 2, length * 3 / 2, length * 4], length);
        random.below(late)
    });
    world.timeline.sleep(pause, node + 1).await;
    if !runs {
        drop(lease);
        return (409, Some("request_in_progress"), None);
    }
    if lease.start().is_err() {
        return settled(&lease.release().await);
    }
    let attempt = Attempt { id: lease.id(), attempt: lease.attempt(), fence: lease.fence() };
    let exchange = work(world, node, attempt, asked);
    let engine_clock = world.timeline.sleep(onetake_core::clock::micros(plan.run_max), node + 1);
    let exchange = tokio::select! {
        biased;
        exchange = exchange => exchange,
        () = engine_clock => return settled(&lease.unknown(Cause::TimedOut).await),
    };
    settled(&match verdict(&exchange) {
        Verdict::Complete(recording) => lease.complete(recording).await,
        Verdict::Fail(failure) => lease.fail(failure).await,
        Verdict::Release => lease.release().await,
        Verdict::Unknown(cause) => lease.unknown(cause).await,
    })
}

async fn work(
    world: &Arc<World>,
    node: usize,
    attempt: Attempt,
    asked: &ClientRequest,
) -> Exchange {
    let whose = (asked.tenant, &*asked.key, asked.payload);
    let (run, text) = world.history.started(world.now(), node, Some(attempt), whose, Mode::Job);
    let (_, answer) = world.call_upstream(node, run, &text);
    answer
        .then(|exchange| async move {
            match exchange {
                Ok(exchange) => {
                    if matches!(exchange.conduct, Conduct::Done | Conduct::Declined) {
                        world.history.answered(world.now(), exchange.run);
                    }
                    exchange
                }
                Err(_) => std::future::pending().await,
            }
        })
        .await
}

fn verdict(exchange: &Exchange) -> Verdict {
    match exchange.conduct {
        Conduct::Done | Conduct::Declined => {
            Verdict::Complete(Recording::new(exchange.text.clone()))
        }
        Conduct::Busy | Conduct::SaysReleased | Conduct::Unreachable => Verdict::Release,
        Conduct::Failed(_) | Conduct::Hangs(_) | Conduct::Breaks(_) | Conduct::Panics(_) => {
            Verdict::Unknown(Cause::Reported("the upstream failed".to_owned()))
        }
    }
}

fn settled(settling: &Settling) -> JobAnswer {
    match settling {
        Settling::Recorded(record) | Settling::Stale(Some(record)) => recorded(record),
        Settling::Stale(None) => (409, Some("request_in_progress"), None),
        Settling::Pending => (503, Some("outcome_pending"), None),
    }
}

fn recorded(record: &Record) -> JobAnswer {
    match &record.state {
        State::Completed { recording, .. } => (200, None, recording.body.clone()),
        State::Failed { .. } | State::Unknown { .. } => {
            (500, Some("previous_attempt_failed"), None)
        }
        State::Running { .. } | State::Released { .. } => (409, Some("request_in_progress"), None),
    }
}

fn answered(answer: &Answer) -> JobAnswer {
    match answer {
        Answer::Replay(completed) => recorded(completed),
        Answer::Failed(failed) => recorded(failed),
        Answer::Unknown(unknown) => recorded(unknown),
        Answer::InFlight => (409, Some("request_in_progress"), None),
        Answer::WaitTimeout => (504, Some("in_progress_timeout"), None),
        Answer::Mismatch => (422, Some("idempotency_payload_mismatch"), None),
    }
}
