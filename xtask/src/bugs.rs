//! `cargo xtask bugs`: 22 deliberate bugs of the engine, one at a time, and the number of seeds
//! that the simulation needs to find each.
//!
//! Each bug is a change of one place in a copy of the tree. Only the simulation is run on it; no
//! other test counts.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mutants::tree;

/// One deliberate bug.
struct Bug {
    /// The fault in words.
    what: &'static str,
    /// The file, below `crates/`.
    file: &'static str,
    /// The text that is replaced. It must occur once.
    from: &'static str,
    /// The text that replaces it.
    to: &'static str,
}

/// The largest number of seeds for a bug.
const SEEDS: u64 = 10_000;
/// The number of bugs that have to be found: all of them.
const FOUND_MIN: usize = BUGS.len();

const BUGS: &[Bug] = &[
    Bug {
        what: "an operation starts on a lease that is over",
        file: "onetake-core/src/engine/lease.rs",
        from: "if left < self.lease_state.terms.lease / 4 || left.is_zero() {",
        to: "if left < self.lease_state.terms.lease / 4 && self.engine.inner.closing.load(Ordering::Acquire) {",
    },
    Bug {
        what: "a lease counts from the answer to its claim, not from the question",
        file: "onetake-core/src/engine/claim.rs",
        from: "Ok((Ok(Granted { attempt, fence, asked_at }), permit))",
        to: "Ok((Ok(Granted { attempt, fence, asked_at: engine.clock.monotonic() }), permit))",
    },
    Bug {
        what: "a claim whose answer was lost is never released",
        file: "onetake-core/src/engine/claim.rs",
        from: "    lost_claim::release(engine, id, attempt);\n",
        to: "            let _ = (id, attempt);\n",
    },
    Bug {
        what: "the release of a lost claim gives up when the claim has not landed yet",
        file: "onetake-core/src/engine/lost_claim.rs",
        from: "Ok(Settled::Stale { .. }) => {}",
        to: "Ok(Settled::Stale { .. }) => return,",
    },
    Bug {
        what: "a dropped lease is released although its operation had started",
        file: "onetake-core/src/engine/lease.rs",
        from: "Transition::Unknown(Cause::Interrupted)\n        } else {",
        to: "Transition::Release\n        } else {",
    },
    Bug {
        what: "an operation that takes too long is released",
        file: "onetake-core/src/engine/run.rs",
        from: "() = lease.clock().sleep(self.run_max) => Verdict::Unknown(Cause::TimedOut),",
        to: "() = lease.clock().sleep(self.run_max) => Verdict::Release,",
    },
    Bug {
        what: "a settlement that the store did not take is not tried again",
        file: "onetake-core/src/engine/lease.rs",
        from: "                if asked_at >= report_at {\n",
        to: "                if true {\n                    break (Settling::Pending, Landing::Nothing);\n                }\n                if asked_at >= report_at {\n",
    },
    Bug {
        what: "leases are not renewed in time",
        file: "onetake-core/src/engine/renewal.rs",
        from: "asked_at.saturating_add((terms.lease / 3).max(RENEWAL_PAUSE_MIN)),",
        to: "asked_at.saturating_add(terms.lease * 3),",
    },
    Bug {
        what: "a renewal extends the lease from its answer, and by too much",
        file: "onetake-core/src/engine/renewal.rs",
        from: "let until = micros(asked_at.saturating_add(lease));",
        to: "let until = micros(engine.clock.monotonic().saturating_add(lease * 3));",
    },
    Bug {
        what: "cached outcomes live on when their record has expired",
        file: "onetake-core/src/engine/cache.rs",
        from: "let fresh_until = asked_at.saturating_add(left.min(self.age_max));",
        to: "let fresh_until = asked_at.saturating_add(self.age_max);",
    },
    Bug {
        what: "a forgotten outcome stays in the cache",
        file: "onetake-core/src/engine/operators.rs",
        from: "        if forgets {\n            self.cache",
        to: "        if forgets && self.limits.running_max == 0 {\n            self.cache",
    },
    Bug {
        what: "a flight that has landed can still be joined",
        file: "onetake-core/src/engine/flight.rs",
        from: "            shard.remove(&id);\n",
        to: "",
    },
    Bug {
        what: "a stale settlement counts as recorded",
        file: "onetake-core/src/engine/lease.rs",
        from: "break (Settling::Stale(current.filter(is_ours)), Landing::Nothing);",
        to: "break match current.filter(is_ours) {\n                    Some(record) => (Settling::Recorded(record), Landing::Nothing),\n                    None => (Settling::Stale(None), Landing::Nothing),\n                };",
    },
    Bug {
        what: "the cache answers any payload",
        file: "onetake-core/src/engine/resolve.rs",
        from: "let answer = if operation.recognises(&record.fingerprint) {",
        to: "let answer = if operation.recognises(&record.fingerprint) || !operation.earlier.is_empty() {",
    },
    Bug {
        what: "a promise does not exclude a release",
        file: "onetake-core/src/engine/flight.rs",
        from: "before.map_or_else(|before| before == ending, |_| true)",
        to: "before.is_ok() || ending == RELEASED || before == Err(ending)",
    },
    Bug {
        what: "shutdown hands nothing to the journal",
        file: "onetake-core/src/engine/journal.rs",
        from: "        if unwritten.is_empty() {\n",
        to: "        if unwritten.is_empty() || self.closing.load(std::sync::atomic::Ordering::Acquire) {\n",
    },
    Bug {
        what: "the journal forgets outcomes that the store has not taken",
        file: "onetake-core/src/engine/journal.rs",
        from: "is_late = true;",
        to: "is_late = false;",
    },
    Bug {
        what: "the reaper does not look again",
        file: "onetake-core/src/engine/housekeeping.rs",
        from: "let transition = Transition::ExpireLease;",
        to: "let transition = Transition::Unknown(crate::record::Cause::LeaseEnded);",
    },
    Bug {
        what: "reconcilers are asked while requests are on their way",
        file: "onetake-core/src/engine/reconcile.rs",
        from: "let is_early = [now, here].iter().any(|now| !too_early(at, inquiry, *now).is_zero());",
        to: "let is_early = false;",
    },
    Bug {
        what: "answers of a batch are mixed up",
        file: "onetake-core/src/engine/batch.rs",
        from: "let (items, replies): (Vec<T>, Vec<Reply<R>>) = batch.into_iter().unzip();",
        to: "let (items, mut replies): (Vec<T>, Vec<Reply<R>>) = batch.into_iter().unzip();\n            replies.reverse();",
    },
    Bug {
        what: "an operation runs although the rollback of its earlier attempt failed",
        file: "onetake-core/src/engine/retry.rs",
        from: "    let Err(why) = rolled_back else {",
        to: "    let Err(why) = rolled_back.or_else(|why| if why.is_empty() { Err(why) } else { Ok(()) }) else {",
    },
    Bug {
        what: "callers that joined a claim are not told when it fails",
        file: "onetake-core/src/engine/claim.rs",
        from: "            open.land(Landing::Failed(error.clone()));\n",
        to: "            drop(open.flight.take());\n",
    },
];

/// Applies each bug whose description contains one of these texts, or every bug, runs the
/// simulation, and prints the number of seeds that it took.
pub(crate) fn run(only: &[String]) -> Result<(), String> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let tree = tree::copy(&root, "bugs")?;
    let mut found = 0;
    println!("| deliberate bug | found by | seeds |\n| --- | --- | --- |");
    let is_wanted = |bug: &&Bug| only.is_empty() || only.iter().any(|text| bug.what.contains(text));
    let bugs: Vec<&Bug> = BUGS.iter().filter(is_wanted).collect();
    for bug in &bugs {
        let file = tree.join("crates").join(bug.file);
        let original = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        if original.matches(bug.from).count() != 1 {
            return Err(format!("`{}` is not there once in {}", bug.from, bug.file));
        }
        let changed = original.replacen(bug.from, bug.to, 1);
        std::fs::write(&file, changed).map_err(|error| error.to_string())?;
        let simulated = simulate(&root, &tree);
        std::fs::write(&file, original).map_err(|error| error.to_string())?;
        match simulated? {
            Some((invariant, seeds)) => {
                found += 1;
                println!("| {} | {invariant} | {seeds} |", bug.what);
            }
            None => println!("| {} | not found | {SEEDS} |", bug.what),
        }
    }
    println!("{found} of {} bugs were found within {SEEDS} seeds each", bugs.len());
    if found < FOUND_MIN.min(bugs.len()) {
        Err(format!("at least {FOUND_MIN} have to be found"))
    } else {
        Ok(())
    }
}

/// Runs the simulation in the copy. Returns the broken invariant and the number of seeds.
fn simulate(root: &Path, tree: &Path) -> Result<Option<(String, String)>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["run", "--quiet", "--profile", "sim", "--package", "onetake-sim"])
        .args(["--bin", "onetake-simulate", "--", "--no-shrink", "--seeds", &SEEDS.to_string()])
        .current_dir(tree)
        // Not the target folder of the tree itself, whose programs must have no bugs.
        .env("CARGO_TARGET_DIR", root.join("target/mutants/bugs-build"))
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(None);
    }
    let seeds = text.split_whitespace().next().unwrap_or_default().to_owned();
    let broken = text.lines().find(|line| line.contains(" is broken at ")).ok_or_else(|| {
        format!("the simulation failed to run:\n{text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let invariant = broken.split(" is broken at ").next().unwrap_or_default();
    let invariant = invariant.split_once(": ").map_or(invariant, |(_, name)| name);
    Ok(Some((invariant.to_owned(), seeds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_every_bug_is_there_once() {
        for bug in BUGS {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(bug.file);
            let source = std::fs::read_to_string(file).unwrap();
            assert_eq!(source.matches(bug.from).count(), 1, "{}: {}", bug.what, bug.file);
        }
    }
}
