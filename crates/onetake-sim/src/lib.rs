//! What checks onetake as a whole. Not published.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`model`] | an exhaustive model of one record's life, over the very functions that stores apply |
//! | [`blackbox`] | what a client sees of a gateway, whatever store is behind it |
//! | [`upstream`] | an upstream that does what its path says, and counts what it did |
//! | [`client`] | a client that shows everything it got |

pub mod blackbox;
pub mod client;
pub mod model;
pub mod upstream;
