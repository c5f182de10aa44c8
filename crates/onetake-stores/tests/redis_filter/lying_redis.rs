//! Tests of a Redis that lies: a small server that speaks the protocol and returns wrong answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onetake_core::{Clock, MemoryStore, Store, SystemClock};
use onetake_stores::FilterOptions;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::{claim, claim_of, filtered, one_run_each};

/// The answer to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// The entry of another key.
    AnotherKeys,
    /// The first value that was ever written, to any key.
    TheFirst,
    /// The entry with one changed byte.
    Flipped,
    /// The first half of the entry.
    Half,
    /// Invented bytes.
    MadeUp,
    /// A value that is not a string.
    Number,
    Nested,
    /// An error for this key, or for all.
    WrongType,
    Loading,
    ReadOnly,
    Moved,
    /// Bytes that are not the protocol.
    Gibberish,
    /// A length that differs from what follows, or is impossible.
    Cut,
    Endless,
    /// Two answers to one request, so that all later answers are shifted.
    Twice,
    /// No answer.
    Never,
    /// A closed connection.
    HangUp,
}

const LIES: [Lie; 17] = [
    Lie::AnotherKeys,
    Lie::TheFirst,
    Lie::Flipped,
    Lie::Half,
    Lie::MadeUp,
    Lie::Number,
    Lie::Nested,
    Lie::WrongType,
    Lie::Loading,
    Lie::ReadOnly,
    Lie::Moved,
    Lie::Gibberish,
    Lie::Cut,
    Lie::Endless,
    Lie::Twice,
    Lie::Never,
    Lie::HangUp,
];

struct Liar {
    lie: Lie,
    values: Mutex<Values>,
    reads: AtomicUsize,
    connections: AtomicUsize,
}

#[derive(Default)]
struct Values {
    by_key: HashMap<Vec<u8>, Vec<u8>>,
    first: Option<Vec<u8>>,
}

impl Liar {
    async fn start(lie: Lie) -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let liar = Arc::new(Self {
            lie,
            values: Mutex::default(),
            reads: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&liar);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let liar = Arc::clone(&accepting);
                tokio::spawn(async move { liar.talk(stream).await });
            }
        });
        (liar, address)
    }

    async fn talk(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let command = read_command(&mut stream).await?;
            let answer = match command[0].to_ascii_uppercase().as_slice() {
                b"GETRANGE" => {
                    self.reads.fetch_add(1, Ordering::SeqCst);
                    self.lies(&command[1])?
                }
                b"SET" => {
                    let mut values = self.values.lock().unwrap();
                    values.first.get_or_insert_with(|| command[2].clone());
                    values.by_key.insert(command[1].clone(), command[2].clone());
                    b"+OK\r\n".to_vec()
                }
                b"UNLINK" => b":1\r\n".to_vec(),
                _ => b"+OK\r\n".to_vec(),
            };
            stream.write_all(&answer).await.ok()?;
        }
    }

    fn lies(&self, key: &[u8]) -> Option<Vec<u8>> {
        let values = self.values.lock().unwrap();
        let own = values.by_key.get(key).cloned().unwrap_or_default();
        let other = values.by_key.iter().find(|(other, _)| *other != key);
        Some(match self.lie {
            Lie::AnotherKeys => bulk(other.map_or(&[], |(_, value)| value)),
            Lie::TheFirst => bulk(values.first.as_deref().unwrap_or_default()),
            Lie::Flipped => {
                let mut value = own;
                let place = self.reads.load(Ordering::SeqCst) % value.len().max(1);
                value.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= 0x10);
                bulk(&value)
            }
            Lie::Half => bulk(&own[..own.len() / 2]),
            Lie::MadeUp => bulk(&[1; 300]),
            Lie::Number => b":1\r\n".to_vec(),
            Lie::Nested => b"*2\r\n*1\r\n$1\r\nx\r\n:3\r\n".to_vec(),
            Lie::WrongType => b"-WRONGTYPE not bytes\r\n".to_vec(),
            Lie::Loading => b"-LOADING the dataset\r\n".to_vec(),
            Lie::ReadOnly => b"-READONLY a replica\r\n".to_vec(),
            Lie::Moved => b"-MOVED 1 127.0.0.1:1\r\n".to_vec(),
            Lie::Gibberish => b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            Lie::Cut => [format!("${}\r\n", own.len() + 10).as_bytes(), &own].concat(),
            Lie::Endless => b"*9223372036854775807\r\n$9223372036854775807\r\nx".to_vec(),
            Lie::Twice => [bulk(&own), bulk(&own)].concat(),
            Lie::Never => Vec::new(),
            Lie::HangUp => return None,
        })
    }
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

async fn read_command(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let count = read_length(stream, '*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; read_length(stream, '$').await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

async fn read_length(stream: &mut BufReader<TcpStream>, sign: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(sign)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lie_makes_a_key_run_twice_or_changes_its_outcome() {
    for lie in LIES {
        let (liar, address) = Liar::start(lie).await;
        let url = format!("redis://{address}");
        let authority: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let mut nodes: Vec<Arc<dyn Store>> = Vec::new();
        for _ in 0..2 {
            let options = FilterOptions { check_every: 1, ..FilterOptions::default() };
            nodes.push(Arc::new(filtered(&url, Arc::clone(&authority), options).await));
        }
        one_run_each(&nodes, &format!("{lie:?}"), 20, 20).await;
        assert!(liar.reads.load(Ordering::SeqCst) > 0, "{lie:?}: it was heard");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_never_answers_is_asked_a_few_times_at_most() {
    // It accepts connections and never answers.
    let (liar, address) = Liar::start(Lie::Never).await;
    let authority: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let url = format!("redis://{address}");
    let store = filtered(&url, authority, FilterOptions::default()).await;
    let from = SystemClock.monotonic();
    // Enough time to connect again and again, if the breaker did not prevent it.
    for number in 0..400 {
        claim(&store, &claim_of(&format!("key-{number}"), "pay")).await;
        SystemClock.sleep(Duration::from_millis(1)).await;
    }
    let (reads, connections) =
        (liar.reads.load(Ordering::SeqCst), liar.connections.load(Ordering::SeqCst));
    // It is tried again now and then, so the number depends on the time that this took.
    let more = 2 * (SystemClock.monotonic() - from).as_secs() as usize;
    assert!((1..=8 + more).contains(&reads), "{reads} of 400 waited");
    assert!(connections <= 9 + more, "{connections} connections");
}
