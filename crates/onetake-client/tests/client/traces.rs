//! Logs and traces: the observer runs in the caller's span.

use std::sync::{Arc, Mutex};

use onetake_client::CallEvent;
use tracing::Instrument as _;
use tracing_subscriber::fmt::MakeWriter;

use crate::server::{LIBRARIES, Server, fast};

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn an_event_is_logged_in_the_span_of_its_caller() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let onetake = fast().observe(|event| {
        if let CallEvent::Retry { attempt, status, .. } = event {
            let status = status.map(|status| status.as_u16());
            tracing::warn!(attempt, status, "the operation is sent again");
        }
    });
    let onetake = onetake.build();
    for library in LIBRARIES {
        // Two calls at once: each event belongs to its own call.
        let server = Server::with_statuses(&[503, 503, 201]).await;
        let call = |order: u32| {
            let span = tracing::info_span!("checkout", order);
            async { library.post(&onetake, &server).await }.instrument(span)
        };
        let (one, two) = tokio::join!(call(1), call(2));
        assert_eq!((one.unwrap().status().as_u16(), two.unwrap().status().as_u16()), (201, 201));
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for order in ["checkout{order=1}", "checkout{order=2}"] {
        assert_eq!(text.matches(order).count(), 2, "{text}");
    }
}
