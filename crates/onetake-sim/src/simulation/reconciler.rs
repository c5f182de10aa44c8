//! The reconciler, which asks the upstream for the outcomes of operations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use onetake_core::engine::{Inquiry, Reconcile, ReconcileAnswer};
use onetake_core::{Record, Recording};
use onetake_http::recording::record;

use super::history::Truth;
use super::timeline::SECOND;
use super::world::World;

/// The reconciler of one node.
#[derive(Debug)]
pub struct Desk {
    world: Arc<World>,
    node: usize,
    after: Duration,
}

impl Desk {
    /// Creates the reconciler of a node.
    #[must_use]
    pub fn new(world: &Arc<World>, node: usize) -> Self {
        // The upstream timeout of the node that sent the request is not known here, so the longest
        // one counts.
        let after = world.plan.nodes.iter().map(|node| node.run_max + node.terms.grace).max();
        Self { world: Arc::clone(world), node, after: after.unwrap_or_default() }
    }
}

impl Reconcile for Desk {
    fn inquiry(&self, _: &Record) -> Option<Inquiry> {
        // This node's configuration may not know the route for a while.
        let is_calm = self.world.is_calm();
        let (is_known, is_short) = self
            .world
            .decide("inquiries", |random| (is_calm || !random.chance(100), random.chance(300)));
        is_known.then(|| Inquiry {
            after: self.after,
            timeout: Duration::from_secs(1),
            pause_min: Duration::from_millis(500),
            pause_max: Duration::from_secs(5),
            limit: Duration::from_secs(if is_short { 4 } else { 60 }),
        })
    }

    fn ask(&self, asked: Arc<Record>) -> BoxFuture<'_, ReconcileAnswer> {
        async move {
            let world = &self.world;
            let is_calm = world.is_calm();
            let (delay, is_lost) = world.decide("reconciler", |random| {
                let slow = if !is_calm && random.chance(150) { 2 * SECOND } else { 0 };
                (random.below(world.plan.delay_max) + slow, !is_calm && random.chance(200))
            });
            world.timeline.sleep(delay, self.node + 1).await;
            if is_lost {
                return ReconcileAnswer::Unclear("no response".to_owned());
            }
            match world.history.truth(asked.id, asked.created_at) {
                Truth::Done(text) => ReconcileAnswer::Completed(recording_of(&text)),
                Truth::Working => ReconcileAnswer::Unclear("it is being worked on".to_owned()),
                // The upstream does not know the request, and answers so.
                Truth::OnItsWay | Truth::NotDone => ReconcileAnswer::NotExecuted,
            }
        }
        .boxed()
    }
}

/// Returns the recording of an outcome that was found out.
#[must_use]
pub fn recording_of(text: &str) -> Recording {
    let body = Bytes::copy_from_slice(text.as_bytes());
    record(StatusCode::OK, &HeaderMap::new(), Some(body), None)
}
