//! PostgreSQL, and PgBouncer in front of it.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::child::Child;
use super::{free_port, loopback, program, until};

/// The user of all connections, and the password.
const USER: &str = "onetake";
const PASSWORD: &str = "takes one";
/// The database that migrated databases are copies of.
const TEMPLATE: &str = "migrated";
/// The password in the form of a URL.
const PASSWORD_IN_URL: &str = "takes%20one";

/// A PostgreSQL server with an empty database for each caller.
#[derive(Debug)]
pub struct Postgres {
    child: Option<Child>,
    folder: TempDir,
    port: u16,
    databases: AtomicU32,
    template: OnceCell<()>,
}

/// The server that the tests of a program share.
static SHARED: OnceCell<Postgres> = OnceCell::const_new();

impl Postgres {
    /// Returns the server that the tests of this program share. The first call starts it, and it
    /// ends with the program.
    ///
    /// A test starts a server of its own if it stops the server, changes settings, or reads the
    /// log or the files. So does a test of transactions that stay open, because the oldest one is
    /// visible in all databases.
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(|| Self::start_with(&["max_connections = 400"])).await
    }

    /// Starts a server with the default configuration: durable.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server that offers TLS with this certificate and key.
    pub async fn start_with_tls(certificate: &Path, key: &Path) -> Self {
        Self::start_in(&["ssl = on"], &[("server.crt", certificate), ("server.key", key)]).await
    }

    /// Starts a server with these lines in its configuration.
    pub async fn start_with(settings: &[&str]) -> Self {
        Self::start_in(settings, &[]).await
    }

    async fn start_in(settings: &[&str], files: &[(&str, &Path)]) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let user = unprivileged();
        if let Some((user, group)) = user {
            chown(folder.path(), Some(user), Some(group)).expect("root may");
        }
        let password = folder.path().join("password");
        std::fs::write(&password, PASSWORD).expect("the folder is there");
        if let Some((user, group)) = user {
            chown(&password, Some(user), Some(group)).expect("root may");
        }
        let data = folder.path().join("data");
        let mut initdb = Command::new(program("initdb", &folders()));
        initdb.arg("-D").arg(&data).args(["-U", USER, "-A", "scram-sha-256", "--no-sync"]);
        initdb.args(["--no-locale", "-E", "UTF8"]);
        initdb.arg(format!("--pwfile={}", password.display()));
        initdb.current_dir(folder.path()).stdout(Stdio::null());
        if let Some((user, group)) = user {
            initdb.uid(user).gid(group);
        }
        assert!(initdb.status().is_ok_and(|status| status.success()), "initdb failed");
        let mut configuration = std::fs::read_to_string(data.join("postgresql.conf"))
            .expect("initdb wrote a configuration");
        configuration.push_str("\nlog_line_prefix = '%m [%p] '\n");
        for line in settings {
            configuration.push_str(line);
            configuration.push('\n');
        }
        std::fs::write(data.join("postgresql.conf"), configuration).expect("it is writable");
        for (name, file) in files {
            let copy = data.join(name);
            std::fs::copy(file, &copy).expect("the file is there");
            std::fs::set_permissions(&copy, Permissions::from_mode(0o600)).expect("it is ours");
            if let Some((user, group)) = user {
                chown(&copy, Some(user), Some(group)).expect("root may");
            }
        }
        let port = free_port();
        let databases = AtomicU32::new(0);
        let mut server = Self { child: None, folder, port, databases, template: OnceCell::new() };
        server.restart().await;
        server
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same port and
    /// data.
    pub async fn restart(&mut self) {
        let data = self.folder.path().join("data");
        let command = [
            program("postgres", &folders()).display().to_string(),
            "-D".into(),
            data.display().to_string(),
            "-p".into(),
            self.port.to_string(),
            "-k".into(),
            self.folder.path().display().to_string(),
            "-c".into(),
            "listen_addresses=127.0.0.1".into(),
        ];
        let (log, user) = (self.log_file(), unprivileged());
        let mut child = Child::start(&command, &log, user);
        let is_ready = program("pg_isready", &folders());
        until("PostgreSQL starts", async || {
            let mut asked = Command::new(&is_ready);
            asked.args(["-q", "-h", "127.0.0.1", "-d", "postgres", "-p", &self.port.to_string()]);
            // The server refuses to start while processes of a killed one still run. They take a
            // moment to notice that it is gone.
            if child.is_gone() {
                child = Child::start(&command, &log, user);
            }
            asked.status().is_ok_and(|status| status.success())
        })
        .await;
        self.child = Some(child);
    }

    /// Creates and starts a standby that follows this server. `source` is the server's own address,
    /// or that of a proxy in front of it.
    pub async fn standby(&self, source: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let user = unprivileged();
        let mut backup = Command::new(program("pg_basebackup", &folders()));
        backup.arg("-D").arg(folder.path().join("data"));
        backup.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d"]);
        backup.arg(format!(
            "host={} port={} user={USER} password='{PASSWORD}' application_name=standby",
            source.ip(),
            source.port()
        ));
        backup.current_dir(folder.path());
        if let Some((user, group)) = user {
            chown(folder.path(), Some(user), Some(group)).expect("root may");
            backup.uid(user).gid(group);
        }
        let copied = tokio::task::spawn_blocking(move || backup.status()).await;
        let copied = copied.expect("the copy does not panic");
        assert!(copied.is_ok_and(|status| status.success()), "pg_basebackup failed");
        let databases = AtomicU32::new(self.databases.load(Ordering::Relaxed));
        let template = self.template.clone();
        let mut server = Self { child: None, folder, port: free_port(), databases, template };
        server.restart().await;
        server
    }

    /// Makes commits wait until the standby has them. Returns once the standby has everything so
    /// far.
    pub async fn wait_for_standby(&self) {
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        let attached = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        until("the standby is synchronous", async || self.sql("postgres", attached) == "1").await;
    }

    /// Makes a standby a server that accepts writes.
    pub fn promote(&self) {
        assert_eq!(self.sql("postgres", "SELECT pg_promote()"), "t", "{}", self.log());
    }

    /// Ends it as an administrator would in a hurry (`pg_ctl stop -m fast`).
    pub fn stop(&mut self) {
        if let Some(child) = self.child.take() {
            child.signal("INT");
        }
    }

    /// Ends it abruptly (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            child.signal("KILL");
        }
        // Its child processes end by themselves when they notice. Its lock file stays, as after a
        // crash.
    }

    /// Returns the server's process.
    #[must_use]
    pub fn child(&self) -> Option<&Child> {
        self.child.as_ref()
    }

    /// Returns the folder with all its data, its log included.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Returns the contents of its log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Creates a fresh, empty database and returns its URL.
    #[must_use]
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Creates a database with the tables that `migrate` creates, and returns its URL.
    ///
    /// Only the first call migrates: the databases are copies of a template.
    pub async fn migrated<F: Future>(&self, migrate: impl FnOnce(String) -> F) -> String {
        let make = async || {
            self.sql("postgres", &format!("CREATE DATABASE {TEMPLATE}"));
            migrate(self.url(TEMPLATE)).await;
            // A database cannot be copied while a client is connected to it.
            let connected =
                format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{TEMPLATE}'");
            until("nobody uses the template", async || self.sql("postgres", &connected) == "0")
                .await;
        };
        self.template.get_or_init(make).await;
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}"));
        self.url(&name)
    }

    /// Returns the URL of a database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        self.url_at(self.address(), database)
    }

    /// Returns the URL of a database through another address, such as a proxy's.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD_IN_URL}@{address}/{database}")
    }

    /// Runs SQL with psql and returns its output: plain, unaligned rows.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let output = self.psql(database).args(["-c", sql]).output().expect("psql starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns a psql command for a database, for tests that hold a transaction open.
    #[must_use]
    pub fn psql(&self, database: &str) -> Command {
        let mut psql = Command::new(program("psql", &folders()));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]).arg(self.url(database));
        psql
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.child.take());
    }
}

/// A PgBouncer in front of a PostgreSQL.
#[derive(Debug)]
pub struct PgBouncer {
    _child: Child,
    _folder: TempDir,
    port: u16,
}

impl PgBouncer {
    /// Starts a PgBouncer with `connections` to the server, in `mode` (`transaction`, `session`).
    pub async fn start(server: &Postgres, mode: &str, connections: u32) -> Self {
        Self::start_at(server.port, mode, connections).await
    }

    /// Starts a PgBouncer as [`start`](Self::start) does, with the server (or a proxy in front of
    /// it) on this port.
    pub async fn start_at(server: u16, mode: &str, connections: u32) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let (port, path) = (free_port(), folder.path());
        let users = path.join("users");
        std::fs::write(&users, format!("\"{USER}\" \"{PASSWORD}\"\n")).expect("writable");
        let configuration = path.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = scram-sha-256\nauth_file = {users}\n\
             pool_mode = {mode}\ndefault_pool_size = {connections}\nmax_client_conn = 200\n\
             unix_socket_dir =\nadmin_users = {USER}\n",
            users = users.display(),
        );
        std::fs::write(&configuration, text).expect("writable");
        let user = unprivileged();
        if let Some((user, group)) = user {
            for file in [path, &users, &configuration] {
                chown(file, Some(user), Some(group)).expect("root may");
            }
        }
        let binary = program("pgbouncer", &["/usr/sbin".into()]);
        let command = [binary.display().to_string(), configuration.display().to_string()];
        let child = Child::start(&command, &path.join("log"), user);
        until("PgBouncer starts", async || std::net::TcpStream::connect(loopback(port)).is_ok())
            .await;
        Self { _child: child, _folder: folder, port }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }
}

/// Returns the user to run as. PostgreSQL refuses to run as root; then it runs as the user that its
/// package created.
fn unprivileged() -> Option<(u32, u32)> {
    let us = std::fs::metadata("/proc/self").expect("there is a /proc").uid();
    if us != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("there are users");
    let ids = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(ids("postgres").or_else(|| ids("nobody")).expect("there is a user to run it as"))
}

/// Returns the folders of PostgreSQL's programs: Debian keeps them out of `PATH`.
fn folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir(Path::new("/usr/lib/postgresql"));
    let mut found: Vec<PathBuf> =
        versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin")).collect();
    found.sort();
    found.reverse();
    found
}
