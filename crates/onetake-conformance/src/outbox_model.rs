//! Comparison of an outbox with a model of it. A seed determines the order of events: relays that
//! take, deliver, fail, die and return late, actions of operators, and time.

use std::collections::HashMap;
use std::time::Duration;

use super::outbox::{BYTES, HOLD, OutboxSubject, message, neighbour};
use onetake_core::outbox::{Delivery, Message, MessageId, Turn};

const SEEDS: u64 = 8;
const STEPS: usize = 120;
const SECOND: Duration = Duration::from_secs(1);

/// The state of a message in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageState {
    /// The message is not tried before this time.
    Waits(Duration),
    Parked,
    Gone,
}

/// A message. Messages are in the order in which they were written.
#[derive(Debug)]
struct ModelMessage {
    id: MessageId,
    order: String,
    fate: MessageState,
    tries: u32,
    /// True if an operator had the message tried again: later messages went on without it.
    is_retried: bool,
}

struct Model<'a> {
    subject: &'a dyn OutboxSubject,
    dice: u64,
    now: Duration,
    written: Vec<ModelMessage>,
    orders: Vec<String>,
    /// The turns that relays hold, and their ends.
    turns: Vec<(Turn, Duration)>,
    /// The latest turn of each lane, until it is settled.
    latest: HashMap<u8, u64>,
}

pub(super) async fn whatever_relays_do_each_key_goes_on_in_order(subject: &dyn OutboxSubject) {
    let orders = ["a".to_owned(), neighbour("a"), "b".to_owned(), "c".to_owned()];
    let mut model = Model {
        subject,
        dice: 0,
        now: Duration::ZERO,
        written: Vec::new(),
        orders: orders.into(),
        turns: Vec::new(),
        latest: HashMap::new(),
    };
    for seed in 0..SEEDS {
        model.dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for _ in 0..STEPS {
            model.step().await;
        }
        model.drain().await;
    }
}

impl Model<'_> {
    fn roll(&mut self, sides: usize) -> usize {
        // xorshift64: the same in every run.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        usize::try_from(self.dice >> 33).unwrap_or_default() % sides
    }

    async fn step(&mut self) {
        match self.roll(14) {
            0..3 => self.write().await,
            3..7 => self.take().await,
            7..10 => self.settle().await,
            10..12 => self.pass(SECOND * u32::try_from(self.dice % 20).unwrap_or_default()),
            12 => self.operate().await,
            _ => self.count().await,
        }
    }

    fn pass(&mut self, by: Duration) {
        self.subject.advance(by);
        self.now += by;
    }

    async fn write(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..=self.roll(6) {
            let at = self.roll(self.orders.len());
            let order = self.orders[at].clone();
            let (id, one) = message(&order, u32::try_from(self.written.len()).unwrap());
            let fate = MessageState::Waits(Duration::ZERO);
            self.written.push(ModelMessage { id, order, fate, tries: 0, is_retried: false });
            batch.push((id, one));
        }
        self.subject.write(batch).await;
    }

    /// Returns the messages that may be delivered now: those of a key from its first one, up to one
    /// that has to wait.
    fn due(&self, order: &str) -> Vec<&ModelMessage> {
        let of_key = self.written.iter().filter(|one| one.order == order);
        let waiting = of_key.filter(|one| matches!(one.fate, MessageState::Waits(_)));
        waiting
            .take_while(|one| matches!(one.fate, MessageState::Waits(until) if until <= self.now))
            .collect()
    }

    fn is_free(&self, order: &str) -> bool {
        let lane = Message::new("", order, "").lane();
        !self.turns.iter().any(|(turn, until)| turn.lane == lane && *until > self.now)
    }

    async fn take(&mut self) {
        let limit = 1 + self.roll(8);
        let Some(turn) = self.subject.outbox().take(HOLD, limit, BYTES).await.unwrap() else {
            for order in self.orders.iter().filter(|order| self.is_free(order)) {
                assert!(self.due(order).is_empty(), "{order} is due, and nobody is told");
            }
            return;
        };
        assert!(!turn.messages.is_empty() && turn.messages.len() <= limit);
        assert!(turn.messages.is_sorted_by(|one, next| one.place < next.place));
        for order in &self.orders {
            let of_key = turn.messages.iter().filter(|one| one.message.order == *order);
            let taken: Vec<(MessageId, u32)> = of_key.map(|one| (one.id, one.tries)).collect();
            if taken.is_empty() {
                continue;
            }
            assert!(self.is_free(order), "two have the lane of {order}");
            let due = self.due(order).into_iter();
            // A message that an operator sent after the others no longer has a fixed order among
            // them.
            let due =
                due.filter(|one| !one.is_retried || taken.iter().any(|(id, _)| *id == one.id));
            let due: Vec<(MessageId, u32)> = due.map(|one| (one.id, one.tries)).collect();
            assert!(due.starts_with(&taken), "{order}: {taken:?} of {due:?}");
        }
        // Relays that had the lane before are late now. Some of them return.
        self.turns.retain(|(other, _)| other.lane != turn.lane || self.dice.is_multiple_of(2));
        self.latest.insert(turn.lane, turn.turn);
        self.turns.push((turn, self.now + HOLD));
    }

    async fn settle(&mut self) {
        if self.turns.is_empty() {
            return;
        }
        let at = self.roll(self.turns.len());
        let (turn, until) = self.turns.remove(at);
        let mut said = Vec::new();
        let mut stopped = Vec::new();
        for one in &turn.messages {
            if stopped.contains(&one.message.order) {
                continue;
            }
            let delivery = match self.roll(8) {
                0..4 => Delivery::Delivered,
                4 => Delivery::Park { error: "never".to_owned() },
                5..7 => {
                    let after = SECOND * u32::try_from(self.roll(60)).unwrap();
                    // A sink should not deliver messages behind one that failed. Some sinks do.
                    if self.roll(2) == 0 {
                        stopped.push(one.message.order.clone());
                    }
                    Delivery::Again { after, error: "later".to_owned() }
                }
                _ => {
                    stopped.push(one.message.order.clone());
                    continue;
                }
            };
            said.push((one.id, one.place, delivery));
        }
        let deliveries = said.iter().map(|(_, place, delivery)| (*place, delivery.clone()));
        let heard =
            self.subject.outbox().settle(turn.lane, turn.turn, deliveries.collect()).await.unwrap();
        let is_latest = self.latest.get(&turn.lane) == Some(&turn.turn);
        assert!(is_latest || !heard, "a relay was heard that is too late");
        assert!(heard || !is_latest || until <= self.now, "a relay was not heard");
        if !heard {
            return;
        }
        self.latest.remove(&turn.lane);
        for (id, _, delivery) in said {
            let now = self.now;
            let one = self.written.iter_mut().find(|one| one.id == id).unwrap();
            one.tries += u32::from(delivery != Delivery::Delivered);
            one.fate = match delivery {
                Delivery::Delivered => MessageState::Gone,
                Delivery::Park { .. } => MessageState::Parked,
                Delivery::Again { after, .. } => MessageState::Waits(now + after),
            };
        }
    }

    /// An operator decides about a parked message.
    async fn operate(&mut self) {
        let outbox = self.subject.outbox();
        let retries = self.roll(2) == 0;
        let Some(one) = self.written.iter_mut().find(|one| one.fate == MessageState::Parked) else {
            return;
        };
        if retries {
            assert!(outbox.retry(one.id).await.unwrap());
            (one.fate, one.tries, one.is_retried) = (MessageState::Waits(Duration::ZERO), 0, true);
        } else {
            assert!(outbox.discard(one.id).await.unwrap());
            one.fate = MessageState::Gone;
        }
    }

    async fn count(&self) {
        let counts = self.subject.outbox().counts().await.unwrap();
        let waiting =
            self.written.iter().filter(|one| matches!(one.fate, MessageState::Waits(_))).count();
        let parked = self.written.iter().filter(|one| one.fate == MessageState::Parked).count();
        assert_eq!((counts.waiting, counts.parked), (waiting as u64, parked as u64));
        assert!(waiting > 0 || counts.lag.is_zero(), "{counts:?}");
    }

    /// All waiting messages are delivered in the end, each once.
    async fn drain(&mut self) {
        self.turns.clear();
        self.pass(HOLD + SECOND * 60);
        while let Some(turn) = self.subject.outbox().take(HOLD, 7, BYTES).await.unwrap() {
            for one in &turn.messages {
                let one = self.written.iter_mut().find(|other| other.id == one.id).unwrap();
                assert!(matches!(one.fate, MessageState::Waits(_)), "again: {one:?}");
                one.fate = MessageState::Gone;
            }
            let all = turn.messages.iter().map(|one| (one.place, Delivery::Delivered)).collect();
            assert!(self.subject.outbox().settle(turn.lane, turn.turn, all).await.unwrap());
        }
        self.count().await;
        let left = self.written.iter().find(|one| matches!(one.fate, MessageState::Waits(_)));
        assert!(left.is_none(), "forgotten: {left:?}");
    }
}
