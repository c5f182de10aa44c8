//! A service for `forward_auth`, on loopback.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Request, StatusCode};
use onetake_sim::client::ClientResponse;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The answer for a credential.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Says {
    Allow(&'static str),
    Refuse,
    Forbid,
    /// No response at all.
    Nothing,
    /// Allows it once the gate is open.
    Gate(&'static str),
    Break,
    Redirect,
    Nameless,
    TwoNames,
}

#[derive(Clone)]
pub(crate) struct Auth {
    pub(crate) address: SocketAddr,
    state: Arc<Known>,
}

struct Known {
    says: Mutex<HashMap<String, Says>>,
    asked: Mutex<Vec<(String, HeaderMap)>>,
    gate: watch::Sender<bool>,
}

impl Auth {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gate = watch::Sender::new(false);
        let state = Arc::new(Known { says: Mutex::default(), asked: Mutex::default(), gate });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&state));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, state }
    }

    /// Sets the answer for `Authorization: Bearer {token}`.
    pub(crate) fn says(&self, token: &str, says: Says) {
        self.state.says.lock().unwrap().insert(format!("Bearer {token}"), says);
    }

    /// Every question so far: the target and the headers.
    pub(crate) fn asked(&self) -> Vec<(String, HeaderMap)> {
        self.state.asked.lock().unwrap().clone()
    }

    pub(crate) fn open_gate(&self) {
        self.state.gate.send_replace(true);
    }
}

async fn answer(State(known): State<Arc<Known>>, request: Request<Body>) -> Response {
    assert_eq!(request.method(), "GET");
    let headers = request.headers().clone();
    let credential = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    known.asked.lock().unwrap().push((request.uri().to_string(), headers));
    let says = known.says.lock().unwrap().get(&credential.unwrap_or_default()).copied();
    let name = |name: &'static str| [("x-auth-request-user", name)];
    match says.unwrap_or(Says::Refuse) {
        Says::Allow(who) => (name(who), "welcome").into_response(),
        Says::Refuse => {
            let mut response = (StatusCode::UNAUTHORIZED, "go away").into_response();
            for challenge in ["Bearer realm=\"a\"", "Basic realm=\"b\""] {
                response.headers_mut().append("www-authenticate", challenge.parse().unwrap());
            }
            // The name in a refusal must be ignored.
            response.headers_mut().insert("x-auth-request-user", "alice".parse().unwrap());
            response
        }
        Says::Forbid => (StatusCode::FORBIDDEN, name("alice")).into_response(),
        Says::Nothing => std::future::pending().await,
        Says::Gate(who) => {
            let mut gate = known.gate.subscribe();
            gate.wait_for(|open| *open).await.unwrap();
            name(who).into_response()
        }
        Says::Break => (StatusCode::INTERNAL_SERVER_ERROR, name("alice")).into_response(),
        Says::Redirect => {
            let location = [("location", "/login"), ("x-auth-request-user", "alice")];
            (StatusCode::FOUND, location).into_response()
        }
        Says::Nameless => (StatusCode::OK, [("x-auth-request-user", "")]).into_response(),
        Says::TwoNames => {
            let mut response = name("alice").into_response();
            response.headers_mut().append("x-auth-request-user", "bob".parse().unwrap());
            response
        }
    }
}

/// Checks that a response holds nothing of the upstream's response or the recording.
#[track_caller]
pub(crate) fn assert_tells_nothing(answer: &ClientResponse) {
    let told = format!("{:?} {}", answer.headers, answer.text());
    for piece in ["charged", "fence", "/charges/1", "<a>", "replayed", "reference", "HIT"] {
        assert!(!told.contains(piece), "{piece} in {told}");
    }
}
