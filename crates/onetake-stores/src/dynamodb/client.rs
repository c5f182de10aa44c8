//! The SDK's client, with the store's limits and clock.

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
use super::url::TableLocation;

/// Creates a client for the table. It reads credentials and sends no request yet.
pub(super) async fn connect(
    place: &TableLocation,
    options: &DynamoOptions,
) -> Result<Client, StoreError> {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(options.connect_timeout)
        .operation_attempt_timeout(options.command_timeout)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(place.region.clone()))
        .sleep_impl(ClockSleep(Arc::clone(&options.clock)))
        .timeout_config(timeouts)
        // The store retries by itself, because only it knows which writes may have been executed.
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // A node whose clock is far off must be refused: the margin of expiry depends on it.
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

/// The credentials for a server that is not AWS's: those that are configured on this machine, or
/// else placeholders.
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
        "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
         AWS_PROFILE, or give this machine a role ({why})"
    );
    Err(StoreError::new(StoreErrorKind::Invalid, what))
}

/// The SDK's timeouts by the store's clock.
#[derive(Debug)]
struct ClockSleep(Arc<dyn Clock>);

impl AsyncSleep for ClockSleep {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(SharedSleep(Mutex::new(self.0.sleep(duration))))
    }
}

/// A sleep that can be shared, as the SDK requires. Only its one owner polls it.
struct SharedSleep(Mutex<clock::Sleep>);

impl Future for SharedSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.get_mut().0.get_mut().unwrap_or_else(PoisonError::into_inner);
        sleep.as_mut().poll(context)
    }
}
