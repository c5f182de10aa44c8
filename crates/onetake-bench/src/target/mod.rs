//! The measured programs, as processes of their own.

mod envoy;
mod nginx;
mod onetake;
mod peers;
mod servers;

use std::any::Any;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onetake_sim::servers::{Child, free_port};
use tempfile::TempDir;

use crate::case::{Program, Traffic, Wire};
use crate::load::{Answers, Certificate};
use crate::usage::{Usage, usage, wait_until};
use servers::Servers;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time from the end of a process's connections to the end of the process.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// A running program. It is stopped on drop.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) answers: Answers,
    /// The processes whose cost is measured.
    pub(crate) processes: Vec<u32>,
    /// The path of requests, if it is not that of the upstream.
    pub(crate) path: Option<&'static str>,
    /// The address that counts runs, if it is not the upstream's.
    pub(crate) counts_at: Option<SocketAddr>,
    /// The address of the gateway's admin listener, if it is a gateway.
    pub(crate) admin: Option<SocketAddr>,
    child: Child,
    /// The output of the process.
    log: PathBuf,
    /// Ends further processes and removes all files on drop.
    held: Vec<Box<dyn Any>>,
}

impl Target {
    /// Starts a command that will listen on this address.
    fn start(
        name: &str,
        address: SocketAddr,
        answers: Answers,
        folder: TempDir,
        command: &[String],
    ) -> io::Result<Self> {
        let log = folder.path().join("log");
        let child = Child::start(command, &log, None);
        let is_listening =
            wait_until(START_TIMEOUT, || child.is_gone() || TcpStream::connect(address).is_ok());
        if !is_listening || child.is_gone() {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            return Err(io::Error::other(format!("{name} does not listen: {log}")));
        }
        // It may still end: a gateway listens before it opens its store.
        Ok(Self {
            name: name.to_owned(),
            address,
            answers,
            processes: vec![child.pid()],
            path: None,
            counts_at: None,
            admin: None,
            child,
            log,
            held: vec![Box::new(folder)],
        })
    }

    /// Starts this program again in another role.
    fn own(role: &str, answers: Answers, arguments: &[String]) -> io::Result<Self> {
        let (folder, address) = (tempfile::tempdir()?, free_address());
        let mut command = vec![
            shown(&std::env::current_exe()?),
            "serve".to_owned(),
            role.to_owned(),
            address.to_string(),
            shown(folder.path()),
        ];
        command.extend_from_slice(arguments);
        Self::start(role, address, answers, folder, &command)
    }

    /// Adds the program's name to an error. If its process has ended, adds that and its output: to a
    /// client, such an end is only a connection that was reset.
    pub(crate) fn explain(&self, error: &io::Error) -> io::Error {
        let name = &self.name;
        if !wait_until(END_TIMEOUT, || self.child.is_gone()) {
            return io::Error::other(format!("{name}: {error}"));
        }
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        io::Error::other(format!("{name}: its process ended ({error}). Its output:\n{log}"))
    }

    /// Returns the usage of the processes so far.
    pub(crate) fn usage(&self) -> Usage {
        usage(&self.processes)
    }
}

/// Everything that contenders share: the upstream, servers of stores, a certificate.
pub(crate) struct Stage {
    /// The gateway's binary.
    binary: PathBuf,
    /// Another one, to compare with.
    base: Option<PathBuf>,
    pub(crate) upstream: Target,
    pub(crate) certificate: Arc<Certificate>,
    servers: Servers,
}

impl Stage {
    pub(crate) fn new(binary: PathBuf, base: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self {
            binary,
            base,
            upstream: Target::own("upstream", Answers::Alone, &[])?,
            certificate: Arc::new(Certificate::create()?),
            servers: Servers::default(),
        })
    }

    /// Starts a contender. Returns an empty list if something that it needs is not installed, and
    /// two targets if there are two binaries of the gateway.
    pub(crate) fn start(
        &mut self,
        name: &str,
        program: Program,
        traffic: Traffic,
    ) -> io::Result<Vec<Target>> {
        let upstream = [self.upstream.address.to_string()];
        let mut started = match program {
            Program::Proxy => Some(Target::own("proxy", Answers::Forwards, &upstream)?),
            Program::Limit => Some(Target::own("limit", Answers::Forwards, &upstream)?),
            Program::Nginx => self.nginx(traffic.wire)?,
            Program::NginxDirect => self.nginx_direct()?,
            Program::SqlPattern => self.sql_pattern()?,
            Program::Envoy => self.envoy()?,
            Program::ExtProc => self.ext_proc()?,
            Program::Peer(peer) => self.peer(peer)?,
            Program::Onetake(setup) => {
                let Some(gateway) = self.gateway(setup, traffic.wire)? else {
                    return Ok(Vec::new());
                };
                let mut started = vec![gateway.start(name, &self.binary)?];
                if let Some(base) = self.base.clone()
                    && let Some(gateway) = self.gateway(setup, traffic.wire)?
                {
                    started.insert(0, gateway.start(&base_name(name), &base)?);
                }
                return Ok(started);
            }
        };
        if let Some(target) = &mut started {
            target.name = name.to_owned();
        }
        Ok(started.into_iter().collect())
    }
}

fn base_name(name: &str) -> String {
    if name == "onetake" { "base".to_owned() } else { format!("base {name}") }
}

/// Returns the URL of the upstream for a protocol of the client.
fn upstream_url(upstream: SocketAddr, wire: Wire) -> String {
    let scheme = if wire == Wire::Grpc { "h2c" } else { "http" };
    format!("{scheme}://{upstream}")
}

fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the path of a program, if it is installed.
fn find(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path);
    let mut files = folders.iter().cloned().chain(in_path).map(|folder| folder.join(program));
    files.find(|path| path.is_file())
}
