//! Delegation of a decorator's methods to the store inside it.

/// Writes the methods and traits that a decorator of a store leaves to the store inside it.
///
/// Inside an `impl` of one of the traits of a [`Store`](crate::store::Store), it writes methods.
/// Outside of one, it writes whole trait implementations:
///
/// ```
/// # use std::sync::Arc;
/// # use onetake_core::store::{BoxFuture, Store, StoreError, Swept};
/// use onetake_core::delegate_store;
///
/// /// A store that another process sweeps.
/// #[derive(Debug)]
/// struct Unswept(Arc<dyn Store>);
///
/// impl Store for Unswept {
///     fn sweep(&self, _: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
///         Box::pin(async { Ok(Swept::default()) })
///     }
///
///     delegate_store!(self => self.0; name, claim, settle, load, due, ready, close);
/// }
///
/// delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Unswept, self => self.0);
/// ```
#[macro_export]
macro_rules! delegate_store {
    (impl $($part:ident),+ for $decorator:ty, $this:ident => $inner:expr) => {
        $($crate::delegate_store!(@impl $part $decorator, $this, $inner);)+
    };
    (@impl RecordIndex $decorator:ty, $this:ident, $inner:expr) => {
        impl $crate::store::RecordIndex for $decorator {
            $crate::delegate_store!($this => $inner; page, find);
        }
    };
    (@impl AuditLog $decorator:ty, $this:ident, $inner:expr) => {
        impl $crate::store::AuditLog for $decorator {
            $crate::delegate_store!($this => $inner; audit, audit_entries);
        }
    };
    (@impl SharedSecrets $decorator:ty, $this:ident, $inner:expr) => {
        impl $crate::store::SharedSecrets for $decorator {
            $crate::delegate_store!($this => $inner; secret);
        }
    };
    (@impl Sealing $decorator:ty, $this:ident, $inner:expr) => {
        impl $crate::store::Sealing for $decorator {
            $crate::delegate_store!($this => $inner; seal);
        }
    };
    ($this:ident => $inner:expr; $($method:ident),+ $(,)?) => {
        $($crate::delegate_store!(@$method $this, $inner);)+
    };
    (@name $this:ident, $inner:expr) => {
        fn name(&$this) -> &'static str {
            $inner.name()
        }
    };
    (@claim $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, claim(
            batch: Vec<$crate::store::Claim>
        ) -> $crate::store::Answers<$crate::store::Claimed>);
    };
    (@settle $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, settle(
            batch: Vec<$crate::store::Settlement>
        ) -> $crate::store::Answers<$crate::store::Settled>);
    };
    (@load $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, load(
            ids: Vec<$crate::scope::RecordId>
        ) -> $crate::store::Answers<Option<::std::sync::Arc<$crate::record::Record>>>);
    };
    (@due $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, due(
            which: $crate::store::Due, limit: usize
        ) -> Result<Vec<$crate::store::DueAttempt>, $crate::store::StoreError>);
    };
    (@sweep $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, sweep(
            limit: usize
        ) -> Result<$crate::store::Swept, $crate::store::StoreError>);
    };
    (@page $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, page(
            from: Option<$crate::store::Cursor>, limit: usize
        ) -> Result<$crate::store::Page, $crate::store::StoreError>);
    };
    (@find $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, find(
            reference: $crate::scope::Reference
        ) -> Result<Vec<$crate::scope::RecordId>, $crate::store::StoreError>);
    };
    (@audit $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, audit(
            entry: $crate::audit::AuditEntry
        ) -> Result<(), $crate::store::StoreError>);
    };
    (@audit_entries $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, audit_entries(
            of: Option<$crate::scope::RecordId>, from: Option<$crate::store::Cursor>, limit: usize
        ) -> Result<$crate::audit::AuditPage, $crate::store::StoreError>);
    };
    (@secret $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, secret(
            name: &'static str, fresh: [u8; 32]
        ) -> Result<[u8; 32], $crate::store::StoreError>);
    };
    (@seal $this:ident, $inner:expr) => {
        fn seal(
            &$this,
            id: $crate::scope::RecordId,
            attempt: $crate::record::AttemptId,
            recording: $crate::record::Recording,
        ) -> Result<$crate::record::Recording, $crate::store::StoreError> {
            $inner.seal(id, attempt, recording)
        }
    };
    (@ready $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, ready(
        ) -> Result<(), $crate::store::StoreError>);
    };
    (@close $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, close(
        ) -> Result<(), $crate::store::StoreError>);
    };
    (@method $this:ident, $inner:expr, $method:ident($($name:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$this, $($name: $kind),*) -> $crate::store::BoxFuture<'_, $answer> {
            // This also works if `$inner` is a temporary that lives only for the call.
            Box::pin(async move { $inner.$method($($name),*).await })
        }
    };
}
