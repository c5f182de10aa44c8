//! gRPC libraries of other languages.

use std::path::Path;
use std::process::Command;

use super::{program, tool_folder};

/// A runtime with the gRPC library of its language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcRuntime {
    /// `grpcio` of the Python index.
    Python,
    /// `@grpc/grpc-js` of npm.
    Node,
}

impl GrpcRuntime {
    /// Returns a command that runs a script which may load the library.
    #[must_use]
    pub fn command(self, script: &Path) -> Command {
        let (interpreter, variable, modules) = match self {
            Self::Python => ("python3", "PYTHONPATH", tool_folder("grpc/python")),
            Self::Node => ("node", "NODE_PATH", tool_folder("grpc/node").join("node_modules")),
        };
        let mut command = Command::new(program(interpreter, &[]));
        // A proxy of the machine must not be used for local servers.
        command.arg(script).env(variable, modules).env("NO_PROXY", "127.0.0.1");
        command
    }
}
