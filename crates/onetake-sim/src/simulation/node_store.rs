//! The store behind the network of one node.
//!
//! The network delays, reorders and loses calls and answers. It repeats settlements, because the
//! engine sends a settlement again if its answer was lost, and the first copy may still be on its
//! way. It does not repeat claims: neither the engine nor a store's driver sends a claim twice.
//!
//! An item that is answered with "unavailable", "busy" or "corrupt" is not applied. These errors
//! promise that nothing was written. An item that may be applied, now or later, is answered with
//! "indeterminate". In some plans a write that is answered with "unavailable" is applied all the
//! same: the safety of operations must not rest on that promise.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::audit::{AuditEntry, AuditPage};
use onetake_core::store::{
    Answers, AuditLog, Claimed, Cursor, Due, DueAttempt, Page, RecordIndex, Sealing, Settled,
    SharedSecrets, Store, StoreError, StoreErrorKind, Swept,
};
use onetake_core::{AttemptId, Claim, Record, RecordId, Recording, Reference, Settlement};
use tokio::sync::oneshot;

use super::history::Actor;
use super::random::Random;
use super::store_call::{AboutKey, AnswerAboutKey, Call, news_of};
use super::timeline::{MILLISECOND, Micros, SECOND};
use super::world::World;

/// The connection of one process to the store.
#[derive(Debug)]
pub struct NodeStore {
    world: Arc<World>,
    node: usize,
    incarnation: u64,
    is_alive: Arc<AtomicBool>,
}

/// The fate of one item of a call.
#[derive(Clone, Copy, Debug)]
struct ItemFate {
    /// The time at which the server applies it, if ever.
    applied_after: Option<Micros>,
    /// The time at which the server applies it once more.
    repeated_after: Option<Micros>,
    /// The error that the caller gets instead of the server's answer.
    error: Option<StoreErrorKind>,
    /// The time at which the caller gets its answer.
    told_after: Micros,
}

/// Applies one item on the server. The last argument is the time at which the caller gets the
/// answer, if it gets the server's answer.
type Apply<T, R> = fn(&World, Actor, T, Option<Micros>) -> Result<R, StoreError>;
type Answered<R> = Arc<Mutex<Vec<Result<R, StoreError>>>>;

impl NodeStore {
    /// Creates the connection of a process, which lives while `is_alive` is true.
    #[must_use]
    pub fn new(
        world: &Arc<World>,
        node: usize,
        incarnation: u64,
        is_alive: &Arc<AtomicBool>,
    ) -> Self {
        Self { world: Arc::clone(world), node, incarnation, is_alive: Arc::clone(is_alive) }
    }

    fn actor(&self) -> Actor {
        Actor::Node(self.node, self.incarnation)
    }

    /// Sends a batch of writes. All items have the same fate, or each has its own.
    fn write<T, R>(
        &self,
        batch: Vec<T>,
        can_repeat: bool,
        apply: Apply<T, R>,
    ) -> BoxFuture<'_, Answers<R>>
    where
        T: AboutKey + Clone + Send + 'static,
        R: AnswerAboutKey + Send + 'static,
    {
        let call = Call::about(&self.world, self.actor(), &batch);
        let count = batch.len();
        let fates = self.fates(count);
        let told_after = fates.iter().map(|fate| fate.told_after).max().unwrap_or(0);
        let answers = fates.iter().map(|fate| {
            let kind = fate.error.unwrap_or(StoreErrorKind::Indeterminate);
            Err(StoreError::new(kind, "the simulated network failed"))
        });
        let answered: Answered<R> = Arc::new(Mutex::new(answers.collect()));
        let told_at = self.world.now() + told_after;
        for (index, (item, fate)) in batch.into_iter().zip(fates).enumerate() {
            if let Some(after) = fate.repeated_after.filter(|_| can_repeat) {
                self.apply_after(after, item.clone(), apply, None);
            }
            if let Some(after) = fate.applied_after {
                let slot = fate.error.is_none().then(|| (Arc::clone(&answered), index, told_at));
                self.apply_after(after, item, apply, slot);
            }
        }
        self.tell_after(told_after, answered, call)
    }

    /// Schedules the application of one item on the server, and keeps its answer.
    fn apply_after<T, R>(
        &self,
        after: Micros,
        item: T,
        apply: Apply<T, R>,
        slot: Option<(Answered<R>, usize, Micros)>,
    ) where
        T: Send + 'static,
        R: Send + 'static,
    {
        let (world, actor, is_alive) =
            (Arc::clone(&self.world), self.actor(), Arc::clone(&self.is_alive));
        self.world.timeline.after(
            after,
            Box::new(move |_| {
                // A call that a process was sending when it ended may never arrive.
                let is_gone = !is_alive.load(Ordering::Relaxed);
                let lost_per_mille = if world.plan.is_exclusive { 1_000 } else { 300 };
                let is_lost = |random: &mut Random| random.chance(lost_per_mille);
                if is_gone && world.decide("lost at a crash", is_lost) {
                    return;
                }
                let answer = apply(&world, actor, item, slot.as_ref().map(|slot| slot.2));
                if let Some((answered, index, _)) = slot
                    && let Some(slot) =
                        answered.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index)
                {
                    *slot = answer;
                }
            }),
        );
    }

    /// Schedules the answer to the caller.
    fn tell_after<R: AnswerAboutKey + Send + 'static>(
        &self,
        after: Micros,
        answered: Answered<R>,
        call: Call,
    ) -> BoxFuture<'static, Answers<R>> {
        let (tell, told) = oneshot::channel();
        let (world, place) = (Arc::clone(&self.world), self.node + 1);
        self.world.timeline.after(
            after,
            Box::new(move |_| {
                let mut answers = answered.lock().unwrap_or_else(PoisonError::into_inner);
                let _gone = tell.send(std::mem::take(&mut *answers));
                world.mark_busy(place);
            }),
        );
        async move {
            match told.await {
                Ok(answers) => {
                    call.answered(answers.iter().map(|answer| match answer {
                        Ok(answer) => answer.news(),
                        Err(error) => news_of(error),
                    }));
                    answers
                }
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }

    /// Makes a read, or another call that changes no record. `call` is there if requests depend on
    /// the answer.
    fn ask<R: Send + 'static>(
        &self,
        call: Option<Call>,
        ask: impl FnOnce(&World, Actor) -> Result<R, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<R, StoreError>> {
        let fate = self.fates(1).pop();
        let (world, actor, place) = (Arc::clone(&self.world), self.actor(), self.node + 1);
        let (tell, told) = oneshot::channel();
        let Some(ItemFate { applied_after, error, told_after, .. }) = fate else {
            return std::future::pending().boxed();
        };
        let after = if error.is_some() { told_after } else { applied_after.unwrap_or(told_after) };
        self.world.timeline.after(
            after,
            Box::new(move |_| {
                let answer = match error {
                    None => ask(&world, actor),
                    Some(kind) => Err(StoreError::new(kind, "the simulated network failed")),
                };
                let _gone = tell.send(answer);
                world.mark_busy(place);
            }),
        );
        async move {
            match told.await {
                Ok(answer) => {
                    let news = answer.as_ref().err().and_then(news_of);
                    call.into_iter().for_each(|call| call.answered(std::iter::once(news)));
                    answer
                }
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn fates(&self, count: usize) -> Vec<ItemFate> {
        let (cut, noise) = (self.world.is_cut(self.node), self.world.noise_per_mille());
        let (delay_max, late_max) =
            (self.world.plan.delay_max, 3 * self.world.plan.lease_and_grace());
        if self.world.is_corrupt(self.node) {
            let error = Some(StoreErrorKind::Corrupt);
            let fate = ItemFate {
                applied_after: None,
                repeated_after: None,
                error,
                told_after: MILLISECOND,
            };
            return vec![fate; count];
        }
        let mut fates = self.world.decide("store", |random| {
            let is_each = random.chance(300);
            let one = fate(random, cut, noise, delay_max, late_max);
            if !is_each {
                return vec![one; count];
            }
            (0..count).map(|_| fate(random, cut, noise, delay_max, late_max)).collect()
        });
        if self.world.plan.unavailable_may_be_applied {
            let refused = |fate: &&mut ItemFate| fate.error == Some(StoreErrorKind::Unavailable);
            for fate in fates.iter_mut().filter(refused) {
                fate.applied_after = self.world.decide("unavailable", |random| {
                    random.chance(300).then(|| random.below(late_max))
                });
            }
        }
        fates
    }
}

/// Chooses the fate of an item. `late_max` is the longest time for which the network can delay a
/// call.
fn fate(
    random: &mut Random,
    cut: Option<bool>,
    noise: u64,
    delay_max: Micros,
    late_max: Micros,
) -> ItemFate {
    let there = random.below(delay_max);
    let back = random.below(delay_max);
    let good = ItemFate {
        applied_after: Some(there),
        repeated_after: None,
        error: None,
        told_after: there + back,
    };
    let refused = |kind, told_after| ItemFate {
        applied_after: None,
        repeated_after: None,
        error: Some(kind),
        told_after,
    };
    let timeout = random.between(100 * MILLISECOND, 3 * SECOND);
    let lost = |applied_after| ItemFate {
        applied_after,
        repeated_after: None,
        error: Some(StoreErrorKind::Indeterminate),
        told_after: timeout,
    };
    match cut {
        Some(false) => return refused(StoreErrorKind::Unavailable, there),
        Some(true) => {
            return match random.below(4) {
                0 => lost(Some(timeout + random.below(late_max))),
                1 => lost(None),
                _ => refused(StoreErrorKind::Unavailable, timeout),
            };
        }
        None => {}
    }
    if !random.chance(noise) {
        return good;
    }
    match random.below(8) {
        0 | 1 => lost(Some(there.min(timeout))),
        2 => lost(None),
        3 => refused(StoreErrorKind::Unavailable, there),
        4 => lost(Some(timeout + random.below(late_max))),
        5 => refused(StoreErrorKind::Busy, there),
        6 => {
            let there = random.between(200 * MILLISECOND, 5 * SECOND);
            ItemFate { applied_after: Some(there), told_after: there + back, ..good }
        }
        _ => ItemFate { repeated_after: Some(there + random.below(2 * SECOND)), ..good },
    }
}

impl Store for NodeStore {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.write(batch, false, |world, actor, claim, _| {
            world.backend.claim(&world.history, world.now(), actor, claim)
        })
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        for settlement in &batch {
            self.world.history.sends(self.world.now(), self.actor(), settlement);
        }
        self.write(batch, true, |world, actor, settlement, told_at| {
            let (history, now) = (&world.history, world.now());
            let answer = world.backend.settle(history, now, actor, settlement.clone());
            // Events of one moment have a random order, so an answer of this moment may be sent
            // before: then it says "indeterminate".
            let told_at = told_at.filter(|told_at| *told_at > now);
            if let (Some(told_at), Ok(Settled::Done { .. })) = (told_at, &answer) {
                history.will_tell(told_at, actor, &settlement);
            }
            answer
        })
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.write(ids, false, |world, _, id, _| Ok(world.backend.load(id)))
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        match which {
            Due::LeaseEnd => self.ask(None, move |world, _| world.backend.abandoned(limit)),
            Due::Reconcile => self.ask(None, move |world, _| world.backend.unsettled(limit)),
        }
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        self.ask(None, move |world, actor| {
            Ok(world.backend.sweep(&world.history, world.now(), actor, limit))
        })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(None, |_, _| Ok(()))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }
}

impl RecordIndex for NodeStore {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.ask(None, move |world, _| world.backend.page(from, limit))
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        self.ask(None, move |world, _| world.backend.find(reference))
    }
}

impl AuditLog for NodeStore {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(None, move |world, _| world.backend.audit(entry))
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        self.ask(None, move |world, _| world.backend.audit_entries(of, from, limit))
    }
}

impl SharedSecrets for NodeStore {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        let call = Call::about_no_key(&self.world, self.actor());
        self.ask(Some(call), move |world, _| world.backend.secret(name, fresh))
    }
}

impl Sealing for NodeStore {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}
