//! Servers of stores. Each is started when a case needs it, and serves until the benchmark ends.

use std::io;
use std::path::{Path, PathBuf};

use onetake_sim::servers::{Dynamo, Postgres, Redis, tools};

use super::{Stage, Target, find};
use crate::load::Answers;
use crate::programs::migrate_sql_pattern;

/// The servers that run.
#[derive(Default)]
pub(super) struct Servers {
    runtime: Option<tokio::runtime::Runtime>,
    postgres: Option<Postgres>,
    redis: Option<Redis>,
    dynamo: Option<Dynamo>,
}

impl Servers {
    /// Returns PostgreSQL with its default settings, or `None` if it is not installed.
    pub(super) fn postgres(&mut self) -> io::Result<Option<&Postgres>> {
        let versions = std::fs::read_dir(Path::new("/usr/lib/postgresql")).into_iter().flatten();
        let folders: Vec<PathBuf> =
            versions.flatten().map(|version| version.path().join("bin")).collect();
        if self.postgres.is_none() && find("initdb", &folders).is_some() {
            self.postgres = Some(self.block_on(Postgres::start())?);
        }
        Ok(self.postgres.as_ref())
    }

    /// Returns a Redis that keeps every write, or `None` if it is not installed.
    pub(super) fn redis(&mut self) -> io::Result<Option<&Redis>> {
        if self.redis.is_none() && find("redis-server", &[]).is_some() {
            self.redis = Some(self.block_on(Redis::start())?);
        }
        Ok(self.redis.as_ref())
    }

    /// Returns a DynamoDB on this machine, or `None` if it is not installed.
    pub(super) fn dynamo(&mut self) -> io::Result<Option<&Dynamo>> {
        if self.dynamo.is_none() && find("dynoxide", &[tools().join("bin")]).is_some() {
            self.dynamo = Some(self.block_on(Dynamo::start())?);
        }
        Ok(self.dynamo.as_ref())
    }

    fn block_on<T>(&mut self, future: impl Future<Output = T>) -> io::Result<T> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
        };
        Ok(self.runtime.insert(runtime).block_on(future))
    }
}

impl Stage {
    /// Starts the proxy with the common SQL pattern.
    pub(super) fn sql_pattern(&mut self) -> io::Result<Option<Target>> {
        let upstream = self.upstream.address.to_string();
        let Some(postgres) = self.servers.postgres()? else { return Ok(None) };
        let url = postgres.database();
        self.servers.block_on(migrate_sql_pattern(&url))??;
        let arguments = [upstream, url];
        Target::own("sql-pattern", Answers::Forwards, &arguments).map(Some)
    }
}
