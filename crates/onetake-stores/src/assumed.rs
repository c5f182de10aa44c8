//! The shape of stores that are not here yet, so that what opens them can be written and compiled.
//!
//! Nothing here works: every way in is refused. Each goes when its store comes; the file with the
//! last.
#![allow(
    dead_code,
    missing_docs,
    clippy::allow_attributes,
    clippy::unused_async,
    reason = "none of this stays"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::{Abandoned, Answers, Swept};
use onetake_core::{
    Claim, Claimed, Clock, Record, RecordId, Rng, Settled, Settlement, Shift, Store, StoreError,
    StoreErrorKind, SystemClock, SystemRng,
};

use crate::Diagnosis;

fn missing(name: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, format!("this build has no store `{name}` yet"))
}

macro_rules! options {
    ($($name:ident { $($field:ident: $type:ty = $value:expr),* $(,)? })+) => {$(
        #[derive(Clone, Debug)]
        pub struct $name {
            pub clock: Arc<dyn Clock>,
            pub rng: Arc<dyn Rng>,
            pub shift: Shift,
            $(pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    clock: Arc::new(SystemClock),
                    rng: Arc::new(SystemRng),
                    shift: Shift::default(),
                    $($field: $value,)*
                }
            }
        }
    )+};
}

options! {
    PostgresOptions {
        connections: usize = 4,
        connect_timeout: Duration = Duration::from_secs(2),
        command_timeout: Duration = Duration::from_secs(2),
        allow_lossy: bool = false,
    }
    RedisOptions {}
    FilterOptions {}
    DynamoOptions {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    pub from: Option<u32>,
    pub to: u32,
}

macro_rules! store {
    ($($name:ident $word:literal)+) => {$(
        #[derive(Debug)]
        pub struct $name(());

        impl Store for $name {
            fn name(&self) -> &'static str {
                $word
            }
            fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
                async move { batch.iter().map(|_| Err(missing($word))).collect() }.boxed()
            }
            fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
                async move { batch.iter().map(|_| Err(missing($word))).collect() }.boxed()
            }
            fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
                async move { ids.iter().map(|_| Err(missing($word))).collect() }.boxed()
            }
            fn abandoned(&self, _: usize) -> BoxFuture<'_, Result<Vec<Abandoned>, StoreError>> {
                async { Err(missing($word)) }.boxed()
            }
            fn sweep(&self, _: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
                async { Err(missing($word)) }.boxed()
            }
            fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
                async { Err(missing($word)) }.boxed()
            }
            fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
                async { Ok(()) }.boxed()
            }
        }
    )+};
}

store! {
    PostgresStore "postgres"
    RedisStore "redis"
    FilteredStore "filtered"
    SqliteStore "sqlite"
    DynamoStore "dynamodb"
}

macro_rules! diagnose {
    ($($name:ident $word:literal)+) => {$(
        impl $name {
            pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
                Err(missing($word))
            }
        }
    )+};
}

diagnose! {
    RedisStore "redis"
    FilteredStore "filtered"
    SqliteStore "sqlite"
    DynamoStore "dynamodb"
}

impl PostgresStore {
    pub async fn diagnose(_url: &str, _: PostgresOptions) -> Result<Diagnosis, StoreError> {
        Err(missing("postgres"))
    }
    pub async fn open(_url: &str, _options: PostgresOptions) -> Result<Self, StoreError> {
        Err(missing("postgres"))
    }
    pub async fn migrate(_url: &str, _: PostgresOptions) -> Result<Migrated, StoreError> {
        Err(missing("postgres"))
    }
    pub async fn secret(&self, _name: &str) -> Result<[u8; 32], StoreError> {
        Err(missing("postgres"))
    }
}

impl RedisStore {
    pub async fn open(_url: &str, _options: RedisOptions) -> Result<Self, StoreError> {
        Err(missing("redis"))
    }
}

impl FilteredStore {
    pub async fn open(
        _url: &str,
        _secret: &[u8],
        _authority: Arc<dyn Store>,
        _options: FilterOptions,
    ) -> Result<Self, StoreError> {
        Err(missing("filtered"))
    }
}

impl SqliteStore {
    pub fn open_with(_file: &Path, _clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        Err(missing("sqlite"))
    }
}

impl DynamoStore {
    pub async fn open(_url: &str, _options: DynamoOptions) -> Result<Self, StoreError> {
        Err(missing("dynamodb"))
    }
    pub async fn migrate(_url: &str, _options: DynamoOptions) -> Result<bool, StoreError> {
        Err(missing("dynamodb"))
    }
}
