//! The conformance suite for outboxes.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::ConformanceReport;
use super::outbox_held::{
    a_backlog_that_goes_on_leaves_room_for_others, a_turn_of_one_is_everybodys,
    many_held_back_starve_nobody, one_that_waits_holds_back_those_behind_it,
    the_failing_are_seen_and_settled,
};
use super::outbox_model::whatever_relays_do_each_key_goes_on_in_order;
use onetake_core::outbox::{Delivery, LANES, Message, MessageId, Outbox, OutboxCounts, Turn};
use onetake_core::record::Fence;
use onetake_core::scope::RecordId;

/// A fresh, empty outbox, with control over its messages and its clock.
pub trait OutboxSubject: Send + Sync + 'static {
    /// The outbox.
    fn outbox(&self) -> Arc<dyn Outbox>;

    /// Writes messages, as an operation's transaction does.
    fn write(&self, messages: Vec<(MessageId, Message)>) -> BoxFuture<'_, ()>;

    /// Advances its time.
    fn advance(&self, by: Duration);
}

pub(super) const HOLD: Duration = Duration::from_secs(30);
pub(super) const WAIT: Duration = Duration::from_secs(600);
pub(super) const BYTES: usize = 1 << 20;

type Case = fn(Arc<dyn OutboxSubject>) -> BoxFuture<'static, ()>;

macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        [$((concat!("outbox::", stringify!($name)), {
            fn boxed(subject: Arc<dyn OutboxSubject>) -> BoxFuture<'static, ()> {
                Box::pin(async move { $name(&*subject).await })
            }
            boxed as Case
        })),+]
    };
}

/// Runs all cases, each on its own outbox.
pub async fn run_outbox<S, F>(fresh: impl Fn() -> F) -> ConformanceReport
where
    S: OutboxSubject,
    F: Future<Output = S>,
{
    let mut report = ConformanceReport::default();
    for (name, case) in cases![
        nothing_is_nothing,
        messages_come_back_whole_and_in_order,
        a_lane_is_one_relays_at_a_time,
        a_late_turn_changes_nothing,
        what_is_settled_twice_is_settled_once,
        what_failed_holds_back_its_key_alone,
        many_held_back_starve_nobody,
        a_backlog_that_goes_on_leaves_room_for_others,
        a_turn_of_one_is_everybodys,
        the_failing_are_seen_and_settled,
        one_that_waits_holds_back_those_behind_it,
        a_turn_has_a_limit_in_messages_and_bytes,
        the_parked_wait_for_an_operator,
        what_was_delivered_is_pruned_in_time,
        what_waits_is_counted,
        many_relays_share_the_work,
        whatever_relays_do_each_key_goes_on_in_order,
    ] {
        report.add(name, case(Arc::new(fresh().await))).await;
    }
    report
}

pub(super) fn id(number: u32) -> MessageId {
    MessageId::of(RecordId::from_bytes([9; 16]), Fence::new(1), number)
}

pub(super) fn message(order: &str, number: u32) -> (MessageId, Message) {
    (id(number), Message::new("t", order, number.to_string()))
}

/// Returns another ordering key in the same lane.
pub(super) fn neighbour(order: &str) -> String {
    let lane = Message::new("", order, "").lane();
    let same = |other: &String| Message::new("", other.as_str(), "").lane() == lane;
    (0..).map(|number| format!("neighbour {number}")).find(same).unwrap()
}

async fn take(subject: &dyn OutboxSubject) -> Option<Turn> {
    subject.outbox().take(HOLD, 100, BYTES).await.unwrap()
}

pub(super) async fn settle(
    subject: &dyn OutboxSubject,
    turn: &Turn,
    by: impl Fn(MessageId) -> Option<Delivery>,
) -> bool {
    let said = turn.messages.iter().filter_map(|one| Some((one.place, by(one.id)?))).collect();
    subject.outbox().settle(turn.lane, turn.turn, said).await.unwrap()
}

pub(super) fn ids(turn: &Turn) -> Vec<MessageId> {
    turn.messages.iter().map(|one| one.id).collect()
}

pub(super) fn again() -> Delivery {
    Delivery::Again { after: WAIT, error: "later".to_owned() }
}

async fn nothing_is_nothing(subject: &dyn OutboxSubject) {
    assert_eq!(take(subject).await, None);
    let outbox = subject.outbox();
    assert_eq!(outbox.counts().await.unwrap(), OutboxCounts::default());
    assert_eq!(outbox.prune(Duration::ZERO, 10).await.unwrap(), 0);
    assert!(outbox.parked(0, 10).await.unwrap().is_empty());
    assert!(!outbox.retry(id(0)).await.unwrap());
    assert!(!outbox.discard(id(0)).await.unwrap());
    assert!(!outbox.settle(0, 1, vec![(1, Delivery::Delivered)]).await.unwrap());
}

async fn messages_come_back_whole_and_in_order(subject: &dyn OutboxSubject) {
    let other = neighbour("a");
    let odd = Message::new("a.topic ✓", "a", vec![0, 255, b'\'', 0]).with_header("N", "v\r\n");
    let written = vec![(id(0), odd.clone()), message(&other, 1), message("a", 2)];
    subject.write(written).await;
    subject.write(vec![message(&other, 3)]).await;
    let turn = take(subject).await.unwrap();
    assert_eq!(turn.lane, odd.lane());
    assert_eq!(turn.messages[0].message, odd);
    assert_eq!(turn.messages[0].tries, 0);
    assert_eq!(ids(&turn), [id(0), id(1), id(2), id(3)]);
    assert!(turn.messages.is_sorted_by(|one, next| one.place < next.place));
    assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    assert_eq!(take(subject).await, None, "each once");
}

async fn a_lane_is_one_relays_at_a_time(subject: &dyn OutboxSubject) {
    subject.write(vec![message("a", 0)]).await;
    let first = take(subject).await.unwrap();
    assert_eq!(take(subject).await, None, "somebody has it");
    subject.write(vec![message("a", 1)]).await;
    assert_eq!(take(subject).await, None, "what comes later is theirs too");
    subject.advance(HOLD);
    let second = take(subject).await.unwrap();
    assert!(second.turn > first.turn);
    assert_eq!(ids(&second), [id(0), id(1)]);
}

async fn a_late_turn_changes_nothing(subject: &dyn OutboxSubject) {
    subject.write(vec![message("a", 0), message("a", 1)]).await;
    let late = take(subject).await.unwrap();
    subject.advance(HOLD);
    let turn = take(subject).await.unwrap();
    for said in [Delivery::Delivered, again(), Delivery::Park { error: "no".to_owned() }] {
        assert!(!settle(subject, &late, |_| Some(said.clone())).await);
    }
    assert_eq!(take(subject).await, None, "and the lane is still the other's");
    assert!(settle(subject, &turn, |of| (of == id(0)).then_some(Delivery::Delivered)).await);
    assert!(!settle(subject, &late, |_| Some(Delivery::Delivered)).await);
    assert_eq!(ids(&take(subject).await.unwrap()), [id(1)]);
    // The turn is late, but no other relay took the lane in between: its results count.
    subject.advance(HOLD);
    let turn = take(subject).await.unwrap();
    subject.advance(HOLD * 2);
    assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    assert_eq!(take(subject).await, None);
}

async fn what_is_settled_twice_is_settled_once(subject: &dyn OutboxSubject) {
    subject.write(vec![message("a", 0)]).await;
    let turn = take(subject).await.unwrap();
    assert!(settle(subject, &turn, |_| Some(again())).await);
    assert!(!settle(subject, &turn, |_| Some(again())).await, "the turn is over");
    subject.advance(WAIT);
    assert_eq!(take(subject).await.unwrap().messages[0].tries, 1);
}

async fn what_failed_holds_back_its_key_alone(subject: &dyn OutboxSubject) {
    let other = neighbour("a");
    subject.write(vec![message("a", 0), message("a", 1), message(&other, 2)]).await;
    let turn = take(subject).await.unwrap();
    let said = |of| match of {
        of if of == id(0) => Some(again()),
        of if of == id(2) => Some(Delivery::Delivered),
        _ => None,
    };
    assert!(settle(subject, &turn, said).await);
    assert_eq!(take(subject).await, None, "the second of the key waits for the first");
    subject.write(vec![message(&other, 3), message("a", 4)]).await;
    let turn = take(subject).await.unwrap();
    assert_eq!(ids(&turn), [id(3)], "its neighbour goes on");
    assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    subject.advance(WAIT);
    let turn = take(subject).await.unwrap();
    assert_eq!(ids(&turn), [id(0), id(1), id(4)]);
    assert_eq!(turn.messages[0].tries, 1);
    assert_eq!(turn.messages[1].tries, 0);
}

async fn a_turn_has_a_limit_in_messages_and_bytes(subject: &dyn OutboxSubject) {
    let large = |number| (id(number), Message::new("t", "a", vec![b'x'; 1000]));
    subject.write(vec![large(0), message("a", 1), large(2), message("a", 3)]).await;
    let outbox = subject.outbox();
    for (limit, bytes, expected) in
        [(100, 10, 0..1), (1, BYTES, 1..2), (100, 1000, 2..3), (100, BYTES, 3..4)]
    {
        let turn = outbox.take(HOLD, limit, bytes).await.unwrap().unwrap();
        let expected: Vec<_> = expected.map(id).collect();
        assert_eq!(ids(&turn), expected, "{limit} messages, {bytes} bytes");
        assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    }
    subject.write(vec![large(4), large(5), large(6)]).await;
    let turn = outbox.take(HOLD, 100, 2500).await.unwrap().unwrap();
    assert_eq!(ids(&turn), [id(4), id(5)]);
}

async fn the_parked_wait_for_an_operator(subject: &dyn OutboxSubject) {
    let outbox = subject.outbox();
    subject.write((0..4).map(|number| message("a", number)).collect()).await;
    let turn = take(subject).await.unwrap();
    let error = "too\0 large ✓".to_owned();
    let park = |of| (of != id(1)).then(|| Delivery::Park { error: error.clone() });
    assert!(settle(subject, &turn, park).await);
    let turn = take(subject).await.unwrap();
    assert_eq!(ids(&turn), [id(1)], "those behind go on");
    assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    assert!(!outbox.retry(id(1)).await.unwrap(), "it is not parked");
    assert!(!outbox.discard(id(1)).await.unwrap());
    let parked = outbox.parked(0, 2).await.unwrap();
    assert_eq!(parked[0].error.replace('\0', ""), "too large ✓");
    assert_eq!(parked.iter().map(|one| one.waiting.id).collect::<Vec<_>>(), [id(0), id(2)]);
    let rest = outbox.parked(parked[1].waiting.place, 2).await.unwrap();
    assert_eq!(rest.iter().map(|one| one.waiting.id).collect::<Vec<_>>(), [id(3)]);
    assert_eq!(outbox.counts().await.unwrap().parked, 3);
    assert!(outbox.discard(id(0)).await.unwrap());
    assert!(!outbox.discard(id(0)).await.unwrap());
    assert!(outbox.retry(id(3)).await.unwrap());
    assert!(!outbox.retry(id(3)).await.unwrap());
    let turn = take(subject).await.unwrap();
    assert_eq!(ids(&turn), [id(3)]);
    assert_eq!(turn.messages[0].tries, 0, "its tries are counted anew");
    assert_eq!(outbox.counts().await.unwrap().parked, 1);
}

async fn what_was_delivered_is_pruned_in_time(subject: &dyn OutboxSubject) {
    let outbox = subject.outbox();
    subject.write((0..5).map(|number| message("a", number)).collect()).await;
    let turn = take(subject).await.unwrap();
    let all_but_two = |of| match of {
        of if of == id(3) => None,
        of if of == id(4) => Some(Delivery::Park { error: String::new() }),
        _ => Some(Delivery::Delivered),
    };
    assert!(settle(subject, &turn, all_but_two).await);
    assert_eq!(outbox.prune(WAIT, 10).await.unwrap(), 0, "not yet");
    subject.advance(WAIT);
    assert_eq!(outbox.prune(WAIT, 2).await.unwrap(), 2);
    assert_eq!(outbox.prune(WAIT, 2).await.unwrap(), 1);
    assert_eq!(outbox.prune(WAIT, 2).await.unwrap(), 0, "what waits and what is parked stays");
    let counts = outbox.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.parked), (1, 1));
}

async fn what_waits_is_counted(subject: &dyn OutboxSubject) {
    let outbox = subject.outbox();
    subject.write(vec![message("a", 0)]).await;
    subject.advance(WAIT);
    subject.write(vec![message("b", 1)]).await;
    let counts = outbox.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.parked), (2, 0));
    assert!(counts.lag >= WAIT && counts.lag < WAIT * 2, "{counts:?}");
    while let Some(turn) = take(subject).await {
        assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    }
    assert_eq!(outbox.counts().await.unwrap(), OutboxCounts::default());
}

async fn many_relays_share_the_work(subject: &dyn OutboxSubject) {
    let orders = (0..200).map(|number| format!("key {number}")).collect::<Vec<_>>();
    let all = orders.iter().enumerate();
    let all = all.map(|(at, order)| message(order, u32::try_from(at).unwrap()));
    subject.write(all.collect()).await;
    let relay = || {
        let outbox = subject.outbox();
        tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some(turn) = outbox.take(HOLD, 2, BYTES).await.unwrap() {
                assert!(turn.lane < LANES);
                tokio::task::yield_now().await;
                let said = turn.messages.iter().map(|one| (one.place, Delivery::Delivered));
                assert!(outbox.settle(turn.lane, turn.turn, said.collect()).await.unwrap());
                seen.extend(ids(&turn));
            }
            seen
        })
    };
    let relays = [relay(), relay(), relay(), relay()];
    let mut seen = Vec::new();
    for relay in relays {
        seen.extend(relay.await.unwrap());
    }
    // A relay that found all lanes taken has stopped early.
    while let Some(turn) = take(subject).await {
        seen.extend(ids(&turn));
        assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    }
    assert_eq!(seen.len(), 200, "each once, while nobody is late");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), 200);
}
