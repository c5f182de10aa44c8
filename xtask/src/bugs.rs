//! `cargo xtask bugs`: 28 deliberate bugs of the engine, one at a time, and the number of seeds
//! that the simulation needs to find each.
//!
//! Each bug is a change of one place in a copy of the tree. All bugs are built into one program,
//! each behind a switch. Only the simulation is run on it; no other test counts.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mutants::{switch, tree};

/// One deliberate bug.
struct Bug {
    /// The fault in words.
    what: &'static str,
    /// The file, below `crates/`.
    file: &'static str,
    /// The text that is replaced. It must occur once.
    from: &'static str,
    /// The text that replaces it. `BUG` is true if the bug is switched on.
    to: &'static str,
}

/// The largest number of seeds for a bug.
const SEEDS: u64 = 10_000;
/// The number of bugs that have to be found: all of them.
const FOUND_MIN: usize = BUGS.len();
/// The root of the crate that has the bugs, below `crates/`.
const CRATE_ROOT: &str = "onetake-core/src/lib.rs";
/// The program that runs the simulation.
const PROGRAM: &str = "onetake-simulate";

const BUGS: &[Bug] = &[
    Bug {
        what: "an operation starts on a lease that has ended",
        file: "onetake-core/src/engine/lease.rs",
        from: "if left < self.lease_state.terms.lease / 4 || left.is_zero() {",
        to: "if if BUG { left < self.lease_state.terms.lease / 4 && self.engine.inner.closing.load(Ordering::Acquire) } else { left < self.lease_state.terms.lease / 4 || left.is_zero() } {",
    },
    Bug {
        what: "a lease counts from the answer to its claim, not from the sending of the claim",
        file: "onetake-core/src/engine/claim.rs",
        from: "Ok((Ok(Granted { attempt, fence, asked_at }), permit))",
        to: "Ok((Ok(Granted { attempt, fence, asked_at: if BUG { engine.clock.monotonic() } else { asked_at } }), permit))",
    },
    Bug {
        what: "a claim whose answer was lost is never released",
        file: "onetake-core/src/engine/claim.rs",
        from: "    lost_claim::release(engine, id, attempt);\n",
        to: "    if !BUG {\n        lost_claim::release(engine, id, attempt);\n    }\n",
    },
    Bug {
        what: "the release of a lost claim gives up when the claim has not landed yet",
        file: "onetake-core/src/engine/lost_claim.rs",
        from: "Ok(Settled::Stale { .. }) => {}",
        to: "Ok(Settled::Stale { .. }) if BUG => return,\n            Ok(Settled::Stale { .. }) => {}",
    },
    Bug {
        what: "a dropped lease is released although its operation had started",
        file: "onetake-core/src/engine/lease.rs",
        from: "Transition::Unknown(Cause::Interrupted)\n        } else {",
        to: "if BUG { Transition::Release } else { Transition::Unknown(Cause::Interrupted) }\n        } else {",
    },
    Bug {
        what: "an operation that takes too long is released",
        file: "onetake-core/src/engine/run.rs",
        from: "() = lease.clock().sleep(self.run_max) => Verdict::Unknown(Cause::TimedOut),",
        to: "() = lease.clock().sleep(self.run_max) => if BUG { Verdict::Release } else { Verdict::Unknown(Cause::TimedOut) },",
    },
    Bug {
        what: "a settlement that the store did not accept is not tried again",
        file: "onetake-core/src/engine/lease.rs",
        from: "        if unsaved.count(asked_at).is_some() {\n",
        to: "        if BUG {\n            return Ok(Settled::Stale { current: None });\n        }\n        if unsaved.count(asked_at).is_some() {\n",
    },
    Bug {
        what: "leases are not renewed in time",
        file: "onetake-core/src/engine/renewal.rs",
        from: "asked_at.saturating_add((terms.lease / 3).max(RENEWAL_PAUSE_MIN)),",
        to: "asked_at.saturating_add(if BUG { terms.lease * 3 } else { (terms.lease / 3).max(RENEWAL_PAUSE_MIN) }),",
    },
    Bug {
        what: "a renewal extends the lease from its answer, and by too much",
        file: "onetake-core/src/engine/renewal.rs",
        from: "let until = micros(asked_at.saturating_add(lease));",
        to: "let until = micros(if BUG { engine.clock.monotonic().saturating_add(lease * 3) } else { asked_at.saturating_add(lease) });",
    },
    Bug {
        what: "cached outcomes are used after their record has expired",
        file: "onetake-core/src/engine/cache.rs",
        from: "let fresh_until = asked_at.saturating_add(left.min(self.age_max));",
        to: "let fresh_until = asked_at.saturating_add(if BUG { self.age_max } else { left.min(self.age_max) });",
    },
    Bug {
        what: "a forgotten outcome stays in the cache",
        file: "onetake-core/src/engine/operators.rs",
        from: "        if forgets {\n            self.cache",
        to: "        if forgets && !BUG {\n            self.cache",
    },
    Bug {
        what: "a flight that has landed can still be joined",
        file: "onetake-core/src/engine/flight.rs",
        from: "            shard.remove(&id);\n",
        to: "            if !BUG {\n                shard.remove(&id);\n            }\n",
    },
    Bug {
        what: "a stale settlement counts as recorded",
        file: "onetake-core/src/engine/lease.rs",
        from: "(Settling::Stale(current), Landing::Nothing)",
        to: "match current {\n                Some(record) if BUG => (Settling::Recorded(record), Landing::Nothing),\n                current => (Settling::Stale(current), Landing::Nothing),\n            }",
    },
    Bug {
        what: "the cache answers any payload",
        file: "onetake-core/src/engine/resolve.rs",
        from: "let answer = if operation.recognises(&record.fingerprint) {",
        to: "let answer = if operation.recognises(&record.fingerprint) || (BUG && !operation.earlier.is_empty()) {",
    },
    Bug {
        what: "a promise does not exclude a release",
        file: "onetake-core/src/engine/flight.rs",
        from: "before.map_or_else(|before| before == ending, |_| true)",
        to: "(BUG && (before.is_ok() || ending == RELEASED)) || before.map_or_else(|before| before == ending, |_| true)",
    },
    Bug {
        what: "shutdown writes nothing to the journal",
        file: "onetake-core/src/engine/journal.rs",
        from: "        if unwritten.is_empty() {\n",
        to: "        if unwritten.is_empty() || (BUG && self.closing.load(std::sync::atomic::Ordering::Acquire)) {\n",
    },
    Bug {
        what: "the journal deletes outcomes that the store has not accepted",
        file: "onetake-core/src/engine/journal.rs",
        from: "is_late = true;",
        to: "is_late = !BUG;",
    },
    Bug {
        what: "the reaper's settlement does not check the lease again",
        file: "onetake-core/src/engine/housekeeping.rs",
        from: "let transition = Transition::ExpireLease;",
        to: "let transition = if BUG { Transition::Unknown(crate::record::Cause::LeaseEnded) } else { Transition::ExpireLease };",
    },
    Bug {
        what: "reconcilers are asked while requests are still on their way",
        file: "onetake-core/src/engine/reconcile.rs",
        from: "let is_early = [now, here].iter().any(|now| !too_early(at, inquiry, *now).is_zero());",
        to: "let is_early = !BUG && [now, here].iter().any(|now| !too_early(at, inquiry, *now).is_zero());",
    },
    Bug {
        what: "answers of a batch are mixed up",
        file: "onetake-core/src/engine/batch.rs",
        from: "let (items, replies): (Vec<T>, Vec<Reply<R>>) = batch.into_iter().unzip();",
        to: "let (items, mut replies): (Vec<T>, Vec<Reply<R>>) = batch.into_iter().unzip();\n        if BUG {\n            replies.reverse();\n        }",
    },
    Bug {
        what: "an operation runs although the rollback of its earlier attempt failed",
        file: "onetake-core/src/engine/retry.rs",
        from: "    let Err(why) = rolled_back else {",
        to: "    let Err(why) = rolled_back.or_else(|why| if why.is_empty() || !BUG { Err(why) } else { Ok(()) }) else {",
    },
    Bug {
        what: "callers that joined a claim get no answer when it fails",
        file: "onetake-core/src/engine/claim.rs",
        from: "            open.land(Landing::Failed(error.clone()));\n",
        to: "            if BUG {\n                drop(open.flight.take());\n            } else {\n                open.land(Landing::Failed(error.clone()));\n            }\n",
    },
    Bug {
        what: "operations run beyond the limit of a node",
        file: "onetake-core/src/engine/bypass.rs",
        from: "Arc::clone(&self.running).try_acquire_owned()",
        to: "let running = if BUG { Arc::new(tokio::sync::Semaphore::new(1)) } else { Arc::clone(&self.running) };\n        running.try_acquire_owned()",
    },
    Bug {
        what: "a node that is overloaded or shuts down runs operations without a record",
        file: "onetake-core/src/engine/bypass.rs",
        from: "let _permit = self.inner.admit()?;",
        to: "let _permit = match self.inner.admit() {\n            Err(error) if BUG => Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().map_err(|_| error)?,\n            permit => permit?,\n        };",
    },
    Bug {
        what: "a lost claim counts as an outage although another attempt has the key",
        file: "onetake-core/src/engine/claim.rs",
        from: "            StoreError::new(StoreErrorKind::Busy, what)",
        to: "            if BUG { error } else { StoreError::new(StoreErrorKind::Busy, what) }",
    },
    Bug {
        what: "an operation runs without a record although a claim has found its record",
        file: "onetake-core/src/engine/resolve.rs",
        from: "Self::Failed(error, _) if is_taken =>",
        to: "Self::Failed(error, _) if is_taken && !BUG =>",
    },
    Bug {
        what: "callers wait beyond the limit of a node",
        file: "onetake-core/src/engine/wait.rs",
        from: "self.engine.waiting.try_acquire()",
        to: "{\n                static MORE: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1_000_000);\n                let permits = if BUG { &MORE } else { &self.engine.waiting };\n                permits.try_acquire()\n            }",
    },
    Bug {
        what: "one failed settlement of a batch makes the others be sent again",
        file: "onetake-core/src/engine/batch.rs",
        from: "        for (reply, answer) in replies.into_iter().zip(answers) {\n",
        to: "        let has_failed = answers.iter().any(Result::is_err);\n        for (reply, answer) in replies.into_iter().zip(answers) {\n            let answer = if BUG && has_failed {\n                Err(StoreError::new(StoreErrorKind::Indeterminate, \"one item failed\"))\n            } else {\n                answer\n            };\n",
    },
];

/// The number of seeds that must pass while no bug is switched on.
const CONTROL_SEEDS: u64 = 2_000;

/// Switches on each bug whose description contains one of these texts, or every bug, runs the
/// simulation, and prints the number of seeds that it took.
pub(crate) fn run(only: &[String]) -> Result<(), String> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let tree = tree::copy(&root, "bugs")?;
    add_bugs(&tree)?;
    let simulation = build(&root, &tree)?;
    if let Some((invariant, seeds)) = simulate(&simulation, 0, CONTROL_SEEDS)? {
        return Err(format!("{invariant} is broken after {seeds} seeds without any bug"));
    }
    let mut found = 0;
    println!("| deliberate bug | found by | seeds |\n| --- | --- | --- |");
    let is_wanted = |bug: &Bug| only.is_empty() || only.iter().any(|text| bug.what.contains(text));
    let bugs: Vec<(u32, &Bug)> = (1..).zip(BUGS).filter(|(_, bug)| is_wanted(bug)).collect();
    for (number, bug) in &bugs {
        match simulate(&simulation, *number, SEEDS)? {
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

/// Adds all bugs to a copy of the sources, each behind a switch.
fn add_bugs(tree: &Path) -> Result<(), String> {
    let folder = tree.join("crates");
    let path = |file: &str| folder.join(file);
    let read = |file: &str| {
        std::fs::read_to_string(path(file)).map_err(|error| format!("{file}: {error}"))
    };
    let write = |file: &str, text: &str| {
        std::fs::write(path(file), text).map_err(|error| format!("{file}: {error}"))
    };
    for (number, bug) in (1_u32..).zip(BUGS) {
        let text = read(bug.file)?;
        if text.matches(bug.from).count() != 1 {
            return Err(format!("`{}` is not there once in {}", bug.from, bug.file));
        }
        let to = bug.to.replace("BUG", &format!("{}({number})", switch::IS));
        write(bug.file, &text.replacen(bug.from, &to, 1))?;
    }
    let text = read(CRATE_ROOT)?;
    write(CRATE_ROOT, &format!("{}{text}{}", switch::QUIET, switch::SWITCH))
}

/// Builds the simulation in the copy and returns its program.
fn build(root: &Path, tree: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Not the target folder of the tree itself, whose programs must have no bugs.
    let target = root.join("target/mutants/bugs-build");
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "sim", "--package", "onetake-sim"])
        .args(["--bin", PROGRAM])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", &target)
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !status.success() {
        return Err("the simulation with the bugs could not be built".to_owned());
    }
    Ok(target.join("sim").join(PROGRAM))
}

/// Runs the simulation with a bug. Returns the broken invariant and the number of seeds, if it was
/// found.
fn simulate(program: &Path, bug: u32, seeds: u64) -> Result<Option<(String, String)>, String> {
    let output = Command::new(program)
        .args(["--no-shrink", "--seeds", &seeds.to_string()])
        .env(switch::VARIABLE, bug.to_string())
        .output()
        .map_err(|error| format!("{} could not be started: {error}", program.display()))?;
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
            assert!(bug.to.contains("BUG"), "{}: it cannot be switched off", bug.what);
        }
    }
}
