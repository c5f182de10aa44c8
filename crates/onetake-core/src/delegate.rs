//! Delegation of a decorator's methods to the store inside it.

/// Writes methods of [`Store`](crate::store::Store) that only ask the store inside: inside an `impl`,
/// `delegate_store!(self => self.inner; sweep, ready, close);`.
#[macro_export]
macro_rules! delegate_store {
    // What a test that is about operations seldom minds.
    (@inspect $this:ident, $inner:expr) => {
        $crate::delegate_store!($this => $inner; page, find, note, notes);
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
    (@abandoned $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, abandoned(
            limit: usize
        ) -> Result<Vec<$crate::store::Abandoned>, $crate::store::StoreError>);
    };
    (@unsettled $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, unsettled(
            limit: usize
        ) -> Result<Vec<$crate::store::Abandoned>, $crate::store::StoreError>);
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
    (@note $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, note(
            note: $crate::note::Note
        ) -> Result<(), $crate::store::StoreError>);
    };
    (@notes $this:ident, $inner:expr) => {
        $crate::delegate_store!(@method $this, $inner, notes(
            of: Option<$crate::scope::RecordId>, from: Option<$crate::store::Cursor>, limit: usize
        ) -> Result<$crate::note::Notes, $crate::store::StoreError>);
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
            // Also where the store inside is only handed out for the call.
            Box::pin(async move { $inner.$method($($name),*).await })
        }
    };
}
