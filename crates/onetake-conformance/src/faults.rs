//! The engine on a store that fails, and under more load than its limits allow.

use std::sync::Arc;

use futures_util::future::join_all;

use super::bench::breathe;
use super::bench::{Bench, body, is};
use super::engine::{Running, Work, said};
use super::faulty::{Faulty, StoreFault};
use onetake_core::engine::{Answer, Engine, EngineError, Limits, Outcome, Settling};
use onetake_core::store::Store;

fn faulty(bench: &Bench) -> (Arc<Faulty>, Engine) {
    let store = Faulty::around(Arc::clone(&bench.store));
    let engine = bench.engine_on(Arc::clone(&store) as Arc<dyn Store>);
    (store, engine)
}

pub(super) async fn a_store_that_is_down_runs_nothing(bench: &Bench) {
    let (store, engine) = faulty(bench);
    let work = Work::default();
    store.fail_claims(StoreFault::Unavailable);
    for _ in 0..3 {
        let answer = bench.drive(work.run(&engine, bench.operation("a", "pay"))).await.unwrap();
        assert!(matches!(answer, Err(EngineError::Store(_))), "{answer:?} (S10)");
    }
    assert_eq!(work.runs(), 0);
    store.fail_claims(StoreFault::None);
    work.finish.notify_one();
    let answer = bench.drive(work.run(&engine, bench.operation("a", "pay"))).await.unwrap();
    assert_eq!(said(&answer.unwrap()), b"outcome 0", "it comes back without a restart");
}

pub(super) async fn a_claim_whose_answer_got_lost_is_its_own(bench: &Bench) {
    let (store, engine) = faulty(bench);
    let work = Work::default();
    store.fail_one_claim(StoreFault::LostAnswer);
    work.finish.notify_one();
    let answer = bench.drive(work.run(&engine, bench.operation("a", "pay"))).await.unwrap();
    assert_eq!(said(&answer.unwrap()), b"outcome 0", "the own attempt id means own success");
    assert_eq!((work.runs(), store.failures()), (1, 1));
}

pub(super) async fn a_claim_that_nobody_can_tell_of_is_let_go(bench: &Bench) {
    let (store, engine) = faulty(bench);
    let work = Work::default();
    // It would end at once if it ran.
    work.finish.notify_one();
    store.fail_claims(StoreFault::LostAnswer);
    store.fail_settlements(StoreFault::Unavailable);
    let answer = bench.drive(work.run(&engine, bench.operation("a", "pay"))).await.unwrap();
    assert!(matches!(answer, Err(EngineError::Store(_))), "{answer:?}");
    assert_eq!(work.runs(), 0, "what is not known to be granted does not run (S10)");
    store.fail_claims(StoreFault::None);
    store.fail_settlements(StoreFault::None);
    bench
        .drive(async {
            while bench.load("a").await.is_none_or(|record| record.state.name() == "running") {
                breathe().await;
            }
        })
        .await;
    is(&bench.load("a").await.unwrap(), "released");

    store.fail_claims(StoreFault::LostWrite);
    let answer = bench.drive(work.run(&engine, bench.operation("b", "pay"))).await.unwrap();
    assert!(matches!(answer, Err(EngineError::Store(_))), "{answer:?}");
    assert_eq!(work.runs(), 0);
    assert!(bench.load("b").await.is_none());
}

pub(super) async fn an_outcome_waits_for_the_store_to_come_back(bench: &Bench) {
    let store = Faulty::around(Arc::clone(&bench.store));
    let limits = Limits { settle_patience: bench.can.tick, ..bench.limits() };
    let engine = bench.engine_within(Arc::clone(&store) as Arc<dyn Store>, limits);
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay"));
    work.has_started().await;
    store.fail_settlements(StoreFault::Unavailable);
    work.finish.notify_one();
    let answer = bench.drive(first).await.unwrap().unwrap();
    assert!(matches!(answer, Outcome::Ran(Settling::Pending)), "not shown: {answer:?} (S6)");
    let retry = bench.drive(work.run(&engine, bench.operation("a", "pay"))).await.unwrap();
    assert!(matches!(retry.unwrap(), Outcome::Answered(Answer::InFlight)), "and not run again");
    // The store is unreachable for longer than lease and grace. The owner's outcome is accepted
    // nevertheless.
    for _ in 0..50 {
        bench.step().await;
    }
    store.fail_settlements(StoreFault::None);
    let retry = bench.drive(work.run(&engine, bench.waiting("a", "pay"))).await.unwrap();
    assert_eq!(said(&retry.unwrap()), b"outcome 0");
    assert_eq!(work.runs(), 1);
}

pub(super) async fn a_settlement_whose_answer_got_lost_is_done(bench: &Bench) {
    let (store, engine) = faulty(bench);
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay"));
    work.has_started().await;
    store.fail_settlements(StoreFault::LostAnswer);
    work.finish.notify_one();
    bench
        .drive(async {
            while store.failures() == 0 {
                breathe().await;
            }
        })
        .await;
    store.fail_settlements(StoreFault::None);
    let answer = bench.drive(first).await.unwrap().unwrap();
    assert_eq!(said(&answer), b"outcome 0", "sent again, it is its own success");
    assert_eq!(body(&bench.load("a").await.unwrap()), b"outcome 0");
}

pub(super) async fn too_many_at_once_are_refused(bench: &Bench) {
    let limits = Limits { running_max: 3, ..bench.limits() };
    let engine = bench.engine_within(Arc::clone(&bench.store), limits);
    let work = Work::default();
    let mut running: Vec<Running> = Vec::new();
    for key in ["a", "b", "c"] {
        running.push(work.run(&engine, bench.operation(key, "pay")));
        work.has_started().await;
    }
    let one_more = bench.drive(work.run(&engine, bench.operation("d", "pay"))).await.unwrap();
    assert!(matches!(one_more, Err(EngineError::Overloaded)), "{one_more:?} (S19)");
    let same = bench.drive(work.run(&engine, bench.operation("a", "pay"))).await.unwrap();
    assert!(
        matches!(same.unwrap(), Outcome::Answered(Answer::InFlight)),
        "known keys are answered"
    );
    assert!(bench.load("d").await.is_none(), "nothing was claimed");
    for _ in 0..3 {
        work.finish.notify_one();
        breathe().await;
    }
    bench.drive(join_all(running)).await;
    work.finish.notify_one();
    let later = bench.drive(work.run(&engine, bench.operation("d", "pay"))).await.unwrap();
    assert!(later.unwrap().recording().is_some(), "and there is room again");
}

pub(super) async fn too_many_waiters_are_told_that_it_runs(bench: &Bench) {
    for limits in [
        Limits { waiting_max: 5, ..bench.limits() },
        Limits { waiting_per_key_max: 5, ..bench.limits() },
    ] {
        let engine = bench.engine_within(Arc::clone(&bench.store), limits);
        let work = Work::default();
        let key = format!("{}-{}", limits.waiting_max, limits.waiting_per_key_max);
        let first = work.run(&engine, bench.operation(&key, "pay"));
        work.has_started().await;
        let waiters: Vec<Running> =
            (0..20).map(|_| work.run(&engine, bench.waiting(&key, "pay"))).collect();
        bench
            .drive(async {
                while waiters.iter().filter(|waiter| waiter.is_finished()).count() < 15 {
                    breathe().await;
                }
            })
            .await;
        work.finish.notify_one();
        bench.drive(first).await.unwrap().unwrap();
        let mut refused = 0;
        for waiter in bench.drive(join_all(waiters)).await {
            match waiter.unwrap().unwrap() {
                Outcome::Answered(Answer::InFlight) => refused += 1,
                other => assert_eq!(said(&other), b"outcome 0"),
            }
        }
        assert_eq!(refused, 15, "surplus waiters are told so (S19)");
    }
}
