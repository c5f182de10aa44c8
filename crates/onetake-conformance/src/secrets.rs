//! Secrets that are created at their first use.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;

use super::bench::{Bench, outcome};
use onetake_core::store::{Due, Store};

async fn secret(store: &Arc<dyn Store>, name: &'static str, fresh: u8) -> [u8; 32] {
    store.secret(name, [fresh; 32]).await.expect("the store answers")
}

pub(super) async fn the_first_is_kept(bench: &Bench) {
    let store = &bench.store;
    assert_eq!(secret(store, "one", 1).await, [1; 32], "there was none");
    assert_eq!(secret(store, "one", 2).await, [1; 32], "it was told, so it stays");
    assert_eq!(secret(store, "other", 3).await, [3; 32], "another name is another secret");
    assert_eq!(
        bench.store.due(Due::LeaseEnd, 10).await.expect("the store answers"),
        [],
        "it is no record"
    );
    // A sweep that deletes a record, long after the secrets were created.
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    bench.done(&claim, outcome("x")).await;
    bench.pass_just_over(1_000).await;
    assert_eq!(bench.sweep(10).await.removed, usize::from(bench.can.sweeps), "records alone");
    for (name, made) in [("one", 1), ("other", 3)] {
        assert_eq!(secret(store, name, 4).await, [made; 32], "{name}: it was swept");
    }
    if let Some(again) = bench.reopen().await {
        for (name, made) in [("one", 1), ("other", 3)] {
            assert_eq!(secret(&again, name, 5).await, [made; 32], "{name}: it was not durable");
        }
        again.close().await.expect("the store closes");
    }
}

pub(super) async fn many_at_once_are_told_the_same(bench: &Bench) {
    for name in ["a", "b", "c", "d", "e"] {
        let tasks = (0..bench.can.tasks).map(|task| {
            let (store, fresh) = (Arc::clone(&bench.store), u8::try_from(task % 256).unwrap());
            tokio::spawn(async move { secret(&store, name, fresh).await })
        });
        let told = join_all(tasks).await.into_iter().map(Result::unwrap);
        let told: HashSet<[u8; 32]> = told.collect();
        assert_eq!(told.len(), 1, "{name}: so many different secrets were told");
    }
}
