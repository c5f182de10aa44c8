//! A card network: charges once for each key, and can be asked by the key.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;

pub(crate) struct Network {
    pub(crate) address: SocketAddr,
    ledger: Arc<Ledger>,
}

#[derive(Default)]
struct Ledger {
    /// The payment and the response, by key.
    charges: Mutex<HashMap<String, (String, String)>>,
    found: AtomicUsize,
}

impl Network {
    pub(crate) async fn start() -> Self {
        let ledger = Arc::new(Ledger::default());
        let router = Router::new()
            .route("/charge", post(charge))
            .route("/by-key/{key}", get(by_key))
            .with_state(Arc::clone(&ledger));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, ledger }
    }

    /// The charges of a payment.
    pub(crate) fn charges(&self, number: usize) -> Vec<String> {
        let number = number.to_string();
        let charges = self.ledger.charges.lock().unwrap();
        let of_payment = charges.values().filter(|(payment, _)| *payment == number);
        of_payment.map(|(_, answer)| answer.clone()).collect()
    }

    pub(crate) fn charges_in_all(&self) -> usize {
        self.ledger.charges.lock().unwrap().len()
    }

    /// Number of reconciliation questions that found an outcome.
    pub(crate) fn found(&self) -> usize {
        self.ledger.found.load(Ordering::SeqCst)
    }
}

async fn charge(State(ledger): State<Arc<Ledger>>, headers: HeaderMap, number: String) -> String {
    let key = headers.get("idempotency-key").unwrap().to_str().unwrap().to_owned();
    let mut charges = ledger.charges.lock().unwrap();
    let next = charges.len() + 1;
    let entry = charges.entry(key);
    let (_, answer) = entry.or_insert_with(|| {
        let answer = format!("{{\"charge\":{next},\"payment\":{number}}}");
        (number, answer)
    });
    answer.clone()
}

async fn by_key(State(ledger): State<Arc<Ledger>>, Path(key): Path<String>) -> Response {
    let known = ledger.charges.lock().unwrap().get(&key).cloned();
    match known {
        Some((_, answer)) => {
            ledger.found.fetch_add(1, Ordering::SeqCst);
            ([("onetake-status", "201")], answer).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
