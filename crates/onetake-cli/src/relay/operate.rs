//! What operators do with parked messages.

use std::process::ExitCode;

use onetake_core::outbox::{Outbox, Parked};
use onetake_core::{MessageId, StoreError};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Act;
use crate::cli::{Failed, say};

/// How many are asked for at a time: each may be large.
const PAGE: usize = 10;

pub(super) async fn run(act: &Act, outbox: &dyn Outbox) -> Result<ExitCode, Failed> {
    match act {
        Act::Parked { limit } => list(outbox, usize::from(*limit)).await,
        Act::Retry { id } => done(outbox.retry(*id).await, *id, "is tried again"),
        Act::Discard { id } => done(outbox.discard(*id).await, *id, "is deleted"),
    }
}

async fn list(outbox: &dyn Outbox, limit: usize) -> Result<ExitCode, Failed> {
    let (mut behind, mut left) = (0, limit);
    while left > 0 {
        let page = outbox.parked(behind, PAGE.min(left)).await.map_err(unanswered)?;
        let Some(last) = page.last() else { break };
        behind = last.waiting.place;
        left -= page.len().min(left);
        page.iter().for_each(|parked| say(&line(parked)));
    }
    if left == limit {
        say("no message is parked\n");
    }
    Ok(ExitCode::SUCCESS)
}

fn line(parked: &Parked) -> String {
    let Parked { waiting, at, error } = parked;
    let nanos = i128::from(at.as_micros()).saturating_mul(1_000);
    let since = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    let since = since.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default();
    let (topic, order) = (plain(&waiting.message.topic), plain(&waiting.message.order));
    let bytes = waiting.message.payload.len();
    format!(
        "{}  since {since}  topic {topic}  ordering key {order}  {bytes} bytes  {} tries\n  {}\n",
        waiting.id,
        waiting.tries,
        plain(error)
    )
}

/// Text that others wrote, without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn done(answer: Result<bool, StoreError>, id: MessageId, what: &str) -> Result<ExitCode, Failed> {
    match answer.map_err(unanswered)? {
        true => {
            say(&format!("{id} {what}\n"));
            Ok(ExitCode::SUCCESS)
        }
        false => Err(Failed(format!("no message with the id {id} is parked"), 4)),
    }
}

fn unanswered(error: StoreError) -> Failed {
    Failed(format!("the outbox did not answer: {error}"), 3)
}
