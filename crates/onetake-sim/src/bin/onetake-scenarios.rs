//! Serves the scenarios of `clients/conformance` until its standard input is closed.
//!
//! `onetake-scenarios FILE [GATEWAY]` prints the URL of the server as its first line. With the path
//! of the `onetake` binary, the second line is the URL of a gateway behind a lossy proxy.

use std::io::Read as _;
use std::process::ExitCode;

use onetake_sim::lossy::LossyWorld;
use onetake_sim::scenarios::{ScenarioServer, Scenarios};

#[tokio::main]
async fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: onetake-scenarios FILE [GATEWAY]");
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
    let gateway = std::env::args_os().nth(2);
    let _lossy = match gateway {
        None => None,
        Some(gateway) => match LossyWorld::start(gateway.as_ref()).await {
            Ok(world) => {
                println!("{}", world.url());
                Some(world)
            }
            Err(error) => {
                eprintln!("the gateway cannot be started: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    // A runner that ends, even by a kill, closes the pipe.
    let input_ends = tokio::task::spawn_blocking(|| {
        let mut ignored = [0; 64];
        while let Ok(1..) = std::io::stdin().read(&mut ignored) {}
    });
    let _ended = input_ends.await;
    ExitCode::SUCCESS
}
