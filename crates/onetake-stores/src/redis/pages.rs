//! Iteration over all records: server by server, with each server's own cursor.

use bytes::{BufMut, Bytes, BytesMut};
use onetake_core::codec::{Reader, put_slice};
use onetake_core::store::{Cursor, Page};
use onetake_core::{RecordId, StoreError};
use redis::Value;

use super::connection::Connection;
use super::diagnose::ask;
use super::errors;
use super::scripts::Scripts;

/// The position of the iteration: a server, and the cursor of its SCAN.
struct ScanPosition {
    server: String,
    number: u64,
}

impl ScanPosition {
    fn read(cursor: &Cursor) -> Option<Self> {
        let mut from = Reader(cursor.as_bytes().clone());
        let server = String::from_utf8(from.slice("server").ok()?.to_vec()).ok()?;
        let number = u64::from_be_bytes(from.array("number").ok()?);
        from.end().ok()?;
        Some(Self { server, number })
    }

    fn cursor(&self) -> Cursor {
        let mut out = BytesMut::new();
        put_slice(&mut out, self.server.as_bytes());
        out.put_u64(self.number);
        Cursor::from_bytes(out.freeze())
    }
}

/// Reads one page from one server. Slots that move to another server meanwhile may be missed.
pub(super) async fn page(
    connection: &Connection,
    scripts: &Scripts,
    from: Option<Cursor>,
    limit: usize,
) -> Result<Page, StoreError> {
    let place = match from {
        Some(cursor) => Some(ScanPosition::read(&cursor).ok_or_else(Cursor::foreign)?),
        None => None,
    };
    // In the order of their names, so that a server that no longer exists is followed by the next
    // one.
    let servers = connection.primaries();
    let from = place.as_ref().map_or("", |place| &place.server);
    let mut left = servers.iter().filter(|server| server.name.as_str() >= from);
    let Some(server) = left.next() else {
        return Ok(Page::default());
    };
    let here = place.as_ref().filter(|place| place.server == server.name);
    let number = here.map_or(0, |place| place.number);
    // SCAN counts all keys, and each record has a second key for its reference.
    let (number, count) = (number.to_string(), limit.saturating_mul(2).to_string());
    let pattern = scripts.any_record();
    let scan = ["SCAN", &number, "MATCH", &pattern, "COUNT", &count];
    let within = connection.options().command_timeout;
    let answer = ask(server, &[&scan], within).await?.into_iter().next();
    if let Some(Value::ServerError(said)) = &answer {
        return Err(errors::refused(&server.name, said));
    }
    let (ids, number) = read(scripts, answer)
        .ok_or_else(|| errors::lost(&server.name, "its reply to SCAN is not valid"))?;
    let next = match (number, left.next()) {
        (0, None) => None,
        (0, Some(next)) => Some(ScanPosition { server: next.name.clone(), number: 0 }),
        (number, _) => Some(ScanPosition { server: server.name.clone(), number }),
    };
    Ok(Page { ids, next: next.map(|place| place.cursor()) })
}

/// Returns the records among the keys, and the server's next cursor.
fn read(scripts: &Scripts, answer: Option<Value>) -> Option<(Vec<RecordId>, u64)> {
    let Some(Value::Array(parts)) = answer else { return None };
    let [Value::BulkString(number), Value::Array(keys)] = parts.as_slice() else { return None };
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    let key = |key: &Value| match key {
        Value::BulkString(key) => scripts.id_of(&Bytes::copy_from_slice(key)),
        _ => None,
    };
    Some((keys.iter().filter_map(key).collect(), number))
}
