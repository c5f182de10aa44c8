//! Kills of the processor and of Envoy, and drains of both.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::Client;
use onetake_sim::servers::{Child, free_port, until};

use super::with;

/// A processor as a process. It is killed when it is dropped.
pub(super) struct Process {
    child: Option<Child>,
    folder: tempfile::TempDir,
    port: u16,
}

impl Process {
    pub(super) async fn start() -> Self {
        Self::start_on("embedded:data", "").await
    }

    /// Starts it on a store, with routes. A relative folder of the store is below that of the
    /// process.
    pub(super) async fn start_on(store: &str, routes: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let store = match store.strip_prefix("embedded:") {
            Some(data) => format!("embedded:{}", folder.path().join(data).display()),
            None => store.to_owned(),
        };
        let text = format!(
            "[ext_proc]\nlisten = \"127.0.0.1:{port}\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n\
             [store]\nurl = \"{store}\"\n{routes}",
            free_port()
        );
        std::fs::write(folder.path().join("onetake.toml"), text).unwrap();
        let mut process = Self { child: None, folder, port };
        process.restart().await;
        process
    }

    pub(super) async fn restart(&mut self) {
        let file = self.folder.path().join("onetake.toml").display().to_string();
        let command = [env!("CARGO_BIN_EXE_onetake"), "ext-proc", "--config", &file];
        let command = command.map(str::to_owned);
        self.child = Some(Child::start(&command, &self.folder.path().join("log"), None));
        let address = ("127.0.0.1", self.port);
        until("the processor starts", async || std::net::TcpStream::connect(address).is_ok()).await;
    }

    pub(super) fn kill(&mut self) {
        self.child.take().unwrap().signal("KILL");
    }

    /// Sends a signal to the process.
    pub(super) fn signal(&self, name: &str) {
        self.child.as_ref().unwrap().signal(name);
    }

    /// Its address, also after a restart.
    pub(super) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    fn log(&self) -> String {
        read(&self.folder.path().join("log"))
    }
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

type World = super::World<Process>;

impl World {
    async fn start_process(change: impl FnOnce(String) -> String) -> Self {
        let processor = Process::start().await;
        let address = processor.address();
        Self::around(processor, address, change).await
    }
}

/// `failure_mode_allow: false`: nothing passes without the processor.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_while_the_processor_is_dead() {
    let mut world = World::start_process(|file| file).await;
    let client = world.client.clone();
    let key = "processor-dies-000001";
    let running = tokio::spawn(client.post("/any/gate").key(key).send());
    world.upstream.ran(key, 1).await;
    world.processor.kill();
    let answer = running.await.unwrap().unwrap();
    assert_eq!(answer.status(), 500, "Envoy's own answer: {}", answer.text());
    for (name, call) in [
        ("keyed", client.post("/any/charge").key("processor-dead-000001")),
        ("unkeyed", client.post("/any/charge").header("x-case", "unkeyed")),
        ("get", client.post("/any/charge").method("GET").header("x-case", "get")),
    ] {
        assert_eq!(call.send().await.unwrap().status(), 500, "{name}");
    }
    let runs = |case: &str| world.upstream.runs(case);
    assert_eq!((runs("processor-dead-000001"), runs("unkeyed"), runs("get")), (0, 0, 0));
    world.processor.restart().await;
    // Its attempt was running, so its outcome is unknown.
    until("the processor is used again", async || {
        let retry = client.post("/any/gate").key(key).send().await.unwrap();
        retry.code() == "previous_attempt_failed"
    })
    .await;
    let fresh = client.post("/any/charge").key("processor-dead-000001").send().await.unwrap();
    assert_eq!((fresh.status(), world.upstream.runs(key)), (201, 1));
}

/// Clients that retry until they have an outcome, while `disturb` kills something again and again.
/// No operation runs twice, and every outcome that a client got is replayed afterwards.
async fn under_load(world: &mut World, mut disturb: impl AsyncFnMut(&mut World)) {
    let stop = Arc::new(AtomicBool::new(false));
    let clients = (0..8).map(|number| {
        let (client, stop) = (world.client.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut outcomes = HashMap::new();
            let mut nth = 0;
            while !stop.load(Ordering::SeqCst) {
                let key = format!("under-load-{number}-{nth:06}");
                nth += 1;
                for _ in 0..400 {
                    let sent = client.post("/any/slow?ms=20").key(&key).send().await;
                    match sent {
                        Ok(answer) if answer.status() == 201 => {
                            outcomes.insert(key.clone(), answer.body);
                            break;
                        }
                        // Unknown, and not run again.
                        Ok(answer) if answer.code() == "previous_attempt_failed" => break,
                        _ if stop.load(Ordering::SeqCst) => break,
                        _ => SystemClock.sleep(Duration::from_millis(20)).await,
                    }
                }
            }
            (outcomes, nth)
        })
    });
    let clients: Vec<_> = clients.collect();
    for _ in 0..4 {
        SystemClock.sleep(Duration::from_millis(500)).await;
        disturb(world).await;
    }
    SystemClock.sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::SeqCst);
    let (mut outcomes, mut keys) = (HashMap::new(), Vec::new());
    for (number, client) in join_all(clients).await.into_iter().enumerate() {
        let (got, count) = client.unwrap();
        outcomes.extend(got);
        keys.extend((0..count).map(|nth| format!("under-load-{number}-{nth:06}")));
    }
    assert!(outcomes.len() > 20, "{} operations: {}", outcomes.len(), world.processor.log());
    let twice: Vec<_> = keys.iter().filter(|key| world.upstream.runs(key) > 1).collect();
    assert!(twice.is_empty(), "ran twice: {twice:?}");
    for (key, body) in &outcomes {
        let mut replay = world.client.post("/any/slow?ms=20").key(key).send().await;
        if replay.is_err() {
            replay = world.client.post("/any/slow?ms=20").key(key).send().await;
        }
        let replay = replay.unwrap();
        assert!(replay.is_replay() && replay.body == *body, "{key}: {}", replay.text());
        assert_eq!(world.upstream.runs(key), 1, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_the_processor_lose_and_repeat_nothing() {
    let mut world = World::start_process(|file| file).await;
    under_load(&mut world, async |world: &mut World| {
        world.processor.kill();
        world.processor.restart().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_envoy_lose_and_repeat_nothing() {
    let mut world = World::start_process(|file| file).await;
    under_load(&mut world, async |world: &mut World| {
        world.envoy.kill();
        world.envoy.restart().await;
    })
    .await;
}

/// SIGTERM: the processor finishes the requests that it has, and then ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_processor_that_drains_finishes_its_requests() {
    let world = World::start_process(|file| file).await;
    let key = "processor-drains-0001";
    let running = tokio::spawn(world.client.post("/any/gate").key(key).send());
    world.upstream.ran(key, 1).await;
    let child = world.processor.child.as_ref().unwrap();
    child.signal("TERM");
    until("it drains", async || world.processor.log().contains("draining")).await;
    assert!(!child.is_gone());
    world.upstream.open(key);
    assert_eq!(running.await.unwrap().unwrap().status(), 201);
    until("it ends", async || child.is_gone()).await;
    assert!(world.processor.log().contains("drained"), "{}", world.processor.log());
}

/// `POST /drain_listeners?graceful`: Envoy finishes the requests that it has.
#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_drains_finishes_its_requests() {
    let admin = free_port();
    let world = World::start_process(|file| {
        let admin = format!(
            "admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}\nstatic_resources:"
        );
        with(&file, "static_resources:", &admin)
    })
    .await;
    let key = "envoy-drains-00000001";
    let running = tokio::spawn(world.client.post("/any/gate").key(key).send());
    world.upstream.ran(key, 1).await;
    let drain = Client::new(([127, 0, 0, 1], admin).into()).post("/drain_listeners?graceful");
    assert_eq!(drain.body("").send().await.unwrap().status(), 200);
    world.upstream.open(key);
    assert_eq!(running.await.unwrap().unwrap().status(), 201);
    assert_eq!(world.upstream.runs(key), 1);
}
