//! Jobs: typed results, errors, attempts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onetake_conformance::{Faulty, StoreFault};
use onetake_core::{
    DerivedKey, Engine, Failure, Job, JobError, Key, Limits, ManualClock, MemoryStore, Retry,
    Scope, Store, Transition,
};

use super::{engine_on, memory, pass, settle, take_over};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    engine: Engine,
    runs: Arc<AtomicU32>,
}

impl World {
    fn new() -> Self {
        let (clock, memory) = memory();
        let store = Arc::clone(&memory);
        let engine = engine_on(memory as Arc<dyn Store>, &clock, Limits::default());
        Self { clock, store, engine, runs: Arc::default() }
    }

    fn job(&self, payload: u32) -> Job {
        self.engine.job(&Scope::new("jobs"), &Key::new("a").unwrap(), &payload)
    }

    /// Runs the job while time passes. Its first attempts, as many as `errors`, fail.
    async fn run(&self, job: Job, errors: u32) -> Result<(u32, String), JobError<String>> {
        let runs = Arc::clone(&self.runs);
        let running = tokio::spawn(job.run(move |attempt| {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            async move {
                if run <= errors {
                    return Err(format!("error {run}"));
                }
                Ok((attempt.number, "done".to_owned()))
            }
        }));
        while !running.is_finished() {
            pass(&self.clock, SECOND, 1).await;
        }
        running.await.unwrap()
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn the_result_is_recorded_and_replayed() {
    let world = World::new();
    for _ in 0..3 {
        assert_eq!(world.run(world.job(1), 0).await.unwrap(), (1, "done".to_owned()));
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn another_payload_is_refused() {
    let world = World::new();
    world.run(world.job(1), 0).await.unwrap();
    let other = world.run(world.job(2), 0).await;
    assert!(matches!(other, Err(JobError::OtherPayload)), "{other:?}");
    assert_eq!(world.runs(), 1);
}

/// A map has a different order in every process.
#[tokio::test]
async fn the_order_of_a_map_is_no_other_payload() {
    let world = World::new();
    let names: Vec<String> = (0..50).map(|number| format!("name {number}")).collect();
    for _ in 0..5 {
        let map: HashMap<&String, u32> = names.iter().map(|name| (name, 1)).collect();
        let job = world.engine.job(&Scope::new("jobs"), &Key::new("map").unwrap(), &map);
        world.run(job, 0).await.unwrap();
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_error_is_recorded_and_the_job_does_not_run_again() {
    let world = World::new();
    let first = world.run(world.job(1), 9).await;
    assert!(matches!(&first, Err(JobError::Work(error)) if error == "error 1"), "{first:?}");
    let second = world.run(world.job(1), 9).await;
    let Err(JobError::Failed(failure)) = second else { panic!("{second:?}") };
    assert_eq!((&*failure.code, &*failure.detail), ("job_failed", "error 1"));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_job_with_retries_runs_until_it_succeeds() {
    let world = World::new();
    let before = onetake_core::Clock::monotonic(&*world.clock);
    let result = world.run(world.job(1).retry(Retry::times(5)), 3).await.unwrap();
    assert_eq!(result, (4, "done".to_owned()));
    // Pauses of 1, 2 and 4 seconds.
    let took = onetake_core::Clock::monotonic(&*world.clock) - before;
    assert!((7..=12).contains(&took.as_secs()), "{took:?}");
}

#[tokio::test]
async fn attempts_of_earlier_calls_count() {
    let world = World::new();
    let first = world.run(world.job(1).retry(Retry::times(3)), 99).await;
    assert!(matches!(&first, Err(JobError::Work(error)) if error == "error 3"), "{first:?}");
    let second = world.run(world.job(1).retry(Retry::times(3)), 99).await;
    assert!(matches!(second, Err(JobError::Failed(_))), "{second:?}");
    assert_eq!(world.runs(), 3);
}

#[tokio::test]
async fn work_that_panics_is_not_tried_for_ever() {
    for (retry, expected) in [(None, 1), (Some(Retry::times(3)), 3)] {
        let world = World::new();
        let (runs, mut job) = (Arc::clone(&world.runs), world.job(1));
        if let Some(retry) = retry {
            job = job.retry(retry);
        }
        let running = tokio::spawn(job.run(move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            async { if true { panic!("as planned") } else { Ok::<u32, String>(1) } }
        }));
        while !running.is_finished() {
            pass(&world.clock, SECOND, 1).await;
        }
        match (retry, running.await.unwrap()) {
            (None, Err(JobError::Unknown(_))) => {}
            (Some(_), Err(JobError::Failed(failure))) => {
                assert_eq!(failure.detail, "it failed 3 times and is not tried again");
            }
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(world.runs(), expected);
    }
}

#[tokio::test]
async fn whoever_asks_meanwhile_waits_for_the_result() {
    let world = World::new();
    let (runs, clock) = (Arc::clone(&world.runs), Arc::clone(&world.clock));
    let work = move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        let clock = Arc::clone(&clock);
        async move {
            onetake_core::Clock::sleep(&*clock, 5 * SECOND).await;
            Ok::<_, String>(7_u32)
        }
    };
    let running = [world.job(1), world.job(1)].map(|job| tokio::spawn(job.run(work.clone())));
    let impatient = tokio::spawn(world.job(1).wait(SECOND).run(work));
    pass(&world.clock, SECOND, 10).await;
    for result in running {
        assert_eq!(result.await.unwrap().unwrap(), 7);
    }
    let impatient = impatient.await.unwrap();
    assert!(matches!(impatient, Err(JobError::StillRunning)), "{impatient:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_result_of_another_type_is_refused_without_its_value() {
    let world = World::new();
    world.run(world.job(1), 0).await.unwrap();
    let other = world.job(1).run(|_| async { Ok::<u32, String>(1) }).await.unwrap_err();
    assert_eq!(other.to_string(), "the recorded result is not a valid u32: line 1, column 0");
}

#[tokio::test]
async fn calls_get_the_same_key_in_every_attempt() {
    let world = World::new();
    let seen: Arc<std::sync::Mutex<Vec<DerivedKey>>> = Arc::default();
    let keys = Arc::clone(&seen);
    let job = world.job(1).retry(Retry::times(3));
    let running = tokio::spawn(job.run(move |attempt| {
        let keys = Arc::clone(&keys);
        async move {
            let key = attempt.derived_key().await.map_err(|error| error.to_string())?;
            keys.lock().unwrap().push(key);
            Err::<u32, _>("once more".to_owned())
        }
    }));
    while !running.is_finished() {
        pass(&world.clock, SECOND, 1).await;
    }
    let seen = seen.lock().unwrap();
    assert!(seen.len() == 3 && seen.iter().all(|key| key == &seen[0]), "{}", seen.len());
}

#[tokio::test]
async fn a_job_runs_again_when_its_result_has_expired() {
    let world = World::new();
    for (later, runs) in [(0, 1), (50, 1), (20, 2)] {
        pass(&world.clock, SECOND, later).await;
        world.run(world.job(1).ttl(60 * SECOND), 0).await.unwrap();
        assert_eq!(world.runs(), runs);
    }
}

/// Another process took the job over, and its last attempt failed for another reason.
#[tokio::test]
async fn the_failure_of_another_attempt_is_not_the_error_of_this_one() {
    let world = World::new();
    let store = Arc::clone(&world.store);
    let running = world.job(1).run(move |attempt| {
        let store = Arc::clone(&store);
        async move {
            settle(&*store, attempt.attempt, Transition::Release).await;
            let other = take_over(&*store, attempt.attempt).await;
            let failure = Failure { code: "job_failed".to_owned(), detail: "theirs".to_owned() };
            settle(&*store, other, Transition::Fail(failure)).await;
            Err::<u32, _>("ours")
        }
    });
    let failed = running.await;
    assert!(
        matches!(&failed, Err(JobError::Failed(failure)) if failure.detail == "theirs"),
        "{failed:?}"
    );
}

/// The engine releases claims whose answers were lost, and the work never ran.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_no_attempt_of_a_job() {
    let (clock, memory) = memory();
    let faulty = Faulty::around(memory);
    let engine = engine_on(Arc::clone(&faulty) as Arc<dyn Store>, &clock, Limits::default());
    let job = || {
        let job = engine.job(&Scope::new("jobs"), &Key::new("a").unwrap(), &1);
        job.retry(Retry::times(3)).run(|attempt| async move { Ok::<_, String>(attempt.number) })
    };
    for number in 0..4 {
        faulty.fail_claims(StoreFault::LostAnswer);
        faulty.fail_settlements(StoreFault::Unavailable);
        let lost = job().await;
        assert!(matches!(lost, Err(JobError::Engine(_))), "{number}: {lost:?}");
        faulty.fail_claims(StoreFault::None);
        faulty.fail_settlements(StoreFault::None);
        pass(&clock, SECOND, 10).await;
    }
    assert_eq!(job().await.unwrap(), 1);
}
