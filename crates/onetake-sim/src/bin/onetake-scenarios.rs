//! Serves the scenarios of `clients/conformance` until its standard input is closed.
//!
//! `onetake-scenarios FILE` prints the URL of the server as its first line.

use std::process::ExitCode;

use onetake_sim::scenarios::{ScenarioServer, Scenarios};
use tokio::io::AsyncReadExt;

#[tokio::main]
async fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: onetake-scenarios FILE");
        return ExitCode::from(2);
    };
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{} cannot be read: {error}", file.display());
            return ExitCode::FAILURE;
        }
    };
    let scenarios = match Scenarios::parse(&text) {
        Ok(scenarios) => scenarios,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    };
    let server = match ScenarioServer::start(scenarios).await {
        Ok(server) => server,
        Err(error) => {
            eprintln!("the server cannot listen: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", server.url());
    // A runner that ends, even by a kill, closes the pipe.
    let (mut input, mut ignored) = (tokio::io::stdin(), [0; 64]);
    while let Ok(1..) = input.read(&mut ignored).await {}
    ExitCode::SUCCESS
}
