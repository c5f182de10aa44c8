//! A test of states of an outbox that no command creates, but a manual change or a wrong clock
//! might: the outbox repairs itself.

use std::time::Duration;

use onetake_conformance::OutboxSubject;
use onetake_core::outbox::{Delivery, Turn};
use onetake_core::{Fence, Message, MessageId, RecordId};

const DAY: Duration = Duration::from_hours(24);
const HOLD: Duration = Duration::from_secs(60);

fn id(number: u32) -> MessageId {
    MessageId::of(RecordId::from_bytes([1; 16]), Fence::new(1), number)
}

async fn take(subject: &dyn OutboxSubject, hold: Duration, limit: usize) -> Option<Turn> {
    subject.outbox().take(hold, limit, 999).await.unwrap()
}

async fn takes_the_second(subject: &dyn OutboxSubject, hold: Duration) {
    let turn = take(subject, hold, 9).await.unwrap();
    assert_eq!(turn.messages.iter().map(|one| one.id).collect::<Vec<_>>(), [id(1)]);
}

/// No message waits for ever: neither for a message that was deleted manually, nor for the time of
/// a clock that was far ahead. `by_hand` executes a statement without the outbox's commands.
pub(crate) async fn mends_itself(subject: &dyn OutboxSubject, by_hand: impl Fn(&'static str)) {
    subject.write((0..2).map(|number| (id(number), Message::new("t", "a", "p"))).collect()).await;
    let turn = take(subject, HOLD, 1).await.unwrap();
    let later = Delivery::Again { after: DAY * 400, error: "no".to_owned() };
    let place = turn.messages.first().unwrap().place;
    let said = vec![(place, later)];
    assert!(subject.outbox().settle(turn.lane, turn.turn, said).await.unwrap());
    assert_eq!(take(subject, HOLD, 9).await, None);
    by_hand("DELETE FROM onetake_outbox WHERE state = 3");
    subject.advance(DAY - HOLD);
    assert_eq!(take(subject, HOLD, 9).await, None);
    subject.advance(HOLD);
    takes_the_second(subject, DAY * 400).await;
    by_hand("UPDATE onetake_outbox SET state = 3, state_at = state_at + 1000000000000000");
    by_hand("UPDATE onetake_lanes SET taken_until = 9000000000000000 WHERE taken_until > 0");
    subject.advance(DAY);
    assert_eq!(take(subject, HOLD, 9).await, None);
    subject.outbox().prune(DAY, 9).await.unwrap();
    takes_the_second(subject, HOLD).await;
}
