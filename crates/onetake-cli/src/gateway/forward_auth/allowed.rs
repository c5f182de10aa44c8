//! Cache of requests that `forward_auth` allowed.
//!
//! An entry applies to the same question only: the same credential, method, URI and address. The
//! cache keeps digests of questions. It keeps no refusals, so that a new credential works at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use sha2::{Digest, Sha256};

use onetake_core::Rng;

/// Maximum number of entries per generation; there are two generations.
const GENERATION_MAX: usize = 8_192;

pub(super) type Question = [u8; 32];

pub(super) struct Allowed {
    /// How long an entry is valid.
    lasts: Duration,
    /// Salt of the digests, so that a reader of this memory cannot test guessed credentials with
    /// precomputed digests.
    salt: [u8; 32],
    generations: Mutex<Generations>,
}

/// New entries go into the younger generation. The older one is dropped as a whole, without a
/// search.
#[derive(Default)]
struct Generations {
    young: HashMap<Question, AllowedEntry>,
    old: HashMap<Question, AllowedEntry>,
    /// When the younger generation was started.
    since: Duration,
}

struct AllowedEntry {
    name: Vec<u8>,
    until: Duration,
}

impl Allowed {
    pub(super) fn new(lasts: Duration, rng: &dyn Rng) -> Self {
        let mut salt = [0; 32];
        rng.fill(&mut salt);
        Self { lasts, salt, generations: Mutex::default() }
    }

    pub(super) fn digest(&self, headers: &HeaderMap) -> Question {
        let mut digest = Sha256::new_with_prefix(self.salt);
        for (name, value) in headers {
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                digest.update((part.len() as u64).to_be_bytes());
                digest.update(part);
            }
        }
        digest.finalize().into()
    }

    /// Returns the cached principal, if the entry is still valid.
    pub(super) fn name(&self, question: &Question, now: Duration) -> Option<Vec<u8>> {
        if self.lasts.is_zero() {
            return None;
        }
        let generations = self.lock();
        let entry = generations.young.get(question).or_else(|| generations.old.get(question));
        entry.filter(|entry| now < entry.until).map(|entry| entry.name.clone())
    }

    /// Keeps the answer to a question that was asked at `asked_at`.
    pub(super) fn keep(&self, question: Question, name: Vec<u8>, asked_at: Duration) {
        if self.lasts.is_zero() {
            return;
        }
        let mut generations = self.lock();
        let is_over = asked_at.saturating_sub(generations.since) >= self.lasts;
        if is_over || generations.young.len() >= GENERATION_MAX {
            generations.old = std::mem::take(&mut generations.young);
            generations.since = asked_at;
        }
        let until = asked_at.saturating_add(self.lasts);
        generations.young.insert(question, AllowedEntry { name, until });
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::SystemRng;

    const SECOND: Duration = Duration::from_secs(1);

    fn question(number: usize) -> Question {
        let mut question = [0; 32];
        question[..8].copy_from_slice(&number.to_be_bytes());
        question
    }

    #[test]
    fn an_answer_counts_for_a_moment() {
        let allowed = Allowed::new(5 * SECOND, &SystemRng);
        allowed.keep(question(1), b"alice".to_vec(), 10 * SECOND);
        allowed.keep(question(2), b"bob".to_vec(), 14 * SECOND);
        assert_eq!(allowed.name(&question(1), 14 * SECOND), Some(b"alice".to_vec()));
        assert_eq!(allowed.name(&question(1), 15 * SECOND), None);
        allowed.keep(question(3), b"eve".to_vec(), 16 * SECOND);
        assert_eq!(allowed.name(&question(2), 16 * SECOND), Some(b"bob".to_vec()));
        assert_eq!(allowed.name(&question(4), 16 * SECOND), None);
        let never = Allowed::new(Duration::ZERO, &SystemRng);
        never.keep(question(1), b"alice".to_vec(), SECOND);
        assert_eq!(never.name(&question(1), SECOND), None);
    }

    #[test]
    fn memory_is_bounded() {
        let allowed = Allowed::new(60 * SECOND, &SystemRng);
        for number in 0..5 * GENERATION_MAX {
            allowed.keep(question(number), b"alice".to_vec(), SECOND);
            let generations = allowed.lock();
            assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION_MAX);
        }
        assert!(allowed.name(&question(5 * GENERATION_MAX - 1), SECOND).is_some());
    }

    #[test]
    fn every_part_of_a_question_counts() {
        let allowed = Allowed::new(SECOND, &SystemRng);
        let digest = |pairs: &[(&'static str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
            allowed.digest(&pairs.collect())
        };
        let all = [
            digest(&[]),
            digest(&[("authorization", "a"), ("x-api-key", "b")]),
            digest(&[("authorization", "b"), ("x-api-key", "a")]),
            digest(&[("authorization", "ab")]),
            digest(&[("authorization", "a")]),
            digest(&[("cookie", "a")]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        let other = Allowed::new(SECOND, &SystemRng);
        assert_ne!(other.digest(&HeaderMap::new()), all[0], "each process has its own salt");
    }
}
