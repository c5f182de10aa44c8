//! The history of one key as text.

use std::fmt::Write;

use super::spans::{Faults, HistoryMoment, KeyHistory};
use super::{Event, History};

/// Renders the events of a key and the faults between its first and last event, one line each.
pub(super) fn render(history: &History, key: &KeyHistory, faults: &Faults) -> String {
    let mut moments: Vec<HistoryMoment> = Vec::new();
    for request in &key.requests {
        moments.extend([Some(request.sent), request.ended].into_iter().flatten());
    }
    for run in &key.runs {
        moments.extend([Some(run.started), run.finished].into_iter().flatten());
    }
    moments.extend(key.reconciled.iter().map(|(at, _)| *at));
    moments.extend(key.decisions.iter().chain(&key.decided).map(|(at, _)| *at));
    let (first, last) = (moments.iter().min().copied(), moments.iter().max().copied());
    let within = |at: &HistoryMoment| Some(*at) >= first && Some(*at) <= last;
    let outages = faults.outages.iter().flat_map(|outage| [Some(outage.from), outage.to]);
    let store = faults.store.iter().flat_map(|(_, from, to)| [Some(*from), *to]);
    let losses = faults.losses.iter().map(|(at, _)| Some(*at));
    moments.extend(outages.chain(store).chain(losses).flatten().filter(within));
    moments.sort();
    let start = first.map(|first| first.at).unwrap_or_default();
    let mut text = String::new();
    for moment in moments {
        let Some(entry) = history.entries.get(moment.index) else { continue };
        let after = moment.at.saturating_sub(start).as_secs_f64();
        // Writing to a string never fails.
        let _written = writeln!(text, "  {after:>8.3} s  {}", line(&entry.event));
    }
    text
}

fn line(event: &Event) -> String {
    match event {
        Event::Sent { request, payload, node, is_final, .. } => {
            let last = if *is_final { ", final" } else { "" };
            format!("request {request}, payload {payload}, to gateway {node}{last}")
        }
        Event::Received { request, response: None } => format!("request {request}: no response"),
        Event::Received { request, response: Some(response) } => {
            let mark = if response.replayed { ", replayed" } else { "" };
            let body = String::from_utf8_lossy(&response.body);
            let body: String = body.chars().take(60).collect();
            let run = response.run.map(|run| format!(" of run {run}")).unwrap_or_default();
            let (status, code) = (response.status, &response.code);
            format!("request {request}: {status} {code}{run}{mark} {body:?}")
        }
        Event::Started { run, request, payload, fence, .. } => {
            format!("run {run} starts: request {request}, payload {payload}, fence {fence}")
        }
        Event::Finished { run, chosen, effect } => {
            format!("run {run} ends: {chosen:?}, effect {effect}")
        }
        other => format!("{other:?}"),
    }
}
