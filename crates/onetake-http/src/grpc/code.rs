//! Codes of gRPC calls.

use std::fmt;
use std::str::FromStr;

use http::HeaderMap;

use super::GRPC_STATUS;
use crate::problem::Code;
use crate::status::Disposition;

macro_rules! grpc_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal $text:literal $disposition:ident,)+) => {
        /// The code of a gRPC call: `grpc-status`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum GrpcCode { $($(#[$doc])* $name = $number,)+ }

        impl GrpcCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name of the code, as in the documentation of gRPC.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The disposition of an attempt with this code, unless its route says otherwise.
            #[must_use]
            pub(crate) const fn disposition(self) -> Disposition {
                match self { $(Self::$name => Disposition::$disposition,)+ }
            }
        }
    };
}

grpc_codes! {
    /// The call succeeded.
    Ok = 0 "OK" Record,
    /// The call was cancelled, and may have had its effect.
    Cancelled = 1 "CANCELLED" Unknown,
    /// An error without a better code.
    Unknown = 2 "UNKNOWN" Unknown,
    /// The message is invalid, whatever the state of the service.
    InvalidArgument = 3 "INVALID_ARGUMENT" Record,
    /// The deadline passed, and the call may have had its effect.
    DeadlineExceeded = 4 "DEADLINE_EXCEEDED" Unknown,
    /// Something was not found.
    NotFound = 5 "NOT_FOUND" Record,
    /// Something exists already.
    AlreadyExists = 6 "ALREADY_EXISTS" Record,
    /// The caller may not do this.
    PermissionDenied = 7 "PERMISSION_DENIED" Record,
    /// A limit is reached.
    ResourceExhausted = 8 "RESOURCE_EXHAUSTED" Release,
    /// The state of the service does not allow the call.
    FailedPrecondition = 9 "FAILED_PRECONDITION" Record,
    /// The call was aborted, and may have had a part of its effect.
    Aborted = 10 "ABORTED" Unknown,
    /// A value is out of range.
    OutOfRange = 11 "OUT_OF_RANGE" Record,
    /// The service does not have the method.
    Unimplemented = 12 "UNIMPLEMENTED" Record,
    /// An internal error.
    Internal = 13 "INTERNAL" Unknown,
    /// The service is unavailable.
    Unavailable = 14 "UNAVAILABLE" Release,
    /// Data was lost.
    DataLoss = 15 "DATA_LOSS" Unknown,
    /// The credential is missing or invalid.
    Unauthenticated = 16 "UNAUTHENTICATED" Release,
}

impl GrpcCode {
    /// The codes that stand for 5xx, for rules about every 5xx. `UNIMPLEMENTED` (501) is not one of
    /// them: nothing ran.
    pub(crate) const SERVER_ERRORS: [Self; 5] =
        [Self::Unknown, Self::DeadlineExceeded, Self::Internal, Self::Unavailable, Self::DataLoss];

    /// The number of the code.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Reads the code in headers or trailers. Returns `None` if there is none. A number that gRPC
    /// does not define is `UNKNOWN`, as clients take it.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(GRPC_STATUS)?.to_str().ok();
        let number = text.and_then(|text| text.trim().parse::<u8>().ok());
        let found = Self::ALL.iter().find(|code| Some(code.number()) == number);
        Some(found.copied().unwrap_or(Self::Unknown))
    }

    /// The code for a problem of the layer.
    #[must_use]
    pub fn of_problem(code: Code) -> Self {
        match code {
            Code::IdempotencyKeyMissing
            | Code::IdempotencyKeyInvalid
            | Code::TenantUnstable
            | Code::DeadlineInvalid
            | Code::RequestBodyInvalid
            | Code::RequestBodyIncomplete
            | Code::RequestRefused => Self::InvalidArgument,
            Code::TenantUnresolved => Self::Unauthenticated,
            Code::AuthRefused => Self::PermissionDenied,
            Code::IdempotencyPayloadMismatch | Code::ResponseNotReplayable => {
                Self::FailedPrecondition
            }
            Code::RequestInProgress | Code::InProgressTimeout => Self::Aborted,
            Code::PreviousAttemptFailed | Code::OutcomeUnknown | Code::Misconfigured => {
                Self::Internal
            }
            Code::OutcomePending
            | Code::StoreUnavailable
            | Code::AuthUnavailable
            | Code::Overloaded
            | Code::UpstreamUnreachable
            | Code::UpstreamInterrupted => Self::Unavailable,
            Code::DeadlineExceeded | Code::UpstreamTimeout => Self::DeadlineExceeded,
            Code::VelocityLimitExceeded | Code::RequestBodyTooLarge => Self::ResourceExhausted,
            Code::RequestEncodingUnsupported | Code::NoRoute => Self::Unimplemented,
            Code::OperationNotFound => Self::NotFound,
        }
    }
}

impl fmt::Display for GrpcCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for GrpcCode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().find(|code| code.as_str() == text).copied().ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_numbers_of_grpc() {
        let numbers: Vec<u8> = GrpcCode::ALL.iter().map(|code| code.number()).collect();
        assert_eq!(numbers, (0..=16).collect::<Vec<u8>>());
        for code in GrpcCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
        assert_eq!("Unavailable".parse::<GrpcCode>(), Err(()));
    }

    #[test]
    fn a_code_that_is_not_defined_is_unknown() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_STATUS, text.parse().unwrap());
            GrpcCode::of(&headers)
        };
        assert_eq!(of("0"), Some(GrpcCode::Ok));
        assert_eq!(of("14"), Some(GrpcCode::Unavailable));
        for other in ["17", "-1", "OK", "", "256"] {
            assert_eq!(of(other), Some(GrpcCode::Unknown), "{other}");
        }
        assert_eq!(GrpcCode::of(&HeaderMap::new()), None);
    }
}
