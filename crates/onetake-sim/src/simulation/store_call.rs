//! What a process learns from its calls of the store, for the checks of runs without a record.

use std::sync::Arc;

use onetake_core::store::{Claimed, Settled, StoreError, StoreErrorKind};
use onetake_core::{Claim, Record, RecordId, Settlement, Transition};

use super::history::{Actor, Question, StoreNews};
use super::node::arrival_in;
use super::world::World;

/// A call that waits for its answer. The history records what the process learns from it.
pub(super) struct Call {
    world: Arc<World>,
    actor: Actor,
    /// The subjects of its items. An item can be about no key.
    about: Vec<Option<Question>>,
}

impl Call {
    /// Creates a call with an item for each key.
    pub(super) fn about<T: AboutKey>(world: &Arc<World>, actor: Actor, batch: &[T]) -> Self {
        let about = batch.iter().map(|item| Some(item.about(world))).collect();
        Self { world: Arc::clone(world), actor, about }
    }

    /// Creates a call that is about no key.
    pub(super) fn about_no_key(world: &Arc<World>, actor: Actor) -> Self {
        Self { world: Arc::clone(world), actor, about: vec![None] }
    }

    /// Records the answers of all items.
    pub(super) fn answered(mut self, news: impl Iterator<Item = Option<StoreNews>>) {
        for (about, news) in std::mem::take(&mut self.about).into_iter().zip(news) {
            // A recovery that fails in any way leaves the claim lost.
            let is_lost = about.is_some_and(|question| question.is_recovery);
            if let Some(news) = news.or(is_lost.then_some(StoreNews::Outage)) {
                self.learns(about, news);
            }
        }
    }

    fn learns(&self, about: Option<Question>, news: StoreNews) {
        self.world.history.learns(self.world.now(), self.actor, about, news);
    }
}

/// A process that drops a call gave up waiting for its answer.
impl Drop for Call {
    fn drop(&mut self) {
        for about in std::mem::take(&mut self.about) {
            self.learns(about, StoreNews::Outage);
        }
    }
}

/// Returns what an error says about the store. A busy or damaged store is not unreachable.
pub(super) fn news_of(error: &StoreError) -> Option<StoreNews> {
    let is_outage =
        matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Indeterminate);
    is_outage.then_some(StoreNews::Outage)
}

/// An item of a call that names a key.
pub(super) trait AboutKey {
    fn about(&self, world: &World) -> Question;
}

impl AboutKey for Claim {
    fn about(&self, world: &World) -> Question {
        let asked_by = arrival_in(&self.origin.route);
        world.history.claims(self.attempt, asked_by);
        Question { id: self.id, asked_by, is_recovery: false }
    }
}

impl AboutKey for Settlement {
    /// A renewal of a claim whose answer was lost belongs to the request of the claim.
    fn about(&self, world: &World) -> Question {
        let is_renewal = self.transition == Transition::Renew;
        let asked_by = if is_renewal { world.history.claimed_by(self.attempt) } else { None };
        Question { id: self.id, asked_by, is_recovery: is_renewal }
    }
}

impl AboutKey for RecordId {
    /// A request reads a record when it arrives. Other reads belong to other tasks.
    fn about(&self, world: &World) -> Question {
        Question { id: *self, asked_by: Some(world.now()), is_recovery: false }
    }
}

/// An answer of the store about one key.
pub(super) trait AnswerAboutKey {
    /// Returns what the process learns from it.
    fn news(&self) -> Option<StoreNews>;
}

impl AnswerAboutKey for Claimed {
    fn news(&self) -> Option<StoreNews> {
        Some(StoreNews::Taken)
    }
}

impl AnswerAboutKey for Settled {
    fn news(&self) -> Option<StoreNews> {
        match self {
            Self::Done { record, .. } => Some(StoreNews::of(Some(record))),
            Self::Stale { current } => Some(StoreNews::of(current.as_deref())),
        }
    }
}

impl AnswerAboutKey for Option<Arc<Record>> {
    fn news(&self) -> Option<StoreNews> {
        Some(StoreNews::of(self.as_deref()))
    }
}
