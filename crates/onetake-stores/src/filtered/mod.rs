//! The filtered store: Redis in front of another store, the authority. Redis alone answers retries
//! of finished operations; the authority answers everything else.
//!
//! **Content.** The filter holds finished records only (completed, failed), each under a MAC over
//! its id, fence, expiry and recording. They are written after the authority has confirmed that
//! they are durable (S6).
//!
//! **Correctness of an entry.** A finished record never changes until it expires (S4), and until
//! then the key cannot be claimed again (S12). So an entry with a valid MAC and an expiry in the
//! future is equal to the authority's record, however old it is: a Redis that was rolled back can
//! restore an entry from before the key's last expiry, but its expiry has passed. Anything else
//! (absent, cut, forged, copied from another key, too large, expired, nearly expired) counts as
//! absent, and the authority is asked. Nothing in Redis ever makes a key runnable: a lost, slow or
//! lying Redis costs time, and nothing else (S11).
//!
//! **Clock.** The authority's clock decides. The filter uses the later of its own clock and the
//! authority's last known time, and stops using an entry [`CLOCK_MARGIN`] before its end.
//!
//! **Exception.** An operator may make the authority forget a key before it expires.
//! [`Transition::Forget`](onetake_core::Transition::Forget) and [`FilteredStore::forget`] remove it
//! from both, and from neither while the filter is unreachable. A marker replaces the entry for a
//! minute. No late write of a node replaces or deletes the marker, and no node writes a record that
//! it read from the authority more than half a minute ago.
//!
//! **Warning:** A Redis that is rolled back to before that replays the forgotten record, for at
//! most `entry_age_max`, and may restore it in the authority. Flush a Redis that was restored from
//! a backup. A flush is always safe.

mod counters;
mod diagnose;
mod entry;
mod forget;
mod link;
mod read;
mod repair;
mod time;
mod writer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Clock, Record, RecordId, Rng, Settled, Settlement, Store, StoreError,
    StoreErrorKind, SystemClock, SystemRng, delegate_store,
};

use counters::FilterMetrics;
use entry::{Seal, is_finished};
use link::RedisLink;
use read::{FilterContent, FilterContents};
use repair::Sample;
use time::AuthorityTime;
use writer::WriteQueue;

/// The time before the end of an entry from which it is not used. Two clocks may differ by as much.
pub const CLOCK_MARGIN: Duration = Duration::from_secs(10);
/// The least length of the secret. A shorter one could be guessed by a reader of Redis.
const SECRET_BYTES_MIN: usize = 16;

/// The options of a filter.
#[derive(Clone, Debug)]
pub struct FilterOptions {
    /// The clock for timeouts, and for the lifetime of entries.
    pub clock: Arc<dyn Clock>,
    /// The source of jitter for the breaker's pauses.
    pub rng: Arc<dyn Rng>,
    /// The timeout of connecting. Only [`FilteredStore::open`] waits for it.
    pub connect_timeout: Duration,
    /// The timeout of an answer of Redis. After it the authority is asked instead.
    pub command_timeout: Duration,
    /// The largest entry that is written or read. The authority replays larger recordings.
    pub entry_bytes_max: usize,
    /// The longest lifetime of an entry. It never outlives its record.
    pub entry_age_max: Duration,
    /// One of this many answers of the filter is compared with the authority afterwards; 0 for
    /// none.
    pub check_every: u32,
}

impl Default for FilterOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_millis(50),
            entry_bytes_max: 64 << 10,
            entry_age_max: Duration::from_secs(3_600),
            check_every: 64,
        }
    }
}

/// A store with a Redis in front of it.
#[derive(Debug)]
pub struct FilteredStore {
    shared: Arc<FilterState>,
    writer: WriteQueue,
    sample: Sample,
    /// Ends the comparing task: first the signal, then the wait for its end.
    comparing: Mutex<Option<(watch::Sender<()>, JoinHandle<()>)>>,
}

/// The common state of the store and its two tasks.
#[derive(Debug)]
struct FilterState {
    authority: Arc<dyn Store>,
    link: RedisLink,
    seal: Seal,
    clock: Arc<dyn Clock>,
    time: AuthorityTime,
    counters: FilterMetrics,
    entry_bytes_max: usize,
    entry_age_max: Duration,
}

impl FilteredStore {
    /// Puts the Redis at `url` (`redis://`, `rediss://`, `redis-cluster://h1,h2`,
    /// `rediss-cluster://…`) in front of `authority`. All nodes must have the same `secret`. Nodes
    /// with different secrets do not accept each other's entries and ask the authority.
    ///
    /// An unreachable Redis is not an error: the filter starts without it, and connects later.
    ///
    /// # Errors
    /// If the URL cannot be used, the password is wrong, or the secret is too short.
    pub async fn open(
        url: &str,
        secret: &[u8],
        authority: Arc<dyn Store>,
        options: FilterOptions,
    ) -> Result<Self, StoreError> {
        if secret.len() < SECRET_BYTES_MIN {
            let what = format!("the filter's secret must have at least {SECRET_BYTES_MIN} bytes");
            return Err(StoreError::new(StoreErrorKind::Invalid, what));
        }
        let link = RedisLink::new(url, &options)?;
        match link.connection.connect().await {
            Err(error) if error.kind() == StoreErrorKind::Invalid => return Err(error),
            Err(error) => tracing::warn!(%error, "starting without the Redis filter"),
            Ok(()) => {}
        }
        let shared = Arc::new(FilterState {
            authority,
            link,
            seal: Seal::new(secret),
            time: AuthorityTime::new(Arc::clone(&options.clock)),
            clock: options.clock,
            counters: FilterMetrics::new(),
            entry_bytes_max: options.entry_bytes_max,
            entry_age_max: options.entry_age_max,
        });
        let writer = WriteQueue::start(Arc::clone(&shared));
        let (stop, stopped) = watch::channel(());
        let (sample, task) =
            Sample::start(Arc::clone(&shared), writer.clone(), options.check_every, stopped);
        let comparing = Mutex::new(Some((stop, task)));
        Ok(Self { shared, writer, sample, comparing })
    }

    /// The store behind the filter.
    #[must_use]
    pub fn authority(&self) -> &Arc<dyn Store> {
        &self.shared.authority
    }

    async fn look(&self, ids: impl Iterator<Item = RecordId>) -> FilterContents {
        let looked = self.shared.look(ids).await;
        for answer in looked.answers.values() {
            if let FilterContent::Hit(record) = answer {
                self.sample.offer(record);
            }
        }
        looked
    }

    async fn settle_by_authority(&self, batch: Vec<Settlement>) -> Answers<Settled> {
        let asked_at = self.shared.clock.monotonic();
        let answers = self.shared.authority.settle(batch).await;
        for answer in answers.iter().flatten() {
            match answer {
                Settled::Done { record, now } => {
                    self.shared.time.hear(*now, asked_at);
                    self.keep(record, asked_at, None);
                }
                Settled::Stale { current: Some(record) } => self.keep(record, asked_at, None),
                Settled::Stale { current: None } => {}
            }
        }
        answers
    }

    /// Keeps a finished record that the authority has confirmed as durable, so that the filter can
    /// answer the next retry.
    fn keep(&self, record: &Arc<Record>, asked_at: Duration, looked: Option<&FilterContents>) {
        if is_finished(record) {
            let overwrite = looked.is_some_and(|looked| looked.answers.contains_key(&record.id));
            self.writer.keep(&self.shared, record, asked_at, overwrite);
        }
    }
}

/// The error for an authority that returns fewer answers than items.
fn no_answer() -> StoreError {
    StoreError::new(StoreErrorKind::Indeterminate, "the store returned no result for an item")
}

impl Store for FilteredStore {
    fn name(&self) -> &'static str {
        "filtered"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let looked = self.look(batch.iter().map(|claim| claim.id)).await;
            let hits: Vec<_> = batch.iter().map(|claim| looked.hit(&claim.id)).collect();
            let rest: Vec<Claim> =
                batch.into_iter().filter(|claim| looked.hit(&claim.id).is_none()).collect();
            let asked_at = self.shared.clock.monotonic();
            let mut asked = Vec::new();
            if !rest.is_empty() {
                asked = self.shared.authority.claim(rest).await;
            }
            let mut asked = asked.into_iter();
            let answers = hits.into_iter().map(|hit| match hit {
                Some(record) => Ok(Claimed::Found { record, now: looked.now }),
                None => {
                    let answer = asked.next().unwrap_or_else(|| Err(no_answer()));
                    if let Ok(Claimed::Found { record, now }) = &answer {
                        self.shared.time.hear(*now, asked_at);
                        self.keep(record, asked_at, Some(&looked));
                    }
                    answer
                }
            });
            answers.collect()
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        if batch.iter().any(forget::forgets) {
            return self.settle_and_forget(batch).boxed();
        }
        self.settle_by_authority(batch).boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            let looked = self.look(ids.iter().copied()).await;
            let rest: Vec<RecordId> =
                ids.iter().filter(|id| looked.hit(id).is_none()).copied().collect();
            let mut asked = Vec::new();
            if !rest.is_empty() {
                asked = self.shared.authority.load(rest).await;
            }
            let mut asked = asked.into_iter();
            let answers = ids.iter().map(|id| match looked.hit(id) {
                Some(record) => Ok(Some(record)),
                None => {
                    // Nothing is kept in the filter: a reader is not a retry, and may be reading
                    // all records.
                    asked.next().unwrap_or_else(|| Err(no_answer()))
                }
            });
            answers.collect()
        }
        .boxed()
    }

    // The authority decides about readiness. Without the filter the store is only slower.
    delegate_store!(self => self.shared.authority; due, sweep, ready);

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let comparing = self.comparing.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((stop, task)) = comparing {
                // A repair in progress is finished. The authority gets no requests afterwards.
                drop(stop);
                let _panicked = task.await;
            }
            self.shared.authority.close().await
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for FilteredStore, self => self.shared.authority);
