//! The names of states in texts that SQL and Lua write: those of [`State::name`].
//!
//! [`State::name`]: onetake_core::State::name

pub(crate) const RUNNING: &str = "running";
pub(crate) const COMPLETED: &str = "completed";
pub(crate) const FAILED: &str = "failed";
pub(crate) const RELEASED: &str = "released";
pub(crate) const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::{Cause, Failure, Recording, State, Timestamp};

    #[test]
    fn names_are_those_of_the_engine() {
        let at = Timestamp::default();
        let failure = Failure { code: String::new(), detail: String::new() };
        for (state, name) in [
            (State::Running { lease_until: at }, RUNNING),
            (State::Completed { at, recording: Recording::default() }, COMPLETED),
            (State::Failed { at, failure }, FAILED),
            (State::Released { at }, RELEASED),
            (State::Unknown { at, cause: Cause::TimedOut, ask_at: at }, UNKNOWN),
        ] {
            assert_eq!(state.name(), name);
        }
    }
}
