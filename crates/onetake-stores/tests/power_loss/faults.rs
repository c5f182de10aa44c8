//! Kills and refused calls: SIGKILL, EIO, ENOSPC, EMFILE and short writes at each call.

use crate::check::check;
use crate::disk::{Disk, Loss, Syncs};
use crate::expected::Expected;
use crate::figures::{Figures, check_image, is_long, scratch};
use crate::losses::lose_power;
use crate::random::Random;
use crate::script::{Script, Shape, Subject};
use crate::trace::{self, Event, HANGS, KILLED, Traced};

const EIO: &str = "5";
const EMFILE: &str = "24";
const ENOSPC: &str = "28";

/// A fault without the number of the call: classes of calls, the action, and what follows.
type StoreFault = (&'static str, &'static str, &'static str);

/// Faults of calls that change something.
const FAULTS: &[StoreFault] = &[
    ("w", EIO, ""),
    ("w", ENOSPC, ""),
    ("w", ENOSPC, ":on"),
    ("w", "short", ""),
    ("s", EIO, ""),
    ("o", EMFILE, ""),
    ("o", EMFILE, ":on"),
    ("n", EIO, ""),
    ("n", ENOSPC, ""),
];
const FAILED_READ: &[StoreFault] = &[("r", EIO, "")];

/// Returns the reports of the worker of a fault, and the disk at its end.
fn told(script: Script, traced: &Traced) -> (Disk, Expected) {
    let (mut disk, mut expected) = (Disk::new(Syncs::All), Expected::new(script));
    for event in &traced.events {
        disk.apply(event);
        if let Event::Mark(mark) = event {
            expected.report(mark);
        }
    }
    (disk, expected)
}

/// Runs a script once for each call of these classes (at most `count` of them), with a fault there.
fn at_calls(
    subject: Subject,
    shape: Shape,
    (classes, action, then): StoreFault,
    count: usize,
    mut each: impl FnMut(&str, &std::path::Path, &Traced, Script),
) {
    let mut random = Random::new(7);
    let script = Script::new(subject, shape, 2);
    let folder = scratch();
    let never = format!("{classes}:{}:{action}", u32::MAX);
    let calls = trace::run(folder.path(), script, &never).count(classes);
    assert!(calls > 0, "{subject:?} makes no call of {classes}");
    let mut wanted = count.min(calls);
    for call in 1..=calls {
        if random.below(calls + 1 - call) >= wanted {
            continue;
        }
        wanted -= 1;
        let fault = format!("{classes}:{call}:{action}{then}");
        let folder = scratch();
        let traced = trace::run(folder.path(), script, &fault);
        each(&format!("{script} fault {fault}"), folder.path(), &traced, script);
    }
}

fn killed(subject: Subject, count: usize) {
    let mut figures = Figures::new(format!("kill at each write and sync, {subject:?}"));
    let kill = ("wsn", "kill", "");
    at_calls(subject, Shape::Small, kill, count, |case, folder, traced, script| {
        // Threads of the tree may make fewer calls than the last time.
        assert!([KILLED, 0].contains(&traced.code), "{case}: {}", traced.said);
        figures.cases += usize::from(traced.code == KILLED);
        let (_, expected) = told(script, traced);
        figures.add(case, check(folder, &expected));
    });
    figures.assert_all_there();
    assert!(figures.cases * 10 >= figures.folders * 9, "{figures:?}");
}

#[test]
fn embedded_is_whole_after_a_kill_at_each_call() {
    killed(Subject::Embedded, if is_long() { usize::MAX } else { 10 });
}

#[test]
fn sqlite_is_whole_after_a_kill_at_each_call() {
    killed(Subject::Sqlite, if is_long() { usize::MAX } else { 20 });
}

#[test]
fn journal_is_whole_after_a_kill_at_each_call() {
    killed(Subject::Journal, usize::MAX);
}

/// A refused call leads to an error or changes nothing. Everything that was acknowledged still
/// exists, also after a power loss at the end.
fn refused(subject: Subject, faults: &[StoreFault], count: usize) {
    for fault in faults.iter().copied() {
        let mut figures = Figures::new(format!("fault {fault:?}, {subject:?}"));
        let (mut errors, mut hangs) = (0, Vec::new());
        at_calls(subject, Shape::Small, fault, count, |case, folder, traced, script| {
            figures.cases += 1;
            if traced.code == HANGS {
                hangs.push(case.to_owned());
            }
            let (disk, expected) = told(script, traced);
            errors += usize::from(!expected.errors.is_empty());
            figures.add(case, check(folder, &expected));
            let mut random = Random::new(figures.cases as u64);
            for loss in [Loss::All, Loss::After, Loss::Scattered] {
                let image = disk.lose_power(loss, &mut random);
                figures.add(&format!("{case} loss {loss:?}"), check_image(&image, &expected));
            }
        });
        println!("  {errors} of {} runs were told of the fault", figures.cases);
        figures.assert_all_there();
        assert!(hangs.is_empty(), "{hangs:?}");
    }
}

/// After a failed sync, the operating system still shows bytes that are not on disk, also to the
/// next process. That process must not depend on them.
fn failed_sync(subject: Subject, count: usize, moments: usize) {
    let mut figures = Figures::new(format!("failed sync, kill, power loss, {subject:?}"));
    let fault = ("s", EIO, ":kill");
    at_calls(subject, Shape::Small, fault, count, |case, folder, traced, script| {
        let (disk, expected) = told(script, traced);
        let expected = expected.continued();
        let again = trace::run(folder, expected.script, "none");
        assert_eq!(again.code, 0, "{case}: {}", again.said);
        let losses = [Loss::All, Loss::Scattered];
        lose_power(&again, disk, expected, moments, &losses, &mut figures);
    });
    figures.assert_all_there();
}

#[test]
fn embedded_does_not_build_on_a_failed_sync() {
    let (count, moments) = if is_long() { (usize::MAX, 60) } else { (6, 12) };
    failed_sync(Subject::Embedded, count, moments);
}

#[test]
fn sqlite_does_not_build_on_a_failed_sync() {
    let (count, moments) = if is_long() { (usize::MAX, 60) } else { (12, 12) };
    failed_sync(Subject::Sqlite, count, moments);
}

#[test]
fn journal_does_not_build_on_a_failed_sync() {
    failed_sync(Subject::Journal, if is_long() { usize::MAX } else { 8 }, 20);
}

#[test]
fn embedded_loses_nothing_by_refused_calls() {
    refused(Subject::Embedded, FAULTS, if is_long() { usize::MAX } else { 2 });
}

#[test]
fn sqlite_loses_nothing_by_refused_calls() {
    refused(Subject::Sqlite, FAULTS, if is_long() { usize::MAX } else { 6 });
}

#[test]
fn journal_loses_nothing_by_refused_calls() {
    refused(Subject::Journal, FAULTS, if is_long() { usize::MAX } else { 12 });
}

#[test]
fn embedded_loses_nothing_by_failed_reads() {
    refused(Subject::Embedded, FAILED_READ, if is_long() { usize::MAX } else { 6 });
}

#[test]
fn sqlite_loses_nothing_by_failed_reads() {
    refused(Subject::Sqlite, FAILED_READ, if is_long() { usize::MAX } else { 6 });
}

#[test]
fn journal_loses_nothing_by_failed_reads() {
    refused(Subject::Journal, FAILED_READ, if is_long() { usize::MAX } else { 12 });
}

/// Not a test: repeats one case by its name in a violation, such as
/// `ONETAKE_POWER_CASE="Embedded w:169:5"`.
#[test]
fn one_case() {
    let Ok(case) = std::env::var("ONETAKE_POWER_CASE") else { return };
    let (subject, fault) = case.split_once(' ').unwrap();
    let subject = Subject::EVERY.into_iter().find(|each| format!("{each:?}") == subject).unwrap();
    let (script, folder) = (Script::new(subject, Shape::Small, 2), scratch());
    let traced = trace::run(folder.path(), script, fault);
    for event in &traced.events {
        match event {
            Event::Write(file, at, data) => {
                println!("write {} {at} {} bytes", file.display(), data.len());
            }
            Event::Read(_) => {}
            event => println!("{event:?}"),
        }
    }
    println!("{}", traced.said);
    let (_, expected) = told(script, &traced);
    let mut figures = Figures::new(case.clone());
    figures.add(&case, check(folder.path(), &expected));
    figures.print();
}
