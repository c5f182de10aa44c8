//! Fresh keys beside the sweep of many expired records, on the embedded store.

use std::io;
use std::time::Duration;

use onetake_core::Terms;

use super::{fact, median};
use crate::case::{Keys, Traffic};
use crate::options::Options;
use crate::programs::fill;
use crate::report::Section;
use crate::run::{Rounds, get, measure};
use crate::target::{Stage, Target};
use crate::usage::{sleep, wait_until};

/// The time for which records are kept: the shortest that there is.
const TTL: Duration = Duration::from_secs(1);
/// More records than a sweep deletes in a second: after each batch of 5,000 it pauses for 50 ms.
const EXPIRED_PER_SECOND: f64 = 100_000.0;
/// The longest wait for the first sweep of a gateway.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(10);
/// The counter of deleted records in the gateway's metrics.
const SWEPT: &str = "onetake_swept_total ";

/// Measures fresh keys on a store with many expired records, without sweeps and beside one, in turn.
/// Each run has a new gateway and a new store, so that no sweep goes on beside the other runs.
pub(crate) fn sweep(
    case: &'static str,
    options: &Options,
    stage: &mut Stage,
) -> io::Result<Section> {
    let (traffic, rate) = (Traffic::SMALL, options.rate);
    let connections = options.connections_of(&traffic);
    let rounds = Rounds { case, traffic, connections, options, stage };
    let mut section = Section { case, connections, rate, ..Section::default() };
    // The sweep begins before the load, and lasts longer.
    let expired = EXPIRED_PER_SECOND * (options.lasts + TTL).as_secs_f64();
    let mut swept_per_second = Vec::new();
    for round in 0..options.rounds {
        for (name, has_sweeps) in [("no sweep", false), ("sweep", true)] {
            let target = start(rounds.stage, name, has_sweeps, expired as usize)?;
            let load = rounds.load(&target, Keys::Fresh, &round.to_string());
            let before = swept(&target)?;
            section.rounds.push(measure(&target, load, &rounds.stage.upstream)?);
            let count = swept(&target)? - before;
            if has_sweeps {
                swept_per_second.push(count / options.lasts.as_secs_f64());
            } else if count > 0.0 {
                return Err(io::Error::other(format!("{name}: {count} records were deleted")));
            }
        }
    }
    // Counted in whole batches of the sweep: 0 means that a batch took longer than the load.
    let what = "records deleted per second, beside the load";
    section.facts = vec![
        fact("both", "expired records at the start", expired),
        fact("sweep", what, median(swept_per_second)),
    ];
    Ok(section)
}

/// Starts a gateway on a new store with expired records. If it has sweeps, waits for the first one.
fn start(stage: &Stage, name: &str, has_sweeps: bool, expired: usize) -> io::Result<Target> {
    let folder = tempfile::tempdir()?;
    let terms = Terms { ttl: TTL, ..Terms::default() };
    fill(&folder.path().join("store"), expired, terms)?;
    sleep(TTL);
    let interval = if has_sweeps { "1s" } else { "1d" };
    let sections = format!(
        "[sweep]\ninterval = \"{interval}\"\n\
         [[route]]\nmatch = \"POST /v1/charges\"\nttl = \"{}s\"\n",
        TTL.as_secs()
    );
    let gateway = stage.on_folder(folder, &sections)?;
    let target = stage.start_gateway(name, gateway)?;
    // The gateway without sweeps gets the same time to settle.
    sleep(TTL);
    let has_begun = || swept(&target).is_ok_and(|swept| swept > 0.0);
    if has_sweeps && !wait_until(SWEEP_TIMEOUT, has_begun) {
        return Err(target.explain(&io::Error::other("no sweep has begun")));
    }
    Ok(target)
}

/// Returns the number of records that the gateway has deleted.
fn swept(target: &Target) -> io::Result<f64> {
    let admin = target.admin.ok_or_else(|| io::Error::other("it is not a gateway"))?;
    let metrics = get(admin, "/metrics").map_err(|error| target.explain(&error))?;
    let count = metrics.lines().find_map(|line| line.strip_prefix(SWEPT)?.parse().ok());
    count.ok_or_else(|| io::Error::other(format!("no {SWEPT}in the metrics")))
}
