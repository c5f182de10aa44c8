//! The times at which one connection sends its requests.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::Load;

/// The time after the end of a run in which requests that are late are still sent, as a multiple of
/// the length of the run.
const OVERTIME: u32 = 1;

/// The schedule of one connection.
pub(super) struct Schedule {
    begin: Duration,
    until: Duration,
    open: Option<OpenLoop>,
}

/// A fixed rate.
struct OpenLoop {
    /// The intended time of the first request, after the begin of the run.
    first: Duration,
    /// The time between two requests of this connection.
    every: Duration,
    timer: AsyncFd<OwnedFd>,
    /// The number of requests that were sent.
    sent: u64,
}

impl Schedule {
    pub(super) fn new(load: &Load, connection: usize, begin: Duration) -> io::Result<Self> {
        let open = load.rate.map(|rate| OpenLoop::new(rate, load.connections, connection));
        Ok(Self { begin, until: begin + load.lasts, open: open.transpose()? })
    }

    /// Waits until a request is due. Returns the time from which its latency counts, or `None` at
    /// the end of the run.
    pub(super) async fn next(&mut self, number: u64) -> io::Result<Option<Duration>> {
        let now = SystemClock.monotonic();
        let Some(open) = &mut self.open else {
            return Ok((now < self.until).then_some(now));
        };
        let intended = self.begin + open.intended(number);
        let overtime = self.until + (self.until - self.begin) * OVERTIME;
        if intended >= self.until || now >= overtime {
            return Ok(None);
        }
        if intended > now {
            open.wait(intended - now).await?;
        }
        open.sent = number + 1;
        Ok(Some(intended))
    }

    /// Returns the waiting times of the requests that were due and could not be sent.
    pub(super) fn unsent(&self, until: Duration) -> Vec<Duration> {
        let Some(open) = &self.open else { return Vec::new() };
        let now = SystemClock.monotonic();
        let intended = (open.sent..).map(|number| self.begin + open.intended(number));
        let due = intended.take_while(|intended| *intended < until);
        due.map(|intended| now.saturating_sub(intended)).collect()
    }
}

impl OpenLoop {
    fn new(rate: f64, connections: usize, connection: usize) -> io::Result<Self> {
        let seconds = |count: usize| Duration::from_secs_f64(count as f64 / rate);
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        // Timers of the runtime are a millisecond apart. That is more than most latencies.
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(deprecated, reason = "sound for an OwnedFd; the other way needs `unsafe`")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { first: seconds(connection), every: seconds(connections), timer, sent: 0 })
    }

    /// Returns the time of a request after the begin of the run.
    fn intended(&self, number: u64) -> Duration {
        self.first + self.every.mul_f64(number as f64)
    }

    async fn wait(&self, duration: Duration) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec, tv_nsec: duration.subsec_nanos().max(1).into() };
        let spec = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let read = ready.try_io(|timer| {
                let mut expired = [0; 8];
                Ok(rustix::io::read(timer, &mut expired)?)
            });
            match read {
                Ok(read) => return read.map(|_| ()),
                Err(_would_block) => continue,
            }
        }
    }
}
