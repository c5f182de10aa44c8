//! The baseline of the benchmarks: the least that a durable engine could do.

mod raw_log;

pub use raw_log::RawLog;
