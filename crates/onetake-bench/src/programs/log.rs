//! A log with group commit.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::mpsc;

use tokio::sync::oneshot;

/// The size of the log, allocated ahead like the embedded store's journal. A full log begins again.
const LOG_BYTES: u64 = 2 << 30;

type Append = (usize, oneshot::Sender<()>);

/// One thread does one write and one `fdatasync` for all appends that arrived during the last ones.
#[derive(Clone)]
pub(super) struct Log(mpsc::Sender<Append>);

impl Log {
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        let mut file = File::create(folder.join("limit.log"))?;
        file.set_len(LOG_BYTES)?;
        file.sync_all()?;
        let (appends, queue) = mpsc::channel::<Append>();
        std::thread::spawn(move || {
            let mut written = 0;
            while let Ok(first) = queue.recv() {
                let group: Vec<Append> = std::iter::once(first).chain(queue.try_iter()).collect();
                let bytes = vec![1; group.iter().map(|(bytes, _)| bytes).sum()];
                written += bytes.len() as u64;
                if written > LOG_BYTES {
                    written = bytes.len() as u64;
                    if file.seek(SeekFrom::Start(0)).is_err() {
                        return;
                    }
                }
                if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
                    return;
                }
                for (_, done) in group {
                    let _gone = done.send(());
                }
            }
        });
        Ok(Self(appends))
    }

    /// Returns when this many bytes are on disk.
    pub(super) async fn append(&self, bytes: usize) {
        let (done, is_done) = oneshot::channel();
        let _ended = self.0.send((bytes, done));
        let _ended = is_done.await;
    }
}
