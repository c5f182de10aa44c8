//! Interpreters of scripts that act as clients.

use std::path::PathBuf;

use super::program;

/// The language of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreter {
    /// Python 3.
    Python,
    /// Node.
    Node,
}

/// Returns the path of an interpreter.
#[must_use]
pub fn interpreter(language: Interpreter) -> PathBuf {
    match language {
        Interpreter::Python => program("python3", &[]),
        Interpreter::Node => program("node", &[]),
    }
}
