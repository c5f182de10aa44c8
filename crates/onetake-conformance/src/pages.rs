//! Listing of all records, page by page.

use std::collections::BTreeSet;

use super::bench::{Bench, every_transition, id, outcome};
use onetake_core::scope::RecordId;
use onetake_core::store::{Cursor, StoreErrorKind};

/// The maximum number of pages for a few dozen records. A store may return empty pages, but not for
/// ever.
const PAGES_MAX: usize = 2_000;

async fn all(bench: &Bench, limit: usize) -> BTreeSet<RecordId> {
    let mut found = BTreeSet::new();
    let mut from = None;
    for _ in 0..PAGES_MAX {
        let page = bench.store.page(from, limit).await.expect("the store answers");
        found.extend(page.ids);
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
    panic!("there is no last page");
}

pub(super) async fn every_record_is_on_a_page(bench: &Bench) {
    assert!(all(bench, 10).await.is_empty());
    bench.store.secret("page", [7; 32]).await.expect("the store answers");
    let mut expected = BTreeSet::new();
    let transitions: Vec<_> = every_transition().into_iter().collect();
    for number in 0..40 {
        let key = format!("paged {number}");
        let claim = bench.claim_of(&key, "pay 10");
        bench.granted(&claim).await;
        // Some keys run; the others are in every state.
        if let Some(transition) = transitions.get(number % (transitions.len() + 1)) {
            let _done_or_stale = bench.settle(&claim, transition.clone()).await;
        }
        expected.insert(id(&key));
    }
    // One page or many, and a page that ends with the last record.
    for limit in [1, 7, 20, 40, 41, 1_000] {
        assert_eq!(all(bench, limit).await, expected, "{limit} at a time");
    }
}

pub(super) async fn what_is_there_all_the_while_is_on_a_page(bench: &Bench) {
    let key = |number: usize| format!("there {number}");
    let claims: Vec<_> = (0..30).map(|number| bench.claim_of(&key(number), "pay 10")).collect();
    for claim in &claims {
        bench.granted(claim).await;
    }
    let mut found = BTreeSet::new();
    let mut from = None;
    let mut settled = claims.iter();
    for number in 0..PAGES_MAX {
        let page = bench.store.page(from, 3).await.expect("the store answers");
        found.extend(page.ids);
        from = page.next;
        if from.is_none() {
            break;
        }
        // Meanwhile one record is settled, and another is created.
        if let Some(claim) = settled.next() {
            bench.done(claim, outcome("paid")).await;
            bench.granted(&bench.claim_of(&format!("new {number}"), "pay 10")).await;
        }
    }
    assert!(from.is_none(), "there is no last page");
    for number in 0..30 {
        assert!(found.contains(&id(&key(number))), "{number} was passed over");
    }
}

pub(super) async fn a_cursor_of_nobody_is_refused_or_leads_nowhere(bench: &Bench) {
    bench.granted(&bench.claim_of("a", "pay 10")).await;
    for bytes in [&b""[..], b"x", &[0xff; 16], &[0xff; 17], &[0; 400]] {
        match bench.store.page(Some(Cursor::from_bytes(bytes.to_vec())), 5).await {
            Ok(page) => assert!(page.ids.len() <= 1),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}"),
        }
    }
}
