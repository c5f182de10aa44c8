//! Conversion of the SDK's errors to store errors.

use std::error::Error;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use onetake_core::{StoreError, StoreErrorKind};

/// The result of one request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFailure {
    /// It was not sent. Nothing was written.
    NotSent,
    /// It was sent, and its effect is unknown. Another try at once may help.
    Lost,
    /// It was sent, and no answer came in time.
    TimedOut,
    /// The server had no capacity for it. Nothing was written.
    Throttled,
    /// The server rejected it for now. Nothing was written.
    Refused,
    /// The server rejected it for good. Nothing was written.
    Invalid,
}

impl RequestFailure {
    /// Returns true if the server may have executed it.
    pub(super) fn may_have_landed(self) -> bool {
        matches!(self, Self::Lost | Self::TimedOut)
    }

    /// Returns true if another try at once may help. A timeout has used up its time.
    pub(super) fn is_worth_another_try(self) -> bool {
        matches!(self, Self::NotSent | Self::Lost | Self::Throttled)
    }

    /// Returns true if the server is unreachable, as far as is known.
    pub(super) fn is_away(self) -> bool {
        matches!(self, Self::NotSent | Self::Lost | Self::TimedOut)
    }
}

/// Returns the result of a request that failed, and its description.
pub(super) fn judge<E>(error: &SdkError<E>, table: &str) -> (RequestFailure, String)
where
    E: ProvideErrorMetadata + Error + 'static,
{
    match error {
        SdkError::TimeoutError(_) => {
            (RequestFailure::TimedOut, "DynamoDB did not respond in time".into())
        }
        SdkError::ServiceError(answer) => {
            let code = answer.err().code().unwrap_or("no code");
            let message = answer.err().message().unwrap_or("no message");
            judge_answer(code, message, answer.raw().status().as_u16(), table)
        }
        other => {
            let fate = match other {
                SdkError::ConstructionFailure(_) => RequestFailure::NotSent,
                SdkError::DispatchFailure(failure) if failure.is_user() => RequestFailure::NotSent,
                other if never_connected(other) => RequestFailure::NotSent,
                SdkError::DispatchFailure(failure) if failure.is_timeout() => {
                    RequestFailure::TimedOut
                }
                _ => RequestFailure::Lost,
            };
            (fate, format!("DynamoDB cannot be reached: {}", causes(other)))
        }
    }
}

fn judge_answer(code: &str, message: &str, status: u16, table: &str) -> (RequestFailure, String) {
    let said = format!("{code}: {message}");
    match code {
        "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "ThrottlingException"
        | "LimitExceededException" => {
            (RequestFailure::Throttled, format!("DynamoDB has no capacity left ({said})"))
        }
        "ResourceNotFoundException" => (
            RequestFailure::Invalid,
            format!("the table {table} does not exist: run `onetake migrate` ({said})"),
        ),
        "AccessDeniedException" => (
            RequestFailure::Invalid,
            format!(
                "the credentials have no permission for the table {table}: allow PutItem, GetItem, \
                 BatchGetItem, Query, Scan, DescribeTable and DescribeTimeToLive on it and its \
                 indexes, and for `onetake migrate` CreateTable, UpdateTable and UpdateTimeToLive \
                 ({said})"
            ),
        ),
        // A wrong secret and a wrong clock lead to the same code.
        "InvalidSignatureException"
            if !message.contains("expired") && !message.contains("not yet") =>
        {
            (RequestFailure::Invalid, format!("the AWS credentials are wrong ({said})"))
        }
        "InvalidSignatureException" | "RequestTimeTooSkewed" | "RequestExpired" => (
            RequestFailure::Refused,
            format!("the clock of this machine is wrong: synchronize it with NTP ({said})"),
        ),
        "UnrecognizedClientException"
        | "MissingAuthenticationTokenException"
        | "IncompleteSignatureException" => {
            (RequestFailure::Invalid, format!("the AWS credentials are wrong ({said})"))
        }
        "ExpiredTokenException" => (
            RequestFailure::Refused,
            format!("the AWS credentials have expired: renew them ({said})"),
        ),
        _ if status >= 500 => (RequestFailure::Lost, format!("DynamoDB failed ({said})")),
        _ => (RequestFailure::Invalid, format!("DynamoDB refused a request ({said})")),
    }
}

/// Returns the texts of an error and of all its sources.
pub(super) fn causes(error: &dyn Error) -> String {
    let below = std::iter::successors(error.source(), |error| Error::source(*error));
    let said = below.map(ToString::to_string);
    std::iter::once(error.to_string()).chain(said).collect::<Vec<_>>().join(": ")
}

/// Returns true if no connection was opened. The HTTP client's error is matched as text, because
/// its types are private. An error that is not recognised counts as sent, which is always safe.
fn never_connected<E: Error + 'static>(error: &SdkError<E>) -> bool {
    let said = causes(error);
    ["client error (Connect)", "HTTP connect timeout", "credentials"]
        .iter()
        .any(|s| said.contains(s))
}

/// Returns the error for the caller.
pub(super) fn refused(fate: RequestFailure, may_have_landed: bool, what: String) -> StoreError {
    let kind = match fate {
        _ if may_have_landed => StoreErrorKind::Indeterminate,
        RequestFailure::Invalid => StoreErrorKind::Invalid,
        _ => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_mean_what_is_to_be_done_next() {
        let fate = |code, message, status| judge_answer(code, message, status, "t").0;
        assert_eq!(
            fate("ProvisionedThroughputExceededException", "", 400),
            RequestFailure::Throttled
        );
        assert_eq!(fate("ThrottlingException", "", 400), RequestFailure::Throttled);
        assert_eq!(fate("ResourceNotFoundException", "", 400), RequestFailure::Invalid);
        assert_eq!(fate("ValidationException", "", 400), RequestFailure::Invalid);
        assert_eq!(fate("InternalServerError", "", 500), RequestFailure::Lost);
        assert_eq!(fate("ServiceUnavailable", "", 503), RequestFailure::Lost);
        let off = "Signature expired: 20260610T180547Z is now earlier than 20260610T180612Z";
        assert_eq!(fate("InvalidSignatureException", off, 400), RequestFailure::Refused);
        assert_eq!(
            fate("InvalidSignatureException", "does not match", 400),
            RequestFailure::Invalid
        );
    }

    #[test]
    fn what_may_have_landed_is_never_called_unwritten() {
        for (fate, landed) in [
            (RequestFailure::NotSent, false),
            (RequestFailure::Throttled, false),
            (RequestFailure::Refused, false),
            (RequestFailure::Lost, true),
            (RequestFailure::TimedOut, true),
        ] {
            assert_eq!(fate.may_have_landed(), landed);
            let kind = refused(fate, landed, String::new()).kind();
            assert_eq!(kind == StoreErrorKind::Indeterminate, landed);
        }
        // An earlier try may have been executed, whatever the result of the last one.
        let kind = refused(RequestFailure::NotSent, true, String::new()).kind();
        assert_eq!(kind, StoreErrorKind::Indeterminate);
    }
}
