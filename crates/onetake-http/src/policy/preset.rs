//! Presets: policy values for common use cases.

use std::time::Duration;

use http::HeaderName;

use crate::fingerprint::FingerprintMode;
use crate::policy::{KeySource, OnStoreDown, RequestValue};
use crate::status::Disposition;

/// A set of policy values for a use case. Each value can be overridden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preset {
    /// 24 hours; a key is required, a tenant must be named, every 5xx is unknown, fail-closed.
    Payment,
    /// 1 hour; every 5xx is released.
    Signup,
    /// 7 days; every 5xx is released.
    Webhook,
    /// 30 days; every 5xx is released.
    Job,
    /// 72 hours; a key is required, every 5xx is unknown, fail-closed.
    HighConsequence,
    /// Webhooks of GitHub: like [`Webhook`](Self::Webhook), and the key is `X-GitHub-Delivery`.
    Github,
    /// Webhooks of Shopify: like [`Webhook`](Self::Webhook), and the key is `X-Shopify-Webhook-Id`.
    Shopify,
    /// Webhooks of Stripe: like [`Webhook`](Self::Webhook), and the key is the `id` of the event in
    /// its JSON. Its `pending_webhooks` is not part of the fingerprint.
    StripeWebhook,
    /// Webhooks of Svix: like [`Webhook`](Self::Webhook), and the key is `svix-id`.
    Svix,
    /// [Standard Webhooks](https://www.standardwebhooks.com): like [`Webhook`](Self::Webhook), and
    /// the key is `webhook-id`.
    StandardWebhooks,
}

impl Preset {
    /// Every preset with its name.
    pub const ALL: [(&'static str, Self); 10] = [
        ("payment", Self::Payment),
        ("signup", Self::Signup),
        ("webhook", Self::Webhook),
        ("job", Self::Job),
        ("high-consequence", Self::HighConsequence),
        ("github", Self::Github),
        ("shopify", Self::Shopify),
        ("stripe-webhook", Self::StripeWebhook),
        ("svix", Self::Svix),
        ("standard-webhooks", Self::StandardWebhooks),
    ];

    /// True if a second run is expensive. The preset then requires a key and refuses requests while
    /// the store is unreachable.
    #[must_use]
    pub const fn is_dear(self) -> bool {
        matches!(self, Self::Payment | Self::HighConsequence)
    }

    /// Returns the values of this preset. They are shared by the gateway's file and
    /// [`Policy::preset`](crate::Policy::preset).
    #[must_use]
    pub fn values(self) -> PresetValues {
        let hours = match self {
            Self::Payment => 24,
            Self::Signup => 1,
            Self::Job => 30 * 24,
            Self::HighConsequence => 72,
            Self::Webhook
            | Self::Github
            | Self::Shopify
            | Self::StripeWebhook
            | Self::Svix
            | Self::StandardWebhooks => 7 * 24,
        };
        let is_dear = self.is_dear();
        let key_source = self.key_source();
        let fingerprint = match self {
            // The number of deliveries that are still pending differs in a repeated delivery.
            Self::StripeWebhook => FingerprintMode::json_without(["/pending_webhooks"]).ok(),
            _ => None,
        };
        PresetValues {
            ttl: Duration::from_secs(hours * 3600),
            key_required: if is_dear || key_source.is_some() { Some(true) } else { None },
            key_source,
            fingerprint,
            every_5xx: if is_dear { Disposition::Unknown } else { Disposition::Release },
            on_store_down: if is_dear { Some(OnStoreDown::FailClosed) } else { None },
            must_name_tenant: matches!(self, Self::Payment),
        }
    }

    /// The place where a sender of webhooks puts the number of an event.
    fn key_source(self) -> Option<KeySource> {
        let header = |name| RequestValue::Header(HeaderName::from_static(name));
        Some(match self {
            Self::Github => KeySource::Value(header("x-github-delivery")),
            Self::Shopify => KeySource::Value(header("x-shopify-webhook-id")),
            Self::Svix => KeySource::Value(header("svix-id")),
            Self::StandardWebhooks => KeySource::Value(header("webhook-id")),
            Self::StripeWebhook => return KeySource::json("/id").ok(),
            Self::Payment | Self::Signup | Self::Webhook | Self::Job | Self::HighConsequence => {
                return None;
            }
        })
    }
}

/// The values of a preset. `None` leaves a value unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresetValues {
    /// How long an outcome is kept.
    pub ttl: Duration,
    /// True if a request without a key is refused.
    pub key_required: Option<bool>,
    /// The source of the key.
    pub key_source: Option<KeySource>,
    /// The mode of comparing bodies.
    pub fingerprint: Option<FingerprintMode>,
    /// The disposition of every attempt with a 5xx response, 503 included.
    pub every_5xx: Disposition,
    /// The behaviour while the store is unreachable.
    pub on_store_down: Option<OnStoreDown>,
    /// True if the policy must name its tenant, because a wrong guess could mix the operations of
    /// two customers.
    pub must_name_tenant: bool,
}

impl std::fmt::Display for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = Self::ALL.iter().find(|(_, preset)| preset == self);
        f.write_str(found.map_or("", |(word, _)| word))
    }
}
