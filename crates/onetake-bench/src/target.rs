//! The measured programs, as processes of their own.

use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use tempfile::TempDir;

/// The unit of CPU times in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running program. It is stopped on drop.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// True if the program records outcomes by key.
    pub(crate) records: bool,
    process: Child,
    _folder: TempDir,
}

/// CPU time and memory of a target.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) written_bytes: u64,
    pub(crate) peak_kib: u64,
}

impl Target {
    /// Starts this program again in another role.
    pub(crate) fn own(name: &'static str, upstream: Option<SocketAddr>) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(name).arg(folder.path());
        command.args(upstream.map(|address| address.to_string()));
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = process.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse().map_err(io::Error::other)?;
        Ok(Self { name, address, records: false, process, _folder: folder })
    }

    /// Starts an onetake binary on a new embedded store.
    pub(crate) fn onetake(
        name: &'static str,
        binary: &Path,
        upstream: SocketAddr,
    ) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address()?;
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &address.to_string()]);
        command.args(["--admin-listen", &free_address()?.to_string()]);
        command.args(["--upstream", &format!("http://{upstream}")]);
        command.arg("--store").arg(format!("embedded:{}", folder.path().join("store").display()));
        command.env("ONETAKE_LOG", "warn");
        let process = command.spawn()?;
        let target = Self { name, address, records: true, process, _folder: folder };
        target.listening()
    }

    /// Starts nginx as a plain proxy, or returns `None` if it is not installed.
    pub(crate) fn nginx(upstream: SocketAddr) -> io::Result<Option<Self>> {
        let Some(binary) = find("nginx") else { return Ok(None) };
        let folder = tempfile::tempdir()?;
        let address = free_address()?;
        let path = folder.path().display();
        let file = folder.path().join("nginx.conf");
        let configuration = format!(
            "worker_processes auto;\ndaemon off;\npid {path}/pid;\nerror_log {path}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n  access_log off;\n  client_body_temp_path {path}/body;\n  \
             proxy_temp_path {path}/proxy;\n  fastcgi_temp_path {path}/fastcgi;\n  \
             uwsgi_temp_path {path}/uwsgi;\n  scgi_temp_path {path}/scgi;\n  \
             keepalive_requests 1000000000;\n  \
             upstream api {{ server {upstream}; keepalive 512; keepalive_requests 1000000000; }}\n  \
             server {{\n    listen {address};\n    location / {{\n      \
             proxy_pass http://api;\n      proxy_http_version 1.1;\n      \
             proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
        );
        std::fs::write(&file, configuration)?;
        let mut command = Command::new(binary);
        let process = command.arg("-c").arg(&file).stderr(Stdio::null()).spawn()?;
        let target = Self { name: "nginx", address, records: false, process, _folder: folder };
        target.listening().map(Some)
    }

    /// Waits until the program accepts connections.
    fn listening(mut self) -> io::Result<Self> {
        let until = SystemClock.monotonic() + START_TIMEOUT;
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.process.try_wait()? {
                return Err(io::Error::other(format!("{} ended: {status}", self.name)));
            }
            if SystemClock.monotonic() > until {
                return Err(io::Error::other(format!("{} does not listen", self.name)));
            }
            std::thread::yield_now();
        }
        Ok(self)
    }

    /// Returns the usage of the process and its children so far.
    pub(crate) fn usage(&self) -> Usage {
        let process = self.process.id();
        let children = format!("/proc/{process}/task/{process}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        let all = std::iter::once(process).chain(children).map(usage_of);
        all.fold(Usage::default(), |sum, one| Usage {
            cpu_seconds: sum.cpu_seconds + one.cpu_seconds,
            written_bytes: sum.written_bytes + one.written_bytes,
            peak_kib: sum.peak_kib + one.peak_kib,
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SIGTERM, because nginx must stop its workers.
        let _ended = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ended = self.process.wait();
    }
}

fn usage_of(process: u32) -> Usage {
    let read =
        |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let stat = read("stat");
    // The second field is the program's name, in parentheses. It may contain spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    let number = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    Usage {
        cpu_seconds: ticks / TICKS_PER_SECOND,
        written_bytes: number(&read("io"), "write_bytes:"),
        peak_kib: number(&read("status"), "VmHWM:"),
    }
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Returns the path of a program, if it is installed.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
