//! Tests of a server that becomes unreachable and comes back.

use std::sync::Arc;
use std::time::Duration;

use onetake_core::store::Due;
use onetake_core::{
    Cause, Claim, Claimed, Clock, Failure, ManualClock, OnUnknown, Recording, Shift, Store,
    StoreErrorKind, SystemClock, Terms, Timestamp, Transition,
};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Redis, until};
use onetake_stores::{RedisOptions, RedisStore};

use super::{Race, claim, claim_of, done, granted, load, open, outcome, pause, prefix, settle};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_load_no_key_is_granted_twice() {
    let mut server = Redis::start().await;
    let race = Race::on(&server.url()).await;
    race.run(async {
        for _ in 0..3 {
            race.goes_on(200).await;
            server.kill();
            pause(200).await;
            server.restart().await;
        }
        race.goes_on(200).await;
    })
    .await;
}

#[tokio::test]
async fn a_deaf_server_costs_a_few_timeouts_and_then_none() {
    let server = Redis::start().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let options = RedisOptions { prefix: prefix(), ..RedisOptions::default() };
    let timeout = options.command_timeout;
    let url = format!("redis://{}", proxy.address());
    let store = RedisStore::open(&url, options).await.unwrap();
    let this = granted(&store, "a").await;

    proxy.set(Weather::CutBack);
    let error = settle(&store, &this, outcome()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Indeterminate, "it may have landed: {error}");
    for _ in 0..3 {
        load(&store, "a").await.unwrap_err();
    }
    let from = SystemClock.monotonic();
    for _ in 0..100 {
        let error = claim(&store, &claim_of("b")).await.unwrap_err();
        assert_ne!(error.kind(), StoreErrorKind::Invalid, "{error}");
        store.ready().await.unwrap_err();
    }
    let took = SystemClock.monotonic() - from;
    assert!(took < timeout * 10, "200 requests took {took:?}");

    proxy.set(Weather::Fair);
    until("service returns", async || store.ready().await.is_ok()).await;
    let record = load(&store, "a").await.unwrap().unwrap();
    assert_eq!(record.state.name(), "completed", "it had landed");
    let record = done(&store, &this, outcome()).await;
    assert_eq!(record.state.name(), "completed", "sent again, it is its own success");
}

#[tokio::test]
async fn a_server_that_is_down_was_surely_sent_nothing() {
    let mut server = Redis::start().await;
    let store = open(&server.url()).await;
    let this = granted(&store, "a").await;
    server.kill();
    // The open connection is lost, with all commands on it.
    let _either = load(&store, "a").await;
    for _ in 0..10 {
        let error = settle(&store, &this, outcome()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("refused"), "{error}");
    }
    server.restart().await;
    until("service returns", async || settle(&store, &this, outcome()).await.is_ok()).await;
    assert_eq!(load(&store, "a").await.unwrap().unwrap().state.name(), "completed");
}

#[tokio::test]
async fn after_an_outage_grace_counts_anew() {
    let server = Redis::start().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    grace_counts_anew_after(&server, &proxy, async |store, this, pass| {
        proxy.set(Weather::Dead);
        settle(store, this, Transition::Renew).await.unwrap_err();
        pass(100);
        proxy.set(Weather::Fair);
        // A command that was in progress when the link died may get that error.
        let _either = load(store, "a").await;
    })
    .await;
}

#[tokio::test]
async fn after_writes_were_refused_grace_counts_anew() {
    let server = Redis::start().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    grace_counts_anew_after(&server, &proxy, async |store, this, pass| {
        server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        pass(100);
        let error = settle(store, this, Transition::Renew).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    })
    .await;
}

/// A command from before an outage has no effect on an owner if it is executed after the outage.
#[tokio::test]
async fn what_was_stuck_in_the_network_takes_nothing_from_an_owner() {
    let server = Redis::start().await;
    let (owners, others) = (
        FaultProxy::start(server.address()).await.unwrap(),
        FaultProxy::start(server.address()).await.unwrap(),
    );
    let options = RedisOptions { prefix: prefix(), ..RedisOptions::default() };
    let through = |way: &FaultProxy| {
        let url = format!("redis://{}", way.address());
        let options = options.clone();
        async move { RedisStore::open(&url, options).await.unwrap() }
    };
    let (owner, other) = (through(&owners).await, through(&others).await);
    let terms = Terms {
        lease: Duration::from_millis(300),
        grace: Duration::from_millis(300),
        on_unknown: OnUnknown::Retry,
        ..Terms::default()
    };
    // Both have been in contact for longer than the grace, and know it.
    pause(500).await;
    load(&other, "a").await.unwrap();
    let (a, b) = (Claim { terms, ..claim_of("a") }, Claim { terms, ..claim_of("b") });
    for this in [&a, &b] {
        let claimed = claim(&owner, this).await.unwrap();
        assert!(matches!(claimed, Claimed::Granted { .. }), "{claimed:?}");
    }
    owners.set(Weather::Cut);
    others.set(Weather::Cut);
    let before = scripts_run(&server);
    // At that moment a client's retry arrives at the other node, and its reaper runs.
    let retry = Claim { terms, ..claim_of("a") };
    let (claimed, reaped) =
        tokio::join!(claim(&other, &retry), settle(&other, &b, Transition::ExpireLease));
    for error in [claimed.unwrap_err(), reaped.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Indeterminate, "{error}");
    }
    settle(&owner, &a, Transition::Renew).await.unwrap_err();
    pause(700).await;
    // The owner's network recovers last, but well within the grace that it gets again.
    others.set(Weather::Fair);
    until("both are executed", async || scripts_run(&server) == before + 2).await;
    let direct = RedisStore::open(&server.url(), options.clone()).await.unwrap();
    for (key, this) in [("a", &a), ("b", &b)] {
        let record = load(&direct, key).await.unwrap().unwrap();
        assert_eq!((record.attempt, record.state.name()), (this.attempt, "running"), "{key}");
    }
    owners.set(Weather::Fair);
    until("the owner is back", async || owner.ready().await.is_ok()).await;
    for this in [&a, &b] {
        let record = done(&owner, this, outcome()).await;
        assert_eq!(record.attempt, this.attempt, "its owner ended it");
    }
}

/// The contact of a node counts in a command until the command timeout is over, to the microsecond
/// of the server's clock. A command that is executed later takes nothing from an owner.
#[tokio::test]
async fn contact_counts_until_the_command_timeout_is_over() {
    let server = Redis::start().await;
    let micro = Duration::from_micros(1);
    for (late_by, is_taken) in [(Duration::ZERO, true), (micro, false)] {
        let (clock, shift) = (ManualClock::default(), Shift::default());
        shift.fix(Timestamp::from_micros(1_893_456_000_000_000));
        let options = RedisOptions {
            prefix: prefix(),
            clock: Arc::new(clock.clone()),
            shift: shift.clone(),
            ..RedisOptions::default()
        };
        let timeout = options.command_timeout;
        let store = RedisStore::open(&server.url(), options).await.unwrap();
        let mut owner = claim_of("a");
        owner.terms.on_unknown = OnUnknown::Retry;
        claim(&store, &owner).await.unwrap();
        // Lease and grace, 30 s each, end. The node was in contact all the time, and then reads the
        // server's clock.
        clock.advance(Duration::from_secs(60));
        shift.advance(Duration::from_secs(60));
        load(&store, "a").await.unwrap();
        // The command is on its way for this long: only the server's clock goes on.
        shift.advance(timeout + late_by);
        let claimed = claim(&store, &claim_of("a")).await.unwrap();
        let was_taken = matches!(claimed, Claimed::Granted { .. });
        assert_eq!(was_taken, is_taken, "{late_by:?} after the timeout: {claimed:?}");
    }
}

/// The number of scripts that a server has run.
fn scripts_run(server: &Redis) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split_once(',')).map_or(0, |(calls, _)| calls.parse().unwrap())
}

async fn grace_counts_anew_after(
    server: &Redis,
    proxy: &FaultProxy,
    outage: impl AsyncFnOnce(&RedisStore, &Claim, &dyn Fn(u64)),
) {
    let (clock, shift) = (ManualClock::default(), Shift::default());
    let options = RedisOptions {
        prefix: prefix(),
        clock: Arc::new(clock.clone()),
        shift: shift.clone(),
        ..RedisOptions::default()
    };
    let url = format!("redis://{}", proxy.address());
    let store = RedisStore::open(&url, options).await.unwrap();
    let pass = |seconds| {
        clock.advance(Duration::from_secs(seconds));
        shift.advance(Duration::from_secs(seconds));
    };
    // Lease and grace are 30 s each.
    let this = granted(&store, "a").await;
    let mut retry = claim_of("b");
    retry.terms.on_unknown = OnUnknown::Retry;
    claim(&store, &retry).await.unwrap();
    pass(5);
    outage(&store, &this, &pass).await;
    assert_eq!(server.cli(&["PING"]), "PONG");
    load(&store, "a").await.unwrap();
    for _ in 0..2 {
        for key in ["a", "b"] {
            let found = claim(&store, &claim_of(key)).await.unwrap();
            let Claimed::Found { record, .. } = found else { panic!("{key} was taken at once") };
            assert_eq!(record.state.name(), "running", "{key} was taken from its owner at once");
        }
        assert!(store.due(Due::LeaseEnd, 10).await.unwrap().is_empty());
        settle(&store, &this, Transition::ExpireLease).await.unwrap();
        assert_eq!(load(&store, "a").await.unwrap().unwrap().state.name(), "running");
        pass(14);
    }
    pass(3);
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap().len(), 2);
    assert!(matches!(claim(&store, &claim_of("b")).await.unwrap(), Claimed::Granted { .. }));
    done(&store, &this, Transition::ExpireLease).await;
}

/// A settlement that was sent when the network broke is executed when the network recovers. By then
/// another attempt has the key, or has finished: the settlement changes nothing (S3, S4).
#[tokio::test]
async fn a_settlement_that_lands_late_changes_nothing() {
    let server = Redis::start().await;
    let terms = Terms {
        lease: Duration::from_millis(300),
        grace: Duration::from_millis(10),
        on_unknown: OnUnknown::Retry,
        ..Terms::default()
    };
    let failure = Failure { code: "late".into(), detail: "and wrong".into() };
    let late_words = [
        Transition::Renew,
        Transition::Complete(Recording::new("late and wrong")),
        Transition::Fail(failure),
        Transition::Release,
        Transition::Unknown(Cause::TimedOut),
        Transition::ExpireLease,
        Transition::Forget,
    ];
    let scripts = || -> u64 {
        let stats = server.cli(&["INFO", "commandstats"]);
        let of = |line: &str| {
            line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok()
        };
        stats.lines().find_map(of).unwrap_or_default()
    };
    for (transition, finishes) in late_words
        .into_iter()
        .flat_map(|transition| [(transition.clone(), false), (transition, true)])
    {
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        let options = RedisOptions { prefix: prefix(), ..RedisOptions::default() };
        let other = RedisStore::open(&server.url(), options.clone()).await.unwrap();
        let url = format!("redis://{}", proxy.address());
        let owner = RedisStore::open(&url, options).await.unwrap();
        let first = Claim { terms, ..claim_of("a") };
        let second = Claim { terms, ..claim_of("a") };
        until("the owner has the key", async || {
            matches!(claim(&owner, &first).await, Ok(Claimed::Granted { .. }))
                || load(&other, "a").await.unwrap().is_some_and(|it| it.attempt == first.attempt)
        })
        .await;
        proxy.set(Weather::Cut);
        let stuck = settle(&owner, &first, transition.clone()).await.unwrap_err();
        assert_eq!(stuck.kind(), StoreErrorKind::Indeterminate, "{stuck}");
        until("another attempt takes over", async || {
            matches!(claim(&other, &second).await, Ok(Claimed::Granted { .. }))
        })
        .await;
        if finishes {
            done(&other, &second, outcome()).await;
        }
        let (before, run) = (load(&other, "a").await.unwrap().unwrap(), scripts());
        proxy.set(Weather::Fair);
        until("the late settlement has landed", async || scripts() > run).await;
        let after = load(&other, "a").await.unwrap().unwrap();
        assert_eq!(*after, *before, "{transition:?}");
        assert_eq!(after.attempt, second.attempt);
    }
}
