//! Races of many tasks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;

use super::bench::{Bench, Got, got, outcome, unknown};
use onetake_core::record::OnUnknown;
use onetake_core::store::{Claim, Settled, Settlement, Store, Transition};

pub(super) async fn one_of_many_claims_wins(bench: &Bench) {
    for round in 0..bench.can.rounds {
        let claims: Vec<Claim> =
            (0..bench.can.tasks).map(|_| bench.claim_of(&format!("key {round}"), "pay")).collect();
        let tasks = claims.into_iter().map(|claim| {
            let store = Arc::clone(&bench.store);
            tokio::spawn(async move { got(store.claim(vec![claim]).await.remove(0).unwrap()) })
        });
        let answers = join_all(tasks).await;
        let granted =
            answers.into_iter().filter(|a| matches!(a.as_ref().unwrap(), Got::Granted(_))).count();
        assert_eq!(granted, 1, "two attempts at once never both run (S1)");
    }
}

pub(super) async fn claims_and_settlements_of_many_tasks(bench: &Bench) {
    // Each task claims batches of overlapping keys and settles those that it was granted. In the
    // end, each key was granted once more than it was released.
    let keys = 24;
    let counts = Arc::new(Mutex::new(HashMap::<usize, (u32, u32)>::new()));
    let mut tasks = Vec::new();
    for task in 0..bench.can.tasks {
        let batches: Vec<Vec<(usize, Claim)>> = (0..bench.can.rounds)
            .map(|round| {
                (0..6)
                    .map(|at| (task * 7 + round * 5 + at * 11) % keys)
                    .map(|key| (key, bench.claim_of(&format!("key {key}"), "pay")))
                    .collect()
            })
            .collect();
        let (store, counts) = (Arc::clone(&bench.store), Arc::clone(&counts));
        tasks.push(tokio::spawn(async move {
            for (round, batch) in batches.into_iter().enumerate() {
                claim_and_settle(&*store, &counts, batch, round).await;
            }
        }));
    }
    for task in join_all(tasks).await {
        task.expect("no task failed");
    }
    for (key, (granted, released)) in counts.lock().unwrap().iter() {
        assert_eq!(
            *granted,
            released + 1,
            "key {key} ran again without having been released (S16)"
        );
    }
}

async fn claim_and_settle(
    store: &dyn Store,
    counts: &Mutex<HashMap<usize, (u32, u32)>>,
    batch: Vec<(usize, Claim)>,
    round: usize,
) {
    let answers = store.claim(batch.iter().map(|(_, claim)| claim.clone()).collect()).await;
    let mut settlements = Vec::new();
    for ((key, claim), answer) in batch.into_iter().zip(answers) {
        if let Got::Granted(_) = got(answer.unwrap()) {
            let transition = match (key + round) % 3 {
                0 => outcome("x"),
                1 => Transition::Release,
                _ => unknown(),
            };
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(key).or_default();
            count.0 += 1;
            count.1 += u32::from(transition == Transition::Release);
            settlements.push(Settlement { id: claim.id, attempt: claim.attempt, transition });
        }
    }
    for answer in store.settle(settlements).await {
        assert!(matches!(answer.unwrap(), Settled::Done { .. }), "an owner was called stale");
    }
}

pub(super) async fn a_sweep_beside_traffic_loses_nothing(bench: &Bench) {
    // There are expired records of the keys that are about to be used again.
    let keys: Vec<String> = (0..40).map(|key| format!("key {key}")).collect();
    for key in &keys {
        let claim = bench.claim_of(key, "pay");
        bench.granted(&claim).await;
        bench.done(&claim, outcome("old")).await;
    }
    bench.pass_just_over(20).await;
    let store = Arc::clone(&bench.store);
    let sweeper = tokio::spawn(async move {
        for _ in 0..200 {
            store.sweep(3).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let traffic = keys.iter().map(|key| async move {
        let claim = bench.claim_of(key, "pay");
        bench.granted(&claim).await;
        tokio::task::yield_now().await;
        bench.done(&claim, outcome("new")).await;
    });
    join_all(traffic).await;
    sweeper.await.unwrap();
    for key in &keys {
        let record = bench.load(key).await.expect("an acknowledged outcome was swept (S13)");
        assert_eq!(super::bench::body(&record), b"new");
    }
}

pub(super) async fn takeovers_have_rising_fences(bench: &Bench) {
    let mut last = None;
    for round in 0..4 {
        let claims = (0..bench.can.tasks)
            .map(|_| Claim { terms: bench.terms(OnUnknown::Retry), ..bench.claim_of("a", "pay") });
        let tasks = claims.map(|claim| {
            let store = Arc::clone(&bench.store);
            tokio::spawn(async move { got(store.claim(vec![claim]).await.remove(0).unwrap()) })
        });
        let answers = join_all(tasks.collect::<Vec<_>>()).await;
        let fences: Vec<_> = answers
            .into_iter()
            .filter_map(|answer| match answer.unwrap() {
                Got::Granted(fence) => Some(fence),
                Got::Found(_) => None,
            })
            .collect();
        assert_eq!(fences.len(), 1, "round {round}: one takes over");
        assert!(fences.first().copied() > last, "round {round}: the fence rises (S2)");
        last = fences.first().copied();
        bench.pass_just_over(4).await;
    }
}
