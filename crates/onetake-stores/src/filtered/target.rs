//! Where the filter's Redis is.

use redis::cluster::ClusterClient;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisError};

use onetake_core::{StoreError, StoreErrorKind};

use super::FilterOptions;

/// Redirections and repetitions inside the cluster's client; the command's time bounds them all.
const CLUSTER_RETRIES: u32 = 2;

/// One server, or a cluster.
pub(super) enum Target {
    One(Box<redis::Client>),
    Cluster(Box<ClusterClient>),
}

impl Target {
    /// Reads a URL; also where it is, for messages: never with a password.
    pub(super) fn parse(url: &str, options: &FilterOptions) -> Result<(Self, String), StoreError> {
        if url.starts_with("rediss://") {
            // Whoever installed one before keeps it.
            let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        if let Some(nodes) = url.strip_prefix("redis-cluster://") {
            let (user, hosts) = nodes.rsplit_once('@').unwrap_or(("", nodes));
            let at = if user.is_empty() { "" } else { "@" };
            let nodes = hosts
                .trim_end_matches('/')
                .split(',')
                .map(|host| info(&format!("redis://{user}{at}{host}")))
                .collect::<Result<Vec<_>, _>>()?;
            let names: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
            let client = ClusterClient::builder(nodes)
                .connection_timeout(options.connect_timeout)
                .response_timeout(options.command_timeout)
                .retries(CLUSTER_RETRIES)
                .build()
                .map_err(|error| bad_url(&error))?;
            return Ok((Self::Cluster(Box::new(client)), names.join(",")));
        }
        if !(url.starts_with("redis://") || url.starts_with("rediss://")) {
            let what = "the filter's URL must begin with redis://, rediss:// or redis-cluster://";
            return Err(StoreError::new(StoreErrorKind::Invalid, what));
        }
        let info = info(url)?;
        let name = info.addr().to_string();
        let client = redis::Client::open(info).map_err(|error| bad_url(&error))?;
        Ok((Self::One(Box::new(client)), name))
    }
}

fn info(url: &str) -> Result<ConnectionInfo, StoreError> {
    url.into_connection_info().map_err(|error| bad_url(&error))
}

/// Says what is wrong without the URL, which may hold a password.
fn bad_url(error: &RedisError) -> StoreError {
    let what = format!(
        "the filter's URL cannot be used ({}); it looks like redis://[user:password@]host[:port][/db]",
        error.category()
    );
    StoreError::new(StoreErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_refused_without_its_password() {
        for url in [
            "",
            "http://127.0.0.1",
            "redis://user:hunter2@",
            "redis://user:hunter2@127.0.0.1:99999",
            "redis://user:hunter2@127.0.0.1/no-number",
            "redis-cluster://user:hunter2@",
            "redis-cluster://user:hunter2@127.0.0.1:1,,",
        ] {
            let error = Target::parse(url, &FilterOptions::default()).err().expect(url);
            assert_eq!(error.kind(), StoreErrorKind::Invalid, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.to_string().contains("redis"), "{error}");
        }
    }

    #[test]
    fn a_name_holds_no_password() {
        for (url, name) in [
            ("redis://127.0.0.1:7000/3", "127.0.0.1:7000"),
            ("rediss://user:hunter2@redis.example", "redis.example:6379"),
            ("redis-cluster://:hunter2@h1:1,h2:2", "h1:1,h2:2"),
        ] {
            let (_, parsed) = Target::parse(url, &FilterOptions::default()).unwrap();
            assert_eq!(parsed, name);
        }
    }
}
