//! Requests at the same time, and clients that hang up.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use super::super::client::Exchange;
use super::super::report::{AT_ONCE, DRAFT_IN_FLIGHT, Finding, HANG_UP, IN_FLIGHT};
use super::super::session::{Baseline, Session, StepError, counted};
use super::retries::{is_in_progress, settled};
use super::{BLIND, StepResult};

/// Pause before the counter is read after an operation that may run in the background.
const SETTLE: Duration = Duration::from_millis(250);

/// Maximum number of tries to send a retry while the first request is being processed.
const OVERLAP_TRIES: usize = 3;

/// Many requests with one key. Their connections are open before the first one is sent.
pub(super) async fn at_once(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let before = session.count().await?;
    let call = session.call(baseline.written(&session.new_key()), &session.new_body());
    let connections = (0..session.settings.at_once).map(|_| session.open());
    let connections: Result<Vec<_>, _> = join_all(connections).await.into_iter().collect();
    let sent = connections?.into_iter().map(|open| open.exchange(session.request(&call)));
    let responses = join_all(sent).await;
    let runs = session.runs_since(before, SETTLE).await?;
    let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
    let mut outcomes: Vec<&Exchange> = Vec::new();
    for response in &responses {
        let name = match response {
            Ok(response) => response.status.as_u16().to_string(),
            Err(_) => "no response".to_owned(),
        };
        *statuses.entry(name).or_default() += 1;
        if let Ok(response) = response
            && response.status.is_success()
            && !outcomes.iter().any(|known| session.is_same_operation(known, response))
        {
            outcomes.push(response);
        }
    }
    let statuses: Vec<String> =
        statuses.into_iter().map(|(status, count)| format!("{count} × {status}")).collect();
    let shown = format!(
        "{}; distinct successful responses: {}{}",
        statuses.join(", "),
        outcomes.len(),
        counted(runs)
    );
    Ok(vec![match runs {
        _ if outcomes.len() > 1 => AT_ONCE.fail(shown),
        _ if outcomes.is_empty() => AT_ONCE.fail(shown),
        Some(1) => AT_ONCE.pass(shown),
        Some(_) => AT_ONCE.fail(shown),
        None if baseline.tells_apart => AT_ONCE.pass(shown),
        None => AT_ONCE.not_shown(format!("{shown}; {BLIND}")),
    }])
}

/// A client that hangs up in the middle of the operation, and retries.
pub(super) async fn hang_up(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let before = session.count().await?;
    let call = session.call(baseline.written(&session.new_key()), &session.new_body());
    let half = baseline.response.took / 2;
    session.open().await?.hang_up_after(half, session.request(&call)).await;
    let retry = settled(session, &call, session.client.timeout()).await?;
    let runs = session.runs_since(before, SETTLE + baseline.response.took).await?;
    let hung_up = format!("hung up after {} ms; the retry got ", half.as_millis());
    let shown = hung_up + &session.shown(&retry) + &counted(runs);
    Ok(vec![match runs {
        _ if is_in_progress(retry.status) => HANG_UP.fail(format!("the key is stuck: {shown}")),
        _ if !retry.status.is_success() => HANG_UP.fail(shown),
        Some(1) => HANG_UP.pass(shown),
        Some(_) => HANG_UP.fail(shown),
        None => HANG_UP.not_shown(format!(
            "{shown}; whether the first request ran as well can be seen only with --count"
        )),
    }])
}

/// A retry while the first request is being processed. A first request that ends too early is
/// repeated under another key.
pub(super) async fn in_flight(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let mut tries = 0;
    loop {
        tries += 1;
        let overlap = overlap(session, baseline).await?;
        if overlap.is_shown() || tries == OVERLAP_TRIES {
            return Ok(overlap.judge(session, baseline));
        }
    }
}

/// A first request and a retry that was sent in the middle of it.
struct Overlap {
    first: Exchange,
    retry: Exchange,
    /// True if the first request ended before the retry was sent.
    is_late: bool,
    runs: Option<u64>,
}

async fn overlap(session: &Session<'_>, baseline: &Baseline) -> Result<Overlap, StepError> {
    let before = session.count().await?;
    let call = session.call(baseline.written(&session.new_key()), &session.new_body());
    let (one, two) = (session.open().await?, session.open().await?);
    let clock = session.client.clock();
    let first = async {
        let response = one.exchange(session.request(&call)).await;
        (response, clock.monotonic())
    };
    let retry = async {
        clock.sleep(baseline.response.took / 2).await;
        let sent = clock.monotonic();
        (two.exchange(session.request(&call)).await, sent)
    };
    let ((first, first_done), (retry, retry_sent)) = tokio::join!(first, retry);
    let (first, retry) = (first?, retry?);
    let runs = session.runs_since(before, SETTLE).await?;
    Ok(Overlap { first, retry, is_late: retry_sent >= first_done, runs })
}

impl Overlap {
    fn is_shown(&self) -> bool {
        is_in_progress(self.retry.status) || !self.is_late
    }

    fn judge(&self, session: &Session<'_>, baseline: &Baseline) -> Vec<Finding> {
        let Self { first, retry, runs, .. } = self;
        let shown = format!("first {}, retry {}", session.shown(first), session.shown(retry));
        let shown = shown + &counted(*runs);
        if !self.is_shown() {
            let why = format!("the first request ended before the retry was sent: {shown}");
            return vec![IN_FLIGHT.not_shown(why.clone()), DRAFT_IN_FLIGHT.not_shown(why)];
        }
        let is_same = session.is_same_operation(first, retry);
        let is_fault = retry.status.is_server_error() && !is_in_progress(retry.status);
        // 202 refers the client to the first request.
        let may_have_run = retry.status.is_success() && retry.status.as_u16() != 202 && !is_same;
        let finding = match runs {
            _ if is_fault || may_have_run || !first.status.is_success() => {
                IN_FLIGHT.fail(shown.clone())
            }
            Some(runs) if *runs != 1 => IN_FLIGHT.fail(shown.clone()),
            None if is_same && !baseline.tells_apart => {
                IN_FLIGHT.not_shown(format!("{shown}; {BLIND}"))
            }
            _ => IN_FLIGHT.pass(shown.clone()),
        };
        vec![finding, draft(session, retry, is_same, shown)]
    }
}

/// The draft asks for 409 and a description. A retry that waits for the first response needs none.
fn draft(session: &Session<'_>, retry: &Exchange, is_same: bool, shown: String) -> Finding {
    if is_same && retry.status.is_success() {
        return DRAFT_IN_FLIGHT.pass(format!("it waited for the first response: {shown}"));
    }
    match retry.status.as_u16() == 409 && !retry.body.is_empty() {
        true => DRAFT_IN_FLIGHT.pass(session.shown(retry)),
        false => DRAFT_IN_FLIGHT.fail(session.shown(retry)),
    }
}
