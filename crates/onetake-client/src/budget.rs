//! The retry budget.

use std::sync::{Mutex, PoisonError};

/// A token bucket for retries. All calls of an [`Onetake`](crate::Onetake) share it.
#[derive(Debug)]
pub struct Budget {
    tokens: Mutex<f64>,
    reserve: f64,
    ratio: f64,
}

impl Budget {
    /// Makes a full budget. At most `reserve` retries are saved up. Each call earns `ratio` retries:
    /// 0.1 means that retries are at most 10 % of calls.
    #[must_use]
    pub fn new(reserve: f64, ratio: f64) -> Self {
        Self { tokens: Mutex::new(reserve), reserve, ratio }
    }

    /// Sets the retries at the start.
    #[must_use]
    pub fn with_initial(self, initial: f64) -> Self {
        Self { tokens: Mutex::new(initial), ..self }
    }

    /// Counts a call.
    pub(crate) fn earn(&self) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        *tokens = (*tokens + self.ratio).min(self.reserve);
    }

    /// Takes one retry. Returns false if none is left.
    pub(crate) fn spend(&self) -> bool {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        // Sums of 0.1 are a little less than a whole number.
        let has_one = *tokens >= 1.0 - 1e-9;
        if has_one {
            *tokens -= 1.0;
        }
        has_one
    }
}

impl Default for Budget {
    /// A reserve of 10, and a ratio of 0.1.
    fn default() -> Self {
        Self::new(10.0, 0.1)
    }
}
