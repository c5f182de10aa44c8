//! The table's shape: made by `onetake migrate`, and looked at whenever the store is opened.

use std::time::Duration;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, GlobalSecondaryIndexDescription,
    IndexStatus, KeySchemaElement, KeyType, Projection, ProjectionType, ScalarAttributeType,
    TableDescription, TableStatus, TimeToLiveDescription, TimeToLiveSpecification,
    TimeToLiveStatus,
};

use onetake_core::{StoreError, StoreErrorKind};

use super::table::{INDEX, Intent, No, Table, unbuilt};

/// The attribute by which the server deletes what expired.
const TTL: &str = "ttl";
/// What the index has to hold of each item, beside its key.
const PROJECTED: [&str; 2] = ["v", "r"];
/// How long a table may take to be made.
const CREATED_WITHIN: Duration = Duration::from_secs(120);
/// How long to wait between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Refuses a table that is missing or of another shape.
pub(super) async fn check(table: &Table) -> Result<(), StoreError> {
    let found = describe(table).await?;
    fits(&found, &table.place.table)?;
    if !is_usable(&found) {
        let what = format!("the table {} is not ready: {}", table.place.table, state(&found));
        return Err(StoreError::new(StoreErrorKind::Unavailable, what));
    }
    Ok(())
}

/// Creates the table if it is not there; says whether it was created.
pub(super) async fn migrate(table: &Table) -> Result<bool, StoreError> {
    let created = create(table).await?;
    let give_up = table.clock.monotonic().saturating_add(CREATED_WITHIN);
    loop {
        match describe(table).await {
            Ok(found) => {
                fits(&found, &table.place.table)?;
                if is_usable(&found) {
                    break;
                }
            }
            // A table that was made a moment ago may not be known everywhere yet.
            Err(error) if created && error.kind() == StoreErrorKind::Invalid => {}
            Err(error) => return Err(error),
        }
        if table.clock.monotonic() >= give_up {
            let what = format!(
                "the table {} is not ready after {} s; run `onetake migrate` again",
                table.place.table,
                CREATED_WITHIN.as_secs()
            );
            return Err(StoreError::new(StoreErrorKind::Unavailable, what));
        }
        table.clock.sleep(LOOK_EVERY).await;
    }
    switch_on_ttl(table).await?;
    Ok(created)
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

/// Whether the server deletes what expired.
pub(super) fn deletes(ttl: &TimeToLiveDescription) -> bool {
    use TimeToLiveStatus::{Enabled, Enabling};
    matches!(ttl.time_to_live_status(), Some(Enabled | Enabling))
}

/// What keeps a table from being ours, if anything.
fn fits(found: &TableDescription, name: &str) -> Result<(), StoreError> {
    let other = |what: String| {
        let what = format!(
            "the table {name} is of another shape: {what}; give onetake a table of its own, and let \
             `onetake migrate` create it"
        );
        Err(StoreError::new(StoreErrorKind::Invalid, what))
    };
    let keys = keys_of(found.key_schema(), found);
    if keys != "id (B)" {
        return other(format!("its key is {keys} instead of id (B)"));
    }
    let Some(index) = index(found) else {
        return other(format!("it has no index `{INDEX}`"));
    };
    let keys = keys_of(index.key_schema(), found);
    if keys != "w (N)" {
        return other(format!("the key of its index `{INDEX}` is {keys} instead of w (N)"));
    }
    let projection = index.projection();
    let all = projection.and_then(Projection::projection_type) == Some(&ProjectionType::All);
    let held = projection.map(Projection::non_key_attributes).unwrap_or_default();
    if !all && !PROJECTED.iter().all(|name| held.iter().any(|held| held == name)) {
        return other(format!("its index `{INDEX}` does not hold {}", PROJECTED.join(" and ")));
    }
    Ok(())
}

/// Names and types of a key, as people write them.
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

fn index(found: &TableDescription) -> Option<&GlobalSecondaryIndexDescription> {
    found.global_secondary_indexes().iter().find(|index| index.index_name() == Some(INDEX))
}

fn is_usable(found: &TableDescription) -> bool {
    use TableStatus::{Active, Updating};
    let index = index(found).and_then(GlobalSecondaryIndexDescription::index_status);
    matches!(found.table_status(), Some(Active | Updating))
        && matches!(index, None | Some(IndexStatus::Active | IndexStatus::Updating))
}

pub(super) fn state(found: &TableDescription) -> String {
    let table = found.table_status().map_or("of no state", TableStatus::as_str);
    let index = index(found).and_then(GlobalSecondaryIndexDescription::index_status);
    format!("the table is {table}, its index {}", index.map_or("ACTIVE", IndexStatus::as_str))
}

async fn create(table: &Table) -> Result<bool, StoreError> {
    let (definitions, key, index) = shape().map_err(unbuilt)?;
    let create = table.client.create_table().table_name(&table.place.table);
    let create = create
        .set_attribute_definitions(Some(definitions))
        .key_schema(key)
        .global_secondary_indexes(index)
        .billing_mode(BillingMode::PayPerRequest);
    let expected = ["ResourceInUseException"];
    match table.ask(Intent::Write, &expected, || create.clone().send()).await {
        Ok(_) => Ok(true),
        Err(No::Answer(CreateTableError::ResourceInUseException(_))) => Ok(false),
        Err(other) => Err(other.into_error()),
    }
}

type Shape = (Vec<AttributeDefinition>, KeySchemaElement, GlobalSecondaryIndex);

fn shape() -> Result<Shape, BuildError> {
    let attribute = |name, kind| {
        AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build()
    };
    let key =
        |name| KeySchemaElement::builder().attribute_name(name).key_type(KeyType::Hash).build();
    let projected = PROJECTED.iter().map(ToString::to_string).collect();
    let projection = Projection::builder()
        .projection_type(ProjectionType::Include)
        .set_non_key_attributes(Some(projected))
        .build();
    let index = GlobalSecondaryIndex::builder()
        .index_name(INDEX)
        .key_schema(key("w")?)
        .projection(projection)
        .build()?;
    let definitions =
        vec![attribute("id", ScalarAttributeType::B)?, attribute("w", ScalarAttributeType::N)?];
    Ok((definitions, key("id")?, index))
}

async fn switch_on_ttl(table: &Table) -> Result<(), StoreError> {
    let found = describe_ttl(table).await?;
    if deletes(&found) {
        return match found.attribute_name() {
            Some(TTL) | None => Ok(()),
            Some(other) => {
                let what = format!(
                    "the table {} deletes by the attribute `{other}` instead of `{TTL}`",
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
