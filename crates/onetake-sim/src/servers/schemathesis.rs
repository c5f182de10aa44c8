//! Schemathesis, which generates requests from an OpenAPI description.

use std::process::Command;

use super::{program, tool_folder};

/// Returns the command, without `run` and its arguments.
#[must_use]
pub fn schemathesis() -> Command {
    let mut command = Command::new(program("python3", &[]));
    command.args(["-m", "schemathesis.cli"]);
    // A proxy of the machine must not be used for local servers.
    command.env("PYTHONPATH", tool_folder("schemathesis")).env("NO_PROXY", "127.0.0.1");
    command
}
