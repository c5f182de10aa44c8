//! `onetake relay`: delivers the outbox, and manages messages that could not be delivered.

mod operate;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use clap::{Args, Subcommand};
use http::Uri;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use onetake_core::{Clock, ErrorChain, MessageId, SystemClock, SystemRng};
use onetake_relay::{Relay, Sink, WebhookOptions, WebhookSink};
use tokio_util::sync::CancellationToken;

use crate::cli::{Failed, input, read, runtime, stop_signal};
use crate::config::{self, Overrides, RelayConfig, StoreConfig};
use crate::gateway::{Connector, serve_metrics};
use crate::logs::{self, LogFormat};
use crate::stores;

/// Idle connections to an endpoint are closed before most servers close them.
const IDLE_MAX: std::time::Duration = std::time::Duration::from_secs(4);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Option<Act>,
    /// The configuration file.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// The store that holds the outbox: postgres://… or sqlite:FILE (default: the configured
    /// store).
    #[arg(long, value_name = "URL", global = true)]
    store: Option<String>,
    /// The destination of messages: nats://HOST:4222, or https://HOST/PATH with secrets in the
    /// configuration.
    #[arg(long, value_name = "URL")]
    sink: Option<String>,
    /// The log format.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

/// Operator actions on messages that could not be delivered.
#[derive(Debug, Subcommand)]
enum Act {
    /// List parked messages (dead letters).
    Parked {
        /// Maximum number of messages, from 1 to 10000.
        #[arg(long, value_name = "NUMBER", default_value_t = 100,
              value_parser = clap::value_parser!(u16).range(1..=10_000))]
        limit: u16,
    },
    /// List messages that failed and will be retried.
    Failing {
        /// Maximum number of messages, from 1 to 10000.
        #[arg(long, value_name = "NUMBER", default_value_t = 100,
              value_parser = clap::value_parser!(u16).range(1..=10_000))]
        limit: u16,
    },
    /// Deliver a parked message again, or retry a failing one now.
    Retry {
        /// The message's id.
        id: MessageId,
    },
    /// Delete a parked or failing message, so that later messages of its ordering key go on.
    Discard {
        /// The message's id.
        id: MessageId,
    },
}

impl Arguments {
    pub(crate) fn run(mut self) -> ExitCode {
        let ran = match self.act.take() {
            Some(act) => self.operate(&act),
            None => self.relay(),
        };
        ran.unwrap_or_else(ExitCode::from)
    }

    fn operate(self, act: &Act) -> Result<ExitCode, Failed> {
        let (text, name) = read(self.config.as_deref())?;
        let overrides = Overrides { store: self.store, ..Overrides::default() };
        let config = input(text.as_deref(), &name, overrides).store();
        let config: StoreConfig =
            config.map_err(|error| Failed(ErrorChain(&error).to_string(), 2))?;
        runtime()?.block_on(async {
            let outbox = stores::open_outbox(&config).await;
            operate::run(act, &*outbox.map_err(|error| Failed(ErrorChain(&error).to_string(), 3))?)
                .await
        })
    }

    fn relay(self) -> Result<ExitCode, Failed> {
        logs::init(self.log_format);
        let (text, name) = read(self.config.as_deref())?;
        let overrides = Overrides { store: self.store, sink: self.sink, ..Overrides::default() };
        let config = input(text.as_deref(), &name, overrides).relay();
        let config = config.map_err(|error| Failed(ErrorChain(&error).to_string(), 2))?;
        runtime()?.block_on(deliver(config)).map(|()| ExitCode::SUCCESS)
    }
}

/// Checks the relay of a configuration file and the certificates that it names. Returns its
/// destination.
pub(crate) fn check(text: Option<&str>, name: &str) -> Result<String, Failed> {
    let config = input(text, name, Overrides::default()).relay();
    let config = config.map_err(|error| Failed(ErrorChain(&error).to_string(), 2))?;
    match &config.sink {
        config::Sink::Nats(url) => Ok(url.to_string()),
        config::Sink::Webhook(url) => {
            if is_https(url) {
                let checked = Connector::check(&config.tls, &SystemClock);
                checked.map_err(|error| Failed(ErrorChain(&error).to_string(), 2))?;
            }
            Ok(host_of(url))
        }
    }
}

/// Builds, announces, delivers, drains.
async fn deliver(config: RelayConfig) -> Result<(), Failed> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let stop = CancellationToken::new();
    let metrics = match config.relay.listen {
        Some(listen) => {
            let served =
                serve_metrics(listen, config.token.clone(), Arc::clone(&clock), stop.clone());
            Some(served.await.map_err(|error| Failed(ErrorChain(&error).to_string(), 3))?)
        }
        None => None,
    };
    let outbox = stores::open_outbox(&config.store).await;
    let outbox = outbox.map_err(|error| Failed(ErrorChain(&error).to_string(), 3))?;
    let (sink, place) = sink(&config, &clock).await?;
    let (store, name) = (config.store.url.to_string(), sink.name());
    let relay = Relay::with(outbox, sink, clock, Arc::new(SystemRng), config.relay.options());
    let metrics = metrics.map(|address| address.to_string()).unwrap_or_default();
    tracing::info!(store, sink = name, place, metrics, "the relay is ready");
    let running = relay.run(stop.clone());
    tokio::pin!(running);
    tokio::select! {
        () = running.as_mut() => {}
        signal = stop_signal() => {
            tracing::info!(signal, "draining: no new deliveries are started");
            stop.cancel();
        }
    }
    tokio::select! {
        () = running => {}
        signal = stop_signal() => {
            return Err(Failed(format!("stopped immediately by a second {signal}"), 1));
        }
    }
    tracing::info!("drained");
    Ok(())
}

/// Connects the sink, and returns its destination without secrets.
async fn sink(
    config: &RelayConfig,
    clock: &Arc<dyn Clock>,
) -> Result<(Arc<dyn Sink>, String), Failed> {
    match &config.sink {
        #[cfg(feature = "nats")]
        config::Sink::Nats(url) => {
            let options = onetake_relay::NatsOptions {
                subject_prefix: config.relay.subject_prefix.clone(),
                ack_timeout: config.relay.timeout,
                ..onetake_relay::NatsOptions::default()
            };
            let sink = onetake_relay::NatsSink::connect(url.servers(), options, Arc::clone(clock));
            let sink =
                sink.await.map_err(|error| Failed(format!("relay.sink {url}: {error}"), 2))?;
            Ok((Arc::new(sink), url.to_string()))
        }
        #[cfg(not(feature = "nats"))]
        config::Sink::Nats(url) => {
            let what = "this build does not support NATS; build onetake with `--features nats`";
            Err(Failed(format!("relay.sink {url}: {what}"), 2))
        }
        config::Sink::Webhook(url) => {
            let tls = is_https(url).then(|| config.tls.clone());
            let connector = Connector::new(tls, Arc::clone(clock));
            let connector = connector.map_err(|error| Failed(ErrorChain(&error).to_string(), 3))?;
            let client = Client::builder(TokioExecutor::new())
                .pool_idle_timeout(IDLE_MAX)
                .pool_timer(TokioTimer::new())
                .build::<_, Full<Bytes>>(connector);
            let options = WebhookOptions {
                answer_timeout: config.relay.timeout,
                ..WebhookOptions::default()
            };
            let (client, clock) = (Arc::new(client), Arc::clone(clock));
            let secrets = config.relay.secrets.clone();
            let sink = WebhookSink::new(url.clone(), secrets, client, clock, options);
            Ok((Arc::new(sink), host_of(url)))
        }
    }
}

fn is_https(url: &Uri) -> bool {
    url.scheme() == Some(&http::uri::Scheme::HTTPS)
}

/// The host of a webhook. The rest of the URL may be secret.
fn host_of(url: &Uri) -> String {
    url.authority().map(ToString::to_string).unwrap_or_default()
}
