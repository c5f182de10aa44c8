//! Tests of power losses at the moments of a run.

use crate::disk::{Disk, Loss, Syncs};
use crate::expected::Expected;
use crate::figures::{Figures, check_image, is_long, scratch};
use crate::image::{self, Image};
use crate::random::Random;
use crate::script::{Script, Shape, Subject};
use crate::trace::{self, Event, Traced};

/// Returns true if a power loss after this event can leave something new.
fn is_moment(event: &Event) -> bool {
    !matches!(event, Event::Open(_) | Event::Read(_) | Event::Refused)
}

/// Goes through a run, and stops at `count` seeded moments of it (at all, if there are fewer).
fn at_moments(
    traced: &Traced,
    mut disk: Disk,
    mut expected: Expected,
    count: usize,
    mut stop: impl FnMut(usize, &Disk, &Expected, &mut Random),
) {
    let mut random = Random::new(expected.script.seed);
    let mut left = traced.events.iter().filter(|event| is_moment(event)).count();
    let mut wanted = count.min(left);
    for (number, event) in traced.events.iter().enumerate() {
        disk.apply(event);
        if let Event::Mark(mark) = event {
            expected.report(mark);
        }
        if !is_moment(event) {
            continue;
        }
        let is_chosen = random.below(left) < wanted;
        left -= 1;
        if is_chosen {
            wanted -= 1;
            stop(number, &disk, &expected, &mut random);
        }
    }
}

/// Checks every kind of loss at some moments of a run.
pub(crate) fn lose_power(
    traced: &Traced,
    disk: Disk,
    expected: Expected,
    count: usize,
    losses: &[Loss],
    figures: &mut Figures,
) {
    at_moments(traced, disk, expected, count, |number, disk, expected, random| {
        figures.cases += 1;
        for loss in losses {
            let image = disk.lose_power(*loss, random);
            let case = format!("{} event {number} loss {loss:?}", expected.script);
            figures.add(&case, check_image(&image, expected));
        }
    });
}

fn run(script: Script) -> (tempfile::TempDir, Traced) {
    let folder = scratch();
    let traced = trace::run(folder.path(), script, "none");
    assert_eq!(traced.code, 0, "{script}: {}", traced.said);
    (folder, traced)
}

/// Power losses in the whole run of each script.
fn in_scripts(subject: Subject, shape: Shape, seeds: u64, moments: usize, losses: &[Loss]) {
    let mut figures = Figures::new(format!("power loss, {subject:?} {shape:?}"));
    let seeds = std::env::var("ONETAKE_POWER_SEEDS").map_or(seeds, |text| text.parse().unwrap());
    for seed in 1..=seeds {
        let script = Script::new(subject, shape, seed);
        let (_folder, traced) = run(script);
        let (disk, expected) = (Disk::new(Syncs::All), Expected::new(script));
        lose_power(&traced, disk, expected, moments, losses, &mut figures);
    }
    figures.assert_all_there();
}

#[test]
fn embedded_keeps_what_was_acknowledged() {
    let (seeds, moments) = if is_long() { (6, usize::MAX) } else { (1, 25) };
    in_scripts(Subject::Embedded, Shape::Small, seeds, moments, &Loss::EVERY);
}

#[test]
fn sqlite_keeps_what_was_acknowledged() {
    let (seeds, moments) = if is_long() { (20, usize::MAX) } else { (1, 60) };
    in_scripts(Subject::Sqlite, Shape::Small, seeds, moments, &Loss::EVERY);
}

#[test]
fn journal_keeps_what_was_acknowledged() {
    let (seeds, moments) = if is_long() { (200, usize::MAX) } else { (2, usize::MAX) };
    in_scripts(Subject::Journal, Shape::Small, seeds, moments, &Loss::EVERY);
}

/// The load makes the stores write tables, delete journals and checkpoint logs.
#[test]
fn stores_keep_what_was_acknowledged_while_they_write_tables() {
    let (moments, losses) =
        if is_long() { (400, &Loss::EVERY[..]) } else { (2, &[Loss::All, Loss::Scattered][..]) };
    for subject in Subject::STORES {
        in_scripts(subject, Shape::Large, 1, moments, losses);
    }
}

/// The power fails again while the folder is opened, or soon after.
#[test]
fn a_second_power_loss_loses_nothing() {
    for subject in Subject::EVERY {
        let mut figures = Figures::new(format!("second power loss, {subject:?}"));
        let (first, second) = match (is_long(), subject) {
            (true, _) => (12, 200),
            (false, Subject::Embedded) => (2, 12),
            (false, _) => (3, 20),
        };
        let script = Script::new(subject, Shape::Small, 3);
        let (_folder, traced) = run(script);
        let (disk, expected) = (Disk::new(Syncs::All), Expected::new(script));
        at_moments(&traced, disk, expected, first, |_, disk, expected, random| {
            let image = disk.lose_power(Loss::Scattered, random);
            let folder = scratch();
            image::store(&image, folder.path());
            let expected = expected.continued();
            let again = trace::run(folder.path(), expected.script, "none");
            assert_eq!(again.code, 0, "{}: {}", expected.script, again.said);
            let losses = [Loss::All, Loss::None, Loss::After, Loss::Scattered];
            lose_power(&again, Disk::with(&image), expected, second, &losses, &mut figures);
        });
        figures.assert_all_there();
    }
}

/// The control: a disk that does not sync loses acknowledged data, and the check detects it.
#[test]
fn without_syncs_outcomes_are_lost_and_that_is_seen() {
    for subject in Subject::EVERY {
        let script = Script::new(subject, Shape::Small, 4);
        let (_folder, traced) = run(script);
        for syncs in [Syncs::None, Syncs::OfFilesOnly, Syncs::OfFoldersOnly] {
            let mut figures = Figures::new(format!("control, {subject:?}, syncs: {syncs:?}"));
            let (disk, expected) = (Disk::new(syncs), Expected::new(script));
            let (mut told, mut seen) = (0, 0);
            at_moments(&traced, disk, expected, 12, |_, disk, expected, random| {
                let image = disk.lose_power(Loss::All, random);
                let verdict = check_image(&image, expected);
                told += usize::from(expected.acknowledged() > 0);
                // If the names survive, empty files may be refused.
                let is_refused = syncs == Syncs::OfFoldersOnly && !verdict.refused.is_empty();
                seen += usize::from(!verdict.violations.is_empty() || is_refused);
                figures.cases += 1;
                figures.add("control", verdict);
            });
            figures.print();
            assert!(told > 0 && seen >= told.div_ceil(2), "{syncs:?}: {seen} of {told} were seen");
        }
    }
}

/// The trace is complete: the folder can be rebuilt from it.
#[test]
fn the_trace_rebuilds_the_folder() {
    for subject in Subject::EVERY {
        let (folder, traced) = run(Script::new(subject, Shape::Small, 5));
        let mut disk = Disk::new(Syncs::All);
        traced.events.iter().for_each(|event| disk.apply(event));
        let rebuilt = disk.lose_power(Loss::None, &mut Random::new(0));
        let found = image::read(folder.path());
        let names = |image: &Image| image.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&rebuilt), names(&found));
        assert!(found.len() > 3 || subject == Subject::Sqlite, "{:?}", names(&found));
        for (path, content) in found {
            assert!(image::is_same(&rebuilt[&path], &content), "{}", path.display());
        }
    }
}
