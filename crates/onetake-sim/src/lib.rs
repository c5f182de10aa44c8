//! What checks onetake as a whole. Not published.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`model`] | an exhaustive model of one record's life, over the very functions that stores apply |

pub mod model;
