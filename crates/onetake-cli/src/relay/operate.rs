//! Operator actions on messages that could not be delivered.

use std::process::ExitCode;

use onetake_core::outbox::{Outbox, ParkedMessage};
use onetake_core::{MessageId, StoreError};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Act;
use crate::cli::{Failed, say};

/// Messages per page: each may be large.
const PAGE: usize = 10;

pub(super) async fn run(act: &Act, outbox: &dyn Outbox) -> Result<ExitCode, Failed> {
    match act {
        Act::Parked { limit } => list(outbox, Listed::Parked, usize::from(*limit)).await,
        Act::Failing { limit } => list(outbox, Listed::Failing, usize::from(*limit)).await,
        Act::Retry { id } => done(outbox.retry(*id).await, *id, "will be retried"),
        Act::Discard { id } => done(outbox.discard(*id).await, *id, "is deleted"),
    }
}

/// The lists that can be shown.
#[derive(Clone, Copy)]
enum Listed {
    Parked,
    Failing,
}

async fn list(outbox: &dyn Outbox, listed: Listed, limit: usize) -> Result<ExitCode, Failed> {
    let (mut behind, mut left) = (0, limit);
    while left > 0 {
        let page = match listed {
            Listed::Parked => outbox.parked(behind, PAGE.min(left)).await,
            Listed::Failing => outbox.failing(behind, PAGE.min(left)).await,
        };
        let page = page.map_err(unanswered)?;
        let Some(last) = page.last() else { break };
        behind = last.waiting.place;
        left -= page.len().min(left);
        page.iter().for_each(|parked| say(&line(parked, listed)));
    }
    if left == limit {
        say(match listed {
            Listed::Parked => "no message is parked\n",
            Listed::Failing => "no message is failing\n",
        });
    }
    Ok(ExitCode::SUCCESS)
}

fn line(parked: &ParkedMessage, listed: Listed) -> String {
    let ParkedMessage { waiting, at, error } = parked;
    let nanos = i128::from(at.as_micros()).saturating_mul(1_000);
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    let at = at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default();
    let when = match listed {
        Listed::Parked => "since",
        Listed::Failing => "next try at",
    };
    let (topic, order) = (plain(&waiting.message.topic), plain(&waiting.message.order));
    let bytes = waiting.message.payload.len();
    format!(
        "{}  {when} {at}  topic {topic}  ordering key {order}  {bytes} bytes  {} tries\n  {}\n",
        waiting.id,
        waiting.tries,
        plain(error)
    )
}

/// Replaces control characters in text from outside, which a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn done(answer: Result<bool, StoreError>, id: MessageId, what: &str) -> Result<ExitCode, Failed> {
    match answer.map_err(unanswered)? {
        true => {
            say(&format!("{id} {what}\n"));
            Ok(ExitCode::SUCCESS)
        }
        false => Err(Failed(format!("no message with the id {id} is parked or failing"), 4)),
    }
}

fn unanswered(error: StoreError) -> Failed {
    Failed(format!("the outbox cannot be read or changed: {error}"), 3)
}
