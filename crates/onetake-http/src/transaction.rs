//! Handlers that complete their operation in a transaction of their own (mode T).
//!
//! A route whose policy is [`transactional`](crate::Policy::transactional) commits its effects and its outcome
//! together, or neither. With the feature `axum`, a handler asks for `InTransaction`, which turns a response into
//! what has to be written, and into a response that the layer recognises: it does not record it again, but looks
//! whether it was committed, and shows it only then (S6). What was not committed is released, whatever the handler
//! says. A response that is none of these is dealt with as on any other route; a 5xx is released.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body::Body;

use onetake_core::{Attempt, Completion, Message, StoreError};

use crate::BoxError;
use crate::body::ResponseBody;
use crate::context::AttemptReport;
use crate::layer::Shared;
use crate::run::{is_stream, read_response, recording_of};

#[cfg(feature = "axum")]
pub use for_axum::InTransaction;

/// What a recording is made with.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) shared: Arc<Shared>,
    pub(crate) body_bytes_max: usize,
}

/// Why a response cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecorded {
    /// Its body broke off.
    #[error("the body of the response broke off: {0}")]
    Broken(#[source] BoxError),
    /// It could not be encrypted.
    #[error("the recording cannot be sealed: {0}")]
    Unsealed(#[source] StoreError),
}

impl Recorder {
    /// What the layer would record of a response, and the response that it recognises.
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "only axum has an extractor for it")
    )]
    pub(crate) async fn complete<B>(
        &self,
        attempt: &Attempt,
        mut response: Response<B>,
        messages: Vec<Message>,
    ) -> Result<(Completion, Response<ResponseBody<B>>), NotRecorded>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let value = AttemptReport::take(&mut response).value;
        let value = self.shared.types.value_of(value, &response, self.body_bytes_max);
        let (parts, body) = response.into_parts();
        let max = (!is_stream(&parts.headers)).then_some(self.body_bytes_max);
        let read = read_response(body, max).await.map_err(NotRecorded::Broken)?;
        let (recording, body) = recording_of(&parts, read, value);
        let mut response = Response::from_parts(parts, body);
        AttemptReport { finished: Some(attempt.attempt), ..AttemptReport::default() }
            .attach(&mut response);
        let sealed = self.shared.engine.seal(attempt, Completion { recording, messages });
        Ok((sealed.map_err(NotRecorded::Unsealed)?, response))
    }
}

#[cfg(feature = "axum")]
mod for_axum {
    use axum::body::Body;
    use axum::extract::FromRequestParts;
    use axum::response::{IntoResponse, Response};
    use http::request::Parts;

    use onetake_core::{Attempt, Completion, Message};

    use super::{NotRecorded, Recorder};
    use crate::context::OperationContext;
    use crate::extract::{NotThere, RunningAttempt};

    /// Completes the running operation in the handler's own transaction.
    ///
    /// ```text
    /// let (completion, response) = running.complete(Json(receipt), vec![message]).await?;
    /// postgres::finish(&transaction, running.attempt(), &completion).await?; // the last statement
    /// transaction.commit().await?;
    /// Ok(response)
    /// ```
    #[derive(Clone)]
    pub struct InTransaction {
        attempt: Attempt,
        recorder: Recorder,
    }

    impl InTransaction {
        /// The attempt that runs.
        #[must_use]
        pub const fn attempt(&self) -> &Attempt {
            &self.attempt
        }

        /// What to write at the end of the transaction for this response, with what is said to others; and the
        /// response to return once that is committed. If it is not, return an error instead.
        ///
        /// # Errors
        /// If the response has a body that breaks off, or cannot be encrypted.
        pub async fn complete(
            &self,
            response: impl IntoResponse,
            messages: Vec<Message>,
        ) -> Result<(Completion, Response), NotRecorded> {
            let response = response.into_response();
            let (completion, response) =
                self.recorder.complete(&self.attempt, response, messages).await?;
            Ok((completion, response.map(Body::new)))
        }
    }

    impl std::fmt::Debug for InTransaction {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("InTransaction").field("attempt", &self.attempt).finish_non_exhaustive()
        }
    }

    impl<S: Sync> FromRequestParts<S> for InTransaction {
        type Rejection = NotThere;

        async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, NotThere> {
            let running =
                <RunningAttempt as FromRequestParts<S>>::from_request_parts(parts, state).await?;
            let context = OperationContext::of(&parts.extensions);
            let recorder = context.and_then(OperationContext::recorder).cloned();
            let recorder = recorder.ok_or(NotThere::NoLayer)?;
            Ok(Self { attempt: running.0, recorder })
        }
    }
}
