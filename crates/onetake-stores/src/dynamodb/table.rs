//! Requests to the table: bounded, behind a breaker, and clear about which writes may have been
//! executed.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{KeysAndAttributes, ReturnValuesOnConditionCheckFailure};
use aws_sdk_dynamodb::{Client, Config};

use onetake_core::store::{Cursor, FOUND_MAX, Page, transfer_time};
use onetake_core::{
    Clock, Record, RecordId, Reference, Rng, State, StoreError, StoreErrorKind, Timestamp,
};

use super::DynamoOptions;
use super::error::{judge, refused};
use super::item::{self, Item, VersionedRecord};
use super::url::TableLocation;
use crate::breaker::Breaker;

/// The number of times that a request is sent.
const TRIES_MAX: u32 = 3;
/// The first pause between two tries. The second is twice as long.
const PAUSE: Duration = Duration::from_millis(20);
/// The largest number of keys in one request that DynamoDB accepts.
const KEYS_MAX: usize = 100;
/// The number of times that keys which the server left out are requested again.
const LEFT_OUT_MAX: u32 = 20;
/// The largest number of pages of one shard of an index: fifty megabytes of running operations.
const PAGES_MAX: usize = 50;
/// The number of items in a page of records to reconcile. Expired records that the server has not
/// deleted yet come before all others.
const ASKS_MAX: i32 = 1_000;

/// The index of running records.
pub(super) const RUNNING: &str = "running";
/// The index of records that are to be reconciled.
pub(super) const ASKS: &str = "asks";
/// The index by which records are found by their references, and notes by their time.
pub(super) const FOUND: &str = "found";

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    Read,
    Write,
}

/// The reason why a request failed.
#[derive(Debug)]
pub(super) enum No<E> {
    /// The server answered with an error that the caller handles.
    Answer(E),
    /// Anything else.
    Store(StoreError),
}

/// The result of a conditional write.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "short-lived")]
pub(super) enum WriteResult {
    /// It was written, durably.
    Landed,
    /// The item has changed: another node was faster, or an earlier try of this node whose answer
    /// was lost. This is the current item.
    Other(Option<VersionedRecord>),
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) client: Client,
    pub(super) place: TableLocation,
    pub(super) breaker: Breaker,
    pub(super) clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    skew_margin: Duration,
    connect_timeout: Duration,
    command_timeout: Duration,
}

impl Table {
    pub(super) fn new(client: Client, place: TableLocation, options: &DynamoOptions) -> Self {
        let (clock, rng) = (Arc::clone(&options.clock), Arc::clone(&options.rng));
        let breaker = Breaker::new("the DynamoDB store", Arc::clone(&clock), Arc::clone(&rng));
        Self {
            client,
            place,
            breaker,
            clock,
            rng,
            skew_margin: options.skew_margin,
            connect_timeout: options.connect_timeout,
            command_timeout: options.command_timeout,
        }
    }

    /// Sends a request, and sends it again if that may help. `expected` lists the error codes that
    /// the caller handles.
    pub(super) async fn ask<T, E, F>(
        &self,
        intent: Intent,
        expected: &[&str],
        request: impl Fn() -> F,
    ) -> Result<T, No<E>>
    where
        F: Future<Output = Result<T, SdkError<E>>> + Send,
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let mut may_have_landed = false;
        let mut tries = 0;
        loop {
            self.breaker.enter().map_err(|away| No::Store(keep_doubt(away, may_have_landed)))?;
            let error = match request().await {
                Ok(answer) => {
                    self.breaker.succeeded();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let error = match error {
                SdkError::ServiceError(answer)
                    if answer.err().code().is_some_and(|code| expected.contains(&code)) =>
                {
                    self.breaker.succeeded();
                    return Err(No::Answer(answer.into_err()));
                }
                error => error,
            };
            let (fate, what) = judge(&error, &self.place.table);
            may_have_landed |= intent == Intent::Write && fate.may_have_landed();
            let refusal = refused(fate, may_have_landed, what);
            if fate.is_away() {
                self.breaker.failed(&refusal);
            } else {
                self.breaker.succeeded();
            }
            tries += 1;
            if tries == TRIES_MAX || !fate.is_worth_another_try() {
                return Err(No::Store(refusal));
            }
            self.pause(tries).await;
        }
    }

    /// Waits for a short time with jitter, longer each time.
    async fn pause(&self, tries: u32) {
        let mut random = [0; 1];
        self.rng.fill(&mut random);
        let [random] = random;
        let longest = PAUSE * 2_u32.saturating_pow(tries.min(6).saturating_sub(1));
        self.clock.sleep(longest.mul_f64(0.5 + f64::from(random) / 512.0)).await;
    }

    /// Reads an item, strongly consistent.
    pub(super) async fn read(&self, id: RecordId) -> Result<Option<VersionedRecord>, StoreError> {
        let get = self.client.get_item().table_name(&self.place.table);
        let get = get.key("id", item::key(id)).consistent_read(true);
        let answer =
            self.ask(Intent::Read, &[], || get.clone().send()).await.map_err(No::into_error)?;
        answer.item().map(VersionedRecord::decode).transpose()
    }

    /// Returns some of all ids, in the table's own order.
    pub(super) async fn page(
        &self,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let scan = self.client.scan().table_name(&self.place.table).projection_expression("id");
        let mut scan = scan.limit(i32::try_from(limit.max(1)).unwrap_or(i32::MAX));
        if let Some(from) = from {
            scan = scan.exclusive_start_key("id", item::bytes(from.as_bytes()));
        }
        let answer =
            self.ask(Intent::Read, &[], || scan.clone().send()).await.map_err(No::into_error)?;
        // Secrets and notes are among them, with keys of another length.
        let ids = answer.items().iter().filter_map(item::id).collect();
        let last = answer.last_evaluated_key().and_then(|key| key.get("id")?.as_b().ok());
        let next = last.map(|id| Cursor::from_bytes(id.as_ref().to_vec()));
        Ok(Page { ids, next })
    }

    /// Returns the ids that have a reference, from the index.
    pub(super) async fn find(&self, reference: Reference) -> Result<Vec<RecordId>, StoreError> {
        let query = self.client.query().table_name(&self.place.table).index_name(FOUND);
        let query = query
            .key_condition_expression("h = :h")
            .expression_attribute_values(":h", item::reference(reference))
            .limit(i32::try_from(FOUND_MAX).unwrap_or(i32::MAX));
        let answer = self.ask(Intent::Read, &[], || query.clone().send()).await;
        let answer = answer.map_err(No::into_error)?;
        Ok(answer.items().iter().filter_map(item::id).collect())
    }

    /// Returns the timeouts for the write of a record. A large recording gets more time.
    fn timeouts(&self, record: &Record) -> TimeoutConfig {
        let bytes = match &record.state {
            State::Completed { recording, .. } => recording.bytes(),
            _ => 0,
        };
        TimeoutConfig::builder()
            .connect_timeout(self.connect_timeout)
            .operation_attempt_timeout(self.command_timeout.saturating_add(transfer_time(bytes)))
            .build()
    }

    /// Writes an item that replaces the one that was read, on the condition that it has not
    /// changed.
    pub(super) async fn write(
        &self,
        next: &VersionedRecord,
        over: Option<&VersionedRecord>,
    ) -> Result<WriteResult, StoreError> {
        let put = self.client.put_item().table_name(&self.place.table);
        let put = put
            .set_item(Some(next.encode(self.skew_margin)))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        // The condition includes the attempt, because versions start again when a key is claimed
        // after its expiry.
        let put = match over {
            None => put.condition_expression("attribute_not_exists(id)"),
            Some(seen) => put
                .condition_expression("a = :a AND v = :v")
                .expression_attribute_values(":a", item::bytes(seen.record.attempt.as_bytes()))
                .expression_attribute_values(":v", item::number(seen.version)),
        };
        let expected = ["ConditionalCheckFailedException"];
        let timeouts = self.timeouts(&next.record);
        let send = || {
            let timeouts = Config::builder().timeout_config(timeouts.clone());
            put.clone().customize().config_override(timeouts).send()
        };
        let failed = match self.ask(Intent::Write, &expected, send).await {
            Ok(_) => return Ok(WriteResult::Landed),
            Err(No::Answer(PutItemError::ConditionalCheckFailedException(failed))) => failed,
            Err(other) => return Err(other.into_error()),
        };
        let found = match failed.item() {
            Some(item) => Some(VersionedRecord::decode(item)?),
            // The item is absent, or this server does not return it. If the read fails, an earlier
            // try of this node may have written it.
            None => self.read(next.record.id).await.map_err(|error| match error.kind() {
                StoreErrorKind::Unavailable => keep_doubt(error, true),
                _ => error,
            })?,
        };
        Ok(WriteResult::Other(found))
    }

    /// Reads many items at once, strongly consistent. Absent items are not in the result.
    pub(super) async fn read_many(
        &self,
        ids: &[RecordId],
    ) -> HashMap<RecordId, Result<VersionedRecord, StoreError>> {
        let mut found = HashMap::new();
        for chunk in ids.chunks(KEYS_MAX) {
            if let Err((left, error)) = self.read_chunk(chunk, &mut found).await {
                found.extend(left.into_iter().map(|id| (id, Err(error.clone()))));
            }
        }
        found
    }

    async fn read_chunk(
        &self,
        ids: &[RecordId],
        found: &mut HashMap<RecordId, Result<VersionedRecord, StoreError>>,
    ) -> Result<(), (Vec<RecordId>, StoreError)> {
        let mut left: Vec<RecordId> = ids.to_vec();
        for round in 1..=LEFT_OUT_MAX {
            let keys = left.iter().map(|id| HashMap::from([("id".to_owned(), item::key(*id))]));
            let keys = KeysAndAttributes::builder()
                .consistent_read(true)
                .set_keys(Some(keys.collect()))
                .build()
                .map_err(|error| (left.clone(), unbuilt(error)))?;
            let get = self.client.batch_get_item().request_items(&self.place.table, keys);
            let mut answer = self
                .ask(Intent::Read, &[], || get.clone().send())
                .await
                .map_err(|no| (left.clone(), no.into_error()))?;
            let items = answer.responses.take().unwrap_or_default().remove(&self.place.table);
            for item in items.unwrap_or_default() {
                if let Some(id) = item::id(&item) {
                    found.insert(id, VersionedRecord::decode(&item));
                }
            }
            let out = answer.unprocessed_keys.take().unwrap_or_default().remove(&self.place.table);
            left = out.iter().flat_map(|out| &out.keys).filter_map(item::id).collect();
            if left.is_empty() {
                return Ok(());
            }
            self.pause(round).await;
        }
        let what = "DynamoDB did not return all requested items: it has no capacity left";
        Err((left, StoreError::new(StoreErrorKind::Unavailable, what)))
    }

    /// Returns running records from one shard of the index, which is a moment behind.
    pub(super) async fn running(&self, shard: u8) -> Result<Vec<Item>, StoreError> {
        let (mut items, mut after) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let query = self.client.query().table_name(&self.place.table).index_name(RUNNING);
            let query = query
                .key_condition_expression("w = :w")
                .expression_attribute_values(":w", item::number(u64::from(shard)))
                .set_exclusive_start_key(after);
            let answer = self.ask(Intent::Read, &[], || query.clone().send()).await;
            let answer = answer.map_err(No::into_error)?;
            items.extend(answer.items.unwrap_or_default());
            after = answer.last_evaluated_key;
            if after.is_none() {
                break;
            }
        }
        Ok(items)
    }

    /// Returns records that are due for reconciliation from one shard of the index, which is a
    /// moment behind. The longest due come first, and expired ones are left out.
    pub(super) async fn asks(
        &self,
        shard: u8,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<Item>, StoreError> {
        let (mut items, mut after) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let query = self.client.query().table_name(&self.place.table).index_name(ASKS);
            let query = query
                .key_condition_expression("q = :q AND t <= :now")
                .filter_expression("e > :now")
                .expression_attribute_values(":q", item::number(u64::from(shard)))
                .expression_attribute_values(":now", item::number(now.as_micros()))
                .limit(ASKS_MAX)
                .set_exclusive_start_key(after);
            let answer = self.ask(Intent::Read, &[], || query.clone().send()).await;
            let answer = answer.map_err(No::into_error)?;
            items.extend(answer.items.unwrap_or_default());
            after = answer.last_evaluated_key;
            if after.is_none() || items.len() >= limit {
                break;
            }
        }
        Ok(items)
    }
}

impl<E: Error + Send + Sync + 'static> No<E> {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Answer(error) => {
                let what = format!("DynamoDB refused a request: {error}");
                StoreError::new(StoreErrorKind::Invalid, what).with_source(error)
            }
        }
    }
}

/// Returns the error for an unreachable server. Earlier tries may have been executed.
pub(super) fn keep_doubt(away: StoreError, may_have_landed: bool) -> StoreError {
    if may_have_landed {
        return StoreError::new(StoreErrorKind::Indeterminate, away.to_string());
    }
    away
}

/// The error for a request that cannot be built.
pub(super) fn unbuilt(error: aws_sdk_dynamodb::error::BuildError) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, "a request to DynamoDB cannot be built")
        .with_source(error)
}
