//! `onetake relay` as processes: killed, cut off from the broker, and operated.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../../../onetake/examples/consumer.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "its `main` is not called here")]
mod consumer;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{Config, Stream};
use futures_util::StreamExt;
use onetake_core::{Clock, SystemClock};
use onetake_sim::servers::{Nats, Postgres, until};
use tempfile::TempDir;

/// A database with an outbox, a broker, and the configuration of relays between them.
struct World {
    postgres: &'static Postgres,
    database: String,
    nats: Nats,
    folder: TempDir,
}

/// A relay as a process; killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

fn onetake(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onetake")).args(arguments).output().unwrap()
}

impl World {
    async fn start(settings: &[&str]) -> Self {
        let (postgres, nats) = (Postgres::shared().await, Nats::start_with(settings).await);
        let folder = tempfile::tempdir().unwrap();
        let url = postgres.database();
        let database = url.rsplit_once('/').unwrap().1.to_owned();
        let text = format!(
            "[store]\nurl = \"{url}\"\n[relay]\nsink = \"{}\"\nsubject_prefix = \"test.\"\nhold = \"3s\"\n\
             poll = \"10ms\"\ntimeout = \"1s\"\nbackoff_max = \"200ms\"\n",
            nats.url()
        );
        std::fs::write(folder.path().join("relay.toml"), text).unwrap();
        let migrated = onetake(&["migrate", "--store", &url]);
        assert!(migrated.status.success(), "{migrated:?}");
        Self { postgres, database, nats, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("relay.toml")
    }

    fn relay(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.args(["relay", "--config"]).arg(self.file());
        command.env("ONETAKE_LOG", "error").stdout(Stdio::null());
        Process(command.spawn().unwrap())
    }

    fn operate(&self, arguments: &[&str]) -> (i32, String) {
        let file = self.file();
        let all = [&["relay"], arguments, &["--config", file.to_str().unwrap()]].concat();
        let output = onetake(&all);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(said).unwrap())
    }

    async fn stream(&self) -> Stream {
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        let subjects = vec!["test.>".to_owned()];
        let config = Config { name: "T".to_owned(), subjects, ..Config::default() };
        async_nats::jetstream::new(client).create_stream(config).await.unwrap()
    }

    /// Writes messages `key/number/…`, as an operation's transaction does.
    fn write(&self, keys: Range<u32>, numbers: Range<u32>, bytes: usize) {
        self.sql(&format!(
            "INSERT INTO onetake_outbox (message, lane, ordering, topic, headers, payload, created_at, state_at)
             SELECT decode(md5(random()::text), 'hex'),
                    get_byte(sha256(convert_to('key ' || key, 'UTF8')), 0) % 64, 'key ' || key, 'paid', '',
                    convert_to(key || '/' || number || '/' || repeat('x', {bytes}), 'UTF8'), now, now
               FROM generate_series({}, {}) AS number, generate_series({}, {}) AS key,
                    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS clock
              ORDER BY number, key",
            numbers.start,
            numbers.end - 1,
            keys.start,
            keys.end - 1,
        ));
    }

    fn sql(&self, sql: &str) -> String {
        self.postgres.sql(&self.database, sql)
    }

    /// Waits until everything is delivered, as long as there is progress.
    async fn drained(&self) {
        let sql = "SELECT count(*) FROM onetake_outbox WHERE state NOT IN (1, 2)";
        let waiting = || self.sql(sql).parse::<u64>().unwrap();
        let mut left = waiting();
        while left > 0 {
            until("more is delivered", async || waiting() < left).await;
            left = waiting();
        }
    }
}

/// The messages that a stream keeps, by key, without duplicates.
async fn kept(stream: &Stream) -> HashMap<u32, Vec<u32>> {
    let count = stream.get_info().await.unwrap().state.messages;
    let consumer = stream.create_consumer(OrderedConfig::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap().take(usize::try_from(count).unwrap());
    let (mut seen, mut kept) = (HashSet::new(), HashMap::<u32, Vec<u32>>::new());
    while let Some(message) = messages.next().await {
        let message = message.unwrap();
        let id = message.headers.as_ref().unwrap().get("Nats-Msg-Id").unwrap().to_string();
        if seen.insert(id) {
            let text = std::str::from_utf8(&message.payload).unwrap();
            let mut parts = text.split('/').map(|part| part.parse::<u32>());
            let (key, number) = (parts.next().unwrap().unwrap(), parts.next().unwrap().unwrap());
            kept.entry(key).or_default().push(number);
        }
    }
    kept
}

/// Consumers of a stream, as in the example. They end with the test.
async fn consumers(world: &World) -> Vec<AbortOnDrop> {
    let database = world.postgres.url(&world.database);
    consumer::prepare(&database).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..2 {
        let bookkeeper = consumer::Bookkeeper::new(&database).await.unwrap();
        let nats = world.nats.url();
        let consume = async move {
            loop {
                // The broker is killed, too.
                if bookkeeper.consume(&nats, "T").await.is_err() {
                    SystemClock.sleep(Duration::from_millis(50)).await;
                }
            }
        };
        all.push(AbortOnDrop(tokio::spawn(consume)));
    }
    all
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_a_hundred_times_under_load() {
    const KILLS: u32 = 100;
    const KEYS: u32 = 40;
    let mut world = World::start(&[]).await;
    let stream = world.stream().await;
    let _consumers = consumers(&world).await;
    let mut relays = vec![world.relay(), world.relay(), world.relay()];
    let mut seen = 0;
    for kill in 0..KILLS {
        let delivered = || {
            let count = world.sql("SELECT count(*) FROM onetake_outbox WHERE state = 1");
            count.parse::<u32>().unwrap()
        };
        world.write(0..KEYS, kill..kill + 1, 0);
        // There must be progress every few kills, or the relays would only be killed while idle.
        if kill % 20 == 19 {
            until("they work", async || delivered() > seen).await;
            seen = delivered();
        }
        if kill == KILLS / 2 {
            world.nats.kill();
        }
        if kill == KILLS / 2 + 8 {
            world.nats.restart().await;
        }
        // The oldest relay had time to start. Dropping it is SIGKILL.
        drop(relays.remove(0));
        relays.push(world.relay());
    }
    world.drained().await;
    let kept = kept(&stream).await;
    assert_eq!(kept.len(), KEYS as usize);
    for (key, numbers) in kept {
        assert_eq!(numbers, (0..KILLS).collect::<Vec<_>>(), "key {key}: each, in order");
    }
    let entered = "SELECT count(*) FROM ledger";
    let all = (KILLS * KEYS).to_string();
    until("everything is consumed", async || world.sql(entered) == all).await;
    let twice = "SELECT count(*) - count(DISTINCT message) FROM ledger";
    assert_eq!(world.sql(twice), "0", "at least once became one effect each");
    let parked = "SELECT count(*) FROM onetake_outbox WHERE state = 2";
    assert_eq!(world.sql(parked), "0", "nobody's outage is a message's fault");
    // On SIGTERM it drains and exits with success.
    let mut last = relays.remove(0);
    let id = i32::try_from(last.0.id()).unwrap();
    let id = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(last.0.wait().unwrap().success());
}

/// The peak memory of a process, in KiB.
fn memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_costs_neither_writers_nor_memory() {
    let mut world = World::start(&[]).await;
    let stream = world.stream().await;
    let relay = world.relay();
    world.write(0..10, 0..1, 0);
    world.drained().await;
    world.nats.kill();
    let clock = SystemClock;
    let before = clock.monotonic();
    // Two hundred megabytes.
    world.write(0..40, 1..321, 16 << 10);
    let took = clock.monotonic() - before;
    println!("written in {took:?}");
    let turns = || world.sql("SELECT last_value FROM onetake_turns").parse::<u64>().unwrap();
    let before = turns();
    until("it is tried meanwhile", async || turns() > before + 10).await;
    world.nats.restart().await;
    world.drained().await;
    let most = memory(&relay);
    println!("the relay had at most {most} KiB");
    assert!(most < 110 << 10, "{most} KiB for a backlog of 200 MiB");
    let kept = kept(&stream).await;
    assert!(kept.iter().all(|(key, numbers)| {
        let from = if *key < 10 { 0 } else { 1 };
        *numbers == (from..321).collect::<Vec<_>>()
    }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_and_settle_what_is_parked() {
    let world = World::start(&["max_payload: 10000"]).await;
    let _stream = world.stream().await;
    let (code, said) = world.operate(&["parked"]);
    assert_eq!((code, said.as_str()), (0, "no message is parked\n"));
    let (code, said) = world.operate(&["failing"]);
    assert_eq!((code, said.as_str()), (0, "no message is failing\n"));
    let relay = world.relay();
    world.write(1..3, 0..1, 20_000);
    world.write(1..3, 1..3, 0);
    world.drained().await;
    let (code, said) = world.operate(&["parked"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.matches("topic paid  ordering key key ").count(), 2, "{said}");
    assert_eq!(said.matches("max_payload, 10000 bytes").count(), 2, "{said}");
    let id = said.split_whitespace().next().unwrap();
    assert_eq!(world.operate(&["discard", id]), (0, format!("{id} is deleted\n")));
    assert_eq!(world.operate(&["discard", id]).0, 4);
    let (_, said) = world.operate(&["parked", "--limit", "5"]);
    let id = said.split_whitespace().next().unwrap();
    // The message fits now.
    world.sql("UPDATE onetake_outbox SET payload = '2/0/' WHERE state = 2");
    assert_eq!(world.operate(&["retry", id]), (0, format!("{id} will be retried\n")));
    world.drained().await;
    assert_eq!(world.sql("SELECT count(*) FROM onetake_outbox WHERE state = 1"), "5");
    assert_eq!(world.operate(&["retry", id]).0, 4);
    assert_eq!(world.operate(&["retry", "nonsense"]).0, 2);
    drop(relay);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_and_settle_what_fails() {
    let world = World::start(&[]).await;
    let relay = world.relay();
    world.write(1..2, 0..3, 0);
    let mut failing = String::new();
    until("it is told what fails, and why", async || {
        failing = world.operate(&["failing"]).1;
        failing.contains("create one")
    })
    .await;
    assert_eq!(failing.matches("  next try at ").count(), 1, "the first one alone: {failing}");
    let id = failing.split_whitespace().next().unwrap();
    assert_eq!(world.operate(&["retry", id]), (0, format!("{id} will be retried\n")));
    assert_eq!(world.operate(&["discard", id]), (0, format!("{id} is deleted\n")));
    let stream = world.stream().await;
    world.drained().await;
    assert_eq!(kept(&stream).await[&1], [1, 2], "those behind it went on");
    drop(relay);
}

#[test]
fn what_cannot_work_is_refused_with_a_reason() {
    let refused = |arguments: &[&str], code: i32, why: &str| {
        let output = onetake(&[&["relay"], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    };
    refused(&["--store", "memory:", "--sink", "nats://127.0.0.1:1"], 3, "only PostgreSQL");
    refused(&["--store", "memory:"], 2, "relay.sink");
    refused(&["--sink", "kafka://x"], 2, "nats://HOST:4222");
    refused(&["--sink", "https://api/hook"], 2, "relay.secrets");
    refused(&["parked", "--store", "memory:"], 3, "only PostgreSQL");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.toml");
    let text = "[relay]\nsink = \"nats://127.0.0.1:1\"\nhold = \"10s\"\ntimeout = \"8s\"\n";
    std::fs::write(&file, text).unwrap();
    refused(&["--config", file.to_str().unwrap()], 2, "relay.timeout");
    let nowhere = folder.path().join("nowhere.db");
    let nowhere = format!("sqlite:{}", nowhere.display());
    refused(&["parked", "--store", &nowhere], 3, "unable to open");
    assert!(!folder.path().join("nowhere.db").exists(), "looking makes nothing");
    let away = ["--store", "postgres://me:hunter2@127.0.0.1:1/x", "--sink", "nats://127.0.0.1:1"];
    refused(&away, 3, "me:***@127.0.0.1:1");
}

/// The metrics of a relay, on its own listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_serves_its_metrics() {
    let world = World::start(&[]).await;
    let _stream = world.stream().await;
    let port = onetake_sim::servers::free_port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
    command.args(["relay", "--config"]).arg(world.file()).env("ONETAKE_LOG", "error");
    command.env("ONETAKE__RELAY__LISTEN", format!("127.0.0.1:{port}"));
    let _relay = Process(command.spawn().unwrap());
    world.write(0..5, 0..2, 0);
    world.drained().await;
    let client = onetake_sim::client::Client::new(([127, 0, 0, 1], port).into());
    until("it tells", async || {
        SystemClock.sleep(Duration::from_millis(50)).await;
        let asked = client.post("/metrics").method("GET").send().await;
        let Ok(answer) = asked else { return false };
        let text = answer.text();
        text.contains("onetake_outbox_delivered_total 10")
            && text.contains("onetake_outbox_lag_seconds 0")
    })
    .await;
}
