//! Rollback of half-done work before an operation runs again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onetake_core::{
    Answer, Begin, Cause, Clock, Engine, OnRetry, OnUnknown, Operation, Outcome, Recording, Store,
    Terms, Verdict,
};

use super::{World, operation};

/// Returns a hook that counts its calls, and fails the first `fails` times.
fn hook(calls: &Arc<AtomicUsize>, fails: usize) -> OnRetry {
    let calls = Arc::clone(calls);
    OnRetry::new(move |again| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(!again.earlier.is_empty());
            if call < fails { Err("the ledger is away".into()) } else { Ok(()) }
        }
    })
}

#[tokio::test]
async fn partial_work_is_rolled_back_before_a_retry() {
    let world = World::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let terms = Terms { on_unknown: OnUnknown::Retry, ..Terms::default() };
    let retried = || operation("a").terms(terms).on_retry(hook(&calls, 1));
    let unknown = async move |_| Verdict::Unknown(Cause::Interrupted);
    world.engine.run(retried(), unknown).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0, "nothing was before the first attempt");
    // It cannot be rolled back, so it does not run.
    let never = async move |_| -> Verdict { panic!("it ran although nothing was rolled back") };
    let second = world.engine.run(retried(), never).await.unwrap();
    assert!(matches!(second, Outcome::Answered(Answer::Unknown(_))), "{second:?}");
    let paid = async move |_| Verdict::Complete(Recording::new("paid"));
    let third = world.engine.run(retried(), paid).await.unwrap();
    assert_eq!(third.recording(), Some(&Recording::new("paid")));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let replay = world.engine.run(retried(), never).await.unwrap();
    assert_eq!(replay.recording(), Some(&Recording::new("paid")));
    assert_eq!(calls.load(Ordering::SeqCst), 2, "a replay rolls nothing back");
}

#[tokio::test]
async fn rolling_back_may_take_longer_than_a_claim() {
    let world = World::new();
    let terms = Terms { on_unknown: OnUnknown::Retry, ..Terms::default() };
    let clock = Arc::clone(&world.clock);
    let slow = OnRetry::new(move |_| {
        let clock = Arc::clone(&clock);
        async move {
            clock.sleep(Duration::from_secs(20)).await;
            Ok(())
        }
    });
    let retried = move || operation("a").terms(terms).on_retry(slow.clone());
    let unknown = async move |_| Verdict::Unknown(Cause::Interrupted);
    world.engine.run(retried(), unknown).await.unwrap();
    let (engine, again) = (world.engine.clone(), retried());
    let paid = async move |_| Verdict::Complete(Recording::new("paid"));
    let run = tokio::spawn(async move { engine.run(again, paid).await });
    while !run.is_finished() {
        world.clock.advance(Duration::from_secs(1));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(run.await.unwrap().unwrap().recording(), Some(&Recording::new("paid")));
}

#[tokio::test]
async fn what_had_no_effect_needs_no_rolling_back() {
    let world = World::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let released = async move |_| Verdict::Release;
    for _ in 0..3 {
        world.engine.run(operation("a").on_retry(hook(&calls, 0)), released).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

/// Advances the clock by a second, and lets all tasks run.
async fn second(world: &World) {
    world.clock.advance(Duration::from_secs(1));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Returns an operation whose retry hook takes this many seconds, and the number of times that the
/// hook finished.
fn behind_a_slow_hook(world: &World, seconds: u64) -> (Operation, Arc<AtomicUsize>) {
    let (clock, ended) = (Arc::clone(&world.clock), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&ended);
    let slow = OnRetry::new(move |_| {
        let (clock, count) = (Arc::clone(&clock), Arc::clone(&count));
        async move {
            clock.sleep(Duration::from_secs(seconds)).await;
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let terms = Terms { on_unknown: OnUnknown::Retry, ..Terms::default() };
    let run_max = Duration::from_secs(120);
    (operation("a").terms(terms).on_retry(slow).run_max(run_max), ended)
}

async fn interrupted(world: &World, operation: &Operation) {
    let unknown = async move |_| Verdict::Unknown(Cause::Interrupted);
    world.engine.run(operation.clone(), unknown).await.unwrap();
}

#[tokio::test]
async fn a_hook_that_is_slower_than_its_clients_comes_to_its_end() {
    let world = World::new();
    let (retried, ended) = behind_a_slow_hook(&world, 20);
    interrupted(&world, &retried).await;
    // Each client is dropped in the middle.
    for round in 1..10 {
        let (engine, asked) = (world.engine.clone(), retried.clone());
        let client = tokio::spawn(async move { engine.begin(&asked).await.map(drop) });
        for _ in 0..5 {
            second(&world).await;
        }
        client.abort();
        for _ in 0..20 {
            second(&world).await;
        }
        assert_eq!(ended.load(Ordering::SeqCst), round, "it is not cut off");
        assert_eq!(world.state("a").await.name(), "released", "round {round}");
    }
}

#[tokio::test]
async fn a_hook_that_never_ends_or_panics_lets_nothing_run() {
    let panics = OnRetry::new(|_| async { panic!("as hooks may") });
    for breaks in [None, Some(panics)] {
        let world = World::new();
        let (mut retried, _) = behind_a_slow_hook(&world, 1_000);
        if let Some(hook) = breaks {
            retried = retried.on_retry(hook);
        }
        interrupted(&world, &retried).await;
        for _ in 0..25 {
            let never = async move |_| -> Verdict { panic!("nothing was rolled back") };
            let (engine, again) = (world.engine.clone(), retried.clone());
            let run = tokio::spawn(async move { engine.run(again, never).await });
            while !run.is_finished() {
                second(&world).await;
            }
            let answer = run.await.unwrap().unwrap();
            assert!(matches!(answer, Outcome::Answered(Answer::Unknown(_))), "{answer:?}");
            assert_eq!(world.state("a").await.name(), "unknown");
        }
    }
}

/// The duration of a hook does not count for the operation.
#[tokio::test]
async fn who_works_behind_a_slow_hook_keeps_its_lease() {
    let world = World::new();
    let (retried, _) = behind_a_slow_hook(&world, 110);
    interrupted(&world, &retried).await;
    let other = World::engine(&world.clock, Arc::clone(&world.store) as Arc<dyn Store>);
    let (engine, again) = (world.engine.clone(), retried.clone());
    let clock = Arc::clone(&world.clock);
    let run = tokio::spawn(async move {
        let work = async move |_| {
            clock.sleep(Duration::from_secs(110)).await;
            Verdict::Complete(Recording::new("paid"))
        };
        engine.run(again, work).await
    });
    let mut seconds = 0;
    while !run.is_finished() {
        second(&world).await;
        seconds += 1;
        if seconds % 5 == 0 && seconds > 1 && !run.is_finished() {
            assert_eq!(other.reap(10).await, 0, "passed over after {seconds} s");
            let began = begun(&other, &retried).await;
            assert!(
                matches!(began, Begin::Answer(Answer::InFlight | Answer::Replay(_))),
                "{began:?}"
            );
        }
    }
    assert!(seconds > 200, "{seconds}");
    assert_eq!(run.await.unwrap().unwrap().recording(), Some(&Recording::new("paid")));
}

async fn begun(engine: &Engine, operation: &Operation) -> Begin {
    engine.begin(operation).await.unwrap()
}
