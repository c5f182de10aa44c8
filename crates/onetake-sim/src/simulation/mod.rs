//! Simulation of the whole system: several real engines with their HTTP layers, on simulated time.
//!
//! A seed decides everything: how many nodes there are and how they differ, which clients ask for what, how their
//! clocks drift, which calls of the store get lost or land late, where processes crash or are suspended, and in
//! which order tasks run. The engine, the layer and the reference store are the real ones; they enter by their
//! public seams alone (`Engine`, `OnetakeLayer`, `Store`, `Journal`, `Reconcile`, `Clock`, `Rng`).
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`plan`], [`theme`] | what a seed decides in advance |
//! | [`simulator`] | the loop: events, processes, and the checks at the end |
//! | [`timeline`], [`executor`], [`random`] | time, tasks and randomness |
//! | [`world`], [`backend`], [`node_store`], [`journal`] | the network, the store's server, a node's view of it, a node's disk |
//! | [`node`], [`job`], [`upstream`], [`reconciler`], [`client`], [`operator`] | those who act |
//! | [`history`] | what happened, and the invariants that it is held to |
//! | [`mod@shrink`] | makes failing plans smaller |

pub mod backend;
pub mod client;
pub mod executor;
pub mod history;
pub mod job;
pub mod journal;
pub mod node;
pub mod node_store;
pub mod operator;
pub mod plan;
pub mod random;
pub mod reconciler;
pub mod shrink;
pub mod simulator;
pub mod theme;
pub mod timeline;
pub mod upstream;
pub mod world;

pub use history::Violation;
pub use plan::Plan;
pub use shrink::{Without, shrink};
pub use simulator::{Report, Simulator};

/// Runs the plan of a seed.
#[must_use]
pub fn simulate(seed: u64) -> Report {
    Simulator::run(Plan::new(seed), false)
}
