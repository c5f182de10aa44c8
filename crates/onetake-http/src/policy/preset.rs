//! Presets: policy values for common use cases.

use std::time::Duration;

use crate::policy::OnStoreDown;
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
}

impl Preset {
    /// Every preset with its name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("payment", Self::Payment),
        ("signup", Self::Signup),
        ("webhook", Self::Webhook),
        ("job", Self::Job),
        ("high-consequence", Self::HighConsequence),
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
    pub const fn values(self) -> PresetValues {
        let hours = match self {
            Self::Payment => 24,
            Self::Signup => 1,
            Self::Webhook => 7 * 24,
            Self::Job => 30 * 24,
            Self::HighConsequence => 72,
        };
        let is_dear = self.is_dear();
        PresetValues {
            ttl: Duration::from_secs(hours * 3600),
            key_required: if is_dear { Some(true) } else { None },
            every_5xx: if is_dear { Disposition::Unknown } else { Disposition::Release },
            on_store_down: if is_dear { Some(OnStoreDown::FailClosed) } else { None },
            must_name_tenant: matches!(self, Self::Payment),
        }
    }
}

/// The values of a preset. `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresetValues {
    /// How long an outcome is kept.
    pub ttl: Duration,
    /// True if a request without a key is refused.
    pub key_required: Option<bool>,
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
