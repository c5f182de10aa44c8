//! Tests of the clients: `cargo xtask clients`.
//!
//! Each client is installed, checked and tested with the tools of its language. Then it plays the
//! scenarios of `clients/conformance`, sends intents through a real gateway whose responses are
//! lost, and plays some scenarios again with deliberate mistakes, which must be noticed.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

mod languages;
mod table;

pub(crate) const USAGE: &str = "\
cargo xtask clients     test the clients, print scenarios by client";

/// A client, and the commands of its language.
struct Client<'a> {
    name: &'static str,
    folder: PathBuf,
    /// Variables of every command.
    variables: Vec<(&'static str, PathBuf)>,
    /// Formatter, linter, types, build and tests, in this order.
    checks: Vec<Vec<&'a str>>,
    /// Plays the scenarios: the command is followed by the server, the file and scenarios.
    suite: Vec<&'a str>,
    /// Commands that count effects: each is followed by the proxy.
    effects: Vec<Vec<&'a str>>,
    broken: Broken<'a>,
}

/// A copy of a client with a deliberate mistake.
struct Broken<'a> {
    folder: PathBuf,
    /// The folders of the client that the copy needs.
    copied: Vec<&'static str>,
    /// Further files of the copy, with their text.
    written: Vec<(&'static str, String)>,
    /// Plays the scenarios in the copy, as `Client::suite` does in the original.
    suite: Vec<&'a str>,
}

/// The folder of a copy with a deliberate mistake, if it is in the folder of its client.
const BREAK_FOLDER: &str = "build-break";

/// The result of one client: lines of JSON, and what is wrong.
#[derive(Default)]
struct Report {
    scenarios: Vec<Value>,
    effects: Vec<Value>,
    breaks: Vec<String>,
    wrong: Vec<String>,
}

/// Builds the binaries alone.
pub(crate) const BUILD: &[&str] = &[
    "build",
    "-p",
    "onetake-sim",
    "-p",
    "onetake-cli",
    "-p",
    "onetake-client",
    "--all-features",
    "--bin",
    "onetake-scenarios",
    "--bin",
    "onetake",
    "--example",
    RUST_SUITE,
];

/// The program that plays the scenarios with the client for Rust.
const RUST_SUITE: &str = "client_suite";

/// Runs everything. `build` are the arguments of cargo that build the binaries. The error names what
/// failed.
pub(crate) fn run(build: &[&str]) -> Result<(), String> {
    let binaries = built_by(build)?;
    let clients = [
        languages::typescript()?,
        languages::python()?,
        languages::go(),
        languages::rust(&binaries)?,
    ];
    let reports: Vec<(&str, Result<Report, String>)> = std::thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter()
            .map(|client| (client.name, scope.spawn(|| client.test(&binaries))))
            .collect();
        let crashed = |_| Err("its thread panicked".to_owned());
        running.into_iter().map(|(name, run)| (name, run.join().unwrap_or_else(crashed))).collect()
    });
    let mut wrong = Vec::new();
    let mut all = Report::default();
    for (name, report) in reports {
        match report {
            Ok(report) => {
                all.scenarios.extend(report.scenarios);
                all.effects.extend(report.effects);
                all.breaks.extend(report.breaks);
                wrong.extend(report.wrong.into_iter().map(|text| format!("{name}: {text}")));
            }
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    table::print(&all);
    if let Err(error) = shop(&binaries) {
        wrong.push(error);
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Tests the sample shop in a real browser. It uses the TypeScript client as it is built.
fn shop(binaries: &Binaries) -> Result<(), String> {
    let folder = clients().join("../examples/shop");
    let mut node = Command::new("node");
    node.arg("--test").arg(&folder).env("ONETAKE_GATEWAY", &binaries.gateway);
    if let Some(path) = crate::install::node_20()? {
        node.env("PATH", path);
    }
    let ran = node.output().map_err(|error| format!("node cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&ran.stdout);
    println!("\nthe sample shop in a browser");
    text.lines().filter(|line| line.contains("ok ")).for_each(|line| println!("{line}"));
    if ran.status.success() { Ok(()) } else { Err(format!("the shop failed:\n{text}")) }
}

impl<'a> Broken<'a> {
    /// A copy in the folder of the client, where it finds installed packages.
    fn inside(folder: &Path, copied: Vec<&'static str>, suite: &[&'a str]) -> Self {
        let folder = folder.join(BREAK_FOLDER);
        Self { folder, copied, written: vec![], suite: suite.to_vec() }
    }

    /// Replaces the copy.
    fn copy(&self, client: &Path) -> Result<(), String> {
        let _absent = std::fs::remove_dir_all(&self.folder);
        for folder in &self.copied {
            copy_all(&client.join(folder), &self.folder.join(folder))?;
        }
        for (path, text) in &self.written {
            let path = self.folder.join(path);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

impl Client<'_> {
    fn test(&self, binaries: &Binaries) -> Result<Report, String> {
        for check in &self.checks {
            let (passed, text) = self.output(check, &[], &self.folder)?;
            if !passed {
                return Err(format!("`{}` failed:\n{text}", check.join(" ")));
            }
        }
        let server = Server::start(binaries)?;
        let file = clients().join("conformance/scenarios.json").display().to_string();
        let mut report = Report::default();
        let (_, text) = self.output(&self.suite, &[&server.scenarios, &file], &self.folder)?;
        report.scenarios =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if report.scenarios.is_empty() {
            report.wrong.push(format!("the suite printed no results:\n{text}"));
        }
        let is_red = |line: &&Value| line.get("ok") != Some(&Value::Bool(true));
        let red = report.scenarios.iter().filter(is_red).map(ToString::to_string);
        report.wrong.extend(red);
        for command in &self.effects {
            let (passed, text) = self.output(command, &[&server.proxy], &self.folder)?;
            let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
            report.effects.extend(lines);
            if !passed {
                report.wrong.push(format!("`{}`:\n{text}", command.join(" ")));
            }
        }
        self.breaks(&server, &file, &mut report)?;
        Ok(report)
    }

    /// Plays the scenario of each deliberate mistake, which must be red.
    fn breaks(&self, server: &Server, file: &str, report: &mut Report) -> Result<(), String> {
        let text = read(&clients().join("conformance/breaks.json"))?;
        let all: Vec<BTreeMap<String, String>> =
            serde_json::from_str(&text).map_err(|error| format!("breaks.json: {error}"))?;
        for mistake in all.iter().filter(|of| of.get("client").is_some_and(|c| c == self.name)) {
            let member = |name: &str| {
                mistake.get(name).map(String::as_str).ok_or(format!("a break has no `{name}`"))
            };
            let (what, red) = (member("break")?, member("red")?);
            self.broken.copy(&self.folder)?;
            let copy = &self.broken.folder;
            let path = copy.join(member("file")?);
            let source = read(&path)?;
            if source.matches(member("find")?).count() != 1 {
                return Err(format!("{what}: `{}` is not there once", member("find")?));
            }
            let broken = source.replace(member("find")?, member("replace")?);
            std::fs::write(&path, broken).map_err(|error| error.to_string())?;
            let suite = &self.broken.suite;
            let (_, text) = self.output(suite, &[&server.scenarios, file, red], copy)?;
            let lines: Vec<Value> =
                text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let is_red = |line: &Value| line.get("ok") == Some(&Value::Bool(false));
            if !lines.is_empty() && lines.iter().all(is_red) {
                let why = lines.first().and_then(|line| line.pointer("/why/0"));
                let why = why.and_then(Value::as_str).unwrap_or_default();
                report.breaks.push(format!("{}: {what}: red in {red} ({why})", self.name));
            } else {
                report.wrong.push(format!("nothing noticed `{what}` in {red}:\n{text}"));
            }
            let _left_over = std::fs::remove_dir_all(copy);
        }
        Ok(())
    }

    /// Runs a command to its end. Returns true if it succeeded, and what it printed.
    fn output(
        &self,
        command: &[&str],
        more: &[&str],
        folder: &Path,
    ) -> Result<(bool, String), String> {
        let (program, arguments) = command.split_first().ok_or("a command is empty")?;
        let mut run = Command::new(program);
        run.args(arguments).args(more).current_dir(folder).stdin(Stdio::null());
        for (name, value) in &self.variables {
            if *name == "ONETAKE_PACKAGES" {
                let path = std::env::join_paths([value.clone(), folder.join("src")]);
                run.env("PYTHONPATH", path.map_err(|error| error.to_string())?);
            } else {
                run.env(name, value);
            }
        }
        let ran = run.output().map_err(|error| format!("{program} cannot be started: {error}"))?;
        let text = [ran.stdout, ran.stderr].concat();
        Ok((ran.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }
}

/// The programs that the clients talk to.
struct Binaries {
    scenarios: PathBuf,
    gateway: PathBuf,
    rust_suite: PathBuf,
}

fn built_by(arguments: &[&str]) -> Result<Binaries, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    eprintln!("$ cargo {}", arguments.join(" "));
    let built = Command::new(cargo)
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    let text = String::from_utf8_lossy(&built.stdout);
    let find = |name: &str| {
        let files = text.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            Some(PathBuf::from(message.get("executable")?.as_str()?))
        });
        let file = files.into_iter().find(|file| file.file_name().is_some_and(|file| file == name));
        file.ok_or(format!("cargo built no {name}"))
    };
    Ok(Binaries {
        scenarios: find("onetake-scenarios")?,
        gateway: find("onetake")?,
        rust_suite: find(RUST_SUITE)?,
    })
}

/// The server of the scenarios, with a gateway behind a lossy proxy. It ends with its input.
struct Server {
    process: Child,
    scenarios: String,
    proxy: String,
}

impl Server {
    fn start(binaries: &Binaries) -> Result<Self, String> {
        let mut process = Command::new(&binaries.scenarios)
            .arg(clients().join("conformance/scenarios.json"))
            .arg(&binaries.gateway)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the scenario server cannot be started: {error}"))?;
        let output = process.stdout.take().ok_or("the scenario server has no output")?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let (scenarios, proxy) = (lines.next(), lines.next());
        match (scenarios, proxy) {
            (Some(scenarios), Some(proxy)) => Ok(Self { process, scenarios, proxy }),
            _ => Err("the scenario server or its gateway did not start".to_owned()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ended = self.process.wait();
    }
}

fn clients() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../clients"))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", from.display());
    std::fs::create_dir_all(to).map_err(told)?;
    for entry in std::fs::read_dir(from).map_err(told)? {
        let path = entry.map_err(told)?.path();
        let Some(name) = path.file_name().filter(|name| *name != BREAK_FOLDER) else { continue };
        if path.is_dir() {
            copy_all(&path, &to.join(name))?;
        } else {
            std::fs::copy(&path, to.join(name)).map_err(told)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the code blocks of a page, with their languages.
    fn blocks(text: &str) -> Vec<String> {
        let parts = text.split("\n```").collect::<Vec<_>>();
        // Every second part is inside a block.
        parts.iter().skip(1).step_by(2).map(|block| (*block).to_owned()).collect()
    }

    /// The tests of a client run the blocks of its README, so the blocks of the page are run too.
    #[test]
    fn every_block_of_the_page_is_in_the_readme_of_a_client() {
        let root = clients().join("..");
        let readmes =
            ["clients/typescript", "clients/python", "clients/go", "crates/onetake-client"];
        let tested = readmes
            .iter()
            .flat_map(|folder| blocks(&read(&root.join(folder).join("README.md")).unwrap()));
        let tested: Vec<String> = tested.collect();
        let page = read(&root.join("docs/CLIENTS.md")).unwrap();
        for block in blocks(&page) {
            assert!(tested.contains(&block), "not in the README of a client:\n{block}");
        }
        for library in ["axios", "httpx", "requests", "net/http", "reqwest"] {
            let (_, section) = page.split_once(&format!("### {library}\n")).unwrap();
            let section = section.split("\n#").next().unwrap();
            let has = |word: &str| section.contains(&format!("\n{word}:\n\n```"));
            assert!(has("Before") && has("After"), "{library}");
        }
    }

    #[test]
    fn every_client_has_the_same_deliberate_mistakes() {
        let breaks: Vec<BTreeMap<String, String>> =
            serde_json::from_str(&read(&clients().join("conformance/breaks.json")).unwrap())
                .unwrap();
        let of = |client: &str| -> Vec<&str> {
            let of = breaks.iter().filter(|one| one["client"] == client);
            of.map(|one| one["break"].as_str()).collect()
        };
        let queue = "an intent is stored after it is sent";
        let all = of("typescript");
        assert!(all.len() == 5 && all.contains(&queue), "{all:?}");
        assert_eq!(of("python"), all);
        let without_queue: Vec<&str> = all.into_iter().filter(|one| *one != queue).collect();
        assert_eq!(of("go"), without_queue);
        assert_eq!(of("rust"), without_queue);
    }
}
