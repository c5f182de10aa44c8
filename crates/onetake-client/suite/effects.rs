//! Counts effects through a gateway whose responses are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use onetake_client::{BoxError, Budget, Clock as _, Limits, Onetake, SystemClock};
use serde_json::{Value, json};

use crate::{LIBRARIES, Library, control};

const INTENTS: usize = 1_000;
const AT_ONCE: usize = 20;

/// Sends the intents of each library. Returns true if each intent had one effect.
pub(crate) async fn count(proxy: &str) -> Result<bool, BoxError> {
    let mut all_ok = true;
    for library in LIBRARIES {
        let line = count_one(proxy, library).await?;
        println!("{line}");
        all_ok &= line.get("ok") == Some(&Value::Bool(true));
    }
    Ok(all_ok)
}

async fn count_one(proxy: &str, library: Library) -> Result<Value, BoxError> {
    let effects = format!("{proxy}/-/effects");
    let before = control(Method::GET, &effects).await?;
    let began = SystemClock.monotonic();
    let reserve = INTENTS as f64;
    let limits =
        Limits { attempts_max: 20, backoff_base: Duration::from_millis(20), ..Limits::default() };
    let onetake = Onetake::builder().limits(limits).budget(Budget::new(reserve, 1.0)).build();
    let (next, succeeded) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (onetake, url) = (onetake.clone(), format!("{proxy}/charges"));
        let (next, succeeded) = (Arc::clone(&next), Arc::clone(&succeeded));
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= INTENTS {
                    return;
                }
                let sent = library.post(&onetake, &url, format!("amount={number}"), None).await;
                if sent.is_ok_and(|answered| answered.status == 201) {
                    succeeded.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended?;
    }
    let seconds = (SystemClock.monotonic() - began).as_secs_f64();
    let after = control(Method::GET, &effects).await?;
    let number = |report: &Value, name: &str| report.get(name).and_then(Value::as_u64);
    let more = |name: &str| Some(number(&after, name)? - number(&before, name)?);
    let (keys, runs, lost) = (more("keys"), more("runs"), more("lost"));
    let intents = u64::try_from(INTENTS)?;
    let ok = keys == Some(intents)
        && runs == Some(intents)
        && number(&after, "runs_of_one_key_max") == Some(1)
        && succeeded.load(Ordering::Relaxed) == INTENTS;
    Ok(json!({
        "client": library.name(), "intents": intents, "keys": keys, "effects": runs, "ok": ok,
        "lost": lost, "seconds": (seconds * 10.0).round() / 10.0,
    }))
}
