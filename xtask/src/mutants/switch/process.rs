//! The processor time and the state of another process, as Linux shows them in `/proc`.

use std::time::Duration;

/// The unit of the times in `/proc`: 100 of them are a second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// Returns the processor time that a process has used, also in threads that have ended.
pub(super) fn used_processor(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let ticks = |field: usize| field_of(&stat, field)?.parse::<u32>().ok();
    TICK * ticks(14).unwrap_or(0) + TICK * ticks(15).unwrap_or(0)
}

/// Returns true if every thread of a process waits for something other than a processor or a disk.
pub(super) fn is_asleep(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat"));
        stat.is_ok_and(|stat| field_of(&stat, 3) == Some("S"))
    })
}

/// Returns a field of a `stat` file by its number in proc(5). The second field, the name of the
/// program, may contain spaces and brackets.
fn field_of(stat: &str, number: usize) -> Option<&str> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(number.checked_sub(3)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_the_name() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        let fields = [3, 14, 15].map(|number| field_of(stat, number));
        assert_eq!(fields, [Some("S"), Some("250"), Some("50")]);
    }

    #[test]
    fn a_running_thread_is_not_asleep() {
        assert!(!is_asleep(std::process::id()));
        assert!(!is_asleep(u32::MAX), "there is no such process");
        assert_eq!(used_processor(u32::MAX), Duration::ZERO);
    }
}
