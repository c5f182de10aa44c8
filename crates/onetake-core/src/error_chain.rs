//! Error texts with their causes.

use std::error::Error;
use std::fmt;

/// Shows an error and all its causes in one line: `a: b: c`.
///
/// The errors of this workspace do not repeat their source in their own text. Some errors of other
/// crates do. A cause is left out if the text before it already contains it.
///
/// ```
/// use std::io;
///
/// use onetake_core::ErrorChain;
///
/// let error = io::Error::other(io::Error::other("no space"));
/// assert_eq!(ErrorChain(&error).to_string(), "no space");
/// ```
#[derive(Clone, Copy)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        f.write_str(&shown)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !shown.contains(&text) {
                write!(f, ": {text}")?;
                shown = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineError;
    use crate::store::{StoreError, StoreErrorKind};
    use crate::transaction::FinishError;

    /// Panics if an error's text contains the text of its source.
    fn assert_no_repetition(error: &(dyn Error + 'static)) {
        let mut error = error;
        while let Some(source) = error.source() {
            assert!(!error.to_string().contains(&source.to_string()), "{error} repeats {source}");
            error = source;
        }
    }

    #[test]
    fn an_error_names_each_cause_once() {
        let disk = std::io::Error::other("no space left");
        let store = StoreError::new(StoreErrorKind::Unavailable, "cannot write").with_source(disk);
        let finish = FinishError::<std::io::Error>::Unreadable(store.clone());
        let text = "the record cannot be read: cannot write: no space left";
        assert_eq!(ErrorChain(&finish).to_string(), text);
        assert_no_repetition(&finish);
        let engine = EngineError::from(store);
        assert_eq!(ErrorChain(&engine).to_string(), "cannot write: no space left");
        assert_no_repetition(&engine);
    }

    #[test]
    fn a_cause_that_its_error_repeats_is_shown_once() {
        let disk = std::io::Error::other("no space left");
        let store = StoreError::new(StoreErrorKind::Unavailable, format!("cannot write: {disk}"));
        assert_eq!(ErrorChain(&store.with_source(disk)).to_string(), "cannot write: no space left");
    }
}
