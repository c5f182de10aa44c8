//! What the benchmarks measure against: the least that a durable engine could do.

mod raw_log;

pub use raw_log::RawLog;
