//! A set of keys that can be replaced while requests are verified with it.
//!
//! The set fetches nothing itself. A fetcher (the gateway has one) waits for [`JwtKeySet::wanted`]
//! or for its own period, fetches a JSON Web Key Set (RFC 7517), and passes it to
//! [`JwtKeySet::replace`]. This crate therefore needs no HTTP client, and a library user can take
//! keys from any source.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::jwk::Jwk;
use onetake_core::Clock;
use tokio::sync::Notify;

use super::key::JwtKey;

/// The largest number of keys in a set.
pub const JWKS_KEYS_MAX: usize = 64;
/// The longest time that a request waits for a key that the set does not have.
pub const JWKS_WAIT_MAX: Duration = Duration::from_secs(2);
/// The shortest time between two fetches that tokens with unknown keys cause. Clients cannot
/// shorten it.
pub const JWKS_REFRESH_PAUSE: Duration = Duration::from_secs(5);

/// A replaceable set of keys. Clones share the set.
#[derive(Clone)]
pub struct JwtKeySet(Arc<Inner>);

struct Inner {
    source: String,
    state: Mutex<KeySetState>,
    /// Notifies the fetcher that a refresh is wanted.
    wanted: Notify,
    /// Notifies requests that a refresh ended.
    ended: Notify,
}

#[derive(Default)]
struct KeySetState {
    keys: Arc<[JwtKey]>,
    is_loaded: bool,
    is_failing: bool,
    /// True while a refresh is wanted or under way.
    is_pending: bool,
    /// The end of the latest refresh, by the monotonic clock.
    ended_at: Option<Duration>,
}

/// The reason why a key set is refused. The message repeats nothing of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwksError {
    /// The text is not a key set.
    #[error("the response is not a JSON Web Key Set (a JSON object with a list `keys`)")]
    Malformed,
    /// The set has too many keys.
    #[error("the key set has more than {JWKS_KEYS_MAX} keys")]
    TooMany,
    /// The set has no key that can verify tokens.
    #[error("the key set has no public key for RS256 (2048 bits or more), ES256 or EdDSA")]
    NoKey,
}

impl JwtKeySet {
    /// Returns an empty set. `source` names its origin in logs and metrics: a URL without
    /// credentials.
    #[must_use]
    pub fn new(source: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            source: source.into(),
            state: Mutex::default(),
            wanted: Notify::new(),
            ended: Notify::new(),
        }))
    }

    /// The origin of the keys.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Waits until a token names a key that is not in the set. Only one fetcher may wait.
    pub async fn wanted(&self) {
        self.0.wanted.notified().await;
    }

    /// Replaces the keys by those of a JSON Web Key Set, and returns their number. Symmetric keys,
    /// and keys that are not for signatures in RS256, ES256 or EdDSA, are left out.
    ///
    /// # Errors
    /// Returns an error if the set is refused. The old keys stay, and the refresh counts as failed.
    pub fn replace(&self, jwks: &[u8], clock: &dyn Clock) -> Result<usize, JwksError> {
        let read = parse(jwks);
        let mut state = self.end(clock);
        let outcome = read.map(|keys| {
            state.keys = keys.into();
            state.is_loaded = true;
            state.keys.len()
        });
        state.is_failing = outcome.is_err();
        drop(state);
        self.0.ended.notify_waiters();
        outcome
    }

    /// Reports that the keys could not be fetched. The old keys stay in use.
    pub fn failed(&self, clock: &dyn Clock) {
        self.end(clock).is_failing = true;
        self.0.ended.notify_waiters();
    }

    /// True after the first successful refresh.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.state().is_loaded
    }

    /// True if the latest refresh failed or none has succeeded yet. A key that is missing may then
    /// exist.
    pub(super) fn is_stale(&self) -> bool {
        let state = self.state();
        state.is_failing || !state.is_loaded
    }

    pub(super) fn keys(&self) -> Arc<[JwtKey]> {
        Arc::clone(&self.state().keys)
    }

    /// Asks for a refresh. Returns false if the latest one is too recent and none is under way.
    fn want(&self, now: Duration) -> bool {
        let mut state = self.state();
        if state.is_pending {
            return true;
        }
        if state.ended_at.is_some_and(|ended| now < ended.saturating_add(JWKS_REFRESH_PAUSE)) {
            return false;
        }
        state.is_pending = true;
        drop(state);
        self.0.wanted.notify_one();
        true
    }

    /// True if a request should wait for a refresh.
    pub(super) fn may_be_refreshed(&self, now: Duration) -> bool {
        let state = self.state();
        let is_recent = |ended: Duration| now < ended.saturating_add(JWKS_REFRESH_PAUSE);
        state.is_pending || !state.ended_at.is_some_and(is_recent)
    }

    /// Waits for a refresh, for at most [`JWKS_WAIT_MAX`].
    pub(super) async fn refreshed(&self, clock: &dyn Clock) {
        let ended = self.0.ended.notified();
        let mut ended = std::pin::pin!(ended);
        ended.as_mut().enable();
        if !self.want(clock.monotonic()) {
            return;
        }
        tokio::select! {
            biased;
            () = ended => {}
            () = clock.sleep(JWKS_WAIT_MAX) => {}
        }
    }

    fn end(&self, clock: &dyn Clock) -> MutexGuard<'_, KeySetState> {
        let mut state = self.state();
        state.is_pending = false;
        state.ended_at = Some(clock.monotonic());
        state
    }

    fn state(&self) -> MutexGuard<'_, KeySetState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clones of the same set are equal.
impl PartialEq for JwtKeySet {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for JwtKeySet {}

impl fmt::Debug for JwtKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKeySet").field("source", &self.source()).finish_non_exhaustive()
    }
}

/// Returns the keys of the set that can verify tokens.
fn parse(jwks: &[u8]) -> Result<Vec<JwtKey>, JwksError> {
    #[derive(serde::Deserialize)]
    struct Set {
        keys: Vec<serde_json::Value>,
    }
    let set: Set = serde_json::from_slice(jwks).map_err(|_| JwksError::Malformed)?;
    if set.keys.len() > JWKS_KEYS_MAX {
        return Err(JwksError::TooMany);
    }
    // A key of an unsupported kind does not invalidate the others.
    let known = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys: Vec<JwtKey> = known.filter_map(|jwk| JwtKey::of_jwk(&jwk)).collect();
    if keys.is_empty() { Err(JwksError::NoKey) } else { Ok(keys) }
}
