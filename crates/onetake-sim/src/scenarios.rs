//! A server that plays the scenarios of `clients/conformance`, and reports what it received.
//!
//! A client's runner starts a run of a scenario (`POST /-/runs/{scenario}`), sends its requests
//! under the path of the run, and asks what arrived (`GET /-/runs/{number}`). Each request of a run
//! takes the next step of the scenario. Connections are closed after each response, so that no HTTP
//! library repeats a request by itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The largest request that is read, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The error of a scenario file.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file is not JSON.
    #[error("the scenarios are not valid JSON")]
    Json(#[from] serde_json::Error),
    /// A part of the file is missing or unknown.
    #[error("scenario `{scenario}`: {defect}")]
    Invalid {
        /// The name of the scenario, or its number.
        scenario: String,
        /// The defect.
        defect: String,
    },
}

/// One action of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Sends a whole response.
    Answer { status: u16, headers: Vec<(String, String)>, body: String },
    /// Reads the request and closes the connection.
    Drop,
    /// Resets the connection in the middle of the response's head.
    ResetInHead,
    /// Resets the connection in the middle of the response's body.
    ResetInBody,
    /// Sends nothing and keeps the connection open.
    Hang,
}

/// The steps of every scenario, by name.
#[derive(Clone, Debug)]
pub struct Scenarios(BTreeMap<String, Vec<Step>>);

impl Scenarios {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// If the text is not JSON, or a scenario has no name, a name twice, or an unknown step.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let document: Value = serde_json::from_str(text)?;
        let list = document.get("scenarios").and_then(Value::as_array);
        let list = list.ok_or_else(|| invalid("all", "`scenarios` must be an array"))?;
        let mut scenarios = BTreeMap::new();
        for (number, scenario) in list.iter().enumerate() {
            let name = scenario.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| invalid(number, "it has no `name`"))?;
            let steps = scenario.get("steps").and_then(Value::as_array);
            let steps = steps.ok_or_else(|| invalid(name, "it has no `steps`"))?;
            let steps: Result<Vec<Step>, _> = steps.iter().map(|step| read(name, step)).collect();
            if scenarios.insert(name.to_owned(), steps?).is_some() {
                return Err(invalid(name, "its name is used twice"));
            }
        }
        Ok(Self(scenarios))
    }
}

fn invalid(scenario: impl ToString, defect: impl Into<String>) -> ScenarioError {
    ScenarioError::Invalid { scenario: scenario.to_string(), defect: defect.into() }
}

fn read(scenario: &str, step: &Value) -> Result<Step, ScenarioError> {
    let text = |name: &str| step.get(name).and_then(Value::as_str);
    match text("do") {
        Some("drop") => Ok(Step::Drop),
        Some("hang") => Ok(Step::Hang),
        Some("reset_in_head") => Ok(Step::ResetInHead),
        Some("reset_in_body") => Ok(Step::ResetInBody),
        Some("answer") => {
            let status = step.get("status").and_then(Value::as_u64);
            let status = status.and_then(|status| u16::try_from(status).ok());
            let status = status.ok_or_else(|| invalid(scenario, "an answer has no `status`"))?;
            let headers = step.get("headers").and_then(Value::as_object);
            let headers = headers.into_iter().flatten();
            let headers = headers
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
            let body = text("body").unwrap_or_default().to_owned();
            Ok(Step::Answer { status, headers: headers.collect(), body })
        }
        other => Err(invalid(scenario, format!("unknown step `{}`", other.unwrap_or("")))),
    }
}

/// The server. It ends when this value is dropped.
#[derive(Debug)]
pub struct ScenarioServer {
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl ScenarioServer {
    /// Starts the server on a free port of the loopback interface.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(scenarios: Scenarios) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State { scenarios, runs: Mutex::default() });
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    // A client that closes its connection early is part of many scenarios.
                    let _closed = serve(stream, &state).await;
                });
            }
        });
        Ok(Self { address, accepting })
    }

    /// Returns its address as `http://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for ScenarioServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[derive(Debug)]
struct State {
    scenarios: Scenarios,
    runs: Mutex<Vec<Run>>,
}

/// One run of a scenario.
#[derive(Debug)]
struct Run {
    steps: std::vec::IntoIter<Step>,
    received: Vec<Value>,
}

/// A request, as it arrived.
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

async fn serve(mut stream: TcpStream, state: &State) -> io::Result<()> {
    let Some(request) = receive(&mut stream).await? else { return Ok(()) };
    let mut segments = request.path.trim_start_matches('/').split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("-"), Some("runs"), Some(which)) if request.method == "POST" => {
            control(&mut stream, state.start(which)).await
        }
        (Some("-"), Some("runs"), Some(which)) => control(&mut stream, state.report(which)).await,
        (Some("runs"), Some(number), _) => {
            let step = state.step(number, &request);
            play(&mut stream, step, number).await
        }
        _ => control(&mut stream, None).await,
    }
}

impl State {
    /// Starts a run. Returns its path, or `None` if the scenario is unknown.
    fn start(&self, scenario: &str) -> Option<Value> {
        let steps = self.scenarios.0.get(scenario)?.clone().into_iter();
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.push(Run { steps, received: Vec::new() });
        let number = runs.len() - 1;
        Some(json!({ "run": number, "path": format!("/runs/{number}") }))
    }

    /// Returns the requests of a run so far, and the number of steps that are left.
    fn report(&self, number: &str) -> Option<Value> {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let run = runs.get(number.parse::<usize>().ok()?)?;
        Some(json!({ "requests": run.received, "steps_left": run.steps.len() }))
    }

    /// Notes a request, and returns the next step of its run. A request that has no step gets 599,
    /// which no scenario uses.
    fn step(&self, number: &str, request: &Received) -> Step {
        let none = Step::Answer { status: 599, headers: Vec::new(), body: String::new() };
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let run = number.parse::<usize>().ok().and_then(|number| runs.get_mut(number));
        let Some(run) = run else { return none };
        let header = |name: &str| request.headers.get(name);
        run.received.push(json!({
            "method": request.method,
            "path": request.path,
            "key": header("idempotency-key"),
            "timeout_ms": header("x-request-timeout-ms").and_then(|ms| ms.parse::<u64>().ok()),
            "authorization": header("authorization"),
            "body": request.body,
        }));
        run.steps.next().unwrap_or(none)
    }
}

/// Reads one request. Returns `None` if the connection ends first or the request is too large.
pub(crate) async fn receive(stream: &mut TcpStream) -> io::Result<Option<Received>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 16 << 10];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        let count = stream.read(&mut chunk).await?;
        if count == 0 || bytes.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
    };
    let head = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned();
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut body = bytes.get(end + 4..).unwrap_or_default().to_vec();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while body.len() < length {
        let count = stream.read(&mut chunk).await?;
        if count == 0 || body.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        body.extend_from_slice(chunk.get(..count).unwrap_or_default());
    }
    let (method, path) = (method.to_owned(), path.to_owned());
    Ok(Some(Received { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() }))
}

/// Answers a question of the runner.
pub(crate) async fn control(stream: &mut TcpStream, answer: Option<Value>) -> io::Result<()> {
    let status = if answer.is_some() { 200 } else { 404 };
    let body = answer.unwrap_or_else(|| json!({ "error": "no such scenario or run" })).to_string();
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    respond(stream, status, &headers, &body).await
}

async fn play(stream: &mut TcpStream, step: Step, run: &str) -> io::Result<()> {
    match step {
        Step::Answer { status, mut headers, body } => {
            for (_, value) in &mut headers {
                *value = value.replace("{run}", &format!("/runs/{run}"));
            }
            respond(stream, status, &headers, &body).await
        }
        Step::Drop => Ok(()),
        Step::ResetInHead => reset(stream, b"HTTP/1.1 201 Created\r\ncontent-le").await,
        Step::ResetInBody => {
            reset(stream, b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{\"charge\"").await
        }
        Step::Hang => {
            // Ends when the client closes the connection.
            let mut rest = [0; 64];
            while stream.read(&mut rest).await? > 0 {}
            Ok(())
        }
    }
}

pub(crate) async fn respond(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(String, String)],
    body: &str,
) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Scenario\r\nconnection: close\r\n");
    for (name, value) in headers {
        // Writing to a string cannot fail.
        let _written = write!(head, "{name}: {value}\r\n");
    }
    let _written = write!(head, "content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.shutdown().await
}

/// Sends a part of a response, and resets the connection.
async fn reset(stream: &mut TcpStream, part: &[u8]) -> io::Result<()> {
    stream.write_all(part).await?;
    // Closing a socket that lingers for no time sends RST.
    stream.set_zero_linger()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIOS: &str = include_str!("../../../clients/conformance/scenarios.json");

    async fn ask(url: &str, method: &str, path: &str, head: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(url.trim_start_matches("http://")).await?;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{head}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[test]
    fn the_scenarios_of_the_clients_are_valid() {
        let scenarios = Scenarios::parse(SCENARIOS).unwrap();
        assert!(scenarios.0.len() >= 40, "{}", scenarios.0.len());
    }

    #[test]
    fn a_mistake_in_the_file_names_its_scenario() {
        for (text, defect) in [
            (r#"{"scenarios": [{"steps": []}]}"#, "scenario `0`: it has no `name`"),
            (r#"{"scenarios": [{"name": "a"}]}"#, "scenario `a`: it has no `steps`"),
            (
                r#"{"scenarios": [{"name": "a", "steps": [{"do": "explode"}]}]}"#,
                "scenario `a`: unknown step `explode`",
            ),
            (
                r#"{"scenarios": [{"name": "a", "steps": [{"do": "answer"}]}]}"#,
                "scenario `a`: an answer has no `status`",
            ),
            (
                r#"{"scenarios": [{"name": "a", "steps": []}, {"name": "a", "steps": []}]}"#,
                "scenario `a`: its name is used twice",
            ),
        ] {
            assert_eq!(Scenarios::parse(text).unwrap_err().to_string(), defect);
        }
    }

    #[tokio::test]
    async fn steps_are_played_in_order_and_requests_are_reported() {
        let text = r#"{"scenarios": [{"name": "all", "steps": [
            {"do": "drop"}, {"do": "reset_in_head"}, {"do": "reset_in_body"},
            {"do": "answer", "status": 202, "headers": {"location": "{run}/x"}, "body": "b"}]}]}"#;
        let server = ScenarioServer::start(Scenarios::parse(text).unwrap()).await.unwrap();
        let url = server.url();
        assert!(ask(&url, "POST", "/-/runs/none", "").await.unwrap().contains(" 404 "));
        assert!(ask(&url, "POST", "/-/runs/all", "").await.unwrap().contains("\"/runs/0\""));
        assert_eq!(ask(&url, "POST", "/runs/0/a", "Idempotency-Key: k\r\n").await.unwrap(), "");
        for _ in 0..2 {
            let reset = ask(&url, "POST", "/runs/0/a", "").await.unwrap_err();
            assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
        }
        let answer = ask(&url, "GET", "/runs/0/a", "").await.unwrap();
        assert!(answer.contains("location: /runs/0/x\r\n") && answer.ends_with("\r\n\r\nb"));
        assert!(ask(&url, "GET", "/runs/0/a", "").await.unwrap().contains(" 599 "));
        let report = ask(&url, "GET", "/-/runs/0", "").await.unwrap();
        let body = report.split("\r\n\r\n").nth(1).unwrap();
        let report: Value = serde_json::from_str(body).unwrap();
        assert_eq!(report["requests"].as_array().unwrap().len(), 5);
        assert_eq!(report["requests"][0]["key"], "k");
    }
}
