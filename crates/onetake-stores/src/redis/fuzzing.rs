//! Property of the replies of Redis, for the fuzzer.

use bytes::Bytes;
use onetake_core::{RecordId, State};
use redis::Value;

use super::record::{ScriptReply, cause, failure, recording};

/// A reply is a record or an error. The outcome of a record that was read is written and read again
/// without a change.
pub fn redis_reply(data: &[u8]) {
    let fields = fields(data);
    let id = RecordId::from_bytes([7; 16]);
    let read = |fields: Vec<Value>| {
        let reply = ScriptReply::read(Value::Array(fields)).ok()?;
        reply.record(id, &Bytes::new()).ok()
    };
    let Some((now, record)) = read(fields.clone()) else { return };
    let outcome = match &record.state {
        State::Completed { recording: kept, .. } => recording(kept),
        State::Failed { failure: kept, .. } => failure(kept),
        State::Unknown { cause: kept, .. } => cause(kept),
        State::Running { .. } | State::Released { .. } => Bytes::new(),
    };
    let mut again = fields;
    again.truncate(OUTCOME);
    again.push(Value::BulkString(outcome.to_vec()));
    let again = read(again);
    assert!(again.is_some(), "a written outcome cannot be read");
    let Some((again_now, again)) = again else { return };
    assert_eq!(again_now, now);
    assert_eq!(again, record, "what was written is not what is read");
}

/// The place of the outcome in a reply: the word, the time, and fourteen fields of the record come
/// before it.
const OUTCOME: usize = 16;

/// Fields of a reply. Each starts with its length in one byte; 255 is nil, and 254 an integer.
fn fields(mut data: &[u8]) -> Vec<Value> {
    let mut fields = Vec::new();
    while let [length, rest @ ..] = data {
        data = match length {
            255 => {
                fields.push(Value::Nil);
                rest
            }
            254 => {
                fields.push(Value::Int(7));
                rest
            }
            length => {
                let (field, behind) = rest.split_at(rest.len().min(usize::from(*length)));
                fields.push(Value::BulkString(field.to_vec()));
                behind
            }
        };
    }
    fields
}
