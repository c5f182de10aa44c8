//! Simulation of the whole system: several real engines with their HTTP layers, on simulated time.
//!
//! A seed decides everything: the number of nodes and their configurations, the requests of
//! clients, the drift of clocks, which calls of the store are lost or late, where processes crash
//! or are suspended, and the order in which tasks run. The engine, the layer and the reference
//! store are the real ones. The simulation uses their public interfaces alone (`Engine`,
//! `OnetakeLayer`, `Store`, `Journal`, `Reconcile`, `Clock`, `Rng`).
//!
//! | module | contents |
//! | --- | --- |
//! | [`plan`], [`theme`] | everything that a seed decides in advance |
//! | [`simulator`] | the loop: events, processes, and the checks at the end |
//! | [`timeline`], [`executor`], [`random`] | time, tasks and randomness |
//! | [`world`], [`backend`], [`node_store`], `store_call`, [`journal`] | the network, the store and the disks |
//! | [`node`], [`job`], [`upstream`], [`reconciler`], [`client`], [`operator`] | the actors |
//! | [`history`], [`gauges`] | the events, and the invariants that they are checked against |
//! | [`mod@shrink`] | makes failing plans smaller |

pub mod backend;
pub mod client;
pub mod executor;
pub mod gauges;
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
mod store_call;
pub mod theme;
pub mod timeline;
pub mod upstream;
pub mod world;

pub use history::Violation;
pub use plan::Plan;
pub use shrink::{Without, shrink, shrink_by};
pub use simulator::{SimulationReport, Simulator};

/// Runs the plan of a seed.
#[must_use]
pub fn simulate(seed: u64) -> SimulationReport {
    Simulator::run(Plan::new(seed), false)
}
