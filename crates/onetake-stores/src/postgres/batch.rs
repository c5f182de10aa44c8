//! Common code of claims and settlements: each key is at most once in a statement, statements have
//! a bounded size, and a held or refused key neither delays nor fails the others (S21).

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::store::Answers;
use onetake_core::{RecordId, StoreError};

use super::PostgresStore;
use super::pool::PooledConnection;
use super::statement_error::StatementError;

/// The largest number of items in one statement.
const ITEMS_MAX: usize = 512;
/// The largest number of bytes of recordings in one statement.
const BYTES_MAX: usize = 2 << 20;
/// The time for which a held key is sent apart from the others.
const HELD_FOR: Duration = Duration::from_secs(1);
/// The largest number of keys that are remembered as held.
const HELD_MAX: usize = 1024;

/// Splits the positions of a batch into statements. Within one statement each id appears once, and
/// ids are sorted, so that nodes never deadlock each other. Items with the same id keep their
/// order, in later statements.
pub(super) fn statements(items: &[(RecordId, usize)]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    let mut seen: HashMap<RecordId, usize> = HashMap::new();
    for (at, (id, _)) in items.iter().enumerate() {
        let round = seen.entry(*id).and_modify(|round| *round += 1).or_insert(0);
        match rounds.get_mut(*round) {
            Some(positions) => positions.push(at),
            None => rounds.push(vec![at]),
        }
    }
    let mut statements = Vec::new();
    for mut round in rounds {
        round.sort_by_key(|at| items.get(*at).map(|(id, _)| *id));
        let (mut statement, mut bytes) = (Vec::new(), 0);
        for at in round {
            let size = items.get(at).map_or(0, |(_, size)| *size);
            if statement.len() == ITEMS_MAX || (bytes + size > BYTES_MAX && !statement.is_empty()) {
                statements.push(std::mem::take(&mut statement));
                bytes = 0;
            }
            statement.push(at);
            bytes += size;
        }
        if !statement.is_empty() {
            statements.push(statement);
        }
    }
    statements
}

/// Keys that another transaction held a moment ago.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<HashMap<RecordId, Duration>>);

impl Held {
    /// Remembers a key.
    pub(super) fn add(&self, id: RecordId, now: Duration) {
        let mut held = self.lock();
        if held.len() >= HELD_MAX {
            held.retain(|_, until| *until > now);
        }
        if held.len() < HELD_MAX {
            held.insert(id, now.saturating_add(HELD_FOR));
        }
    }

    /// Returns the keys that are remembered now.
    pub(super) fn now(&self, now: Duration) -> HashSet<RecordId> {
        let mut held = self.lock();
        if held.is_empty() {
            return HashSet::new();
        }
        held.retain(|_, until| *until > now);
        held.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of rounds in which a held item is sent by itself, with a longer wait each time.
const ROUNDS_MAX: u32 = 7;
/// The number of rounds in which an item is sent again because the server asks for it (40001), or
/// because it got no row. No lock is waited for then, so these rounds are quick.
const AGAIN_MAX: u32 = 40;
/// The longest wait of one round for all held keys together, in milliseconds. Held keys are given
/// up after a total wait of this length.
const ROUND_MILLIS: u32 = 64;
/// The largest number of recently held keys that are tried again in one batch.
const TOUCHED_MAX: usize = 64;
/// The longest wait for another transaction's lock in a statement with many items.
pub(super) const LOCK_TIMEOUT: &str = "50ms";

/// The behaviour of a statement towards rows that another transaction holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    /// Many items. The whole statement fails if another transaction claims one of them at the same
    /// moment.
    Quick,
    /// Many items. Held rows are skipped where possible.
    Together,
    /// One item. The statement waits for its row, for this many milliseconds.
    Alone(u32),
}

impl LockMode {
    /// The longest wait for a lock.
    pub(super) fn lock_timeout(self) -> String {
        match self {
            Self::Quick | Self::Together => LOCK_TIMEOUT.into(),
            Self::Alone(millis) => format!("{millis}ms"),
        }
    }
}

/// Returns how many milliseconds each of `items` items may wait in a round. The wait doubles from
/// round to round, and all items together wait no longer than `ROUND_MILLIS`.
fn patience(round: u32, items: usize) -> u32 {
    let share = ROUND_MILLIS / u32::try_from(items).unwrap_or(u32::MAX).max(1);
    (1 << round.min(ROUNDS_MAX)).min(share).max(1)
}

/// One answer for each item that was sent; `None` if the item must be sent again.
pub(super) type Sent<R> = Vec<Option<Result<R, StoreError>>>;

/// An item that is sent in batches.
pub(super) trait Batched: Sync {
    type Answer;

    fn id(&self) -> RecordId;

    /// The number of bytes that it adds to a statement.
    fn bytes(&self) -> usize;

    /// Sends these items, all with different ids, as one statement.
    fn send(
        store: &PostgresStore,
        link: &PooledConnection<'_>,
        items: &[&Self],
        manner: LockMode,
    ) -> impl Future<Output = Result<Sent<Self::Answer>, StatementError>> + Send;
}

/// Sends a batch: most items together, held and refused ones one by one.
pub(super) async fn drive<T: Batched>(store: &PostgresStore, items: &[T]) -> Answers<T::Answer> {
    let mut driven = Driven { store, items, answers: items.iter().map(|_| None).collect() };
    let sizes: Vec<_> = items.iter().map(|item| (item.id(), item.bytes())).collect();
    for statement in statements(&sizes) {
        driven.statement(statement).await;
    }
    let unanswered = || Err(StatementError::Again.for_one());
    driven.answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
}

struct Driven<'a, T: Batched> {
    store: &'a PostgresStore,
    items: &'a [T],
    answers: Sent<T::Answer>,
}

impl<T: Batched> Driven<'_, T> {
    async fn statement(&mut self, positions: Vec<usize>) {
        let held = self.store.held.now(self.store.clock.monotonic());
        let is_held =
            |at: &usize| self.items.get(*at).is_some_and(|item| held.contains(&item.id()));
        let (mut apart, together): (Vec<usize>, Vec<usize>) =
            positions.into_iter().partition(is_held);
        let again = self.together(together).await;
        self.singly(again, ROUNDS_MAX).await;
        // These keys were held a moment ago. Each gets one short try, up to `TOUCHED_MAX` of them.
        let untried = apart.split_off(apart.len().min(TOUCHED_MAX));
        self.singly(apart, 1).await;
        let held = untried.iter().map(|_| Some(Err(StatementError::Held.for_one()))).collect();
        self.fill(&untried, held);
    }

    /// Sends all items in one statement. Returns the positions that must be sent by themselves.
    async fn together(&mut self, positions: Vec<usize>) -> Vec<usize> {
        if positions.is_empty() {
            return positions;
        }
        let items: Vec<&T> = positions.iter().filter_map(|at| self.items.get(*at)).collect();
        let sent = match self.store.pool.link().await {
            Ok(link) => match T::send(self.store, &link, &items, LockMode::Quick).await {
                Err(StatementError::Taken) => {
                    T::send(self.store, &link, &items, LockMode::Together).await
                }
                sent => sent,
            },
            Err(error) => Err(StatementError::Store(error)),
        };
        match sent {
            Ok(answers) => self.fill(&positions, answers),
            Err(
                StatementError::Held
                | StatementError::Refused(_)
                | StatementError::Again
                | StatementError::Taken,
            ) => positions,
            Err(StatementError::Trouble(error) | StatementError::Store(error)) => {
                self.fail(&positions, &error);
                Vec::new()
            }
        }
    }

    /// Sends each item in its own statement, all at the same time. The wait for held keys grows
    /// with each round, until it is used up.
    async fn singly(&mut self, mut positions: Vec<usize>, rounds: u32) {
        let mut waited = 0;
        for round in 0..AGAIN_MAX {
            if positions.is_empty() {
                return;
            }
            let link = match self.store.pool.link().await {
                Ok(link) => link,
                Err(error) => return self.fail(&positions, &error),
            };
            let millis = patience(round, positions.len());
            let (store, link) = (self.store, &link);
            let items = positions.iter().filter_map(|at| self.items.get(*at));
            let tried = join_all(items.map(|item| async move {
                match T::send(store, link, &[item], LockMode::Alone(millis)).await {
                    Ok(mut answers) => answers.pop().flatten().ok_or(StatementError::Again),
                    Err(fault) => Err(fault),
                }
            }))
            .await;
            let held =
                tried.iter().filter(|tried| matches!(tried, Err(StatementError::Held))).count();
            waited += millis.saturating_mul(u32::try_from(held).unwrap_or(u32::MAX));
            let last = round + 1 == AGAIN_MAX;
            let abort = round + 1 >= rounds || waited >= ROUND_MILLIS;
            let mut again = Vec::new();
            for (at, tried) in positions.into_iter().zip(tried) {
                match tried {
                    Err(StatementError::Again) if !last => again.push(at),
                    Err(StatementError::Held) if !abort => again.push(at),
                    Err(StatementError::Held) => {
                        if let Some(item) = self.items.get(at) {
                            store.held.add(item.id(), store.clock.monotonic());
                        }
                        self.fail(&[at], &StatementError::Held.for_one());
                    }
                    Err(fault) => self.fail(&[at], &fault.for_one()),
                    Ok(answer) => {
                        self.fill(&[at], vec![Some(answer)]);
                    }
                }
            }
            positions = again;
        }
    }

    fn fail(&mut self, positions: &[usize], error: &StoreError) {
        let answers = positions.iter().map(|_| Some(Err(error.clone()))).collect();
        self.fill(positions, answers);
    }

    /// Stores the answers. Returns the positions that have no answer yet.
    fn fill(&mut self, positions: &[usize], answers: Sent<T::Answer>) -> Vec<usize> {
        let mut again = Vec::new();
        for (at, answer) in positions.iter().zip(answers) {
            match (self.answers.get_mut(*at), answer) {
                (Some(place), Some(answer)) => *place = Some(answer),
                _ => again.push(*at),
            }
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> RecordId {
        RecordId::from_bytes([byte; 16])
    }

    #[test]
    fn a_key_stands_once_in_a_statement_and_in_order() {
        let items = [(id(3), 0), (id(1), 0), (id(3), 0), (id(2), 0), (id(3), 0)];
        assert_eq!(statements(&items), [vec![1, 3, 0], vec![2], vec![4]]);
        assert!(statements(&[]).is_empty());
    }

    #[test]
    fn statements_are_bounded() {
        let many: Vec<_> =
            (0..1200_u32).map(|n| (RecordId::from_bytes(u128::from(n).to_be_bytes()), 0)).collect();
        let sizes: Vec<usize> = statements(&many).iter().map(Vec::len).collect();
        assert_eq!(sizes, [512, 512, 176]);
        let large: Vec<_> = (0..5).map(|n| (id(n), BYTES_MAX / 2)).collect();
        assert_eq!(statements(&large).iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        let too_large = [(id(0), BYTES_MAX * 2), (id(1), 1)];
        assert_eq!(statements(&too_large).len(), 2);
    }

    #[test]
    fn patience_grows_and_is_shared() {
        assert_eq!(patience(0, 1), 1);
        assert_eq!(patience(5, 1), 32);
        assert_eq!(patience(6, 1), 64);
        assert_eq!(patience(6, 10), 6);
        assert_eq!(patience(6, 512), 1);
    }

    #[test]
    fn a_held_key_is_forgotten() {
        let held = Held::default();
        held.add(id(1), Duration::ZERO);
        assert!(held.now(HELD_FOR / 2).contains(&id(1)));
        assert!(held.now(HELD_FOR).is_empty());
    }
}
