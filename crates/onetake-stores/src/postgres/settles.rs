//! Batches of settlements.

use std::collections::HashMap;
use std::sync::Arc;

use onetake_core::decide::{self, Moment, SettleEffect};
use onetake_core::{RecordId, Settled, Settlement, StoreError, Transition};
use tokio_postgres::types::Type;

use super::batch::{Batched, LockMode, Sent};
use super::codes::{LEASE_ENDED, transition};
use super::pool::PooledConnection;
use super::rows::{RecordRow, RowKind, cause, column};
use super::sql::SETTLE;
use super::statement_error::{Effect, StatementError};
use super::{InTouch, PostgresStore};

/// A transition as columns.
struct TransitionColumns<'a> {
    transition: i16,
    head: Option<&'a [u8]>,
    body: Option<&'a [u8]>,
    code: Option<Vec<u8>>,
    detail: Option<Vec<u8>>,
    hold: Option<i64>,
}

impl<'a> TransitionColumns<'a> {
    fn of(transition: &'a Transition) -> Self {
        let plain = |transition| Self {
            transition,
            head: None,
            body: None,
            code: None,
            detail: None,
            hold: None,
        };
        match transition {
            Transition::Renew => plain(transition::RENEW),
            Transition::Complete(recording) => {
                let (head, body) = (Some(&*recording.head), recording.body.as_deref());
                Self { head, body, ..plain(transition::COMPLETE) }
            }
            Transition::Fail(failure) => {
                let failure = failure.clipped();
                let (code, detail) = (failure.code.into_bytes(), failure.detail.into_bytes());
                Self { code: Some(code), detail: Some(detail), ..plain(transition::FAIL) }
            }
            Transition::Release => plain(transition::RELEASE),
            Transition::Unknown(why) => {
                let (code, detail) = cause(&why.clipped());
                let (code, detail) = (Some(code.into()), Some(detail.into_bytes()));
                Self { code, detail, ..plain(transition::UNKNOWN) }
            }
            Transition::ExpireLease => {
                let (code, detail) = (Some(LEASE_ENDED.into()), Some(Vec::new()));
                Self { code, detail, ..plain(transition::EXPIRE_LEASE) }
            }
            Transition::Forget => plain(transition::FORGET),
            Transition::PostponeReconcile(hold) => {
                Self { hold: Some(column(*hold)), ..plain(transition::POSTPONE_RECONCILE) }
            }
        }
    }
}

impl Batched for Settlement {
    type Answer = Settled;

    fn id(&self) -> RecordId {
        self.id
    }

    fn bytes(&self) -> usize {
        match &self.transition {
            Transition::Complete(recording) => recording.bytes(),
            _ => 0,
        }
    }

    async fn send(
        store: &PostgresStore,
        link: &PooledConnection<'_>,
        items: &[&Self],
        manner: LockMode,
    ) -> Result<Sent<Settled>, StatementError> {
        let ids: Vec<&[u8]> = items.iter().map(|item| item.id.as_bytes().as_slice()).collect();
        let attempts: Vec<&[u8]> =
            items.iter().map(|item| item.attempt.as_bytes().as_slice()).collect();
        let columns: Vec<TransitionColumns<'_>> =
            items.iter().map(|item| TransitionColumns::of(&item.transition)).collect();
        let verbs: Vec<i16> = columns.iter().map(|columns| columns.transition).collect();
        let heads: Vec<Option<&[u8]>> = columns.iter().map(|columns| columns.head).collect();
        let bodies: Vec<Option<&[u8]>> = columns.iter().map(|columns| columns.body).collect();
        let codes: Vec<Option<&[u8]>> =
            columns.iter().map(|columns| columns.code.as_deref()).collect();
        let details: Vec<Option<&[u8]>> =
            columns.iter().map(|columns| columns.detail.as_deref()).collect();
        let holds: Vec<Option<i64>> = columns.iter().map(|columns| columns.hold).collect();
        let in_touch = store.in_touch();
        let bytes = items.iter().map(|item| item.bytes()).sum();
        let rows = link
            .query_sized(
                SETTLE,
                &[
                    (&store.shift(), Type::INT8),
                    (&manner.lock_timeout().as_str(), Type::TEXT),
                    (&in_touch.since, Type::INT8),
                    (&in_touch.until, Type::INT8),
                    (&ids, Type::BYTEA_ARRAY),
                    (&attempts, Type::BYTEA_ARRAY),
                    (&verbs, Type::INT2_ARRAY),
                    (&heads, Type::BYTEA_ARRAY),
                    (&bodies, Type::BYTEA_ARRAY),
                    (&codes, Type::BYTEA_ARRAY),
                    (&details, Type::BYTEA_ARRAY),
                    (&holds, Type::INT8_ARRAY),
                ],
                Effect::Writes,
                bytes,
            )
            .await?;
        let mut found: HashMap<RecordId, RecordRow> = HashMap::new();
        for row in rows {
            let answer = RecordRow::read(row).map_err(StatementError::Trouble)?;
            store.heard(answer.now);
            // Rows of settlements that were written come first.
            found.entry(answer.id).or_insert(answer);
        }
        let answer = |item: &&Self| match found.get(&item.id) {
            None => Some(Ok(Settled::Stale { current: None })),
            Some(answer) if answer.kind == RowKind::Done => Some(done(item, answer)),
            Some(answer) => undone(item, answer, in_touch).transpose(),
        };
        Ok(items.iter().map(answer).collect())
    }
}

/// The answer to a settlement that was written. The row contains the record without its recording,
/// which the caller has sent itself.
fn done(item: &Settlement, answer: &RecordRow) -> Result<Settled, StoreError> {
    let record = match &item.transition {
        Transition::Complete(recording) => answer.record_with(recording),
        _ => answer.record(),
    };
    Ok(Settled::Done { record: Arc::new(record?), now: answer.now })
}

/// The answer to a settlement that was not written: stale, or written before. `None` if another
/// transaction held the row at that moment.
fn undone(
    item: &Settlement,
    answer: &RecordRow,
    in_touch: InTouch,
) -> Result<Option<Settled>, StoreError> {
    if answer.is_expired() {
        return Ok(Some(Settled::Stale { current: None }));
    }
    let record = Arc::new(answer.record()?);
    let at = Moment { now: answer.now, contact: in_touch.contact(answer.now) };
    Ok(match decide::settle(Some(&record), item, at) {
        SettleEffect::Write(_) => None,
        SettleEffect::Already => Some(Settled::Done { record, now: answer.now }),
        _ => Some(Settled::Stale { current: Some(record) }),
    })
}
