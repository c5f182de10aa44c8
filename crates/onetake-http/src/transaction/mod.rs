//! Mode T: handlers that complete their operation in their own transaction.
//!
//! A transactional route commits its effects and its outcome together, or neither. With the feature
//! `axum`, its handler takes `InTransaction`, begins a transaction through it, and commits that
//! with its response:
//!
//! ```text
//! let mut tx = running.begin(&pool).await?;
//! sqlx::query("UPDATE …").execute(&mut *tx).await?;
//! tx.commit((StatusCode::CREATED, Json(receipt)), [message]).await
//! ```
//!
//! The layer does not record such a response again. It checks that the outcome is in the store, and
//! shows the response only then (S6). It releases an attempt only with proof that the attempt had
//! no effect (`Evidence`).

mod evidence;
#[cfg(feature = "axum")]
mod handler;
#[cfg(feature = "axum")]
mod in_transaction;

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body::Body;

use onetake_core::outbox::MessageRefused;
use onetake_core::{Attempt, Completion, FinishError, Message, StoreError};

use crate::BoxError;
use crate::answered_attempt::{is_stream, read_response, recording_of};
use crate::body::ResponseBody;
use crate::context::AttemptReport;
use crate::layer::LayerState;
use crate::policy::Policy;

pub(crate) use evidence::{Evidence, MisconfiguredRoutes, Progress, Ruling, rule};
#[cfg(feature = "axum")]
pub use handler::TransactionalHandler;
#[cfg(feature = "axum")]
pub use in_transaction::{AttemptTransaction, InTransaction};

/// The parts of the layer that make a recording.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) shared: Arc<LayerState>,
    pub(crate) policy: Arc<Policy>,
    /// `None` if the route is not transactional.
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "only axum has an extractor for it")
    )]
    pub(crate) progress: Option<Arc<Progress>>,
}

/// The reason why a response cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecorded {
    /// The body of the response ended early.
    #[error("the response body ended early")]
    Broken(#[source] BoxError),
    /// A message is too large or malformed, or there are too many of them.
    #[error(transparent)]
    Message(#[from] MessageRefused),
    /// The recording could not be encrypted.
    #[error("the recording cannot be sealed")]
    Unsealed(#[source] StoreError),
}

/// The reason why a transaction was not committed with its response.
///
/// Return an error with a 5xx status. The layer then releases the key. If the commit succeeded
/// although its answer was lost, the layer shows the outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError<E: std::error::Error + 'static> {
    /// The response cannot be recorded. The transaction is rolled back.
    #[error(transparent)]
    Response(#[from] NotRecorded),
    /// The outcome could not be written. The transaction is rolled back.
    #[error(transparent)]
    Finish(#[from] FinishError<E>),
    /// The database refused the commit, or its answer was lost.
    #[error("the transaction could not be committed")]
    Commit(#[source] E),
}

#[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "only axum has an extractor for it"))]
impl Recorder {
    /// Returns the completion with the recording that the layer would make of a response, and the
    /// response marked for the layer as recorded.
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
        Message::check(&messages)?;
        let body_bytes_max = self.policy.max_response_body;
        let value = AttemptReport::take(&mut response).value;
        let value = self.shared.types.value_of(value, &response, body_bytes_max);
        let (parts, body) = response.into_parts();
        let max = (!is_stream(&parts.headers)).then_some(body_bytes_max);
        let read = read_response(body, max).await.map_err(NotRecorded::Broken)?;
        let (recording, body) = recording_of(&parts, read, value);
        let mut response = Response::from_parts(parts, body);
        AttemptReport { finished: Some(attempt.attempt), ..AttemptReport::default() }
            .attach(&mut response);
        let completion = Completion::new(recording).with_messages(messages);
        let sealed = self.shared.engine.seal(attempt, completion);
        Ok((sealed.map_err(NotRecorded::Unsealed)?, response))
    }
}
