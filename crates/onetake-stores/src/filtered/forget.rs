//! Forgetting of a key: the filter deletes its entry, the authority forgets, and the filter deletes
//! once more.

use std::future::Future;

use futures_util::future::{join, join_all};

use onetake_core::store::Answers;
use onetake_core::{RecordId, Settled, Settlement, StoreError, StoreErrorKind, Transition};

use super::{FilteredStore, no_answer};
use crate::redis::errors::wrote_nothing;

/// An item with its position in the batch.
type Placed = (usize, Settlement);

impl FilteredStore {
    /// Makes the filter and the authority forget these keys. `by_authority` is the authority's
    /// part. It is polled after the filter has deleted the entries. For a while, a node that read
    /// the keys before cannot write the entries again.
    ///
    /// # Errors
    /// If the filter does not answer. Then nothing was forgotten, unless the error is
    /// `Indeterminate`: the authority has forgotten, and the filter may still replay, for at most
    /// `entry_age_max`. Errors of the authority are returned too.
    pub async fn forget<T>(
        &self,
        ids: Vec<RecordId>,
        by_authority: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.writer.forget(ids.clone()).await.map_err(nothing_forgotten)?;
        let answer = by_authority.await?;
        // Once more, for a node that read the authority in between.
        self.writer.forget(ids).await.map_err(|error| {
            let what = "the key was forgotten, but the filter may still replay its outcome: forget the key again";
            StoreError::new(StoreErrorKind::Indeterminate, what).with_source(error)
        })?;
        Ok(answer)
    }

    /// Settles a batch in which keys are forgotten. Only the items of these keys wait for the
    /// filter (S21).
    pub(super) async fn settle_and_forget(&self, batch: Vec<Settlement>) -> Answers<Settled> {
        let count = batch.len();
        let forgotten: Vec<RecordId> =
            batch.iter().filter(|item| forgets(item)).map(|i| i.id).collect();
        // All items of such a key stay together, in their order.
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

    /// Settles all items of one key. Some of them forget it.
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
            // The filter was unreachable. The items that do not forget are settled all the same.
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
    item.transition == Transition::Forget
}

fn nothing_forgotten(error: StoreError) -> StoreError {
    let error = wrote_nothing(error);
    let what = format!(
        "the key was not forgotten, because the filter would still replay its outcome: {error}"
    );
    StoreError::new(error.kind(), what).with_source(error)
}
