//! The upload of a keyed request: its body is read whole, within the limits of memory, size, time
//! and rate.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;

use onetake_core::Clock;
use onetake_core::clock::Sleep;

use crate::body::Gathered;
use crate::memory::BodyPermit;

/// The time for which a body may be slower than the least rate.
pub(crate) const RATE_GRACE: Duration = Duration::from_secs(5);

/// The limits of one upload.
pub(crate) struct UploadLimits<'a, F> {
    pub(crate) bytes_max: usize,
    /// The least rate after [`RATE_GRACE`], in bytes per second. 0 is no limit.
    pub(crate) rate_min: usize,
    /// Returns the longest time of the whole upload. It is called when the upload has to wait.
    pub(crate) patience: F,
    pub(crate) clock: &'a dyn Clock,
}

/// A body that is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadError {
    /// It is larger than the route accepts.
    TooLarge,
    /// There is no memory for it.
    NoMemory,
    /// It did not arrive within the time of the upload.
    Late,
    /// It arrived more slowly than the least rate.
    Slow,
    /// The connection or the stream broke.
    Broken,
    /// It ended without its end: see [`ExactEnd`](crate::body::ExactEnd).
    Reset,
}

/// A body that is being read.
pub(crate) struct Upload<'a, B> {
    body: Pin<&'a mut B>,
    gathered: Gathered,
    pace: Pace,
    trailers: Option<HeaderMap>,
}

impl<'a, B: Body<Data = Bytes>> Upload<'a, B> {
    /// Begins to read a body. `announced` is its length, or 0 if that is not known.
    pub(crate) fn new(body: Pin<&'a mut B>, announced: usize) -> Self {
        let gathered = Gathered::announcing(announced);
        Self { body, gathered, pace: Pace::default(), trailers: None }
    }

    /// Reads the body to its end. A body that is there already, the usual case, takes no timer.
    ///
    /// # Errors
    /// After [`UploadError::NoMemory`] nothing is lost: the bytes that there was no memory for count
    /// in the permit, and the upload may go on with a permit that has room for them.
    pub(crate) async fn read<F>(
        &mut self,
        permit: &mut BodyPermit,
        limits: &UploadLimits<'_, F>,
    ) -> Result<(), UploadError>
    where
        F: Fn() -> Duration,
    {
        poll_fn(|cx| {
            loop {
                match self.body.as_mut().poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        let data = match frame.into_data() {
                            Ok(data) => data,
                            Err(other) => {
                                self.trailers = other.into_trailers().ok();
                                continue;
                            }
                        };
                        let length = data.len();
                        if self.gathered.length() + length > limits.bytes_max {
                            return Poll::Ready(Err(UploadError::TooLarge));
                        }
                        self.gathered.add(data);
                        permit.take(length).map_err(|_| UploadError::NoMemory)?;
                    }
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(UploadError::Broken)),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => {
                        match self.pace.poll_wait(cx, self.gathered.length(), limits) {
                            Poll::Ready(error) => return Poll::Ready(Err(error)),
                            Poll::Pending => return Poll::Pending,
                        }
                    }
                }
            }
        })
        .await
    }

    /// Returns the body and its trailers. With `ends_exactly`, only a body that reports its end is
    /// whole.
    pub(crate) fn finish(
        self,
        ends_exactly: bool,
    ) -> Result<(Bytes, Option<HeaderMap>), UploadError> {
        if ends_exactly && !self.body.is_end_stream() {
            return Err(UploadError::Reset);
        }
        Ok((self.gathered.finish(), self.trailers))
    }
}

/// The time limits of an upload, once it has to wait for the client.
#[derive(Default)]
struct Pace {
    /// When the wait began, and when the upload must be over, by the monotonic clock.
    times: Option<(Duration, Duration)>,
    timer: Option<Sleep>,
}

impl Pace {
    /// Waits for more of the body. Ready with an error if it is too late for that.
    fn poll_wait<F: Fn() -> Duration>(
        &mut self,
        cx: &mut std::task::Context<'_>,
        length: usize,
        limits: &UploadLimits<'_, F>,
    ) -> Poll<UploadError> {
        loop {
            let now = limits.clock.monotonic();
            let (began, end) =
                *self.times.get_or_insert_with(|| (now, now.saturating_add((limits.patience)())));
            let slow_from = slow_from(began, length, limits.rate_min);
            if now >= end {
                return Poll::Ready(UploadError::Late);
            }
            if now >= slow_from {
                return Poll::Ready(UploadError::Slow);
            }
            // Bytes that arrive meanwhile move that moment. The timer is not set again for each of
            // them: it asks again when it is over.
            let due = slow_from.min(end) - now;
            let timer = self.timer.get_or_insert_with(|| limits.clock.sleep(due));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
        }
    }
}

/// The time from which a body of this length is too slow.
fn slow_from(began: Duration, length: usize, rate_min: usize) -> Duration {
    if rate_min == 0 {
        return Duration::MAX;
    }
    let earned = Duration::from_secs_f64(length as f64 / rate_min as f64);
    began.saturating_add(RATE_GRACE).saturating_add(earned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::HttpLimits;
    use crate::memory::{BodyMemory, Purpose};
    use futures_util::FutureExt;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use onetake_core::{ManualClock, Timestamp};
    use std::convert::Infallible;
    use std::pin::pin;
    use tokio::sync::mpsc;

    type Sent = Result<Frame<Bytes>, Infallible>;

    /// An upload of 1,000 bytes at most that takes its frames from a channel.
    struct World {
        clock: ManualClock,
        rate_min: usize,
        send: mpsc::UnboundedSender<Sent>,
        body: Option<mpsc::UnboundedReceiver<Sent>>,
    }

    impl World {
        fn new() -> Self {
            let (send, body) = mpsc::unbounded_channel();
            let clock = ManualClock::new(Timestamp::from_micros(1));
            Self { clock, rate_min: 100, send, body: Some(body) }
        }

        fn send(&self, bytes: usize) {
            self.send.send(Ok(Frame::data(vec![b'x'; bytes].into()))).unwrap();
        }

        fn upload(
            &mut self,
            memory: usize,
        ) -> impl Future<Output = Result<Bytes, UploadError>> + use<> {
            let mut body = self.body.take().unwrap();
            let (clock, rate_min) = (self.clock.clone(), self.rate_min);
            async move {
                let memory = BodyMemory::new(&HttpLimits::default().body_bytes_max(memory));
                let parts = http::Request::new(()).into_parts().0;
                let mut permit = memory.begin(Purpose::Any, &parts, b"", 0).unwrap();
                let stream = futures_util::stream::poll_fn(move |cx| body.poll_recv(cx));
                let limits = UploadLimits {
                    bytes_max: 1_000,
                    rate_min,
                    patience: || Duration::from_secs(30),
                    clock: &clock,
                };
                let body = pin!(StreamBody::new(stream));
                let mut upload = Upload::new(body, 0);
                upload.read(&mut permit, &limits).await?;
                upload.finish(false).map(|(data, _)| data)
            }
        }
    }

    const MUCH: usize = 1 << 20;

    #[tokio::test]
    async fn a_body_that_is_there_takes_no_timer() {
        let mut world = World::new();
        [400, 600].into_iter().for_each(|bytes| world.send(bytes));
        let clock = world.clock.clone();
        let upload = world.upload(MUCH);
        drop(world);
        assert_eq!(upload.await.unwrap().len(), 1_000);
        assert_eq!(clock.sleepers(), 0);
    }

    #[tokio::test]
    async fn a_slow_body_is_cut() {
        let mut world = World::new();
        let mut upload = Box::pin(world.upload(MUCH));
        assert!((&mut upload).now_or_never().is_none());
        world.clock.advance(Duration::from_secs(4));
        world.send(100);
        assert!((&mut upload).now_or_never().is_none());
        world.clock.advance(Duration::from_millis(1_900));
        assert!((&mut upload).now_or_never().is_none(), "100 bytes have earned a second");
        world.clock.advance(Duration::from_millis(200));
        assert_eq!(upload.await, Err(UploadError::Slow));
    }

    #[tokio::test]
    async fn a_body_at_its_rate_is_cut_at_the_end_of_its_time_alone() {
        for rate_min in [0, 10] {
            let mut world = World { rate_min, ..World::new() };
            let mut upload = Box::pin(world.upload(MUCH));
            for second in 0..30 {
                assert!((&mut upload).now_or_never().is_none(), "{second}");
                world.clock.advance(Duration::from_secs(1));
                world.send(10);
            }
            assert_eq!(upload.await, Err(UploadError::Late));
        }
    }

    #[tokio::test]
    async fn size_and_memory_are_limited() {
        let mut world = World::new();
        [600, 401].into_iter().for_each(|bytes| world.send(bytes));
        assert_eq!(world.upload(MUCH).await, Err(UploadError::TooLarge));
        let mut world = World::new();
        world.send(900);
        assert_eq!(world.upload(4_500).await, Err(UploadError::NoMemory));
    }
}
