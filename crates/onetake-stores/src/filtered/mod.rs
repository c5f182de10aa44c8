//! Redis in front of another store, as a filter: retries of finished operations are answered by
//! Redis alone, everything else by the store behind it, the authority.
//!
//! **What it may hold.** Finished records only (completed, failed), each under a MAC over its id,
//! fence, expiry and recording, written after the authority said that it is durable (S6).
//!
//! **Why an entry is the truth.** A finished record never changes until it expires (S4), and until
//! then no other life of the key can begin (S12). So an entry whose MAC is right and whose expiry
//! lies ahead says what the authority would say, whenever it was written and wherever it was in
//! between: a Redis that was rolled back can bring back an entry of an earlier life, but its expiry
//! has passed. Everything else (nothing there, cut, forged, another key's, too large, expired,
//! nearly expired) is as good as nothing, and the authority is asked. Nothing in Redis ever makes a
//! key runnable: a lost, slow or lying Redis costs time, and nothing else (S11).
//!
//! **Whose clock.** The authority's decides. The filter goes by the later of its own clock and of
//! what the authority last said, and stays [`CLOCK_MARGIN`] away from an entry's end.
//!
//! **What is left.** An operator may make the authority forget a key before it expires:
//! [`Verb::Forget`](onetake_core::Verb::Forget) and [`FilteredStore::forget`] take it from both, and from neither while the filter
//! cannot be reached. A marker stands in the entry's place for a minute. No node's late write replaces or
//! deletes the marker, and no node writes what the authority told it more than half a minute ago. A Redis that is rolled back to before that replays
//! it, for no longer than `entry_age_max`, and may give it back to the authority: flush a Redis that
//! was restored from a backup, which is always safe.

mod counters;
mod diagnose;
mod entry;
mod forget;
mod link;
mod look;
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

use counters::Counters;
use entry::{Seal, is_finished};
use link::Link;
use look::{Look, Looked};
use repair::Sample;
use time::AuthorityTime;
use writer::Writer;

/// An entry is not used this close to its end: two clocks may differ by as much.
pub const CLOCK_MARGIN: Duration = Duration::from_secs(10);
/// A shorter secret could be guessed by whoever reads Redis.
const SECRET_BYTES_MIN: usize = 16;

/// Every bound of a filter.
#[derive(Clone, Debug)]
pub struct FilterOptions {
    /// The clock for timeouts, and for how long an entry lives.
    pub clock: Arc<dyn Clock>,
    /// Randomness for the pauses of the breaker.
    pub rng: Arc<dyn Rng>,
    /// How long connecting may take. Nobody waits for it but [`FilteredStore::open`].
    pub connect_timeout: Duration,
    /// How long Redis may take to answer before the authority is asked instead.
    pub command_timeout: Duration,
    /// The largest entry that is written or read; larger recordings are replayed by the authority.
    pub entry_bytes_max: usize,
    /// The longest that an entry lives; it never outlives its record.
    pub entry_age_max: Duration,
    /// One of so many answers of the filter is compared with the authority afterwards; 0 for none.
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
    shared: Arc<Shared>,
    writer: Writer,
    sample: Sample,
    /// Ends the comparing task: first the signal, then its end.
    comparing: Mutex<Option<(watch::Sender<()>, JoinHandle<()>)>>,
}

/// What the store and its two tasks have in common.
#[derive(Debug)]
struct Shared {
    authority: Arc<dyn Store>,
    link: Link,
    seal: Seal,
    clock: Arc<dyn Clock>,
    time: AuthorityTime,
    counters: Counters,
    entry_bytes_max: usize,
    entry_age_max: Duration,
}

impl FilteredStore {
    /// Puts the Redis at `url` (`redis://`, `rediss://`, `redis-cluster://h1,h2`,
    /// `rediss-cluster://…`) in front of `authority`. All nodes must have the same `secret`; with another one they ask the authority.
    ///
    /// A Redis that cannot be reached is not an error: the filter starts without it, and finds it
    /// later.
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
        let link = Link::new(url, &options)?;
        match link.connection.connect().await {
            Err(error) if error.kind() == StoreErrorKind::Invalid => return Err(error),
            Err(error) => tracing::warn!(%error, "starting without the Redis filter"),
            Ok(()) => {}
        }
        let shared = Arc::new(Shared {
            authority,
            link,
            seal: Seal::new(secret),
            time: AuthorityTime::new(Arc::clone(&options.clock)),
            clock: options.clock,
            counters: Counters::new(),
            entry_bytes_max: options.entry_bytes_max,
            entry_age_max: options.entry_age_max,
        });
        let writer = Writer::start(Arc::clone(&shared));
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

    async fn look(&self, ids: impl Iterator<Item = RecordId>) -> Looked {
        let looked = self.shared.look(ids).await;
        for answer in looked.answers.values() {
            if let Look::Hit(record) = answer {
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

    /// The authority said that this is so, durably: the next retry may hear it from the filter.
    fn keep(&self, record: &Arc<Record>, asked_at: Duration, looked: Option<&Looked>) {
        if is_finished(record) {
            let overwrite = looked.is_some_and(|looked| looked.answers.contains_key(&record.id));
            self.writer.keep(&self.shared, record, asked_at, overwrite);
        }
    }
}

/// The error for an authority that does not answer one by one.
fn no_answer() -> StoreError {
    StoreError::new(StoreErrorKind::Indeterminate, "the store gave no answer to an item")
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
                    // Nothing is kept of it: who reads is nobody who retries, and may be somebody who looks
                    // through all there is.
                    asked.next().unwrap_or_else(|| Err(no_answer()))
                }
            });
            answers.collect()
        }
        .boxed()
    }

    // The authority decides whether it is ready: a filter that is away is only slower.
    delegate_store!(self => self.shared.authority; due, sweep, ready);

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let comparing = self.comparing.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((stop, task)) = comparing {
                // A repair that is under way is finished: the authority is asked nothing afterwards.
                drop(stop);
                let _panicked = task.await;
            }
            self.shared.authority.close().await
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for FilteredStore, self => self.shared.authority);
