//! Secrets that are created at first use, beside the records.

use std::collections::HashMap;

use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::AttributeValue;

use onetake_core::{StoreError, StoreErrorKind};

use super::item::{self, Item};
use super::table::{Intent, No, Table, keep_doubt};

/// The prefix of a secret's key, before its name. It is longer than the id of a record, so that
/// they are never confused.
const PREFIX: &[u8] = b"onetake's secret ";

/// Returns the secret of this name, which all nodes share. It is `fresh` if there was none.
pub(super) async fn keep(
    table: &Table,
    name: &str,
    fresh: [u8; 32],
) -> Result<[u8; 32], StoreError> {
    if let Some(found) = read(table, name).await? {
        return Ok(found);
    }
    let put = table.client.put_item().table_name(&table.place.table);
    let put =
        put.set_item(Some(encode(name, &fresh))).condition_expression("attribute_not_exists(id)");
    let expected = ["ConditionalCheckFailedException"];
    match table.ask(Intent::Write, &expected, || put.clone().send()).await {
        Ok(_) => return Ok(fresh),
        // Another node was faster, or an earlier try of this node whose answer was lost.
        Err(No::Answer(PutItemError::ConditionalCheckFailedException(_))) => {}
        Err(other) => return Err(other.into_error()),
    }
    let found = read(table, name).await.map_err(|error| match error.kind() {
        StoreErrorKind::Unavailable => keep_doubt(error, true),
        _ => error,
    })?;
    found.ok_or_else(|| {
        let what = format!("the secret `{name}` was deleted from the table while it was created");
        StoreError::new(StoreErrorKind::Unavailable, what)
    })
}

/// Reads a secret, strongly consistent.
async fn read(table: &Table, name: &str) -> Result<Option<[u8; 32]>, StoreError> {
    let get = table.client.get_item().table_name(&table.place.table);
    let get = get.key("id", key(name)).consistent_read(true);
    let answer =
        table.ask(Intent::Read, &[], || get.clone().send()).await.map_err(No::into_error)?;
    let value = |item: &Item| item.get("x")?.as_b().ok()?.as_ref().try_into().ok();
    let read = |item| value(item).ok_or_else(|| StoreError::damaged_secret(name));
    answer.item().map(read).transpose()
}

/// Encodes a secret. Without `w` it is in no index, and without `ttl` the server never deletes it.
fn encode(name: &str, value: &[u8; 32]) -> Item {
    HashMap::from([("id".to_owned(), key(name)), ("x".to_owned(), item::bytes(value))])
}

fn key(name: &str) -> AttributeValue {
    item::bytes(&[PREFIX, name.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_looks_like_a_record() {
        for name in ["", "a", "filter", "sixteen letters!"] {
            let item = encode(name, &[7; 32]);
            assert_eq!(item::id(&item), None, "{name:?}");
            assert!(item::VersionedRecord::decode(&item).is_err());
            for attribute in ["w", "ttl", "r", "v"] {
                assert!(!item.contains_key(attribute), "{name:?} has {attribute}");
            }
        }
    }
}
