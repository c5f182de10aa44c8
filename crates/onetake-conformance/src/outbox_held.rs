//! Cases for messages that fail, for the messages that wait behind them, and for all others.

use std::time::Duration;

use super::outbox::{BYTES, HOLD, OutboxSubject, WAIT, again, id, ids, message, neighbour, settle};
use onetake_core::outbox::{Delivery, Turn};

async fn take(subject: &dyn OutboxSubject, limit: usize) -> Option<Turn> {
    subject.outbox().take(HOLD, limit, BYTES).await.unwrap()
}

pub(super) async fn many_held_back_starve_nobody(subject: &dyn OutboxSubject) {
    let other = neighbour("a");
    subject.write(vec![message("a", 0)]).await;
    let turn = take(subject, 100).await.unwrap();
    assert!(settle(subject, &turn, |_| Some(again())).await);
    subject.write((1..5_000).map(|number| message("a", number)).collect()).await;
    subject.write(vec![message(&other, 5_000)]).await;
    assert_eq!(ids(&take(subject, 100).await.unwrap()), [id(5_000)], "at the first call");
}

/// While the backlog of one key is delivered again, a due message of another key gets its turn.
pub(super) async fn a_backlog_that_goes_on_leaves_room_for_others(subject: &dyn OutboxSubject) {
    let other = neighbour("a");
    subject.write((0..100).map(|number| message("a", number)).collect()).await;
    subject.write(vec![message(&other, 100)]).await;
    let turn = take(subject, 200).await.unwrap();
    let later = |of| {
        let after = if of == id(100) { WAIT + Duration::from_secs(1) } else { WAIT };
        [id(0), id(100)].contains(&of).then(|| Delivery::Again { after, error: "later".to_owned() })
    };
    assert!(settle(subject, &turn, later).await);
    assert_eq!(take(subject, 200).await, None);
    subject.advance(WAIT + Duration::from_secs(2));
    let mut turns = Vec::new();
    for _ in 0..3 {
        let turn = take(subject, 5).await.unwrap();
        assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
        turns.push(ids(&turn));
    }
    assert!(turns.iter().any(|turn| turn.contains(&id(100))), "{turns:?}");
    assert_eq!(turns[0], (0..5).map(id).collect::<Vec<_>>());
}

/// Even with one message a turn, fresh messages and failed ones are both delivered.
pub(super) async fn a_turn_of_one_is_everybodys(subject: &dyn OutboxSubject) {
    let other = neighbour("a");
    subject.write(vec![message("a", 0)]).await;
    subject.write((1..9).map(|number| message(&other, number)).collect()).await;
    let (mut failed, mut delivered) = (0, 0);
    for _ in 0..12 {
        let turn = take(subject, 1).await.unwrap();
        let at_once = Delivery::Again { after: Duration::ZERO, error: "no".to_owned() };
        let is_failing = ids(&turn) == [id(0)];
        let said = if is_failing { at_once } else { Delivery::Delivered };
        assert!(settle(subject, &turn, |_| Some(said.clone())).await);
        failed += u32::from(is_failing);
        delivered += u32::from(!is_failing);
    }
    assert!(failed >= 4 && delivered >= 4, "{failed} failed, {delivered} delivered");
}

pub(super) async fn the_failing_are_seen_and_settled(subject: &dyn OutboxSubject) {
    let outbox = subject.outbox();
    subject.write((0..3).map(|number| message("a", number)).collect()).await;
    assert!(outbox.failing(0, 10).await.unwrap().is_empty());
    assert!(!outbox.discard(id(0)).await.unwrap(), "it is neither parked nor failing");
    let turn = take(subject, 100).await.unwrap();
    let fails = |of| (of == id(0)).then(again);
    assert!(settle(subject, &turn, fails).await);
    assert_eq!(take(subject, 100).await, None);
    let failing = outbox.failing(0, 10).await.unwrap();
    assert_eq!(failing.iter().map(|one| one.waiting.id).collect::<Vec<_>>(), [id(0)]);
    assert_eq!((failing[0].error.as_str(), failing[0].waiting.tries), ("later", 1));
    assert!(failing[0].at > failing[0].waiting.created_at);
    assert!(outbox.failing(failing[0].waiting.place, 10).await.unwrap().is_empty());
    assert!(!outbox.retry(id(1)).await.unwrap(), "one that is held back is not at fault");
    assert!(!outbox.discard(id(1)).await.unwrap());
    assert!(outbox.retry(id(0)).await.unwrap(), "now, and not when it would be");
    let turn = take(subject, 100).await.unwrap();
    assert_eq!(ids(&turn), [id(0), id(1), id(2)]);
    assert_eq!(turn.messages[0].tries, 1);
    assert!(settle(subject, &turn, fails).await);
    assert!(outbox.discard(id(0)).await.unwrap());
    assert!(!outbox.discard(id(0)).await.unwrap());
    let turn = take(subject, 100).await.unwrap();
    assert_eq!(ids(&turn), [id(1), id(2)], "those behind it go on");
    assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    assert_eq!(outbox.counts().await.unwrap().waiting, 0);
}

/// Two messages of a key are due, and the one between them is not.
pub(super) async fn one_that_waits_holds_back_those_behind_it(subject: &dyn OutboxSubject) {
    subject.write((0..4).map(|number| message("a", number)).collect()).await;
    let turn = take(subject, 100).await.unwrap();
    let fails = |of| {
        let after = if of == id(1) { WAIT } else { HOLD };
        (of != id(3)).then(|| Delivery::Again { after, error: "later".to_owned() })
    };
    assert!(settle(subject, &turn, fails).await);
    subject.advance(HOLD);
    let turn = take(subject, 100).await.unwrap();
    assert_eq!(ids(&turn), [id(0)]);
    assert!(settle(subject, &turn, |_| Some(Delivery::Delivered)).await);
    assert_eq!(take(subject, 100).await, None);
    subject.advance(WAIT);
    let turn = take(subject, 100).await.unwrap();
    assert_eq!(ids(&turn), [id(1), id(2), id(3)]);
}
