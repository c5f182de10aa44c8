//! The table's shape. `onetake migrate` creates it, and opening the store checks it.

use std::time::Duration;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, CreateGlobalSecondaryIndexAction, GlobalSecondaryIndex,
    GlobalSecondaryIndexDescription, GlobalSecondaryIndexUpdate, IndexStatus, KeySchemaElement,
    KeyType, Projection, ProjectionType, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveDescription, TimeToLiveSpecification, TimeToLiveStatus,
};

use onetake_core::{StoreError, StoreErrorKind};

use super::table::{ASKS, FOUND, Intent, No, RUNNING, Table, unbuilt};

/// The attribute by which the server deletes expired items.
const TTL: &str = "ttl";
/// The indexes. A table of an earlier version may lack all but the first.
const INDEXES: [Index; 3] = [
    Index {
        name: RUNNING,
        hash: "w",
        range: None,
        key: "w (N)",
        holds: &["v", "r"],
        without: "abandoned attempts are not found",
    },
    Index {
        name: FOUND,
        hash: "h",
        range: Some("o"),
        key: "h (B) and o (B, sorted)",
        holds: &["x"],
        without: "records are not found by reference, and the audit log cannot be read",
    },
    Index {
        name: ASKS,
        hash: "q",
        range: Some("t"),
        key: "q (N) and t (N, sorted)",
        holds: &["a", "e"],
        without: "unknown outcomes are not reconciled",
    },
];
/// The longest wait for the creation of a table.
const CREATED_WITHIN: Duration = Duration::from_secs(120);
/// The pause between two checks of its state.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An index as it must be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) name: &'static str,
    hash: &'static str,
    range: Option<&'static str>,
    /// The key, for messages.
    key: &'static str,
    /// The attributes of each item that it must contain, beside its key.
    holds: &'static [&'static str],
    /// The consequence of its absence, for messages.
    pub(super) without: &'static str,
}

impl Index {
    fn has_in_key(&self, attribute: &str) -> bool {
        self.hash == attribute || self.range == Some(attribute)
    }
}

/// The result of `onetake migrate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// The table was created.
    Created,
    /// The table existed, and got its missing indexes.
    IndexAdded,
    /// Everything existed already.
    Nothing,
}

/// Refuses a table that is missing or has another shape.
pub(super) async fn check(table: &Table) -> Result<(), StoreError> {
    let found = describe(table).await?;
    if let Some(Index { name, .. }) = fits(&found, &table.place.table)? {
        let what = format!(
            "the table {} has no index `{name}`, which earlier versions did not need: run `onetake \
             migrate`, which adds it while the table is in use",
            table.place.table
        );
        return Err(StoreError::new(StoreErrorKind::Invalid, what));
    }
    if !is_usable(&found) {
        let what = format!("the table {} is not ready: {}", table.place.table, state(&found));
        return Err(StoreError::new(StoreErrorKind::Unavailable, what));
    }
    Ok(())
}

/// Creates the table, or its missing indexes, and waits until it can be used.
pub(super) async fn migrate(table: &Table) -> Result<TableChange, StoreError> {
    let created = create(table).await?;
    let mut change = if created { TableChange::Created } else { TableChange::Nothing };
    let mut added = None;
    let abort = table.clock.monotonic().saturating_add(CREATED_WITHIN);
    loop {
        match describe(table).await {
            Ok(found) => {
                let lacks = fits(&found, &table.place.table)?;
                // A table that is being changed accepts no other change, and only one index at a
                // time.
                let active = found.table_status() == Some(&TableStatus::Active);
                match lacks {
                    Some(index) if active && added != Some(index) => {
                        add_index(table, &found, index).await?;
                        (added, change) = (Some(index), TableChange::IndexAdded);
                    }
                    None if is_usable(&found) => break,
                    _ => {}
                }
            }
            // A table that was created a moment ago may not be visible everywhere yet.
            Err(error) if created && error.kind() == StoreErrorKind::Invalid => {}
            Err(error) => return Err(error),
        }
        if table.clock.monotonic() >= abort {
            let what = format!(
                "the table {} is not ready after {} s; run `onetake migrate` again until it is ready",
                table.place.table,
                CREATED_WITHIN.as_secs()
            );
            return Err(StoreError::new(StoreErrorKind::Unavailable, what));
        }
        table.clock.sleep(LOOK_EVERY).await;
    }
    switch_on_ttl(table).await?;
    Ok(change)
}

pub(super) async fn describe(table: &Table) -> Result<TableDescription, StoreError> {
    let describe = table.client.describe_table().table_name(&table.place.table);
    let answer =
        table.ask(Intent::Read, &[], || describe.clone().send()).await.map_err(No::into_error)?;
    answer.table.ok_or_else(|| {
        StoreError::new(StoreErrorKind::Unavailable, "DynamoDB did not describe the table")
    })
}

pub(super) async fn describe_ttl(table: &Table) -> Result<TimeToLiveDescription, StoreError> {
    let describe = table.client.describe_time_to_live().table_name(&table.place.table);
    let answer =
        table.ask(Intent::Read, &[], || describe.clone().send()).await.map_err(No::into_error)?;
    answer.time_to_live_description.ok_or_else(|| {
        StoreError::new(StoreErrorKind::Unavailable, "DynamoDB did not describe the table's TTL")
    })
}

/// Returns true if the server deletes expired items.
pub(super) fn deletes(ttl: &TimeToLiveDescription) -> bool {
    use TimeToLiveStatus::{Enabled, Enabling};
    matches!(ttl.time_to_live_status(), Some(Enabled | Enabling))
}

/// Returns the missing indexes.
pub(super) fn lacks(found: &TableDescription) -> impl Iterator<Item = &'static Index> {
    INDEXES.iter().filter(|expected| index(found, expected.name).is_none())
}

/// Checks that a table has the shape of onetake's. The error describes the difference. An index
/// that earlier versions did not have may be missing; the first missing one is returned.
fn fits(found: &TableDescription, name: &str) -> Result<Option<&'static Index>, StoreError> {
    let other = |what: String| {
        let what = format!(
            "the table {name} is not a table of onetake: {what}. Name another table in the URL, \
             and create it with `onetake migrate`"
        );
        Err(StoreError::new(StoreErrorKind::Invalid, what))
    };
    let keys = keys_of(found.key_schema(), found);
    if keys != "id (B)" {
        return other(format!("the key is {keys} instead of id (B)"));
    }
    for Index { name, key, holds, .. } in &INDEXES {
        let Some(index) = index(found, name) else {
            if *name == RUNNING {
                return other(format!("the index `{name}` is missing"));
            }
            continue;
        };
        let keys = keys_of(index.key_schema(), found);
        if keys != *key {
            return other(format!("the key of the index `{name}` is {keys} instead of {key}"));
        }
        let projection = index.projection();
        let all = projection.and_then(Projection::projection_type) == Some(&ProjectionType::All);
        let held = projection.map(Projection::non_key_attributes).unwrap_or_default();
        if !all && !holds.iter().all(|name| held.iter().any(|held| held == name)) {
            return other(format!("the index `{name}` does not include {}", holds.join(" and ")));
        }
    }
    Ok(lacks(found).next())
}

/// Returns the names and types of a key, for messages.
fn keys_of(keys: &[KeySchemaElement], found: &TableDescription) -> String {
    let one = |key: &KeySchemaElement| {
        let name = key.attribute_name();
        let kind = found.attribute_definitions().iter().find(|a| a.attribute_name() == name);
        let kind = kind.map_or("?", |kind| kind.attribute_type().as_str());
        let sorts = if *key.key_type() == KeyType::Range { ", sorted" } else { "" };
        format!("{name} ({kind}{sorts})")
    };
    keys.iter().map(one).collect::<Vec<_>>().join(" and ")
}

fn index<'a>(
    found: &'a TableDescription,
    name: &str,
) -> Option<&'a GlobalSecondaryIndexDescription> {
    found.global_secondary_indexes().iter().find(|index| index.index_name() == Some(name))
}

fn is_usable(found: &TableDescription) -> bool {
    use TableStatus::{Active, Updating};
    let usable =
        |index: &Index| matches!(status(found, index), IndexStatus::Active | IndexStatus::Updating);
    matches!(found.table_status(), Some(Active | Updating)) && INDEXES.iter().all(usable)
}

/// Returns the status of an index. Some servers that are not AWS's do not return one; then the
/// index is active.
fn status(found: &TableDescription, index: &Index) -> IndexStatus {
    let found = self::index(found, index.name);
    let said = found.and_then(GlobalSecondaryIndexDescription::index_status);
    said.cloned().unwrap_or(IndexStatus::Active)
}

pub(super) fn state(found: &TableDescription) -> String {
    let table = found.table_status().map_or("in an unknown state", TableStatus::as_str);
    let index = |index: &Index| {
        format!(", the index `{}` is {}", index.name, status(found, index).as_str())
    };
    let indexes: String = INDEXES.iter().map(index).collect();
    format!("the table is {table}{indexes}")
}

async fn create(table: &Table) -> Result<bool, StoreError> {
    let create = table.client.create_table().table_name(&table.place.table);
    let create = create
        .set_attribute_definitions(Some(attributes(|_| true).map_err(unbuilt)?))
        .key_schema(key("id", KeyType::Hash).map_err(unbuilt)?)
        .set_global_secondary_indexes(Some(indexes().map_err(unbuilt)?))
        .billing_mode(BillingMode::PayPerRequest);
    let expected = ["ResourceInUseException"];
    match table.ask(Intent::Write, &expected, || create.clone().send()).await {
        Ok(_) => Ok(true),
        Err(No::Answer(CreateTableError::ResourceInUseException(_))) => Ok(false),
        Err(other) => Err(other.into_error()),
    }
}

/// Adds an index that a table of an earlier version lacks. The table can be used meanwhile.
async fn add_index(
    table: &Table,
    found: &TableDescription,
    added: &Index,
) -> Result<(), StoreError> {
    let update = added_index(added).map_err(unbuilt)?;
    // An attribute may be defined only if an index uses it. If two indexes are missing, the other
    // one is added later.
    let has = |expected: &Index| expected == added || index(found, expected.name).is_some();
    let add = table.client.update_table().table_name(&table.place.table);
    let add = add
        .set_attribute_definitions(Some(attributes(has).map_err(unbuilt)?))
        .global_secondary_index_updates(update);
    // Another process is adding it.
    let expected = ["ResourceInUseException", "LimitExceededException"];
    match table.ask(Intent::Write, &expected, || add.clone().send()).await {
        Ok(_) | Err(No::Answer(_)) => Ok(()),
        Err(other) => Err(other.into_error()),
    }
}

fn added_index(added: &Index) -> Result<GlobalSecondaryIndexUpdate, BuildError> {
    let mut create = CreateGlobalSecondaryIndexAction::builder();
    if let Some(index) = indexes()?.into_iter().find(|index| index.index_name == added.name) {
        create = create
            .index_name(index.index_name)
            .set_key_schema(Some(index.key_schema))
            .set_projection(index.projection);
    }
    Ok(GlobalSecondaryIndexUpdate::builder().create(create.build()?).build())
}

/// Returns all attributes that are part of the key of the table or of its indexes.
fn attributes(has: impl Fn(&Index) -> bool) -> Result<Vec<AttributeDefinition>, BuildError> {
    use ScalarAttributeType::{B, N};
    let attribute = |(name, kind)| {
        AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build()
    };
    let used = |name: &str| {
        name == "id" || INDEXES.iter().any(|index| has(index) && index.has_in_key(name))
    };
    let all = [("id", B), ("w", N), ("h", B), ("o", B), ("q", N), ("t", N)];
    all.into_iter().filter(|(name, _)| used(name)).map(attribute).collect()
}

fn key(name: &str, kind: KeyType) -> Result<KeySchemaElement, BuildError> {
    KeySchemaElement::builder().attribute_name(name).key_type(kind).build()
}

fn indexes() -> Result<Vec<GlobalSecondaryIndex>, BuildError> {
    let index = |Index { name, hash, range, holds, .. }: &Index| {
        let range = range.map(|name| key(name, KeyType::Range)).transpose()?;
        let keys = [Some(key(hash, KeyType::Hash)?), range].into_iter().flatten().collect();
        let projection = Projection::builder()
            .projection_type(ProjectionType::Include)
            .set_non_key_attributes(Some(holds.iter().map(ToString::to_string).collect()))
            .build();
        GlobalSecondaryIndex::builder()
            .index_name(*name)
            .set_key_schema(Some(keys))
            .projection(projection)
            .build()
    };
    INDEXES.iter().map(index).collect()
}

async fn switch_on_ttl(table: &Table) -> Result<(), StoreError> {
    let found = describe_ttl(table).await?;
    if deletes(&found) {
        return match found.attribute_name() {
            Some(TTL) | None => Ok(()),
            Some(other) => {
                let what = format!(
                    "TTL of the table {} uses the attribute `{other}` instead of `{TTL}`: turn it off, and run `onetake migrate` again",
                    table.place.table
                );
                Err(StoreError::new(StoreErrorKind::Invalid, what))
            }
        };
    }
    let enabled = TimeToLiveSpecification::builder().attribute_name(TTL).enabled(true).build();
    let enabled = enabled.map_err(unbuilt)?;
    let update = table.client.update_time_to_live().table_name(&table.place.table);
    let update = update.time_to_live_specification(enabled);
    let answer = table.ask(Intent::Write, &[], || update.clone().send()).await;
    answer.map(drop).map_err(No::into_error)
}
