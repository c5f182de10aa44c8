//! Connections that take as much as they can: an honest client still gets its answers, and the
//! process lives.
//!
//! `cargo xtask attack` runs the last test for a minute, and prints its figures.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod attacker;
mod silent;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::common::process::Process;
use crate::common::raw_http::RawClient;
use attacker::{Attack, Attacker, SilentReader};

/// A limit of open files that many systems have.
const FILES_MAX: usize = 1_024;
/// The number of streams of one HTTP/2 connection.
const STREAMS: usize = 255;

/// A gateway as a process that may open a thousand files, and its upstream.
struct World {
    upstream: Upstream,
    gateway: Process,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start(options: &str) -> Self {
        Self::start_under(FILES_MAX, options).await
    }

    async fn start_under(files_max: usize, options: &str) -> Self {
        Self::start_limited(&format!("ulimit -n {files_max}"), options).await
    }

    /// Starts the process after these commands of the shell.
    async fn start_limited(limits: &str, options: &str) -> Self {
        // This process has the other ends of all sockets.
        onetake_cli::gateway::raise_limit();
        let folder = tempfile::tempdir().unwrap();
        let upstream = Upstream::start().await.unwrap();
        let gateway = Process::start_limited(limits, folder.path(), options, &upstream.url()).await;
        Self { upstream, gateway, _folder: folder }
    }

    async fn attack(&self, attack: Attack, connections: usize) -> Vec<Attacker> {
        let address = self.gateway.address;
        join_all((0..connections).map(|_| Attacker::start(address, attack, STREAMS))).await
    }

    async fn charge(&self, key: &str) -> ClientResponse {
        self.gateway.client.post("/any/charge").key(key).send().await.unwrap()
    }

    /// Fills the tables of the store in memory, so that they are written to new files.
    async fn write_much(&self) {
        for number in 0..50 {
            let key = format!("a-large-outcome-{number:04}");
            let call = self.gateway.client.post("/any/large?bytes=900000").key(&key);
            let answer = call.send().await.unwrap();
            assert_eq!(answer.status(), 200, "{key}: {}", answer.text());
        }
    }
}

/// Goes on with the attack until this is dropped.
fn go_on(attackers: Vec<Attacker>) -> JoinSet<()> {
    attackers.into_iter().map(Attacker::go_on).collect()
}

/// Requests that hang, without a key, each of which needs a socket to the upstream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_hang_do_not_use_up_the_files_of_the_store() {
    let mut world = World::start("").await;
    let attackers = world.attack(Attack::HangingRequests, 5).await;
    let attacking = go_on(attackers);
    until("the attack is refused", async || {
        let refused = "onetake_overloaded_total{reason=\"descriptors\"}";
        world.gateway.metric(refused).await >= 500.0
    })
    .await;
    world.write_much().await;
    assert_eq!(world.charge("an-honest-client-0001").await.status(), 201);
    let open = world.gateway.open_files();
    assert!(open < FILES_MAX - 200, "{open} files are open");
    drop(attacking);
    assert!(world.gateway.terminate().await.success());
}

/// The soft limit is raised to the hard one. If that is low, the log and the metrics say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_open_files_is_raised_at_the_start() {
    let upstream = Upstream::start().await.unwrap();
    for (hard, is_low) in [(2_000, true), (4_096, false)] {
        let folder = tempfile::tempdir().unwrap();
        let limits = format!("ulimit -Sn 600; ulimit -Hn {hard}");
        let mut gateway = Process::start_limited(&limits, folder.path(), "", &upstream.url()).await;
        let path = format!("/proc/{}/limits", gateway.child.id().unwrap());
        let table = std::fs::read_to_string(path).unwrap();
        let row = table.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let values: Vec<&str> = row.split_whitespace().take(2).collect();
        assert_eq!(values, [hard.to_string(), hard.to_string()], "{table}");
        let logs = gateway.logs.lock().unwrap().clone();
        assert_eq!(logs.contains("the limit of open files is low"), is_low, "{hard}: {logs}");
        assert!(logs.contains("limits.max_connections is lowered"), "{hard}: {logs}");
        let connections = gateway.metric("onetake_limit{limit=\"max_connections\"}").await;
        assert!(connections > 300.0 && connections < f64::from(hard), "{hard}: {connections}");
        assert!(gateway.terminate().await.success());
    }
}

/// An upstream that answers a request before its body, and then reads on.
async fn early_upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut read = [0; 4096];
                let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno";
                while stream.read(&mut read).await.is_ok_and(|count| count > 0) {
                    let is_head = read.starts_with(b"PUT ") || read.starts_with(b"POST ");
                    if is_head && stream.write_all(answer).await.is_err() {
                        return;
                    }
                    read = [0; 4096];
                }
            });
        }
    });
    url
}

/// Requests that have their response while their body never ends. Each of them has a socket to the
/// upstream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_that_go_on_after_their_response_do_not_use_up_the_files() {
    onetake_cli::gateway::raise_limit();
    let folder = tempfile::tempdir().unwrap();
    let upstream = early_upstream().await;
    let mut gateway = Process::start_under(FILES_MAX, folder.path(), "", &upstream).await;
    let address = gateway.address;
    let attackers = (0..17).map(|_| Attacker::start(address, Attack::EndlessBodies, STREAMS));
    let attacking = go_on(join_all(attackers).await);
    let mut most = 0;
    for _ in 0..60 {
        SystemClock.sleep(Duration::from_millis(100)).await;
        most = most.max(gateway.open_files());
    }
    assert!(most > 100 && most < FILES_MAX - 100, "{most} files were open");
    let honest = gateway.client.post("/any/charge").key("an-honest-client-0004").send().await;
    assert_eq!(honest.unwrap().status(), 404);
    drop(attacking);
    assert!(gateway.terminate().await.success());
}

/// If the files run out nevertheless, the store waits, and works again when some are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_free_files_waits_for_them() {
    let mut usual = World::start("").await;
    assert_eq!(usual.charge("with-enough-files-0001").await.status(), 201);
    let needed = usual.gateway.open_files();
    assert!(usual.gateway.terminate().await.success());
    let mut world = World::start_under(needed + 6, "").await;
    assert_eq!(world.charge("with-enough-files-0001").await.status(), 201);
    let address = world.gateway.address;
    let idle = join_all((0..12).map(|_| tokio::net::TcpStream::connect(address))).await;
    let mut number = 0;
    until("the store waits", async || {
        number += 1;
        // It is answered with an error, or not before some files are free.
        let _any = world.charge(&format!("without-a-free-file-{number:04}")).await;
        world.gateway.logs.lock().unwrap().contains("the store waits with its writes")
    })
    .await;
    let refused = world.charge("without-a-free-file-last").await;
    assert_eq!(
        (refused.status(), refused.code().as_str()),
        (503, "idempotency_store_unavailable"),
        "{}",
        refused.text()
    );
    assert_eq!(world.upstream.runs("without-a-free-file-last"), 0);
    drop(idle);
    until("the store works again", async || {
        number += 1;
        world.charge(&format!("with-free-files-{number:04}")).await.status() == 201
    })
    .await;
    assert!(world.gateway.terminate().await.success());
}

/// Keyed requests that announce a body and send none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_their_body_do_not_stop_others() {
    let mut world = World::start("").await;
    let recorded = world.charge("recorded-before-0001").await;
    assert_eq!(recorded.status(), 201);
    let mut attackers = world.attack(Attack::MissingBodies, 17).await;
    let mut one = attackers.pop().unwrap();
    let attacking = go_on(attackers);
    until("the attack has arrived", async || {
        world.gateway.metric("onetake_requests_in_flight").await >= 3_000.0
    })
    .await;
    let replay = world.charge("recorded-before-0001").await;
    assert!(replay.is_replay() && replay.body == recorded.body, "{}", replay.text());
    assert_eq!(world.charge("an-honest-client-0001").await.status(), 201);
    let taken = world.gateway.metric("onetake_body_memory_bytes").await;
    assert!(taken < f64::from(64 << 20), "{taken} bytes for heads");
    // The body is too slow, and the stream is free again.
    assert_eq!(one.first_answer().await, 408);
    assert!(world.gateway.metric("onetake_slow_bodies_total").await >= 1.0);
    drop(attacking);
    assert!(world.gateway.terminate().await.success());
}

/// Requests that wait for the outcome of another one, with JSON that takes several times its size in
/// memory when it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_take_the_configured_memory_and_no_more() {
    const KEY: &str = "one-key-for-all-0001";
    let options = "[limits]\nmax_body_memory = \"16MiB\"\n[[route]]\nmatch = \"POST /json/{*rest}\"\n\
                   fingerprint = { mode = \"json\" }\nin_flight = \"wait\"\nwait_timeout = \"30s\"\n\
                   tenant = \"public\"\n";
    let mut world = World::start(options).await;
    let before = world.gateway.memory_peak();
    let json: bytes::Bytes = format!("[{}1]", "1,".repeat(128 << 10)).into();
    let call = || {
        let call = world.gateway.client.post("/json/gate").key(KEY);
        tokio::spawn(call.without("authorization").body(json.clone()).send())
    };
    let mut calls = vec![call()];
    world.upstream.ran(KEY, 1).await;
    calls.extend((0..120).map(|_| call()));
    let refused = "onetake_overloaded_total{reason=\"body_memory\"}";
    until("the memory is used up", async || {
        let waiting = world.gateway.metric("onetake_waiting").await;
        waiting + world.gateway.metric(refused).await >= 120.0
    })
    .await;
    let waiting = world.gateway.metric("onetake_waiting").await;
    assert!((30.0..60.0).contains(&waiting), "two thirds of the memory: {waiting}");
    let grown = world.gateway.memory_peak() - before;
    // The trees of forty waiting bodies would take more than 200 MiB.
    assert!(grown < 150 << 20, "{} MiB", grown >> 20);
    world.upstream.open(KEY);
    let mut statuses = Vec::new();
    for call in calls {
        let answer = call.await.unwrap().unwrap();
        assert!(answer.status() == 201 || answer.code() == "overloaded", "{}", answer.text());
        statuses.push(answer.status());
    }
    assert!(statuses.iter().filter(|status| **status == 201).count() >= 30);
    assert_eq!(world.upstream.runs(KEY), 1);
    assert_eq!(world.gateway.metric("onetake_body_memory_bytes").await, 0.0);
    assert!(world.gateway.terminate().await.success());
}

/// A process that gets no more memory from the system. An allocation that fails would end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_do_not_end_a_process_with_little_memory() {
    const KEY: &str = "one-key-for-all-0002";
    const WAITERS: usize = 600;
    const BODY_BYTES: usize = 1_000_000;
    // The allocator reserves memory in advance, and the limit counts what may be written to.
    const ON_DEMAND: &str = "export MIMALLOC_ARENA_EAGER_COMMIT=0";
    let options = "[limits]\nmax_body_memory = \"48MiB\"\n[[route]]\nmatch = \"POST /json/{*rest}\"\n\
                   fingerprint = { mode = \"json\" }\nin_flight = \"wait\"\nwait_timeout = \"60s\"\n\
                   tenant = \"public\"\n";
    let mut usual = World::start_limited(ON_DEMAND, options).await;
    assert_eq!(usual.charge("with-enough-memory-01").await.status(), 201);
    let needed = usual.gateway.data_bytes();
    assert!(usual.gateway.terminate().await.success());
    // Each core compares one body at a time.
    let cores = std::thread::available_parallelism().unwrap().get().min(32);
    let limit = needed + (192 << 20) + cores * 8 * BODY_BYTES;
    assert!(limit - needed < WAITERS * BODY_BYTES, "the bodies take more than there is");
    let limited = format!("{ON_DEMAND}; ulimit -d {}", limit >> 10);
    let mut world = World::start_limited(&limited, options).await;
    let body = format!("[\"{}\"]", "x".repeat(BODY_BYTES));
    let head = format!(
        "POST /json/gate HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {KEY}\r\nX-Case: {KEY}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let (request, address) = (Arc::<str>::from(head + &body), world.gateway.address);
    let call = || {
        let request = Arc::clone(&request);
        tokio::spawn(async move {
            loop {
                let mut client = RawClient::connect(address).await;
                // A refusal may come before the end of the upload. It is lost if this process does
                // not go on with the upload for two seconds.
                let _ended = client.0.write_all(request.as_bytes()).await;
                if let Some(answer) = client.response().await {
                    return answer;
                }
            }
        })
    };
    let mut calls = vec![call()];
    world.upstream.ran(KEY, 1).await;
    calls.extend((0..WAITERS).map(|_| call()));
    until("the memory is used up", async || {
        let answered = calls.iter().filter(|call| call.is_finished()).count();
        let waiting = world.gateway.metric("onetake_waiting").await;
        waiting >= 20.0 && waiting + answered as f64 >= WAITERS as f64
    })
    .await;
    world.upstream.open(KEY);
    let mut completed = 0;
    for call in calls {
        let answer = call.await.unwrap();
        let is_refused = answer.status() == 503 && answer.text().contains("\"overloaded\"");
        assert!(answer.status() == 201 || is_refused, "{} {}", answer.status(), answer.text());
        completed += usize::from(answer.status() == 201);
    }
    assert!(completed >= 20, "{completed}");
    assert_eq!(world.upstream.runs(KEY), 1);
    assert!(world.gateway.terminate().await.success());
}

/// Clients that let their operations run, and never read the responses. A response that is not
/// shown is recorded nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_nobody_reads_take_the_configured_memory_and_no_more() {
    const RESPONSES: usize = 128;
    let options = "[limits]\nmax_response_memory = \"16MiB\"\nmax_store_memory = \"8MiB\"\n";
    let mut world = World::start(options).await;
    let before = world.gateway.memory_peak();
    let address = world.gateway.address;
    let clients =
        (0..4).map(|_| SilentReader::start(address, "/any/large?bytes=900000", RESPONSES));
    let clients = join_all(clients).await;
    let refused = "onetake_overloaded_total{reason=\"response_memory\"}";
    until("the memory is used up", async || world.gateway.metric(refused).await >= 100.0).await;
    let taken = world.gateway.metric("onetake_response_memory_bytes").await;
    assert!(taken > 1e6 && taken <= f64::from(16 << 20), "{taken} bytes");
    let large = world.gateway.client.post("/any/large?bytes=900000").key("an-honest-client-0002");
    let large = large.send().await.unwrap();
    assert_eq!((large.status(), large.body.len()), (200, 900_000), "{}", large.code());
    assert_eq!(world.charge("an-honest-client-0003").await.status(), 201);
    until("all are answered", async || {
        clients.iter().map(SilentReader::answered).sum::<usize>() == 4 * RESPONSES
    })
    .await;
    let grown = world.gateway.memory_peak() - before;
    assert!(grown < 350 << 20, "{} MiB", grown >> 20);
    let unseen: Vec<_> = clients.iter().flat_map(SilentReader::refused).collect();
    assert!(unseen.len() >= 100, "{}", unseen.len());
    drop(clients);
    until("the memory is free", async || {
        world.gateway.metric("onetake_response_memory_bytes").await == 0.0
    })
    .await;
    // Some were refused before they ran. The others have their outcome.
    let mut replays = 0;
    for key in unseen.iter().take(40) {
        let retry = world.gateway.client.post("/any/large?bytes=900000").key(key);
        let retry = retry.body("").send().await.unwrap();
        assert_eq!((retry.status(), retry.body.len()), (200, 900_000), "{key}: {}", retry.code());
        assert_eq!(world.upstream.runs(key), 1, "{key}");
        replays += usize::from(retry.is_replay());
    }
    assert!(replays > 0);
    assert!(world.gateway.terminate().await.success());
}

/// The figures of an honest client.
#[derive(Debug, Default)]
struct Figures {
    answered: usize,
    refused: usize,
    failed: usize,
    slowest: Duration,
}

/// Sends 100 requests a second for this time, a third of them retries.
async fn honest_client(client: Client, time: Duration) -> Figures {
    let clock = Arc::new(SystemClock);
    let (began, pause) = (clock.monotonic(), Duration::from_millis(10));
    let mut calls = Vec::new();
    for number in 0..u32::try_from(time.as_millis() / pause.as_millis()).unwrap() {
        let due = began + pause * number;
        clock.sleep(due.saturating_sub(clock.monotonic())).await;
        let call = client.post("/any/charge").key(&format!("honest-request-{:06}", number * 2 / 3));
        let clock = Arc::clone(&clock);
        calls.push(tokio::spawn(async move {
            let from = clock.monotonic();
            (call.send().await, clock.monotonic() - from)
        }));
    }
    let mut figures = Figures::default();
    for call in calls {
        let (answer, took) = call.await.unwrap();
        figures.slowest = figures.slowest.max(took);
        match answer {
            Err(_) => figures.failed += 1,
            Ok(answer) if matches!(answer.status(), 201 | 409) => figures.answered += 1,
            Ok(answer) => {
                assert_eq!(answer.code(), "overloaded", "{}", answer.text());
                figures.refused += 1;
            }
        }
    }
    figures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_client_is_served_under_both_attacks() {
    let seconds = std::env::var("ONETAKE_ATTACK_SECONDS").map_or(4, |text| text.parse().unwrap());
    let mut world = World::start("").await;
    let memory_before = world.gateway.memory_peak();
    let mut attackers = world.attack(Attack::HangingRequests, 5).await;
    attackers.extend(world.attack(Attack::MissingBodies, 16).await);
    let attacking = go_on(attackers);
    let client = Client::new(world.gateway.address);
    let figures = honest_client(client, Duration::from_secs(seconds)).await;
    let hostile = attacking.len();
    drop(attacking);
    let memory = world.gateway.memory_peak() - memory_before;
    let requests = figures.answered + figures.refused + figures.failed;
    println!(
        "{seconds} s, {hostile} hostile connections: {requests} requests, {} answered, {} refused, {} failed, slowest {:?}; memory +{} MiB, {} files open",
        figures.answered,
        figures.refused,
        figures.failed,
        figures.slowest,
        memory >> 20,
        world.gateway.open_files(),
    );
    assert_eq!(figures.failed, 0);
    assert!(figures.refused * 100 < requests, "{figures:?}");
    assert!(memory < 400 << 20, "{} MiB", memory >> 20);
    assert!(world.gateway.terminate().await.success());
}
