//! Tests of power loss, kills, disk faults and bit flips under the embedded store, SQLite and the
//! file journal.
//!
//! A worker process executes the steps of a script, and a tracer records its changes on disk. From
//! the trace, the folder is rebuilt as a power loss could have left it at each moment. It is then
//! opened and compared with the answers that the worker had got by then.
//!
//! `ONETAKE_POWER_LOSS=long` runs the long form: all moments, and more seeds (`ONETAKE_POWER_SEEDS`
//! sets their number).
#![cfg(all(target_os = "linux", feature = "embedded", feature = "sqlite"))]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests may panic, and wait for processes in real time"
)]

mod check;
mod cycles;
mod disk;
mod expected;
mod faults;
mod figures;
mod flips;
mod image;
mod losses;
mod random;
mod script;
mod subject;
mod trace;
mod worker;
