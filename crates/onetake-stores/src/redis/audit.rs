//! The audit log in Redis: few entries, in one slot.
//!
//! | key | content |
//! | --- | --- |
//! | `onetake:{entries}:entries` | a hash: the notes by their names |
//! | `onetake:{entries}:all` | a sorted set: the names of all notes, in lexicographical order |
//! | `onetake:{entries}:of:<id>` | a sorted set: the names of the notes about one record |
//!
//! A name is the note's place and its record, so that it sorts by time. Nothing here expires by
//! itself: a sweep deletes notes whose retention has ended, by the server's clock.

use bytes::Bytes;
use onetake_core::audit::{AUDIT_KEPT, AuditEntry, AuditPage, AuditPosition};
use onetake_core::clock::micros;
use onetake_core::store::Cursor;
use onetake_core::{RecordId, StoreError, hex};
use redis::Value;

use super::command::RedisCommand;
use super::connection::Connection;
use super::errors::wrote_nothing;
use super::scripts::Scripts;

/// The largest number of notes that are read, or deleted, at once.
const NOTES_MAX: usize = 1_000;

/// Writes a note.
pub(super) fn write(scripts: &Scripts, entry: &AuditEntry) -> RedisCommand {
    let keys = [all_notes(scripts), all_names(scripts), names_of(scripts, entry.id)];
    let name = [entry.place.as_bytes().as_slice(), entry.id.as_bytes()].concat();
    scripts.run(&scripts.entry, &keys).arg(name).arg(entry.encode())
}

/// Reads notes before a cursor, the newest first: those of one record, or all.
pub(super) async fn read(
    connection: &Connection,
    scripts: &Scripts,
    of: Option<RecordId>,
    from: Option<Cursor>,
    limit: usize,
) -> Result<AuditPage, StoreError> {
    let limit = limit.min(NOTES_MAX);
    let from = match &from {
        Some(cursor) => [b"(", AuditPosition::of(cursor)?.as_bytes().as_slice()].concat(),
        None => b"+".to_vec(),
    };
    let names = of.map_or_else(|| all_names(scripts), |id| names_of(scripts, id));
    let read = scripts.run(&scripts.entries, &[all_notes(scripts), names]);
    let read = [read.arg(from).arg(limit.to_string())];
    let answer = connection.run(&read, None).await.pop().transpose().map_err(wrote_nothing)?;
    let told = strings(answer);
    let told: Vec<_> = told.chunks(2).filter_map(<[Bytes]>::first_chunk).collect();
    let last = told.last().filter(|_| told.len() >= limit);
    let next = last.and_then(|[name, _]| place(name)).map(|place| place.cursor());
    // An unreadable note is skipped, so that it hides no other.
    let entry = |[name, bytes]: &[Bytes; 2]| match AuditEntry::decode(place(name)?, bytes.clone()) {
        Ok(entry) => Some(entry),
        Err(error) => {
            tracing::warn!(%error, "an entry of the audit log cannot be read");
            None
        }
    };
    Ok(AuditPage { entries: told.into_iter().filter_map(entry).collect(), next })
}

/// Deletes notes whose retention has ended.
pub(super) async fn delete_old(
    connection: &Connection,
    scripts: &Scripts,
    limit: usize,
) -> Result<(), StoreError> {
    let old = scripts.run(&scripts.old_notes, &[all_names(scripts)]);
    let old = old
        .arg(scripts.shift())
        .arg(micros(AUDIT_KEPT).to_string())
        .arg(limit.min(NOTES_MAX).to_string());
    let answer = connection.run(&[old], None).await.pop().transpose().map_err(wrote_nothing)?;
    let deletions: Vec<_> = strings(answer).iter().flat_map(|name| delete(scripts, name)).collect();
    for error in connection.run(&deletions, None).await.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "an old entry of the audit log could not be deleted; this is tried again");
    }
    Ok(())
}

/// Deletes a note. The name in the set of all notes is deleted last, so that an interrupted
/// deletion is repeated.
fn delete(scripts: &Scripts, name: &Bytes) -> Vec<RedisCommand> {
    let on = |key: String, transition| {
        RedisCommand::on(key.as_bytes(), transition).arg(key).arg(name.clone())
    };
    let id = name.last_chunk().copied().map(RecordId::from_bytes);
    let of = id.map(|id| on(names_of(scripts, id), "ZREM"));
    let rest = [on(all_notes(scripts), "HDEL"), on(all_names(scripts), "ZREM")];
    of.into_iter().chain(rest).collect()
}

fn all_notes(scripts: &Scripts) -> String {
    format!("{}:{{entries}}:notes", scripts.prefix)
}

fn all_names(scripts: &Scripts) -> String {
    format!("{}:{{entries}}:all", scripts.prefix)
}

fn names_of(scripts: &Scripts, id: RecordId) -> String {
    format!("{}:{{entries}}:of:{}", scripts.prefix, hex::encode(id.as_bytes()))
}

fn place(name: &[u8]) -> Option<AuditPosition> {
    name.first_chunk().copied().map(AuditPosition::from_bytes)
}

fn strings(answer: Option<Value>) -> Vec<Bytes> {
    let Some(Value::Array(values)) = answer else { return Vec::new() };
    let string = |value| match value {
        Value::BulkString(bytes) => Bytes::from(bytes),
        _ => Bytes::new(),
    };
    values.into_iter().map(string).collect()
}
