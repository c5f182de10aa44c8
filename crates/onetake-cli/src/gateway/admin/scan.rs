//! Scans of all keys, with a bound for each request: a page takes as long among a million keys as
//! among ten. Keys that the filter excludes count towards the bound, so a page may be empty without
//! being the last.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, BytesMut};
use onetake_core::codec::{Reader, put_slice};
use onetake_core::store::Cursor;
use onetake_core::{Engine, Record, RecordId, TenantDigest, Timestamp};

use super::error::ApiError;
use super::views::{StateName, age};

/// Ids per page of the store.
const IDS_AT_ONCE: usize = 64;
/// Keys that are read at once, and so held in memory with their bodies. The embedded store does
/// nothing else meanwhile.
const READ_AT_ONCE: usize = 8;
/// Maximum duration of one request.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum length of a cursor.
const CURSOR_BYTES_MAX: usize = 1024;

/// The filter of a scan.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) state: Option<StateName>,
    pub(super) tenant: Option<TenantDigest>,
    pub(super) route: Option<String>,
    pub(super) min_age: Option<Duration>,
    pub(super) max_age: Option<Duration>,
}

impl Filter {
    fn takes(&self, record: &Record, now: Timestamp) -> bool {
        self.state.is_none_or(|state| state == StateName::from(&record.state))
            && self.tenant.is_none_or(|tenant| tenant == record.origin.tenant)
            && self.route.as_ref().is_none_or(|route| **route == *record.origin.route)
            && self.min_age.is_none_or(|min| age(record, now) >= min)
            && self.max_age.is_none_or(|max| age(record, now) <= max)
    }
}

/// The position where a scan continues: a page of the store, and the id on it after which to
/// continue, if the page was not finished. If that id is no longer on the page, the whole page is
/// repeated: twice is better than never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScanPosition {
    page: Option<Cursor>,
    behind: Option<RecordId>,
}

impl ScanPosition {
    pub(super) fn read(text: &str) -> Result<Self, ApiError> {
        let foreign = || {
            ApiError::invalid("`cursor` is not a cursor of this API: start again without a cursor.")
        };
        if text.len() > CURSOR_BYTES_MAX {
            return Err(foreign());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| foreign())?;
        Self::decode(bytes.into()).ok_or_else(foreign)
    }

    fn decode(bytes: bytes::Bytes) -> Option<Self> {
        let mut from = Reader(bytes);
        let mut part = || match from.u8("flag").ok()? {
            0 => Some(None),
            1 => from.slice("part").ok().map(Some),
            _ => None,
        };
        let (page, behind) = (part()?, part()?);
        from.end().ok()?;
        let behind = match behind {
            Some(id) => Some(RecordId::from_bytes(id.as_ref().try_into().ok()?)),
            None => None,
        };
        Some(Self { page: page.map(Cursor::from_bytes), behind })
    }

    /// The start of a page of the store.
    pub(super) fn of_page(page: Cursor) -> Self {
        Self { page: Some(page), behind: None }
    }

    pub(super) fn into_page(self) -> Option<Cursor> {
        self.page
    }

    pub(super) fn write(&self) -> String {
        let mut out = BytesMut::new();
        let page = self.page.as_ref().map(|page| page.as_bytes().as_ref());
        for part in [page, self.behind.as_ref().map(|id| id.as_bytes().as_slice())] {
            out.put_u8(u8::from(part.is_some()));
            if let Some(part) = part {
                put_slice(&mut out, part);
            }
        }
        URL_SAFE_NO_PAD.encode(out)
    }
}

/// The bounds of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Number of matching keys after which the scan stops.
    pub(super) wanted: usize,
    /// Number of keys to read. The scan finishes the store's page, so it may read a few more.
    pub(super) look_at: usize,
}

/// The result of a scan.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ScanResult {
    /// Number of keys that were read.
    pub(super) at: usize,
    /// Number of these keys that could not be read.
    pub(super) unreadable: usize,
    /// Where to continue; `None` at the end.
    pub(super) next: Option<ScanPosition>,
}

/// Calls `found` for each key that matches the filter.
pub(super) async fn scan(
    engine: &Engine,
    filter: &Filter,
    from: ScanPosition,
    bounds: Bounds,
    mut found: impl FnMut(Arc<Record>),
) -> Result<ScanResult, ApiError> {
    let clock = engine.clock();
    let until = clock.monotonic().saturating_add(TIME_MAX);
    let mut looked = ScanResult::default();
    let (mut left, mut visited) = (bounds.wanted, 0);
    let mut place = from;
    loop {
        let page = engine.page(place.page.clone(), IDS_AT_ONCE).await?;
        let told = place.behind.and_then(|id| page.ids.iter().position(|other| *other == id));
        let ids = page.ids.iter().skip(told.map_or(0, |at| at + 1));
        let ids: Vec<RecordId> = ids.copied().collect();
        for ids in ids.chunks(READ_AT_ONCE) {
            let records = engine.inspect(ids.to_vec()).await?;
            let now = clock.now();
            for (id, record) in ids.iter().zip(records) {
                visited += 1;
                // An id may belong to a key that has expired or was forgotten since. It does not
                // count.
                looked.at += usize::from(!matches!(record, Ok(None)));
                match record {
                    Ok(Some(record)) if filter.takes(&record, now) => {
                        found(record);
                        left -= 1;
                        if left == 0 {
                            looked.next = Some(ScanPosition { behind: Some(*id), ..place });
                            return Ok(looked);
                        }
                    }
                    Ok(_) => {}
                    Err(_) => looked.unreadable += 1,
                }
            }
        }
        let Some(next) = page.next else { return Ok(looked) };
        place = ScanPosition { page: Some(next), behind: None };
        if visited >= bounds.look_at || clock.monotonic() >= until {
            looked.next = Some(place);
            return Ok(looked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::{Fingerprint, Key, MemoryStore, Operation, Recording, Scope, Verdict};

    async fn engine(keys: usize) -> Engine {
        let engine = Engine::new(Arc::new(MemoryStore::new()));
        for number in 0..keys {
            let key = Key::new(format!("key {number}")).unwrap();
            let tenant = TenantDigest::of(&[0; 32], &[u8::from(number % 10 == 0)]);
            let operation = Operation::new(&Scope::new("t"), &key, Fingerprint::of(b""))
                .origin(onetake_core::Origin::new(tenant, "POST /pay"));
            let done = async |_| Verdict::Complete(Recording::new("done"));
            engine.run(operation, done).await.unwrap();
        }
        engine
    }

    async fn all(engine: &Engine, filter: &Filter, bounds: Bounds) -> (Vec<RecordId>, usize) {
        let (mut ids, mut pages) = (Vec::new(), 0);
        let mut place = ScanPosition::default();
        loop {
            let before = ids.len();
            let looked = scan(engine, filter, place, bounds, |record| ids.push(record.id)).await;
            let looked = looked.unwrap_or_else(|fault| panic!("{fault:?}"));
            assert!(ids.len() - before <= bounds.wanted);
            assert!(looked.at <= bounds.look_at + IDS_AT_ONCE, "{looked:?}");
            pages += 1;
            match looked.next {
                // Through its text form, as a client returns it.
                Some(next) => place = ScanPosition::read(&next.write()).unwrap(),
                None => return (ids, pages),
            }
        }
    }

    #[tokio::test]
    async fn every_key_is_told_once_whatever_the_bounds() {
        let engine = engine(300).await;
        for (wanted, look_at) in [(1, 1), (7, 1_000), (63, 1_000), (64, 64), (65, 64), (1_000, 1)] {
            let bounds = Bounds { wanted, look_at };
            let (mut ids, pages) = all(&engine, &Filter::default(), bounds).await;
            assert_eq!(ids.len(), 300, "{bounds:?}");
            assert!(pages >= 300_usize.div_ceil(wanted));
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 300, "{bounds:?}");
            let tenant = Some(TenantDigest::of(&[0; 32], &[1]));
            let (ids, _) = all(&engine, &Filter { tenant, ..Filter::default() }, bounds).await;
            assert_eq!(ids.len(), 30, "{bounds:?}");
        }
    }

    /// A store that measures the most bytes of recordings that one read returns.
    #[derive(Debug, Default)]
    struct Weighed {
        inner: MemoryStore,
        most: std::sync::atomic::AtomicUsize,
    }

    impl onetake_core::Store for Weighed {
        onetake_core::delegate_store!(self => self.inner; name, claim, settle, due, sweep, ready, close);

        fn load(
            &self,
            ids: Vec<RecordId>,
        ) -> futures_util::future::BoxFuture<'_, onetake_core::store::Answers<Option<Arc<Record>>>>
        {
            Box::pin(async move {
                let found = self.inner.load(ids).await;
                let bytes = |record: &Arc<Record>| match &record.state {
                    onetake_core::State::Completed { recording, .. } => recording.bytes(),
                    _ => 0,
                };
                let all = found.iter().flatten().flatten().map(bytes).sum();
                self.most.fetch_max(all, std::sync::atomic::Ordering::SeqCst);
                found
            })
        }
    }

    onetake_core::delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Weighed, self => self.inner);

    #[tokio::test]
    async fn a_list_without_bodies_does_not_hold_the_bodies_of_a_whole_page() {
        const BODY_BYTES: usize = 4 << 20;
        let store = Arc::new(Weighed::default());
        let engine = Engine::new(Arc::<Weighed>::clone(&store));
        // All recordings share their bytes here. Those from a real store do not.
        let body = bytes::Bytes::from(vec![0; BODY_BYTES]);
        for number in 0..IDS_AT_ONCE {
            let key = Key::new(format!("key {number}")).unwrap();
            let operation = Operation::new(&Scope::new("t"), &key, Fingerprint::of(b""));
            let recording = Recording::new(body.clone());
            engine.run(operation, async move |_| Verdict::Complete(recording)).await.unwrap();
        }
        let bounds = Bounds { wanted: 50, look_at: 2_000 };
        scan(&engine, &Filter::default(), ScanPosition::default(), bounds, |_| {}).await.unwrap();
        let most = store.most.load(std::sync::atomic::Ordering::SeqCst);
        // A route's `max_response_body` may be 64 MiB, and two scans may run at once.
        assert!(most <= 64 << 20, "{} MiB were read for one page, to show none of it", most >> 20);
    }

    #[test]
    fn cursors_of_others_are_refused() {
        for wrong in ["", "x", "AA", "AQ", &"A".repeat(2_000), "AgA", "AAEAAAABAA"] {
            assert!(ScanPosition::read(wrong).is_err(), "{wrong}");
        }
        let place = ScanPosition {
            page: Some(Cursor::from_bytes("x")),
            behind: Some(RecordId::from_bytes([7; 16])),
        };
        assert_eq!(ScanPosition::read(&place.write()).unwrap(), place);
    }
}
