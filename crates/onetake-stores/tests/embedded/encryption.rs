//! Tests of sealed recordings: the suite that every store passes, and what a thief can read.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use onetake_conformance::{Capabilities, Simulated, run, run_engine};
use onetake_core::store::{Answers, Due};
use onetake_core::{
    Answer, AttemptId, Begin, Cause, Claim, Claimed, Clock, Engine, Fingerprint, Key, Memo,
    MemoryStore, OnUnknown, Operation, Origin, Record, Recording, Scope, Settled, Settlement,
    Settling, State, Store, StoreErrorKind, TenantDigest, Terms, Transition, delegate_store,
};
use onetake_stores::{EmbeddedStore, EncryptionKey, SealedStore};

fn key(id: &str) -> EncryptionKey {
    let mut bytes = [7; 32];
    bytes.iter_mut().zip(id.bytes()).for_each(|(to, from)| *to = from);
    EncryptionKey::new(id, &bytes)
}

fn sealed(inner: impl Store, keys: &[&str]) -> SealedStore {
    SealedStore::around(Arc::new(inner), keys.iter().map(|id| key(id)).collect())
}

async fn fresh(keys: &'static [&'static str]) -> Simulated {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let open =
        move |clock: Arc<dyn Clock>| sealed(EmbeddedStore::open_with(&path, clock).unwrap(), keys);
    Simulated::new(|clock| (open(clock), Box::new(folder))).reopened_by(open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_recordings_are_encrypted() {
    run(|| fresh(&["k2", "k1"]), Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_recordings_are_compressed() {
    run(|| fresh(&[]), Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_whose_recordings_are_encrypted() {
    run_engine(|| fresh(&["k1"]), Capabilities::default()).await.assert_passed();
}

const CARD: &str = "4242424242424242";

fn operation(name: &str) -> Operation {
    let key = Key::new(format!("{name}-key-of-a-client")).unwrap();
    let tenant = "Bearer credential-of-a-client";
    Operation::new(&Scope::new(tenant), &key, Fingerprint::of(b"pay"))
}

fn outcome() -> Recording {
    let body = format!("{{\"charged\":\"{CARD}\"}}");
    Recording { head: format!("201 Location: /cards/{CARD}").into(), body: Some(body.into()) }
}

async fn pay(engine: &Engine, name: &str) {
    let Begin::Run(lease) = engine.begin(&operation(name)).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let settled = lease.complete(outcome()).await;
    let Settling::Recorded(record) = settled else { panic!("{settled:?}") };
    let State::Completed { recording, .. } = &record.state else { panic!("{record:?}") };
    assert_eq!(*recording, outcome());
}

/// Returns the answer of a node with these keys.
async fn replay(inner: &MemoryStore, keys: &[&str], name: &str) -> Result<Recording, String> {
    let engine = Engine::new(Arc::new(sealed(inner.clone(), keys)));
    match engine.begin(&operation(name)).await {
        Ok(Begin::Answer(Answer::Replay(record))) => match &record.state {
            State::Completed { recording, .. } => Ok(recording.clone()),
            other => panic!("{other:?}"),
        },
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn keys_are_rotated_while_records_live() {
    let store = MemoryStore::new();
    pay(&Engine::new(Arc::new(store.clone())), "plain").await;
    for (keys, name) in [(&["k1"][..], "first"), (&["k2", "k1"], "second")] {
        pay(&Engine::new(Arc::new(sealed(store.clone(), keys))), name).await;
    }
    for name in ["plain", "first", "second"] {
        assert_eq!(replay(&store, &["k2", "k1"], name).await.unwrap(), outcome());
        assert_eq!(replay(&store, &["k1", "k2"], name).await.unwrap(), outcome());
    }
    assert_eq!(replay(&store, &["k2"], "second").await.unwrap(), outcome());
    let gone = replay(&store, &["k2"], "first").await.unwrap_err();
    assert!(gone.contains("`k1`") && gone.contains("[secrets] encryption"), "{gone}");
}

/// A store that keeps no body, as DynamoDB does if the body is too large for it.
#[derive(Debug)]
struct WithoutBodies {
    inner: MemoryStore,
}

impl Store for WithoutBodies {
    fn settle(&self, mut batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        for settlement in &mut batch {
            if let Transition::Complete(recording) = &mut settlement.transition {
                recording.body = None;
            }
        }
        self.inner.settle(batch)
    }

    delegate_store!(self => self.inner; name, claim, load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for WithoutBodies, self => self.inner);

/// The first answer must be what every retry gets, and not what the caller recorded.
#[tokio::test]
async fn an_outcome_that_the_store_kept_in_part_is_answered_as_it_is_kept() {
    for keys in [&["k1"][..], &[]] {
        let engine =
            Engine::new(Arc::new(sealed(WithoutBodies { inner: MemoryStore::new() }, keys)));
        let Begin::Run(lease) = engine.begin(&operation("large")).await.unwrap() else { panic!() };
        lease.start().unwrap();
        let settled = lease.complete(outcome()).await;
        let Settling::Recorded(record) = settled else { panic!("{settled:?}") };
        let State::Completed { recording, .. } = &record.state else { panic!("{record:?}") };
        assert_eq!((&recording.head, &recording.body), (&outcome().head, &None));
    }
}

#[tokio::test]
async fn what_cannot_be_opened_is_not_absent_and_not_bypassed() {
    let store = MemoryStore::new();
    pay(&Engine::new(Arc::new(sealed(store.clone(), &["k1"]))), "paid").await;
    let engine = Engine::new(Arc::new(sealed(store.clone(), &["k2"])));
    let refused = engine.begin(&operation("paid")).await.unwrap_err();
    assert!(!refused.is_store_down(), "a fail-open route does not run it: {refused}");
    let found = sealed(store, &["k2"]).load(vec![operation("paid").id]).await.pop().unwrap();
    assert_eq!(found.unwrap_err().kind(), StoreErrorKind::Invalid);
}

/// Returns every file below a folder.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path))
        } else {
            all.push(std::fs::read(path).unwrap())
        }
    }
    all
}

#[tokio::test]
async fn a_stolen_folder_tells_nothing() {
    let secrets = [CARD, "credential-of-a-client", "key-of-a-client", "charged", "Location"];
    for (keys, is_found) in [(&["k1"][..], false), (&[], true)] {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path()).unwrap();
        let engine = Engine::new(Arc::new(sealed(store, keys)));
        pay(&engine, "stolen").await;
        engine.shutdown(std::time::Duration::from_secs(9)).await.unwrap();
        let files = files(folder.path());
        let holds = |text: &str| {
            files.iter().any(|file| file.windows(text.len()).any(|at| at == text.as_bytes()))
        };
        assert_eq!(holds(CARD), is_found, "the search finds what is there to be found");
        assert!(keys.is_empty() || !secrets.iter().any(|text| holds(text)));
    }
}

const MEMO: &str = "the key that the card network was given";

fn reconciled() -> Claim {
    let Operation { id, fingerprint, .. } = operation("reconciled");
    let origin = Origin::new(TenantDigest::default(), "POST /pay");
    Claim {
        id,
        attempt: AttemptId::from_bytes([1; 16]),
        fingerprint,
        terms: Terms { on_unknown: OnUnknown::Reconcile, ..Terms::default() },
        origin: origin.with_memo(Memo::new(MEMO).unwrap()),
    }
}

async fn settle(store: &dyn Store, claim: &Claim, transition: Transition) -> Settled {
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    store.settle(vec![settlement]).await.remove(0).unwrap()
}

/// Returns the record from a claim, a load, a successful settlement and a stale one.
async fn sights(store: &dyn Store, claim: &Claim) -> [Arc<Record>; 4] {
    let other = Claim { attempt: AttemptId::from_bytes([2; 16]), ..claim.clone() };
    let Claimed::Found { record: found, .. } =
        store.claim(vec![other.clone()]).await.remove(0).unwrap()
    else {
        panic!("it runs again");
    };
    let loaded = store.load(vec![claim.id]).await.remove(0).unwrap().unwrap();
    let Settled::Done { record: done, .. } =
        settle(store, claim, Transition::Unknown(Cause::TimedOut)).await
    else {
        panic!("stale");
    };
    let Settled::Stale { current: Some(stale) } = settle(store, &other, Transition::Release).await
    else {
        panic!("another attempt was believed");
    };
    [found, loaded, done, stale]
}

#[tokio::test]
async fn a_memo_is_opened_wherever_its_record_comes_back() {
    let claim = reconciled();
    for keys in [&["k1"][..], &[]] {
        let inner = MemoryStore::new();
        let store = sealed(inner.clone(), keys);
        assert!(matches!(
            store.claim(vec![claim.clone()]).await.remove(0),
            Ok(Claimed::Granted { .. })
        ));
        let kept = inner.load(vec![claim.id]).await.remove(0).unwrap().unwrap().origin.clone();
        let holds =
            |text: &str| kept.to_bytes().windows(text.len()).any(|at| at == text.as_bytes());
        assert_eq!(holds("card network"), keys.is_empty(), "what a thief finds");
        assert!(holds("POST /pay"), "the route is for operators");
        settle(&store, &claim, Transition::Unknown(Cause::TimedOut)).await;
        for record in sights(&store, &claim).await {
            assert_eq!(record.origin, claim.origin);
        }
    }
}

#[tokio::test]
async fn a_memo_whose_key_is_gone_hides_nothing_else() {
    let claim = reconciled();
    let inner = MemoryStore::new();
    sealed(inner.clone(), &["k1"]).claim(vec![claim.clone()]).await.remove(0).unwrap();
    let store = sealed(inner.clone(), &["k2"]);
    settle(&store, &claim, Transition::Unknown(Cause::TimedOut)).await;
    for record in sights(&store, &claim).await {
        assert_eq!(record.state.name(), "unknown");
        assert_eq!(record.origin, claim.origin.clone().with_memo(Memo::default()));
    }
    assert_eq!(
        store.due(Due::Reconcile, 9).await.unwrap().len(),
        1,
        "it is still somebody's to settle"
    );
    let Settled::Done { record, .. } =
        settle(&store, &claim, Transition::Complete(outcome())).await
    else {
        panic!("stale");
    };
    assert_eq!(record.state.name(), "completed");
    let whole = sealed(inner, &["k2", "k1"]).load(vec![claim.id]).await.remove(0).unwrap();
    assert_eq!(whole.unwrap().origin, claim.origin, "nothing of it was lost");
}

#[tokio::test]
async fn what_is_written_past_the_store_is_what_the_store_would_have_written() {
    let claim = reconciled();
    for keys in [&["k1"][..], &[]] {
        let inner = MemoryStore::new();
        let store = sealed(inner.clone(), keys);
        store.claim(vec![claim.clone()]).await.remove(0).unwrap();
        let sealer = store.sealer();
        let by_hand = sealer.seal(claim.id, claim.attempt, &outcome()).unwrap();
        assert_eq!(by_hand, sealer.seal(claim.id, claim.attempt, &outcome()).unwrap());
        settle(&inner, &claim, Transition::Complete(by_hand.clone())).await;
        let again = settle(&store, &claim, Transition::Complete(outcome())).await;
        let Settled::Done { record, .. } = again else { panic!("it is not recognised") };
        let State::Completed { recording, .. } = &record.state else { panic!("{record:?}") };
        assert_eq!(*recording, outcome());
        assert_eq!(sealer.open(claim.id, claim.attempt, &by_hand).unwrap(), outcome());
        let other = AttemptId::from_bytes([9; 16]);
        let refused = sealer.open(claim.id, other, &by_hand);
        assert_eq!(refused.is_err(), !keys.is_empty(), "{refused:?}");
    }
}
