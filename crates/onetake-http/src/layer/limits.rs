//! The limits of the layer.

/// The limits of the layer. The engine has limits of its own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// The most memory for keyed requests, in bytes. Heads and bodies count as they arrive, until
    /// the outcome is settled. Further requests are refused as overloaded. One tenant gets at most
    /// two thirds of it, and one [`BodyShare`](crate::BodyShare) about a third.
    pub body_bytes_max: usize,
    /// The least rate at which a body arrives, in bytes per second and after five seconds. A slower
    /// body is refused with 408. 0 is no limit.
    pub body_rate_min: usize,
    /// The most values that velocity limits remember in this process, at about 200 bytes each.
    /// Above this, the value with the smallest debt is forgotten first: see
    /// [`velocity`](crate::velocity).
    pub velocity_values_max: usize,
    /// The most payloads that are remembered to find them under another key, at about 250 bytes
    /// each. Above this, the payload that expires first is forgotten: see
    /// [`duplicates`](crate::duplicates).
    pub duplicate_payloads_max: usize,
}

impl HttpLimits {
    /// Sets the most memory for keyed requests, in bytes.
    #[must_use]
    pub const fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// Sets the least rate at which a body arrives, in bytes per second.
    #[must_use]
    pub const fn body_rate_min(mut self, bytes_per_second: usize) -> Self {
        self.body_rate_min = bytes_per_second;
        self
    }

    /// Sets the most values that velocity limits remember.
    #[must_use]
    pub const fn velocity_values_max(mut self, values: usize) -> Self {
        self.velocity_values_max = values;
        self
    }

    /// Sets the most payloads that are remembered to find them under another key.
    #[must_use]
    pub const fn duplicate_payloads_max(mut self, payloads: usize) -> Self {
        self.duplicate_payloads_max = payloads;
        self
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: 256 << 20,
            body_rate_min: 240,
            velocity_values_max: 100_000,
            duplicate_payloads_max: 100_000,
        }
    }
}
