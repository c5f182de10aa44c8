//! Forgetting: the filter lets go first, the authority forgets, and the filter lets go once more.

use std::future::Future;

use futures_util::future::{join, join_all};

use onetake_core::store::Answers;
use onetake_core::{RecordId, Settled, Settlement, StoreError, StoreErrorKind, Verb};

use super::{FilteredStore, no_answer};
use crate::redis::errors::wrote_nothing;

/// Where an item stood in its batch, and the item.
type Placed = (usize, Settlement);

impl FilteredStore {
    /// Makes both forget these keys. `by_authority` is how the authority does its part; it is
    /// polled once the filter has let go of them, and for a while nobody who read them before can
    /// put them back.
    ///
    /// # Errors
    /// If the filter does not answer: nothing was forgotten then, unless it is `Indeterminate`, which
    /// means that the authority forgot and the filter may still replay, for no longer than
    /// `entry_age_max`. Or what the authority says.
    pub async fn forget<T>(
        &self,
        ids: Vec<RecordId>,
        by_authority: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.writer.forget(ids.clone()).await.map_err(nothing_forgotten)?;
        let answer = by_authority.await?;
        // Once more, for whoever read the authority in between.
        self.writer.forget(ids).await.map_err(|error| {
            let what = "forgotten, but the filter may still replay it; forget it again";
            StoreError::new(StoreErrorKind::Indeterminate, what).with_source(error)
        })?;
        Ok(answer)
    }

    /// Settles a batch in which keys are forgotten. Only their own items wait for the filter (S21).
    pub(super) async fn settle_and_forget(&self, batch: Vec<Settlement>) -> Answers<Settled> {
        let count = batch.len();
        let forgotten: Vec<RecordId> =
            batch.iter().filter(|item| forgets(item)).map(|i| i.id).collect();
        // Whatever else there is for such a key stays in its order with it.
        let (keys, rest): (Vec<Placed>, Vec<Placed>) =
            batch.into_iter().enumerate().partition(|(_, item)| forgotten.contains(&item.id));
        let mut by_key: Vec<(RecordId, Vec<Placed>)> = Vec::new();
        for item in keys {
            match by_key.iter_mut().find(|(id, _)| *id == item.1.id) {
                Some((_, items)) => items.push(item),
                None => by_key.push((item.1.id, vec![item])),
            }
        }
        let keys = by_key.into_iter().map(|(id, items)| self.settle_key_and_forget(id, items));
        let (rest, keys) = join(self.settle_placed(rest), join_all(keys)).await;
        let mut answers: Answers<Settled> = (0..count).map(|_| Err(no_answer())).collect();
        for (at, answer) in keys.into_iter().flatten().chain(rest) {
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
        answers
    }

    /// Settles all items of one key, of which some forget it.
    async fn settle_key_and_forget(
        &self,
        id: RecordId,
        items: Vec<Placed>,
    ) -> Vec<(usize, Result<Settled, StoreError>)> {
        let mut answers = None;
        let forgot = self.forget(vec![id], async {
            answers = Some(self.settle_placed(items.clone()).await);
            Ok(())
        });
        let Err(error) = forgot.await else { return answers.unwrap_or_default() };
        let Some(answers) = answers else {
            // The filter was not there: what does not forget is done all the same.
            let (refused, others): (Vec<Placed>, Vec<Placed>) =
                items.into_iter().partition(|(_, item)| forgets(item));
            let refused = refused.into_iter().map(|(at, _)| (at, Err(error.clone())));
            return self.settle_placed(others).await.into_iter().chain(refused).collect();
        };
        let in_doubt = |((at, answer), (_, item)): (_, &Placed)| match answer {
            Ok(Settled::Done { .. }) if forgets(item) => (at, Err(error.clone())),
            answer => (at, answer),
        };
        answers.into_iter().zip(&items).map(in_doubt).collect()
    }

    async fn settle_placed(&self, items: Vec<Placed>) -> Vec<(usize, Result<Settled, StoreError>)> {
        if items.is_empty() {
            return Vec::new();
        }
        let (places, batch): (Vec<usize>, Vec<Settlement>) = items.into_iter().unzip();
        let answers = self.settle_by_authority(batch).await.into_iter().map(Some);
        let answers = answers.chain(std::iter::repeat(None));
        let placed = places.into_iter().zip(answers);
        placed.map(|(at, answer)| (at, answer.unwrap_or_else(|| Err(no_answer())))).collect()
    }
}

pub(super) fn forgets(item: &Settlement) -> bool {
    item.verb == Verb::Forget
}

fn nothing_forgotten(error: StoreError) -> StoreError {
    let error = wrote_nothing(error);
    let what = format!("nothing was forgotten, because the filter would replay it: {error}");
    StoreError::new(error.kind(), what).with_source(error)
}
