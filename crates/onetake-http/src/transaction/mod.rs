//! Handlers that complete their operation in a transaction of their own (mode T).
//!
//! A route whose policy is transactional commits its effects and its outcome together, or neither. With the feature
//! `axum`, its handler takes `InTransaction`, begins a transaction through it, and commits that with its response:
//!
//! ```text
//! let mut tx = running.begin(&pool).await?;
//! sqlx::query("UPDATE …").execute(&mut *tx).await?;
//! tx.commit((StatusCode::CREATED, Json(receipt)), [message]).await
//! ```
//!
//! The layer does not record such a response again. It looks whether the outcome is in the store, and shows the
//! response only then (S6). It says that an attempt had no effect only with proof ([`Evidence`]).

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
use crate::body::ResponseBody;
use crate::context::AttemptReport;
use crate::layer::Shared;
use crate::policy::Policy;
use crate::run::{is_stream, read_response, recording_of};

pub(crate) use evidence::{Evidence, Misfits, Progress, Ruling, rule};
#[cfg(feature = "axum")]
pub use handler::TransactionalHandler;
#[cfg(feature = "axum")]
pub use in_transaction::{AttemptTransaction, InTransaction};

/// What a recording is made with.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) shared: Arc<Shared>,
    pub(crate) policy: Arc<Policy>,
    /// `None`: the route is not transactional.
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "only axum has an extractor for it")
    )]
    pub(crate) progress: Option<Arc<Progress>>,
}

/// Why a response cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecorded {
    /// Its body broke off.
    #[error("the body of the response broke off: {0}")]
    Broken(#[source] BoxError),
    /// A message cannot be written as it is.
    #[error(transparent)]
    Message(#[from] MessageRefused),
    /// It could not be encrypted.
    #[error("the recording cannot be sealed: {0}")]
    Unsealed(#[source] StoreError),
}

/// Why a transaction was not committed with its response. Return an error with a 5xx status: the layer releases the
/// key, or shows the outcome if the commit arrived although its answer was lost.
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
    /// What the layer would record of a response, and the response that it recognises.
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
