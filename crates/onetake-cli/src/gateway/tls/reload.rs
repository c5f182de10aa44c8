//! Reloading of files: a value is built from files, and built again when they change.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metrics::{describe_gauge, gauge};
use onetake_core::Clock;
use tokio::sync::watch;

use super::files::{Files, TlsFailed};

/// Interval between two checks of the files.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Metric: when the certificate in use expires.
const EXPIRES: &str = "onetake_tls_expires_seconds";
/// Metric: 1 while the files on disk are invalid and older contents are in use.
const REFUSED: &str = "onetake_tls_refused";

type Make<T> = Box<dyn Fn(&mut Files) -> Result<T, TlsFailed> + Send>;

/// Builds a value from files now, and again when they change, until all receivers are dropped.
///
/// # Errors
/// If it cannot be built now. Later, the previous value stays in use.
pub(super) fn reloaded<T: Send + Sync + 'static>(
    field: &'static str,
    paths: Vec<PathBuf>,
    make: impl Fn(&mut Files) -> Result<T, TlsFailed> + Send + 'static,
    clock: Arc<dyn Clock>,
) -> Result<watch::Receiver<Arc<T>>, TlsFailed> {
    describe_gauge!(EXPIRES, "Expiry time of the certificate in use, in seconds since 1970.");
    describe_gauge!(
        REFUSED,
        "1 while the files on disk are invalid and the previous ones are in use."
    );
    let (watcher, current) = Watcher::start(field, paths, Box::new(make))?;
    if !watcher.paths.is_empty() {
        tokio::spawn(watch(watcher, clock));
    }
    Ok(current)
}

async fn watch<T: Send + Sync + 'static>(mut watcher: Watcher<T>, clock: Arc<dyn Clock>) {
    loop {
        tokio::select! {
            () = watcher.current.closed() => return,
            () = clock.sleep(LOOK_EVERY) => {}
        }
        // Files may be on a slow network filesystem.
        let looked = tokio::task::spawn_blocking(move || {
            watcher.look();
            watcher
        });
        let Ok(same) = looked.await else { return };
        watcher = same;
    }
}

/// Metadata that tells whether a file has changed, without reading it.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

struct Watcher<T> {
    field: &'static str,
    paths: Vec<PathBuf>,
    make: Make<T>,
    current: watch::Sender<Arc<T>>,
    /// The files that the current value was built from.
    files: Files,
    stamps: Vec<Stamp>,
    /// True if the stamps did not change for a whole interval before the last reading. Then a write
    /// that left the same stamp cannot have been missed.
    is_settled: bool,
    fault: Option<ReloadError>,
}

/// The error of invalid files, and whether it was logged.
struct ReloadError {
    what: TlsFailed,
    is_told: bool,
}

impl<T> Watcher<T> {
    fn start(
        field: &'static str,
        paths: Vec<PathBuf>,
        make: Make<T>,
    ) -> Result<(Self, watch::Receiver<Arc<T>>), TlsFailed> {
        let stamps = stamps(&paths);
        let mut files = Files::default();
        let (current, receiver) = watch::channel(Arc::new(make(&mut files)?));
        let watcher =
            Self { field, paths, make, current, files, stamps, is_settled: false, fault: None };
        watcher.measure();
        Ok((watcher, receiver))
    }

    /// Checks whether the files have changed, and uses their contents if they are valid.
    fn look(&mut self) {
        let stamps = stamps(&self.paths);
        let is_same = stamps == self.stamps;
        if is_same && self.is_settled && self.fault.is_none() {
            return;
        }
        (self.stamps, self.is_settled) = (stamps, is_same);
        let mut files = Files::default();
        match (self.make)(&mut files) {
            Ok(_) if files == self.files => self.fault = None,
            Ok(made) => {
                self.current.send_replace(Arc::new(made));
                (self.files, self.fault) = (files, None);
                tracing::info!(field = self.field, "new TLS files are in use for new connections");
            }
            Err(what) => self.refuse(what),
        }
        self.measure();
    }

    /// Updates the metrics.
    fn measure(&self) {
        let is_told = self.fault.as_ref().is_some_and(|fault| fault.is_told);
        gauge!(REFUSED, "field" => self.field).set(if is_told { 1.0 } else { 0.0 });
        if let Some(expires) = self.files.expires {
            gauge!(EXPIRES, "field" => self.field).set(expires.as_secs_f64());
        }
    }

    /// Logs an error at its second check: while a pair of files is being replaced, it is invalid
    /// for a moment.
    fn refuse(&mut self, what: TlsFailed) {
        match &mut self.fault {
            Some(fault) if fault.what == what => {
                if !std::mem::replace(&mut fault.is_told, true) {
                    let field = self.field;
                    tracing::warn!(
                        field,
                        "the new TLS files are invalid, so the previous ones stay in use: {what}"
                    );
                }
            }
            other => *other = Some(ReloadError { what, is_told: false }),
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |about: Metadata| {
        (about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec())
    };
    paths.iter().map(|path| std::fs::metadata(path).ok().map(stamp)).collect()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::sync::{LazyLock, Mutex};

    use super::*;

    /// A subscriber that stays. If only one were registered, a log statement that another test's
    /// thread reaches first would be switched off for all threads.
    static ANOTHER: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
        tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish())
    });

    /// A watcher that accepts any text but `broken`.
    fn watcher(file: &Path) -> (Watcher<Vec<u8>>, watch::Receiver<Arc<Vec<u8>>>) {
        let path = file.to_owned();
        let make = move |files: &mut Files| match files.read("a.field", &path)? {
            b"broken" => Err(TlsFailed::new("a.field", Some(&path), "broken", "mend it")),
            text => Ok(text.to_vec()),
        };
        Watcher::start("a", vec![file.to_owned()], Box::new(make)).unwrap()
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_fault_that_stays_is_told_once() {
        LazyLock::force(&ANOTHER);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "one").unwrap();
        let (mut watcher, _current) = watcher(&file);
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            for content in ["broken", "two", "broken"] {
                std::fs::write(&file, content).unwrap();
                (0..5).for_each(|_| watcher.look());
            }
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("stay in use").count(), 2, "{log}");
        assert_eq!(log.matches("are in use for new").count(), 1, "{log}");
    }

    fn is_told(watcher: &Watcher<Vec<u8>>) -> Option<bool> {
        watcher.fault.as_ref().map(|fault| fault.is_told)
    }

    #[test]
    fn what_changes_is_taken_and_what_is_broken_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "one").unwrap();
        let (mut watcher, mut current) = watcher(&file);
        watcher.look();
        assert!(watcher.is_settled && !current.has_changed().unwrap());
        std::fs::write(&file, "two").unwrap();
        watcher.look();
        assert_eq!(**current.borrow_and_update(), *b"two");

        std::fs::write(&file, "broken").unwrap();
        watcher.look();
        assert_eq!(is_told(&watcher), Some(false), "it may be in the middle of being replaced");
        for _ in 0..3 {
            watcher.look();
            assert_eq!(is_told(&watcher), Some(true));
        }
        std::fs::remove_file(&file).unwrap();
        watcher.look();
        assert_eq!(is_told(&watcher), Some(false), "another fault, to be told again");
        std::fs::write(&file, "two").unwrap();
        watcher.look();
        assert_eq!(is_told(&watcher), None);
        assert!(!current.has_changed().unwrap(), "the same content is no change");
        assert_eq!(**current.borrow(), *b"two");
    }

    #[test]
    fn a_write_that_leaves_no_trace_is_seen_unless_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "one").unwrap();
        let time = std::fs::metadata(&file).unwrap().modified().unwrap();
        let (mut watcher, current) = watcher(&file);
        // A write within the same tick of the filesystem's clock: same file, same size, same time.
        std::fs::write(&file, "two").unwrap();
        std::fs::File::open(&file).unwrap().set_modified(time).unwrap();
        assert_eq!(stamps(&watcher.paths), watcher.stamps);
        watcher.look();
        assert_eq!(**current.borrow(), *b"two");
        assert!(watcher.is_settled, "from now on, only stamps are looked at");
    }

    #[test]
    fn a_link_that_points_elsewhere_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("one"), "one").unwrap();
        std::fs::write(at("two"), "two").unwrap();
        std::os::unix::fs::symlink(at("one"), at("link")).unwrap();
        let (mut watcher, current) = watcher(&at("link"));
        watcher.look();
        std::os::unix::fs::symlink(at("two"), at("next")).unwrap();
        std::fs::rename(at("next"), at("link")).unwrap();
        watcher.look();
        assert_eq!(**current.borrow(), *b"two");
    }
}
