//! Batches of claims.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use onetake_core::{Claim, Claimed, RecordId, StoreError};
use tokio_postgres::types::Type;

use super::batch::{Batched, LockMode, Sent};
use super::pool::PooledConnection;
use super::rows::{RecordRow, RowKind, column, fingerprint};
use super::sql::CLAIM;
use super::statement_error::{Effect, StatementError};
use super::{PostgresStore, codes};

impl Batched for Claim {
    type Answer = Claimed;

    fn id(&self) -> RecordId {
        self.id
    }

    fn bytes(&self) -> usize {
        0
    }

    async fn send(
        store: &PostgresStore,
        link: &PooledConnection<'_>,
        items: &[&Self],
        manner: LockMode,
    ) -> Result<Sent<Claimed>, StatementError> {
        let ids: Vec<&[u8]> = items.iter().map(|claim| claim.id.as_bytes().as_slice()).collect();
        let attempts: Vec<&[u8]> =
            items.iter().map(|claim| claim.attempt.as_bytes().as_slice()).collect();
        let fingerprints: Vec<Vec<u8>> =
            items.iter().map(|claim| fingerprint(&claim.fingerprint)).collect();
        let ttls: Vec<i64> = items.iter().map(|claim| column(claim.terms.ttl)).collect();
        let leases: Vec<i64> = items.iter().map(|claim| column(claim.terms.lease)).collect();
        let graces: Vec<i64> = items.iter().map(|claim| column(claim.terms.grace)).collect();
        let on_unknown: Vec<i16> =
            items.iter().map(|claim| codes::on_unknown(claim.terms.on_unknown)).collect();
        let origins: Vec<Bytes> = items.iter().map(|claim| claim.origin.to_bytes()).collect();
        let origins: Vec<&[u8]> = origins.iter().map(AsRef::as_ref).collect();
        let in_touch = store.in_touch();
        let manner_column: i16 = match manner {
            LockMode::Quick => codes::lock::QUICK,
            LockMode::Together => codes::lock::TOGETHER,
            LockMode::Alone(_) => codes::lock::ALONE,
        };
        let rows = link
            .query(
                CLAIM,
                &[
                    (&store.shift(), Type::INT8),
                    (&manner.lock_timeout().as_str(), Type::TEXT),
                    (&in_touch.since, Type::INT8),
                    (&in_touch.until, Type::INT8),
                    (&manner_column, Type::INT2),
                    (&ids, Type::BYTEA_ARRAY),
                    (&attempts, Type::BYTEA_ARRAY),
                    (&fingerprints, Type::BYTEA_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&leases, Type::INT8_ARRAY),
                    (&graces, Type::INT8_ARRAY),
                    (&on_unknown, Type::INT2_ARRAY),
                    (&origins, Type::BYTEA_ARRAY),
                ],
                Effect::Writes,
            )
            .await?;
        let mut answers: HashMap<RecordId, Result<Claimed, StoreError>> = HashMap::new();
        for row in rows {
            let answer = RecordRow::read(row).map_err(StatementError::Trouble)?;
            store.heard(answer.now);
            let granted = Claimed::Granted { fence: answer.fence() };
            let claimed = match answer.kind {
                RowKind::AllDone => {
                    return Ok(items.iter().map(|_| Some(Ok(granted.clone()))).collect());
                }
                RowKind::Done => Ok(granted),
                RowKind::Stands => answer
                    .record()
                    .map(|record| Claimed::Found { record: Arc::new(record), now: answer.now }),
            };
            answers.insert(answer.id, claimed);
        }
        // A claim without a row was inserted, taken or held by another transaction at the same
        // moment.
        Ok(items.iter().map(|claim| answers.remove(&claim.id)).collect())
    }
}
