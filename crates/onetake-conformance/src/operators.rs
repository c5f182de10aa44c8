//! Data for operators: origins, histories, references, forgetting, and the audit log.

use std::time::Duration;

use super::bench::{Bench, Got, failure, id, is, outcome, unknown};
use onetake_core::audit::{AUDIT_KEPT, AuditAction, AuditEntry, AuditPosition, AuditResult};
use onetake_core::clock::{SystemRng, Timestamp};
use onetake_core::origin::{HISTORY_BYTES_MAX, Origin, TenantDigest};
use onetake_core::record::{AttemptId, OnUnknown};
use onetake_core::scope::RecordId;
use onetake_core::store::{Claim, Cursor, FOUND_MAX, Settled, StoreErrorKind, Transition};

pub(super) async fn who_asked_and_every_attempt_are_kept(bench: &Bench) {
    let route = "POST /zahlungen/{größe}";
    let asked = |tenant: &str| Origin::new(TenantDigest::of(&[9; 32], tenant.as_bytes()), route);
    let first = Claim {
        terms: bench.terms(OnUnknown::Retry),
        origin: asked("a"),
        ..bench.claim_of("a", "pay")
    };
    let fence = bench.granted(&first).await;
    let running = bench.load("a").await.expect("it runs");
    assert_eq!(running.origin, asked("a"));
    assert_eq!(running.claimed_at, running.created_at);
    assert_eq!(running.history.attempts().count(), 0);
    bench.done(&first, Transition::Release).await;

    let second = Claim { attempt: bench.attempt(), origin: asked("b"), ..first.clone() };
    bench.pass(1).await;
    let second_fence = bench.granted(&second).await;
    bench.done(&second, unknown()).await;
    let third = Claim { attempt: bench.attempt(), ..second.clone() };
    bench.granted(&third).await;
    // The owner is gone, and the fourth attempt takes over.
    bench.pass_just_over(4).await;
    let fourth = Claim { attempt: bench.attempt(), ..third.clone() };
    let Got::Granted(_) = bench.claim(&fourth).await else { panic!("it may run again") };
    bench.done(&fourth, outcome("paid")).await;

    let record = bench.load("a").await.expect("it is there");
    assert_eq!(record.origin, asked("b"), "of the latest attempt");
    assert!(record.claimed_at > record.created_at);
    let attempts: Vec<_> = record.history.attempts().collect();
    let stood: Vec<_> = attempts.iter().map(|attempt| attempt.stood).collect();
    assert_eq!(stood, ["released", "unknown", "running"]);
    assert_eq!((attempts[0].fence, attempts[1].fence), (fence, second_fence));
    assert_eq!(attempts[0].claimed_at, record.created_at);
    let times: Vec<_> =
        attempts.iter().flat_map(|attempt| [attempt.claimed_at, attempt.ended_at]).collect();
    assert!(times.is_sorted() && *times.last().unwrap() <= record.claimed_at, "{times:?}");
    // A claim returns the whole record.
    match bench.claim(&Claim { attempt: bench.attempt(), ..first.clone() }).await {
        Got::Found(found) => assert_eq!(found, record),
        Got::Granted(_) => panic!("it was settled"),
    }
}

pub(super) async fn a_long_history_keeps_its_end(bench: &Bench) {
    let mut fences = Vec::new();
    for _ in 0..30 {
        let claim = bench.claim_of("a", "pay");
        fences.push(bench.granted(&claim).await);
        bench.done(&claim, Transition::Release).await;
    }
    let record = bench.load("a").await.expect("it is there");
    assert!(record.history.as_text().len() <= HISTORY_BYTES_MAX);
    let kept: Vec<_> = record.history.attempts().map(|attempt| attempt.fence).collect();
    assert!(kept.len() >= 15, "{} are kept", kept.len());
    // The last of them is the record itself.
    assert_eq!(kept, fences[29 - kept.len()..29]);
    // A key that expired begins with an empty history.
    bench.pass_just_over(20).await;
    bench.granted(&bench.claim_of("a", "pay")).await;
    assert_eq!(bench.load("a").await.unwrap().history.as_text(), "");
}

pub(super) async fn a_reference_leads_to_its_record(bench: &Bench) {
    let keys = |number: usize| format!("referred {number}");
    for number in 0..20 {
        let claim = bench.claim_of(&keys(number), "pay");
        bench.granted(&claim).await;
        if number % 2 == 0 {
            bench.done(&claim, outcome("paid")).await;
        }
    }
    for number in 0..20 {
        let id = id(&keys(number));
        let found = bench.store.find(id.reference()).await.expect("the store answers");
        assert_eq!(found, [id], "{number}");
        // An id that differs in its first byte has another reference, under which there is no
        // record.
        let mut other = *id.as_bytes();
        other[0] ^= 1;
        let other = RecordId::from_bytes(other).reference();
        assert_eq!(bench.store.find(other).await.expect("the store answers"), []);
    }
    // All records with the same reference are found, up to the maximum.
    let mut claim = bench.claim_of("twin", "pay");
    let twin = *claim.id.as_bytes();
    for last in 0..20_u8 {
        let mut twin = twin;
        twin[15] = last;
        claim.id = RecordId::from_bytes(twin);
        claim.attempt = bench.attempt();
        bench.granted(&claim).await;
        let found = bench.store.find(claim.id.reference()).await.expect("the store answers");
        assert_eq!(found.len(), usize::from(last + 1).min(FOUND_MAX));
        assert!(found.contains(&claim.id) || found.len() == FOUND_MAX);
    }
    // The first and the last id of a reference belong to it, and their neighbours do not.
    let reference = id("at the edges").reference();
    let (first, last) = reference.ids().into_inner();
    let moved = |id: RecordId, by: i128| {
        let number = u128::from_be_bytes(*id.as_bytes());
        RecordId::from_bytes(number.wrapping_add_signed(by).to_be_bytes())
    };
    let (before, behind) = (moved(first, -1), moved(last, 1));
    let claims = [before, first, last, behind]
        .map(|id| Claim { id, ..bench.claim_of("at the edges", "pay") });
    for claim in &claims {
        bench.granted(claim).await;
    }
    let only_its_own = async |state: &str| {
        for (reference, ids) in [
            (reference, vec![first, last]),
            (before.reference(), vec![before]),
            (behind.reference(), vec![behind]),
        ] {
            let mut found = bench.store.find(reference).await.expect("the store answers");
            found.sort_unstable();
            assert_eq!(found, ids, "{state}");
        }
    };
    only_its_own("running").await;
    for claim in &claims {
        bench.done(claim, outcome("paid")).await;
    }
    only_its_own("completed").await;
}

pub(super) async fn the_forgotten_is_gone_at_once(bench: &Bench) {
    if !bench.can.forgets {
        return;
    }
    for (name, transition) in [
        ("completed", outcome("a secret")),
        ("failed", failure()),
        ("released", Transition::Release),
        ("unknown", unknown()),
    ] {
        let claim = bench.claim_of(name, "pay");
        let fence = bench.granted(&claim).await;
        bench.done(&claim, transition).await;
        let gone = bench.done(&claim, Transition::Forget).await;
        is(&gone, "released");
        assert!(bench.load(name).await.is_none(), "{name}");
        // The key is as if it had never been used, except for its fence: another payload runs.
        assert!(matches!(bench.settle(&claim, Transition::Forget).await, Settled::Stale { .. }));
        let other = bench.claim_of(name, "something else");
        assert!(bench.granted(&other).await > fence, "{name}");
        let record = bench.load(name).await.expect("it runs");
        assert_eq!(record.history.as_text(), "", "another life");
        assert_eq!(record.terms, other.terms);
        bench.done(&other, outcome("paid")).await;
    }
    if bench.can.sweeps {
        let claim = bench.claim_of("swept", "pay");
        let fence = bench.granted(&claim).await;
        bench.done(&claim, outcome("a secret")).await;
        bench.done(&claim, Transition::Forget).await;
        let swept = bench.store.sweep(100).await.expect("the store answers");
        assert_eq!((swept.removed, swept.unknown), (1, 0));
        assert!(bench.granted(&bench.claim_of("swept", "other")).await > fence);
    }
}

pub(super) async fn a_stale_or_running_attempt_is_not_forgotten(bench: &Bench) {
    if !bench.can.forgets {
        return;
    }
    let claim = bench.claim_of("a", "pay");
    bench.granted(&claim).await;
    let forget = async |claim: &Claim| bench.settle(claim, Transition::Forget).await;
    assert!(matches!(forget(&claim).await, Settled::Stale { .. }), "it runs");
    is(&bench.load("a").await.unwrap(), "running");
    bench.done(&claim, outcome("paid")).await;
    let stranger = Claim { attempt: bench.attempt(), ..claim.clone() };
    assert!(matches!(forget(&stranger).await, Settled::Stale { current: Some(_) }));
    is(&bench.load("a").await.unwrap(), "completed");
    assert!(matches!(forget(&bench.claim_of("b", "pay")).await, Settled::Stale { current: None }));
}

fn note_of(key: &str, at: Timestamp, reason: &str) -> AuditEntry {
    AuditEntry {
        place: AuditPosition::new(at, &SystemRng),
        id: id(key),
        attempt: AttemptId::from_bytes([7; 16]),
        action: AuditAction::Release,
        ended: AuditResult::Asked,
        before: "unknown".to_owned(),
        by: "ops".to_owned(),
        reason: reason.to_owned(),
    }
}

async fn all(bench: &Bench, of: Option<&str>, limit: usize) -> Vec<AuditEntry> {
    let mut entries = Vec::new();
    let mut from: Option<Cursor> = None;
    loop {
        let page =
            bench.store.audit_entries(of.map(id), from, limit).await.expect("the store answers");
        assert!(page.entries.len() <= limit);
        entries.extend(page.entries);
        from = page.next;
        if from.is_none() {
            return entries;
        }
        assert!(entries.len() < 1_000, "there is no last page");
    }
}

pub(super) async fn notes_are_told_the_newest_first(bench: &Bench) {
    assert_eq!(all(bench, None, 10).await, []);
    let now = bench.clock().now();
    let mut expected = Vec::new();
    for number in 0..25_u64 {
        let key = if number % 3 == 0 { "a" } else { "b" };
        let at = now.plus(Duration::from_micros(number));
        let entry = note_of(key, at, &format!("because {number} ü"));
        bench.store.audit(entry.clone()).await.expect("the store answers");
        expected.insert(0, entry);
    }
    for limit in [1, 5, 25, 26, 100] {
        assert_eq!(all(bench, None, limit).await, expected, "{limit} at a time");
        for key in ["a", "b"] {
            let of_it: Vec<_> =
                expected.iter().filter(|entry| entry.id == id(key)).cloned().collect();
            assert_eq!(all(bench, Some(key), limit).await, of_it, "{limit} at a time");
        }
    }
    assert_eq!(all(bench, Some("c"), 10).await, []);
    let foreign = bench.store.audit_entries(None, Some(Cursor::from_bytes("x")), 5).await;
    assert_eq!(foreign.expect_err("no place").kind(), StoreErrorKind::Invalid);
}

pub(super) async fn a_note_is_written_over_by_its_end(bench: &Bench) {
    let entry = note_of("a", bench.clock().now(), "why");
    bench.store.audit(entry.clone()).await.expect("the store answers");
    let ended = AuditEntry { ended: AuditResult::Done, ..entry };
    for _ in 0..2 {
        bench.store.audit(ended.clone()).await.expect("the store answers");
        assert_eq!(all(bench, None, 10).await, std::slice::from_ref(&ended));
        assert_eq!(all(bench, Some("a"), 10).await, std::slice::from_ref(&ended));
    }
}

pub(super) async fn notes_outlive_their_records_and_end_in_time(bench: &Bench) {
    let claim = bench.claim_of("a", "pay");
    bench.granted(&claim).await;
    bench.done(&claim, outcome("paid")).await;
    let entry = note_of("a", bench.clock().now(), "why");
    bench.store.audit(entry.clone()).await.expect("the store answers");
    if bench.can.forgets {
        bench.done(&claim, Transition::Forget).await;
    }
    bench.pass_just_over(20).await;
    bench.store.sweep(100).await.expect("the store answers");
    assert_eq!(all(bench, Some("a"), 10).await, [entry]);
    if bench.can.sweeps {
        let ticks = AUDIT_KEPT.as_micros().div_ceil(bench.can.tick.as_micros());
        bench.pass(u32::try_from(ticks).expect("few ticks")).await;
        bench.store.sweep(100).await.expect("the store answers");
        assert_eq!(all(bench, Some("a"), 10).await, []);
        assert_eq!(all(bench, None, 10).await, []);
    }
}
