//! Values of a policy as text, in the notation of the gateway's configuration file.

use http::{HeaderName, Method, StatusCode};

use onetake_core::Rate;

use crate::fingerprint::FingerprintMode;
use crate::json::{Pointer, Selection};
use crate::policy::RequestValue;
use crate::status::StatusPattern;
use crate::tenant::Tenant;
use crate::velocity::By;

/// The error of a text that cannot be read as the value of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?}: {what}; {fix}")]
#[non_exhaustive]
pub struct TextError {
    /// The text as it was written.
    pub value: String,
    /// The mistake.
    pub what: String,
    /// The correction.
    pub fix: String,
}

impl TextError {
    pub(crate) fn new(value: &str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { value: value.to_owned(), what: what.into(), fix: fix.into() }
    }
}

/// A value of the type `T`, a text that is read as a `T`, or the result of reading one.
///
/// The methods of a [`Policy`](crate::Policy) take it. The policy keeps an invalid text, and the
/// layer's builder reports it together with all other mistakes.
pub trait TextOr<T> {
    /// Returns the value.
    ///
    /// # Errors
    /// If the text cannot be read.
    fn read(self) -> Result<T, TextError>;
}

impl<T> TextOr<T> for T {
    fn read(self) -> Result<T, TextError> {
        Ok(self)
    }
}

impl<T> TextOr<T> for Result<T, TextError> {
    fn read(self) -> Self {
        self
    }
}

macro_rules! read_text {
    ($($of:ty = $read:expr;)+) => {$(
        impl TextOr<$of> for &str {
            fn read(self) -> Result<$of, TextError> {
                let read: fn(&str) -> Result<$of, TextError> = $read;
                read(self)
            }
        }

        impl TextOr<$of> for String {
            fn read(self) -> Result<$of, TextError> {
                TextOr::<$of>::read(self.as_str())
            }
        }
    )+};
}

read_text! {
    StatusPattern = |text| text.parse().map_err(|_| {
        let fix = "write a status from 200 to 599, such as \"404\", or \"2xx\", \"3xx\", \"4xx\", \"5xx\", or a gRPC code, such as \"UNAVAILABLE\"";
        TextError::new(text, "not a status that can be recorded", fix)
    });
    HeaderName = |text| text.parse().map_err(|_| {
        TextError::new(text, "not a header name", "write for example \"x-account\"")
    });
    Method = |text| text.parse().map_err(|_| {
        TextError::new(text, "not a method", "write for example \"POST\"")
    });
    Pointer = |text| Pointer::parse(text).map_err(|error| {
        TextError::new(text, error.to_string(), "write a JSON Pointer, such as \"/order/id\"")
    });
    RequestValue = |text| match text.starts_with('/') {
        true => TextOr::<Pointer>::read(text).map(RequestValue::Json),
        false => text.parse(),
    };
    Rate = |text| text.parse::<Rate>().map_err(|error| {
        let fix = "write a number and a unit (s, min, h or d), such as \"5/min\"";
        TextError::new(text, error.to_string(), fix)
    });
    By = |text| match text {
        "tenant" => Ok(By::Tenant),
        _ => json_part(text).map(By::Json),
    };
    FingerprintMode = |text| match text {
        "bytes" => Ok(FingerprintMode::Bytes),
        "json" => Ok(FingerprintMode::Json(Selection::Whole)),
        _ => Err(TextError::new(text, "not a mode to compare bodies", "write \"bytes\" or \"json\"")),
    };
    Tenant = |text| match text {
        "credential" => Ok(Tenant::Credential),
        "public" => Ok(Tenant::Public),
        "client-ip" => Ok(Tenant::ClientIp),
        _ => {
            let fix = "write \"credential\", \"public\" or \"client-ip\", or Tenant::header(\"x-account\") for a header";
            Err(TextError::new(text, "not a tenant", fix))
        }
    };
}

impl TextOr<StatusPattern> for u16 {
    fn read(self) -> Result<StatusPattern, TextError> {
        self.to_string().read()
    }
}

impl TextOr<StatusPattern> for StatusCode {
    fn read(self) -> Result<StatusPattern, TextError> {
        Ok(StatusPattern::Exact(self))
    }
}

/// Reads a text such as `json:/order_id`.
fn json_part(text: &str) -> Result<Pointer, TextError> {
    let fix = "write for example \"json:/order_id\", or \"tenant\"";
    let pointer = text.strip_prefix("json:");
    let pointer = pointer
        .ok_or_else(|| TextError::new(text, "not \"tenant\" and not a json: pointer", fix))?;
    Pointer::parse(pointer).map_err(|error| TextError::new(text, error.to_string(), fix))
}

impl FingerprintMode {
    /// Compares bodies as JSON, without these members.
    ///
    /// # Errors
    /// If a text is not a JSON Pointer. [`Policy::fingerprint`](crate::Policy::fingerprint) takes
    /// the result as it is.
    pub fn json_without<P: TextOr<Pointer>>(
        pointers: impl IntoIterator<Item = P>,
    ) -> Result<Self, TextError> {
        all(pointers).map(|pointers| Self::Json(Selection::Exclude(pointers)))
    }

    /// Compares only these members of bodies, as JSON.
    ///
    /// # Errors
    /// If a text is not a JSON Pointer. [`Policy::fingerprint`](crate::Policy::fingerprint) takes
    /// the result as it is.
    pub fn json_only<P: TextOr<Pointer>>(
        pointers: impl IntoIterator<Item = P>,
    ) -> Result<Self, TextError> {
        all(pointers).map(|pointers| Self::Json(Selection::Include(pointers)))
    }
}

impl Tenant {
    /// The tenant is the value of a header that a trusted proxy sets, such as `"x-account"`.
    ///
    /// # Errors
    /// If the text is not a header name. [`Policy::tenant`](crate::Policy::tenant) takes the result
    /// as it is.
    pub fn header(name: impl TextOr<HeaderName>) -> Result<Self, TextError> {
        name.read().map(Self::Header)
    }
}

fn all<P: TextOr<Pointer>>(
    pointers: impl IntoIterator<Item = P>,
) -> Result<Vec<Pointer>, TextError> {
    pointers.into_iter().map(TextOr::read).collect()
}

/// Returns the candidate that is most similar to `word`, for suggestions after a typing error.
/// Returns `None` if no candidate is similar enough.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// The maximum length of a word. Longer words are not typing errors, and the time to compare
    /// them is quadratic.
    const LENGTH_MAX: usize = 64;
    let plain = |word: &str| word.to_lowercase().replace('-', "_");
    let length = word.chars().count();
    if length > LENGTH_MAX {
        return None;
    }
    let word = plain(word);
    let scored = candidates.into_iter().filter_map(|candidate| {
        let distance = strsim::damerau_levenshtein(&word, &plain(candidate));
        // A third of the letters may be wrong, or one letter of a short word.
        let allowed = (length.max(candidate.chars().count()) / 3).max(1);
        (distance <= allowed && distance < length.max(1)).then_some((distance, candidate))
    });
    scored.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}
