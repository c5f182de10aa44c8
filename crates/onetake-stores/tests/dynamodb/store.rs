//! Tests of the DynamoDB store: the suite that every store passes, and tests of its own properties:
//! no server clock, small items, tables of another shape.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, DeleteGlobalSecondaryIndexAction,
    GlobalSecondaryIndexUpdate, KeySchemaElement, KeyType, ScalarAttributeType,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{Capabilities, Subject, many, run, run_engine};
use onetake_core::decide::{self, Contact, Moment, Reading};
use onetake_core::store::{Due, DueAttempt, RecordIndex};
use onetake_core::{
    AttemptId, Cause, Claim, Claimed, Clock, Failure, Fence, Fingerprint, Key, ManualClock,
    OnUnknown, Record, RecordId, Recording, Scope, Settled, Settlement, State, Store, StoreError,
    StoreErrorKind, Terms, Timestamp, Transition,
};
use onetake_sim::servers::Dynamo;
use onetake_stores::dynamodb::{RECORDING_BYTES_MAX, TableChange};
use onetake_stores::{DynamoOptions, DynamoStore, Weight};

const START: Timestamp = Timestamp::from_micros(1_893_456_000_000_000);

/// A store on a simulated clock. The reaper searches before time passes, as it does every second.
struct Watched {
    clock: ManualClock,
    store: Arc<DynamoStore>,
    url: String,
}

impl Subject for Watched {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        async move {
            self.store.due(Due::LeaseEnd, usize::MAX).await.unwrap();
            self.clock.advance(by);
        }
        .boxed()
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        async move {
            let store = DynamoStore::open(&self.url, on(&self.clock)).await.unwrap();
            Some(Arc::new(store) as Arc<dyn Store>)
        }
        .boxed()
    }
}

/// Options with this clock, without a margin, and with timeouts that a manual clock does not reach.
fn on(clock: &ManualClock) -> DynamoOptions {
    DynamoOptions {
        clock: Arc::new(clock.clone()),
        skew_margin: Duration::ZERO,
        connect_timeout: Duration::from_secs(1 << 30),
        command_timeout: Duration::from_secs(1 << 30),
        ..DynamoOptions::default()
    }
}

async fn migrate(url: &str) -> TableChange {
    DynamoStore::migrate(url, DynamoOptions::default()).await.unwrap()
}

async fn fresh(server: &Dynamo) -> Watched {
    let (url, clock) = (server.table(), ManualClock::default());
    assert_eq!(migrate(&url).await, TableChange::Created);
    let store = Arc::new(DynamoStore::open(&url, on(&clock)).await.unwrap());
    Watched { clock, store, url }
}

fn capabilities() -> Capabilities {
    Capabilities { body_bytes_max: 400_000, sweeps: false, ..Capabilities::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb_store() {
    let server = Dynamo::start().await;
    run(|| fresh(&server), capabilities()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_dynamodb_store() {
    let server = Dynamo::start().await;
    run_engine(|| fresh(&server), capabilities()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_from_four_nodes() {
    let server = Dynamo::start().await;
    let url = server.table();
    migrate(&url).await;
    let mut nodes: Vec<Arc<dyn Store>> = Vec::new();
    let patience = Duration::from_secs(60);
    let options = DynamoOptions {
        connect_timeout: patience,
        command_timeout: patience,
        ..DynamoOptions::default()
    };
    for _ in 0..4 {
        let store = DynamoStore::open(&url, options.clone()).await.unwrap();
        nodes.push(Arc::new(store));
    }
    many::overlapping_batches(nodes, 64, Duration::from_secs(3), 100).await;
}

fn claim(key: &str, attempt: u8) -> Claim {
    Claim {
        id: RecordId::derive(&Scope::new("t"), &Key::new(key).unwrap()),
        attempt: AttemptId::from_bytes([attempt; 16]),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

async fn ask(store: &DynamoStore, claim: &Claim) -> Result<Claimed, StoreError> {
    store.claim(vec![claim.clone()]).await.remove(0)
}

async fn granted(store: &DynamoStore, claim: &Claim) -> Fence {
    match ask(store, claim).await.unwrap() {
        Claimed::Granted { fence } => fence,
        Claimed::Found { record, .. } => panic!("found {}", record.state.name()),
    }
}

/// Claims a key that must have a record. Returns also the reading of the record.
async fn found(store: &DynamoStore, claim: &Claim) -> (Arc<Record>, Reading) {
    match ask(store, claim).await.unwrap() {
        Claimed::Granted { .. } => panic!("granted"),
        Claimed::Found { record, now } => {
            // As the engine reads it: a record that the store leaves to its owner is in flight.
            let at = Moment { now, contact: Contact::Unknown };
            let reading = decide::read(Some(&record), &claim.fingerprint, at);
            (record, reading)
        }
    }
}

async fn settle(
    store: &DynamoStore,
    claim: &Claim,
    transition: Transition,
) -> Result<Settled, StoreError> {
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    store.settle(vec![settlement]).await.remove(0)
}

async fn done(store: &DynamoStore, claim: &Claim, transition: Transition) -> Arc<Record> {
    match settle(store, claim, transition).await.unwrap() {
        Settled::Done { record, .. } => record,
        Settled::Stale { current } => panic!("stale: {current:?}"),
    }
}

async fn load(store: &DynamoStore, claim: &Claim) -> Option<Arc<Record>> {
    store.load(vec![claim.id]).await.remove(0).unwrap()
}

fn recording(record: &Record) -> &Recording {
    match &record.state {
        State::Completed { recording, .. } => recording,
        other => panic!("{}", other.name()),
    }
}

fn later(offset: Duration) -> ManualClock {
    ManualClock::new(START.plus(offset))
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Creates a table and nodes on it, each with a clock that is ahead by its offset.
async fn nodes(server: &Dynamo, offsets: &[Duration], margin: Duration) -> Vec<Watched> {
    let url = server.table();
    migrate(&url).await;
    let mut nodes = Vec::new();
    for offset in offsets {
        let clock = later(*offset);
        let options = DynamoOptions { skew_margin: margin, ..on(&clock) };
        let store = Arc::new(DynamoStore::open(&url, options).await.unwrap());
        nodes.push(Watched { clock, store, url: url.clone() });
    }
    nodes
}

async fn pass(nodes: &[Watched], by: Duration) {
    for node in nodes {
        node.advance(by).await;
    }
}

#[tokio::test]
async fn a_key_is_reusable_a_margin_after_it_expired() {
    let server = Dynamo::start().await;
    let nodes = nodes(&server, &[seconds(0)], seconds(600)).await;
    let (store, clock, key) = (&nodes[0].store, &nodes[0].clock, claim("a", 1));
    let fence = granted(store, &key).await;
    done(store, &key, Transition::Complete(Recording::new("paid"))).await;
    for wait in [seconds(24 * 3600 - 1), seconds(1), seconds(599)] {
        clock.advance(wait);
        let (_, reading) = found(store, &claim("a", 2)).await;
        assert_eq!(reading, Reading::Settled, "the caller reads it as the store does");
        assert!(load(store, &key).await.is_some());
        assert_eq!(
            done(store, &key, Transition::Complete(Recording::new("paid"))).await.fence,
            fence
        );
    }
    clock.advance(seconds(1));
    assert!(load(store, &key).await.is_none());
    assert!(granted(store, &claim("a", 3)).await > fence);
}

#[tokio::test]
async fn nodes_whose_clocks_differ_never_both_run() {
    let server = Dynamo::start().await;
    // As far apart as AWS permits, with the default margin for it.
    let margin = DynamoOptions::default().skew_margin;
    assert_eq!(margin, seconds(600));
    let nodes = nodes(&server, &[seconds(0), seconds(600)], margin).await;
    let (behind, ahead) = (&nodes[0].store, &nodes[1].store);
    let retry = Terms { on_unknown: OnUnknown::Retry, ..Terms::default() };
    let runs = Claim { terms: retry, ..claim("runs", 1) };
    granted(behind, &runs).await;
    let once = claim("once", 2);
    granted(behind, &once).await;
    done(behind, &once, Transition::Complete(Recording::new("paid"))).await;

    // By the clock that is ahead, lease and grace had ended before its first read.
    for _ in 0..59 {
        assert_eq!(found(ahead, &claim("runs", 3)).await.1, Reading::InFlight);
        assert_eq!(ahead.due(Due::LeaseEnd, 10).await.unwrap(), []);
        pass(&nodes, seconds(1)).await;
    }
    assert!(matches!(
        settle(ahead, &runs, Transition::ExpireLease).await.unwrap(),
        Settled::Stale { .. }
    ));
    pass(&nodes, seconds(1)).await;
    assert_eq!(ahead.due(Due::LeaseEnd, 10).await.unwrap().len(), 1);
    granted(ahead, &claim("runs", 3)).await;
    let late = settle(behind, &runs, Transition::Complete(Recording::new("late"))).await.unwrap();
    assert!(matches!(late, Settled::Stale { .. }), "{late:?}");

    // A day after the claim, both nodes still know the key; then it is free for both.
    pass(&nodes, seconds(24 * 3600 - 61)).await;
    for store in [behind, ahead] {
        assert_eq!(found(store, &claim("once", 4)).await.1, Reading::Settled);
    }
    pass(&nodes, seconds(1)).await;
    granted(ahead, &claim("once", 5)).await;
    assert_eq!(found(behind, &claim("once", 6)).await.1, Reading::InFlight);
}

#[tokio::test]
async fn an_owner_that_renews_is_never_preempted() {
    let server = Dynamo::start().await;
    let nodes = nodes(&server, &[seconds(600), seconds(0)], seconds(0)).await;
    let (owner, watcher) = (&nodes[0].store, &nodes[1].store);
    let runs = Claim {
        terms: Terms { on_unknown: OnUnknown::Retry, ..Terms::default() },
        ..claim("a", 1)
    };
    granted(owner, &runs).await;
    // Three times lease and grace.
    for second in 0..180 {
        if second % 29 == 0 {
            done(owner, &runs, Transition::Renew).await;
        }
        if second % 7 == 0 {
            assert_eq!(found(watcher, &claim("a", 2)).await.1, Reading::InFlight);
        }
        assert_eq!(watcher.due(Due::LeaseEnd, 10).await.unwrap(), []);
        pass(&nodes, seconds(1)).await;
    }
    done(owner, &runs, Transition::Complete(Recording::new("x"))).await;
}

#[tokio::test]
async fn a_node_that_just_started_watches_first() {
    let server = Dynamo::start().await;
    let (url, clock) = (server.table(), ManualClock::default());
    migrate(&url).await;
    let owner = DynamoStore::open(&url, on(&clock)).await.unwrap();
    let runs = claim("a", 1);
    granted(&owner, &runs).await;
    drop(owner);
    clock.advance(seconds(3600));
    let node = DynamoStore::open(&url, on(&clock)).await.unwrap();
    assert_eq!(found(&node, &claim("a", 2)).await.1, Reading::InFlight);
    clock.advance(seconds(59));
    assert_eq!(node.due(Due::LeaseEnd, 10).await.unwrap(), []);
    assert_eq!(found(&node, &claim("a", 2)).await.1, Reading::InFlight);
    clock.advance(seconds(1));
    assert_eq!(found(&node, &claim("a", 2)).await.0.state.name(), "unknown");
    let late = done(&node, &runs, Transition::Complete(Recording::new("late, but true"))).await;
    assert_eq!(late.state.name(), "completed", "its owner is believed all the same");
}

#[tokio::test]
async fn a_late_owner_does_not_write_over_what_was_settled_meanwhile() {
    let server = Dynamo::start().await;
    let nodes = nodes(&server, &[seconds(0), seconds(0)], seconds(0)).await;
    let (owner, other) = (&nodes[0].store, &nodes[1].store);
    let runs = claim("a", 1);
    granted(owner, &runs).await;
    pass(&nodes, seconds(60)).await;
    done(other, &runs, Transition::ExpireLease).await;
    // An operator settles the same attempt. Its owner still has the claimed item in memory.
    let resolved = done(other, &runs, Transition::Complete(Recording::new("by an operator"))).await;
    for transition in [
        Transition::Renew,
        Transition::Complete(Recording::new("by its owner")),
        Transition::Release,
    ] {
        let late = settle(owner, &runs, transition).await.unwrap();
        let Settled::Stale { current } = late else { panic!("{late:?} (S4)") };
        assert_eq!(current, Some(Arc::clone(&resolved)));
    }
    assert_eq!(load(owner, &runs).await, Some(resolved));
}

#[tokio::test]
async fn items_of_one_key_are_done_in_their_order() {
    let server = Dynamo::start().await;
    let Watched { store, .. } = fresh(&server).await;
    for round in 0..10 {
        let key = format!("key {round}");
        let claims: Vec<Claim> = (1..9).map(|attempt| claim(&key, attempt)).collect();
        let answers = store.claim(claims.clone()).await;
        assert!(matches!(answers[0], Ok(Claimed::Granted { .. })), "the first one runs");
        let verbs = [
            Transition::Renew,
            Transition::Fail(declined()),
            Transition::Complete(Recording::new("late")),
        ];
        let settlement =
            |transition| Settlement { id: claims[0].id, attempt: claims[0].attempt, transition };
        let answers = store.settle(verbs.map(settlement).into()).await;
        let settled = |answer: &Result<Settled, _>| matches!(answer, Ok(Settled::Done { .. }));
        assert_eq!(answers.iter().map(settled).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(load(&store, &claims[0]).await.unwrap().state.name(), "failed");
    }
}

fn declined() -> Failure {
    Failure { code: "declined".into(), detail: "the card was declined".into() }
}

/// Starts this test program without an environment, to run one of its own tests alone.
#[test]
fn without_credentials_the_fix_is_named() {
    let program = std::env::current_exe().unwrap();
    let mut part = std::process::Command::new(program);
    part.args(["--exact", "store::a_part_without_credentials", "--nocapture"]);
    part.env_clear()
        .env(PART, "1")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("HOME", "/nowhere");
    let output = part.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const PART: &str = "ONETAKE_TEST_DYNAMODB_PART";

/// A part of [`without_credentials_the_fix_is_named`], which starts it. It is not a test by itself.
#[tokio::test]
async fn a_part_without_credentials() {
    if std::env::var_os(PART).is_none() {
        return;
    }
    let url = "dynamodb://eu-central-1/onetake";
    let error = DynamoStore::open(url, DynamoOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert!(error.to_string().contains("set AWS_ACCESS_KEY_ID"), "{error}");
}

#[tokio::test]
async fn a_recording_that_does_not_fit_is_kept_as_not_replayable() {
    let server = Dynamo::start().await;
    let Watched { store, .. } = fresh(&server).await;
    let most = RECORDING_BYTES_MAX;
    for (key, head, body, kept) in [
        ("most", 500, most - 500, (500, Some(most - 500))),
        ("one more", 500, most - 499, (500, None)),
        ("much more", 500, 5 << 20, (500, None)),
        ("a head", most, 1, (most, None)),
        ("no head", most + 1, 0, (0, None)),
    ] {
        let claim = claim(key, 1);
        granted(&store, &claim).await;
        let whole = Recording { head: vec![1; head].into(), body: Some(vec![2; body].into()) };
        let first = done(&store, &claim, Transition::Complete(whole.clone())).await;
        let seen = (recording(&first).head.len(), recording(&first).body.as_ref().map(|b| b.len()));
        assert_eq!(seen, kept, "{key}");
        let again = done(&store, &claim, Transition::Complete(whole)).await;
        assert_eq!(again, first, "{key}: sent again, it is its own success");
        let (record, reading) = found(&store, &self::claim(key, 2)).await;
        assert_eq!(reading, Reading::Settled, "{key}: it is never run again");
        assert_eq!(record, first);
    }
}

#[tokio::test]
async fn an_item_that_cannot_be_read_is_its_own_keys_trouble_alone() {
    let server = Dynamo::start().await;
    let url = server.table();
    migrate(&url).await;
    let clock = ManualClock::default();
    let store = DynamoStore::open(&url, on(&clock)).await.unwrap();
    let (good, bad) = (claim("good", 1), claim("bad", 2));
    granted(&store, &good).await;
    let blob = |bytes: &[u8]| AttributeValue::B(Blob::new(bytes));
    let put = client(&server).put_item().table_name("onetake_0");
    let put = put.item("id", blob(bad.id.as_bytes())).item("w", AttributeValue::N("3".into()));
    put.item("r", blob(b"garbage")).send().await.unwrap();
    let answers = store.claim(vec![bad.clone(), claim("new", 3), claim("good", 4)]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), StoreErrorKind::Invalid);
    assert!(matches!(answers[1], Ok(Claimed::Granted { .. })));
    assert!(matches!(answers[2], Ok(Claimed::Found { .. })));
    let loaded = store.load(vec![good.id, bad.id, good.id]).await;
    assert_eq!(loaded[1].as_ref().unwrap_err().kind(), StoreErrorKind::Invalid);
    assert!(loaded[0].as_ref().unwrap().is_some() && loaded[2].as_ref().unwrap().is_some());
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap(), []);
    clock.advance(seconds(60));
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap().len(), 2, "the others are found");
}

fn client(server: &Dynamo) -> Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(format!("http://{}", server.address()))
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("x", "x", None, None, "test"));
    Client::from_conf(config.build())
}

/// Creates a table of another shape.
async fn foreign(server: &Dynamo, table: &str, key: &str, kind: ScalarAttributeType) {
    let definition = AttributeDefinition::builder().attribute_name(key).attribute_type(kind);
    let schema = KeySchemaElement::builder().attribute_name(key).key_type(KeyType::Hash);
    let create = client(server).create_table().table_name(table);
    create
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(definition.build().unwrap())
        .key_schema(schema.build().unwrap())
        .send()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused_by_all() {
    let server = Dynamo::start().await;
    let options = DynamoOptions::default;
    for (table, key, kind, why) in [
        ("songs", "pk", ScalarAttributeType::S, "the key is pk (S) instead of id (B)"),
        ("texts", "id", ScalarAttributeType::S, "the key is id (S) instead of id (B)"),
        ("plain", "id", ScalarAttributeType::B, "the index `running` is missing"),
    ] {
        foreign(&server, table, key, kind).await;
        let url = server.url_at(server.address(), table);
        let opened = DynamoStore::open(&url, options()).await.unwrap_err();
        let migrated = DynamoStore::migrate(&url, options()).await.unwrap_err();
        for error in [opened, migrated] {
            assert_eq!(error.kind(), StoreErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}

#[tokio::test]
async fn a_missing_table_names_the_fix_and_migrate_makes_it_once() {
    let server = Dynamo::start().await;
    let url = server.table();
    let error = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert!(error.to_string().contains("run `onetake migrate`"), "{error}");
    assert_eq!(migrate(&url).await, TableChange::Created);
    assert_eq!(migrate(&url).await, TableChange::Nothing);
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    granted(&store, &claim("a", 1)).await;
    assert_eq!(migrate(&url).await, TableChange::Nothing);
    assert!(load(&store, &claim("a", 1)).await.is_some(), "nothing is lost");
}

#[tokio::test]
async fn indexes_that_an_earlier_version_did_without_are_added() {
    let server = Dynamo::start().await;
    let url = server.table();
    migrate(&url).await;
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    granted(&store, &claim("a", 1)).await;
    let unknown = to_be_reconciled("unknown", 1);
    granted(&store, &unknown).await;
    done(&store, &unknown, Transition::Unknown(Cause::TimedOut)).await;
    for index in ["found", "asks"] {
        let delete = DeleteGlobalSecondaryIndexAction::builder().index_name(index).build().unwrap();
        let update = GlobalSecondaryIndexUpdate::builder().delete(delete).build();
        let table = client(&server).update_table().table_name("onetake_0");
        table.global_secondary_index_updates(update).send().await.unwrap();
    }

    let error = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    let what = error.to_string();
    assert!(what.contains("no index `found`") && what.contains("run `onetake migrate`"), "{what}");
    let diagnosis = store.diagnose().await.unwrap();
    assert_eq!(diagnosis.worst(), Weight::Broken, "{diagnosis:?}");
    let lacking = diagnosis.findings.iter().filter(|found| found.fix.contains("onetake migrate"));
    assert_eq!(lacking.count(), 2, "{diagnosis:?}");
    granted(&store, &claim("b", 1)).await;

    assert_eq!(migrate(&url).await, TableChange::IndexAdded);
    assert_eq!(migrate(&url).await, TableChange::Nothing);
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    for key in ["a", "b"] {
        let id = claim(key, 1).id;
        assert_eq!(store.find(id.reference()).await.unwrap(), [id], "{key} is in it");
    }
    assert_eq!(
        store.due(Due::Reconcile, 9).await.unwrap(),
        [named(&unknown)],
        "and so is what is unknown"
    );
}

fn to_be_reconciled(key: &str, attempt: u8) -> Claim {
    let terms = Terms { on_unknown: OnUnknown::Reconcile, ..Terms::default() };
    Claim { terms, ..claim(key, attempt) }
}

fn named(claim: &Claim) -> DueAttempt {
    DueAttempt { id: claim.id, attempt: claim.attempt }
}

#[tokio::test]
async fn of_many_nodes_that_would_ask_at_the_same_moment_one_does() {
    let server = Dynamo::start().await;
    let nodes = nodes(&server, &[Duration::ZERO; 8], Duration::ZERO).await;
    for key in ["a", "b", "c", "d"] {
        let this = to_be_reconciled(key, 1);
        granted(&nodes[0].store, &this).await;
        done(&nodes[0].store, &this, Transition::Unknown(Cause::TimedOut)).await;
        // All of them replace the same item with the same content.
        let asks = nodes
            .iter()
            .map(|node| settle(&node.store, &this, Transition::PostponeReconcile(seconds(5))));
        let answers = futures_util::future::join_all(asks).await;
        let asking = answers.iter().filter(|answer| matches!(answer, Ok(Settled::Done { .. })));
        assert!(asking.count() <= 1, "{answers:?}");
        let record = load(&nodes[0].store, &this).await.unwrap();
        assert!(record.ask_at().unwrap() > nodes[0].clock.now(), "somebody asks");
    }
}

#[tokio::test]
async fn what_is_due_is_due_by_the_clock_of_who_asks() {
    let server = Dynamo::start().await;
    let nodes = nodes(&server, &[seconds(60), seconds(0)], seconds(3_600)).await;
    let [ahead, behind] = nodes.as_slice() else { panic!("two nodes") };
    let this = to_be_reconciled("a", 1);
    granted(&ahead.store, &this).await;
    done(&ahead.store, &this, Transition::Unknown(Cause::TimedOut)).await;
    assert_eq!(ahead.store.due(Due::Reconcile, 9).await.unwrap(), [named(&this)]);
    assert!(behind.store.due(Due::Reconcile, 9).await.unwrap().is_empty(), "it asks later");
    let early =
        settle(&behind.store, &this, Transition::PostponeReconcile(seconds(5))).await.unwrap();
    assert!(matches!(early, Settled::Stale { .. }), "{early:?}");
    // A node that knows the outcome can settle it, whatever its clock.
    done(&behind.store, &this, Transition::Complete(Recording::new("found"))).await;
    assert!(ahead.store.due(Due::Reconcile, 9).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_forgotten_is_gone_at_once_by_any_clock() {
    let server = Dynamo::start().await;
    // The second node is behind, and on both a key is not reusable for an hour after its expiry.
    let nodes = nodes(&server, &[seconds(60), seconds(0)], seconds(3_600)).await;
    let [ahead, behind] = nodes.as_slice() else { panic!("two nodes") };
    let this = claim("a", 1);
    let fence = granted(&ahead.store, &this).await;
    let transition = Transition::Complete(Recording::new("a secret"));
    done(&ahead.store, &this, transition).await;
    done(&ahead.store, &this, Transition::Forget).await;
    for node in [ahead, behind] {
        assert!(load(&node.store, &this).await.is_none());
        let again = settle(&node.store, &this, Transition::Forget).await.unwrap();
        assert!(matches!(again, Settled::Stale { .. }), "{again:?}");
    }
    let other = Claim { fingerprint: Fingerprint::of(b"something else"), ..claim("a", 2) };
    assert!(granted(&behind.store, &other).await > fence);
}

#[tokio::test]
async fn the_doctor_looks_at_table_ttl_and_clock() {
    let server = Dynamo::start().await;
    let url = server.table();
    migrate(&url).await;
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    store.ready().await.unwrap();
    let diagnosis = store.diagnose().await.unwrap();
    assert!(diagnosis.server.starts_with("DynamoDB in eu-central-1 at http://"), "{diagnosis:?}");
    assert_eq!(diagnosis.worst(), Weight::Fine, "{diagnosis:?}");
    assert!(diagnosis.round_trip > Duration::ZERO);
    assert!(diagnosis.clock_ahead_micros.unwrap().abs() < 10_000_000, "{diagnosis:?}");
}
