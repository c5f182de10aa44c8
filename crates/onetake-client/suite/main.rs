//! Plays the scenarios of `clients/conformance`: `client_suite SERVER FILE [NAME…]`.
//!
//! With one argument, the URL of a lossy proxy, it counts the effects of 1,000 intents. It prints
//! one JSON line each, for tower and for reqwest.

mod effects;
mod scenario;
mod virtual_clock;

use std::process::ExitCode;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use onetake_client::reqwest::SendWith as _;
use onetake_client::{BoxError, CallReport, Error, KEY_HEADER, Onetake, OnetakeLayer};
use serde_json::Value;
use tower::{Layer as _, ServiceExt as _};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = match arguments.as_slice() {
        [proxy] => effects::count(proxy).await,
        [server, file, names @ ..] => scenario::play_all(server, file, names).await,
        [] => Err("usage: client_suite SERVER FILE [NAME…], or client_suite PROXY".into()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The inner clients.
#[derive(Clone, Copy, Debug)]
enum Library {
    /// The layer over hyper's client.
    Tower,
    Reqwest,
}

const LIBRARIES: [Library; 2] = [Library::Tower, Library::Reqwest];

/// A successful call, as the caller sees it.
struct Answered {
    status: u16,
    report: Option<CallReport>,
}

impl Library {
    fn name(self) -> &'static str {
        match self {
            Self::Tower => "rust tower",
            Self::Reqwest => "rust reqwest",
        }
    }

    /// Sends one operation.
    async fn post(
        self,
        onetake: &Onetake,
        url: &str,
        body: String,
        key: Option<&str>,
    ) -> Result<Answered, Error> {
        match self {
            Self::Tower => {
                let client = legacy::Client::builder(TokioExecutor::new()).build_http();
                let mut request = Request::builder().method(Method::POST).uri(url);
                request = request.header("content-type", "application/json");
                if let Some(key) = key {
                    request = request.header(KEY_HEADER, key);
                }
                let request = request.body(Full::new(Bytes::from(body)));
                let request = request.map_err(|error| Error::Inner(error.into()))?;
                let service = OnetakeLayer::new(onetake.clone()).layer(client);
                let response = service.oneshot(request).await?;
                let report = response.extensions().get().cloned();
                Ok(Answered { status: response.status().as_u16(), report })
            }
            Self::Reqwest => {
                let mut request = reqwest::Client::new().post(url).body(body);
                request = request.header("content-type", "application/json");
                if let Some(key) = key {
                    request = request.header(KEY_HEADER, key);
                }
                let response = request.send_with(onetake).await?;
                let report = response.extensions().get().cloned();
                Ok(Answered { status: response.status().as_u16(), report })
            }
        }
    }
}

/// Asks the server of the scenarios, or the proxy.
async fn control(method: Method, url: &str) -> Result<Value, BoxError> {
    let answered = reqwest::Client::new().request(method, url).send().await?;
    Ok(answered.json().await?)
}
