//! Pools and transactions of sqlx, version 0.9.

use ::sqlx::postgres::{PgConnectOptions, PgSslMode};
use ::sqlx::{ConnectOptions as _, PgConnection, PgPool, Postgres, Transaction};
use onetake_core::{
    Attempt, Completion, FinishError, Message, OpenTransaction, StoreError, StoreErrorKind,
    TransactionSource,
};
use percent_encoding::percent_decode_str;
use tokio_postgres::Config;

use super::address::{Address, Tls};
use super::finish::{FINISH, MessageColumns, STALE_SQLSTATE};

/// The same as [`finish`](super::finish()), in a transaction of sqlx.
///
/// # Errors
/// If the attempt is stale, a message is too large, or the server refuses or does not answer.
pub async fn finish(
    transaction: &mut Transaction<'_, Postgres>,
    attempt: &Attempt,
    completion: &Completion,
) -> Result<(), FinishError<::sqlx::Error>> {
    let Completion { recording, messages, .. } = completion;
    Message::check(messages)?;
    let columns = MessageColumns::of(attempt, messages);
    let finishing = ::sqlx::query(FINISH)
        // The statement is unnamed, so that nothing of it remains on a connection that a pooler
        // shares.
        .persistent(false)
        .bind(attempt.id.as_bytes().as_slice())
        .bind(attempt.attempt.as_bytes().as_slice())
        .bind(recording.head.as_ref())
        .bind(recording.body.as_deref())
        .bind(&columns.ids)
        .bind(&columns.lanes)
        .bind(&columns.orders)
        .bind(&columns.topics)
        .bind(&columns.headers)
        .bind(&columns.payloads);
    let answer = finishing.execute(&mut **transaction).await;
    if matches!(answer, Ok(_) | Err(::sqlx::Error::Database(_) | ::sqlx::Error::Io(_))) {
        completion.mark_executed();
    }
    match answer {
        Ok(_) => Ok(()),
        Err(::sqlx::Error::Database(error)) if error.code().as_deref() == Some(STALE_SQLSTATE) => {
            Err(FinishError::Stale)
        }
        Err(error) => Err(FinishError::Database(error)),
    }
}

/// sqlx, as a source of transactions.
#[derive(Debug)]
pub enum Sqlx {}

/// A transaction of a [`PgPool`]. It is rolled back if it is dropped.
#[derive(Debug)]
pub struct PoolTransaction(Transaction<'static, Postgres>);

impl TransactionSource<Sqlx> for &PgPool {
    type Transaction = PoolTransaction;
    type Error = ::sqlx::Error;

    async fn begin(self) -> Result<PoolTransaction, ::sqlx::Error> {
        PgPool::begin(self).await.map(PoolTransaction)
    }
}

impl OpenTransaction for PoolTransaction {
    type Native = Transaction<'static, Postgres>;
    type Executor = PgConnection;
    type Error = ::sqlx::Error;

    fn native(&mut self) -> &mut Self::Native {
        &mut self.0
    }

    fn executor(&self) -> &PgConnection {
        &self.0
    }

    fn executor_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }

    async fn finish(
        &mut self,
        attempt: &Attempt,
        completion: &Completion,
    ) -> Result<(), FinishError<::sqlx::Error>> {
        finish(&mut self.0, attempt, completion).await
    }

    async fn commit(self) -> Result<(), ::sqlx::Error> {
        self.0.commit().await
    }
}

/// The server of a pool, with the pool's user, password and TLS.
pub(super) fn address(options: &PgConnectOptions) -> Result<Address, StoreError> {
    let mut config = Config::new();
    config.user(options.get_username());
    match options.get_socket() {
        Some(folder) => config.host_path(folder),
        None => config.host(options.get_host()),
    };
    config.port(options.get_port());
    if let Some(database) = options.get_database() {
        config.dbname(database);
    }
    if let Some(name) = options.get_application_name() {
        config.application_name(name);
    }
    if let Some(settings) = options.get_options() {
        config.options(settings);
    }
    // Only the URL tells the password and the certificates. A user or a host with special
    // characters would not make a URL, and neither is needed here.
    let url = options.clone().username("user").host("localhost").to_url_lossy();
    if let Some(password) = url.password() {
        config.password(percent_decode_str(password).collect::<Vec<u8>>());
    }
    let certificate = |name: &str| {
        url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    if certificate("sslcert").is_some() || certificate("sslkey").is_some() {
        return Err(invalid(
            "the pool uses a client certificate, which the store does not support: use a role with a password",
        ));
    }
    let roots = match certificate("sslrootcert") {
        None => None,
        Some(shown) => match shown.strip_prefix("file: ") {
            Some(file) => Some(file.into()),
            None => {
                return Err(invalid(
                    "the root certificates of the pool are not in a file, and the store reads them \
                     from a file: write them to a file, and name it with ssl_root_cert",
                ));
            }
        },
    };
    let tls = match options.get_ssl_mode() {
        PgSslMode::Disable => Tls::Off,
        // Without TLS first, or with TLS first: the stricter of the two.
        PgSslMode::Allow | PgSslMode::Prefer => Tls::Prefer,
        PgSslMode::Require => Tls::Require,
        PgSslMode::VerifyFull => Tls::VerifyFull(roots),
        PgSslMode::VerifyCa => {
            return Err(invalid(
                "the pool has sslmode=verify-ca, which the store does not support: use \
                 verify-full, which also checks the name of the server",
            ));
        }
    };
    Ok(Address::new(&mut config, tls, None))
}

fn invalid(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::config::Host;

    #[test]
    fn a_pool_s_address_is_carried_over() {
        let options = PgConnectOptions::new_without_pgpass()
            .host("db.example")
            .port(5433)
            .username("a@b/c#")
            .password("p@s/s%25 ü")
            .database("shop")
            .application_name("shop")
            .ssl_mode(PgSslMode::VerifyFull)
            .ssl_root_cert("/etc/ca file.pem")
            .options([("search_path", "idem")]);
        let address = address(&options).unwrap();
        let config = &address.config;
        assert_eq!(config.get_user(), Some("a@b/c#"));
        assert_eq!(config.get_password(), Some("p@s/s%25 ü".as_bytes()));
        assert_eq!(config.get_hosts(), [Host::Tcp("db.example".into())]);
        assert_eq!((config.get_ports(), config.get_dbname()), (&[5433][..], Some("shop")));
        assert_eq!(config.get_application_name(), Some("shop"));
        assert_eq!(config.get_options(), Some("-c search_path=idem"));
        assert_eq!(address.tls, Tls::VerifyFull(Some("/etc/ca file.pem".into())));
    }

    #[test]
    fn what_cannot_be_carried_over_is_refused() {
        let plain = || PgConnectOptions::new_without_pgpass().host("db").username("me");
        for (options, hint) in [
            (plain().ssl_mode(PgSslMode::VerifyCa), "verify-full"),
            (plain().ssl_client_cert("/etc/me.pem"), "client certificate"),
            (plain().ssl_client_key("/etc/me.key"), "client certificate"),
            (plain().ssl_root_cert_from_pem(b"-----BEGIN".to_vec()), "not in a file"),
        ] {
            let error = address(&options).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Invalid);
            assert!(error.to_string().contains(hint), "{error}");
        }
        let socket = address(&plain().socket("/run/postgresql")).unwrap();
        assert_eq!(socket.config.get_hosts(), [Host::Unix("/run/postgresql".into())]);
    }
}
