//! Schemathesis, which makes up requests by an OpenAPI description.

use std::process::Command;

use super::{program, tool_folder};

/// The command; `run` and its arguments are still to come.
#[must_use]
pub fn schemathesis() -> Command {
    let mut command = Command::new(program("python3", &[]));
    command.args(["-m", "schemathesis.cli"]);
    // Whatever proxy the machine has, it is not for what runs on it.
    command.env("PYTHONPATH", tool_folder("schemathesis")).env("NO_PROXY", "127.0.0.1");
    command
}
