//! The benchmark of the gateway: `cargo xtask bench`.
//!
//! It starts an upstream, the gateway and the programs beside it, each as a process. The programs
//! run in turn, in several rounds, because machines are noisy. Ratios between programs in the same
//! round are the result. CPU time per request is the steadiest of the figures.

mod case;
mod cases;
mod flame;
mod load;
mod options;
mod programs;
mod report;
mod run;
mod special;
mod target;
mod usage;

use std::process::ExitCode;

use options::{Options, USAGE};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = match arguments.as_slice() {
        ["serve", program @ ..] => programs::serve(program),
        ["--list"] => {
            options::list();
            Ok(())
        }
        options => match Options::parse(options) {
            Ok(options) => run::run(&options),
            Err(error) => {
                eprintln!("{error}\n\n{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the benchmark failed: {error}");
            ExitCode::FAILURE
        }
    }
}
