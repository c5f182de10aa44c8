//! The check that the handler of a transactional route takes `InTransaction`.

use crate::policy::Policy;
use crate::status::Disposition;
use crate::transaction::InTransaction;

/// An axum handler whose first argument is [`InTransaction`]. `Arguments` are the types of its
/// arguments.
#[diagnostic::on_unimplemented(
    message = "the first argument of a transactional route's handler must be `InTransaction`",
    label = "this handler cannot complete its operation in a transaction: it has no `InTransaction` argument",
    note = "write `async fn handler(running: InTransaction, …)`, or remove `transactional` from this route"
)]
pub trait TransactionalHandler<Arguments> {}

macro_rules! handlers {
    ($($argument:ident),*) => {
        impl<F, Fut, $($argument),*> TransactionalHandler<(InTransaction, $($argument,)*)> for F
        where
            F: FnOnce(InTransaction, $($argument),*) -> Fut,
            Fut: Future,
        {
        }
    };
}

handlers!();
handlers!(A2);
handlers!(A2, A3);
handlers!(A2, A3, A4);
handlers!(A2, A3, A4, A5);
handlers!(A2, A3, A4, A5, A6);
handlers!(A2, A3, A4, A5, A6, A7);
handlers!(A2, A3, A4, A5, A6, A7, A8);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9, A10);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9, A10, A11);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14, A15);
handlers!(A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14, A15, A16);

impl Policy {
    /// Declares that every effect of the operation commits in one transaction with its outcome, or
    /// not at all ([`transaction`](crate::transaction)). An attempt that is lost either had no
    /// effect or has a recorded outcome. It is never unknown. A 5xx is released, because the
    /// transaction was rolled back.
    ///
    /// `handler` is the route's handler. It is not called. Its type proves that its first argument
    /// is [`InTransaction`].
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use onetake_http::{Policy, transaction::InTransaction};
    ///
    /// async fn transfer(running: InTransaction, body: String) {}
    ///
    /// let policy = Policy::new().key_required().transactional(transfer);
    /// let router: Router = Router::new().route("/transfers", post(transfer));
    /// ```
    ///
    /// A handler without [`InTransaction`] does not compile:
    ///
    /// ```compile_fail,E0277
    /// use onetake_http::Policy;
    ///
    /// async fn transfer(body: String) {}
    ///
    /// let policy = Policy::new().transactional(transfer);
    /// ```
    ///
    /// If another handler is mounted on the route, its first success is recorded and logged as an
    /// error. After that, the route refuses new operations until the process ends
    /// (`misconfigured`).
    #[must_use]
    pub fn transactional<H, Arguments>(self, handler: H) -> Self
    where
        H: TransactionalHandler<Arguments>,
    {
        drop(handler);
        self.transactional_unchecked()
    }

    /// Declares the same for services that are not axum handlers. They extract [`InTransaction`]
    /// from the parts of their request.
    ///
    /// **Warning:** this is not checked when the code is compiled. If the service does not use
    /// [`InTransaction`], an operation whose process dies may run twice. The first success without
    /// it is logged as an error, and the route refuses new operations from then on.
    #[must_use]
    pub fn transactional_unchecked(mut self) -> Self {
        self.is_transactional = true;
        self.outcomes = self.outcomes.with_every_5xx(Disposition::Release);
        self.promising_what_it_keeps()
    }
}
