//! The SDK's client, with our limits and our clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{
    AsyncSleep, Credentials, ProvideCredentials, Region, SharedCredentialsProvider, Sleep,
    StalledStreamProtectionConfig,
};

use onetake_core::{Clock, StoreError, StoreErrorKind, clock};

use super::DynamoOptions;
use super::error::causes;
use super::url::Place;

/// A client for the place. Nothing is asked yet, but for credentials.
pub(super) async fn connect(place: &Place, options: &DynamoOptions) -> Result<Client, StoreError> {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(options.connect_timeout)
        .operation_attempt_timeout(options.command_timeout)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(place.region.clone()))
        .sleep_impl(ClockSleep(Arc::clone(&options.clock)))
        .timeout_config(timeouts)
        // Retries are ours: only we know which writes may have landed.
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // A node whose clock is far off must be refused: the margin of expiry rests on it.
        .disable_clock_skew_correction(true);
    if let Some(endpoint) = &place.endpoint {
        loader = loader.endpoint_url(endpoint);
        if endpoint.starts_with("http://") {
            loader = loader.credentials_provider(local_credentials().await);
        }
    }
    let config = loader.load().await;
    check_credentials(config.credentials_provider()).await?;
    Ok(Client::new(&config))
}

/// For a server of one's own: what is configured on this machine, or else anything.
async fn local_credentials() -> SharedCredentialsProvider {
    let profile = ProfileFileCredentialsProvider::builder().build();
    let configured =
        CredentialsProviderChain::first_try("env", EnvironmentVariableCredentialsProvider::new())
            .or_else("profile", profile);
    if configured.provide_credentials().await.is_ok() {
        return SharedCredentialsProvider::new(configured);
    }
    SharedCredentialsProvider::new(Credentials::new("onetake", "local", None, None, "onetake"))
}

async fn check_credentials(provider: Option<SharedCredentialsProvider>) -> Result<(), StoreError> {
    let why = match provider {
        None => "none are configured".to_owned(),
        Some(provider) => match provider.provide_credentials().await {
            Ok(_) => return Ok(()),
            Err(error) => causes(&error),
        },
    };
    let what = format!(
        "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
         AWS_PROFILE, or give this machine a role ({why})"
    );
    Err(StoreError::new(StoreErrorKind::Invalid, what))
}

/// The SDK's timeouts, by our clock.
#[derive(Debug)]
struct ClockSleep(Arc<dyn Clock>);

impl AsyncSleep for ClockSleep {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(Shared(Mutex::new(self.0.sleep(duration))))
    }
}

/// A sleep that may be shared, as the SDK wants it; it is only ever polled by its one owner.
struct Shared(Mutex<clock::Sleep>);

impl Future for Shared {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.get_mut().0.get_mut().unwrap_or_else(PoisonError::into_inner);
        sleep.as_mut().poll(context)
    }
}
