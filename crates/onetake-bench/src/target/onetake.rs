//! The gateway, in the setups of the cases.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{Stage, Target, free_address, shown, upstream_url};
use crate::case::{Setup, Wire};
use crate::load::Answers;

/// A secret of 32 bytes.
const SECRET: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// A gateway that can be started.
pub(crate) struct Gateway {
    address: SocketAddr,
    folder: TempDir,
    upstream: String,
    store: String,
    /// Sections of the configuration file. Without any, the gateway starts by flags alone, so that
    /// `--compare` works with old binaries.
    sections: String,
    /// True if the store has tables that `onetake migrate` creates.
    has_tables: bool,
}

impl Stage {
    /// Returns a gateway with a new store, or `None` if its server is not installed.
    pub(super) fn gateway(&mut self, setup: Setup, wire: Wire) -> io::Result<Option<Gateway>> {
        let mut gateway = Gateway::embedded(self.upstream.address)?;
        gateway.upstream = upstream_url(self.upstream.address, wire);
        match setup {
            Setup::Embedded => {}
            Setup::Encrypted => {
                gateway.sections =
                    format!("[secrets]\nencryption = [{{ id = \"k1\", secret = \"{SECRET}\" }}]\n");
            }
            Setup::Sqlite => {
                gateway.store = format!("sqlite:{}", shown(&gateway.folder.path().join("file")));
            }
            Setup::Postgres | Setup::Filter => {
                let Some(postgres) = self.servers.postgres()? else { return Ok(None) };
                gateway.store = postgres.database();
                gateway.has_tables = true;
                if setup == Setup::Filter {
                    let Some(redis) = self.servers.redis()? else { return Ok(None) };
                    gateway.sections = format!("[store]\nfilter = \"{}\"\n", redis.url());
                }
            }
            Setup::Redis => {
                let Some(redis) = self.servers.redis()? else { return Ok(None) };
                gateway.store = redis.url();
                gateway.sections = "[store]\nallow_lossy = true\n".to_owned();
            }
            Setup::DynamoDb => {
                let Some(dynamo) = self.servers.dynamo()? else { return Ok(None) };
                gateway.store = dynamo.table();
                gateway.has_tables = true;
            }
        }
        if wire.has_tls() {
            let (certificate, key) = self.certificate.files();
            gateway.sections.push_str(&format!(
                "[gateway]\ntls = {{ certificate = \"{}\", private_key = \"{}\" }}\n",
                shown(&certificate),
                shown(&key)
            ));
        }
        Ok(Some(gateway))
    }

    /// Returns a gateway on a new embedded store, with these sections in its configuration.
    pub(crate) fn with_sections(&self, sections: &str) -> io::Result<Gateway> {
        let gateway = Gateway::embedded(self.upstream.address)?;
        Ok(Gateway { sections: sections.to_owned(), ..gateway })
    }

    /// Returns a gateway on the store in a folder, which is removed with the gateway, with these
    /// sections in its configuration.
    pub(crate) fn on_folder(&self, folder: TempDir, sections: &str) -> io::Result<Gateway> {
        let store = format!("embedded:{}", shown(&folder.path().join("store")));
        Ok(Gateway { folder, store, ..self.with_sections(sections)? })
    }

    /// Starts a gateway with the measured binary.
    pub(crate) fn start_gateway(&self, name: &str, gateway: Gateway) -> io::Result<Target> {
        gateway.start(name, &self.binary)
    }
}

impl Gateway {
    fn embedded(upstream: SocketAddr) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        Ok(Self {
            address: free_address(),
            store: format!("embedded:{}", shown(&folder.path().join("store"))),
            folder,
            upstream: upstream_url(upstream, Wire::Http1),
            sections: String::new(),
            has_tables: false,
        })
    }

    pub(super) fn start(self, name: &str, binary: &Path) -> io::Result<Target> {
        let (admin, journal) = (free_address(), shown(&self.folder.path().join("outcomes")));
        let mut flags = Vec::new();
        if !self.sections.is_empty() {
            let file = self.folder.path().join("onetake.toml");
            std::fs::write(&file, &self.sections)?;
            flags.extend(["--config".to_owned(), shown(&file)]);
        }
        if self.has_tables {
            migrate(binary, &self.store)?;
        }
        let flag = |name: &str, value: String| [name.to_owned(), value];
        flags.extend(flag("--listen", self.address.to_string()));
        flags.extend(flag("--admin-listen", admin.to_string()));
        flags.extend(flag("--upstream", self.upstream));
        flags.extend(flag("--store", self.store.clone()));
        // A server has no folder for the journal beside it.
        let is_server = self.store.contains("://");
        let journal = is_server.then(|| format!("ONETAKE__STORE__JOURNAL={journal}"));
        let mut command = vec!["env".to_owned(), "ONETAKE_LOG=warn".to_owned()];
        command.extend(CREDENTIALS.map(str::to_owned));
        command.extend(journal);
        command.extend([shown(binary), "serve".to_owned()]);
        command.extend(flags);
        let target = Target::start(name, self.address, Answers::Records, self.folder, &command)?;
        Ok(Target { admin: Some(admin), ..target })
    }
}

/// Credentials for a DynamoDB on this machine.
pub(super) const CREDENTIALS: [&str; 2] =
    ["AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local"];

/// Creates the tables of a store.
fn migrate(binary: &Path, store: &str) -> io::Result<()> {
    let mut command = Command::new("env");
    command.args(CREDENTIALS).arg(binary).args(["migrate", "--store", store]);
    let ended = command.stdout(Stdio::null()).status()?;
    if ended.success() {
        return Ok(());
    }
    Err(io::Error::other("`onetake migrate` failed"))
}
