//! Requests to the table: bounded, behind a breaker, and clear about what may have landed.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{KeysAndAttributes, ReturnValuesOnConditionCheckFailure};

use onetake_core::store::{Cursor, FOUND_MAX, Page};
use onetake_core::{Clock, RecordId, Reference, Rng, StoreError, StoreErrorKind, Timestamp};

use super::DynamoOptions;
use super::error::{judge, refused};
use super::item::{self, Item, Seen};
use super::url::Place;
use crate::breaker::Breaker;

/// How often a request is sent at most.
const TRIES_MAX: u32 = 3;
/// The first pause between two tries; the second is twice as long.
const PAUSE: Duration = Duration::from_millis(20);
/// Keys in one request; DynamoDB takes no more.
const KEYS_MAX: usize = 100;
/// How often keys that the server left out are asked for again.
const LEFT_OUT_MAX: u32 = 20;
/// Pages of one shard of an index: fifty megabytes of running operations.
const PAGES_MAX: usize = 50;
/// Items in a page of what is to be asked for: those that expired, and that the server did not delete yet,
/// stand in front of all others.
const ASKS_MAX: i32 = 1_000;

/// The name of the index of what runs.
pub(super) const RUNNING: &str = "running";
/// The name of the index of what is to be asked for.
pub(super) const ASKS: &str = "asks";
/// The name of the index by which records are found by their references, and notes by their time.
pub(super) const FOUND: &str = "found";

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    Read,
    Write,
}

/// Why a request was not done.
#[derive(Debug)]
pub(super) enum No<E> {
    /// The server answered, with an error that the caller knows what to do with.
    Answer(E),
    /// Anything else.
    Store(StoreError),
}

/// What became of a conditional write.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "short-lived")]
pub(super) enum Written {
    /// It is there, durably.
    Landed,
    /// It is not as it was: somebody else was faster, or an earlier try of our own, whose answer got
    /// lost. This is there now.
    Other(Option<Seen>),
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) client: Client,
    pub(super) place: Place,
    pub(super) breaker: Breaker,
    pub(super) clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    skew_margin: Duration,
}

impl Table {
    pub(super) fn new(client: Client, place: Place, options: &DynamoOptions) -> Self {
        let (clock, rng) = (Arc::clone(&options.clock), Arc::clone(&options.rng));
        let breaker = Breaker::new("the DynamoDB store", Arc::clone(&clock), Arc::clone(&rng));
        Self { client, place, breaker, clock, rng, skew_margin: options.skew_margin }
    }

    /// Sends a request, and again if that may help. `expected` tells answers that are the caller's.
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

    /// A short rest with jitter, longer each time.
    async fn pause(&self, tries: u32) {
        let mut random = [0; 1];
        self.rng.fill(&mut random);
        let [random] = random;
        let longest = PAUSE * 2_u32.saturating_pow(tries.min(6).saturating_sub(1));
        self.clock.sleep(longest.mul_f64(0.5 + f64::from(random) / 512.0)).await;
    }

    /// Reads an item, strongly consistent.
    pub(super) async fn read(&self, id: RecordId) -> Result<Option<Seen>, StoreError> {
        let get = self.client.get_item().table_name(&self.place.table);
        let get = get.key("id", item::key(id)).consistent_read(true);
        let answer =
            self.ask(Intent::Read, &[], || get.clone().send()).await.map_err(No::into_error)?;
        answer.item().map(Seen::decode).transpose()
    }

    /// Some of all ids, in the table's own order.
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
        // Secrets and notes stand among them, under ids of another length.
        let ids = answer.items().iter().filter_map(item::id).collect();
        let last = answer.last_evaluated_key().and_then(|key| key.get("id")?.as_b().ok());
        let next = last.map(|id| Cursor::from_bytes(id.as_ref().to_vec()));
        Ok(Page { ids, next })
    }

    /// The ids that have a reference, by the index.
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

    /// Writes an item over what was found, on the condition that it is still there as it was.
    pub(super) async fn write(
        &self,
        next: &Seen,
        over: Option<&Seen>,
    ) -> Result<Written, StoreError> {
        let put = self.client.put_item().table_name(&self.place.table);
        let put = put
            .set_item(Some(next.encode(self.skew_margin)))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        // The attempt too: a new life of the key begins its versions anew.
        let put = match over {
            None => put.condition_expression("attribute_not_exists(id)"),
            Some(seen) => put
                .condition_expression("a = :a AND v = :v")
                .expression_attribute_values(":a", item::bytes(seen.record.attempt.as_bytes()))
                .expression_attribute_values(":v", item::number(seen.version)),
        };
        let expected = ["ConditionalCheckFailedException"];
        let failed = match self.ask(Intent::Write, &expected, || put.clone().send()).await {
            Ok(_) => return Ok(Written::Landed),
            Err(No::Answer(PutItemError::ConditionalCheckFailedException(failed))) => failed,
            Err(other) => return Err(other.into_error()),
        };
        let found = match failed.item() {
            Some(item) => Some(Seen::decode(item)?),
            // It is gone, or this server does not send it along. If nobody can tell, it may be our own
            // earlier try that is there.
            None => self.read(next.record.id).await.map_err(|error| match error.kind() {
                StoreErrorKind::Unavailable => keep_doubt(error, true),
                _ => error,
            })?,
        };
        Ok(Written::Other(found))
    }

    /// Reads many items at once, strongly consistent; what is not there is not in the answer.
    pub(super) async fn read_many(
        &self,
        ids: &[RecordId],
    ) -> HashMap<RecordId, Result<Seen, StoreError>> {
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
        found: &mut HashMap<RecordId, Result<Seen, StoreError>>,
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
                    found.insert(id, Seen::decode(&item));
                }
            }
            let out = answer.unprocessed_keys.take().unwrap_or_default().remove(&self.place.table);
            left = out.iter().flat_map(|out| &out.keys).filter_map(item::id).collect();
            if left.is_empty() {
                return Ok(());
            }
            self.pause(round).await;
        }
        let what = "DynamoDB leaves out items that it is asked for: it has no capacity left";
        Err((left, StoreError::new(StoreErrorKind::Unavailable, what)))
    }

    /// What runs, by the index, in one of its shards; a moment old.
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

    /// What is to be asked for by now, by the index, in one of its shards, the longest due first and none that
    /// expired; a moment old.
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

/// Nothing more can be asked, but what was sent before may have landed.
pub(super) fn keep_doubt(away: StoreError, may_have_landed: bool) -> StoreError {
    if may_have_landed {
        return StoreError::new(StoreErrorKind::Indeterminate, away.to_string());
    }
    away
}

/// The error for a request that cannot be put together.
pub(super) fn unbuilt(error: aws_sdk_dynamodb::error::BuildError) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, "a request to DynamoDB cannot be built")
        .with_source(error)
}
