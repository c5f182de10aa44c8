//! The server that is killed: an axum API behind the layer, in a process of its own.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use onetake::clock::{SystemClock, SystemRng};
use onetake::engine::{Housekeeping, Limits};
use onetake::prelude::*;

use super::breathe;
use super::steps::{Stepping, Steps};
use super::transactions::pay_in_transaction;

/// The settings of a victim, passed as environment variables.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    /// `embedded:…`, `sqlite:…` or `postgres://…`
    pub(crate) store: String,
    /// The route's treatment of unknown outcomes.
    pub(crate) on_unknown: OnUnknown,
    /// The file in which steps are counted.
    pub(crate) steps: PathBuf,
    /// The step at which the process is killed.
    pub(crate) dies_at: usize,
    /// The file in which the effects of plain operations are counted. It stands for another
    /// service.
    pub(crate) effects: PathBuf,
    /// The file to which the server writes its port.
    pub(crate) port: PathBuf,
    /// The file for which an operation waits in its middle, if one is set.
    pub(crate) gate: Option<PathBuf>,
}

const VARIABLES: [&str; 7] = [
    "VICTIM_STORE",
    "VICTIM_ON_UNKNOWN",
    "VICTIM_STEPS",
    "VICTIM_DIES_AT",
    "VICTIM_EFFECTS",
    "VICTIM_PORT",
    "VICTIM_GATE",
];

impl Orders {
    pub(crate) fn variables(&self) -> [(&'static str, String); 7] {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let on_unknown = format!("{:?}", self.on_unknown);
        let values = [
            self.store.clone(),
            on_unknown,
            path(&self.steps),
            self.dies_at.to_string(),
            path(&self.effects),
            path(&self.port),
            self.gate.as_deref().map(path).unwrap_or_default(),
        ];
        let mut values = values.into_iter();
        VARIABLES.map(|name| (name, values.next().unwrap()))
    }

    /// Reads the settings of this process. Returns `None` if it is not a victim.
    fn received() -> Option<Self> {
        let [store, on_unknown, steps, dies_at, effects, port, gate] =
            VARIABLES.map(|name| std::env::var(name).ok());
        Some(Self {
            store: store?,
            on_unknown: match on_unknown?.as_str() {
                "Fail" => OnUnknown::Fail,
                "Retry" => OnUnknown::Retry,
                "Rollback" => OnUnknown::Rollback,
                other => panic!("{other}"),
            },
            steps: steps?.into(),
            dies_at: dies_at?.parse().unwrap(),
            effects: effects?.into(),
            port: port?.into(),
            gate: gate.filter(|gate| !gate.is_empty()).map(Into::into),
        })
    }
}

/// A short lease, so that a killed attempt is abandoned soon. It is still long enough for a slow
/// claim.
const LEASE: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_millis(500);

/// The longest time that an operation may run. The clock of a frozen server continues, and on a
/// slow machine the server may need a minute to continue. That must not count as a timeout of the
/// operation.
const RUN_MAX: Duration = Duration::from_secs(3_600);

/// Serves until the process is killed. Does nothing in a process that is not a victim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let Some(orders) = Orders::received() else { return };
    let steps = Steps::new(&orders.steps, orders.dies_at);
    let inner = open(&orders.store).await;
    let store = Arc::new(Stepping { inner: Arc::clone(&inner), steps: Arc::clone(&steps) });
    let engine = Engine::with(store, Arc::new(SystemClock), Arc::new(SystemRng), Limits::default());
    engine.keep_house(Housekeeping {
        reap_interval: Duration::from_millis(20),
        ..Housekeeping::default()
    });
    let terms =
        Terms { lease: LEASE, grace: GRACE, on_unknown: orders.on_unknown, ..Terms::default() };
    let mut policy = Policy::new().tenant(Tenant::Public).terms(terms).upstream_timeout(RUN_MAX);
    if orders.on_unknown == OnUnknown::Rollback {
        policy = policy.transactional(pay_in_transaction);
    }
    let place = Arc::new((orders.clone(), Arc::clone(&steps)));
    let app = Router::new()
        .route(
            "/pay",
            if orders.on_unknown == OnUnknown::Rollback {
                post(pay_in_transaction)
            } else {
                post(pay)
            },
        )
        .with_state(place)
        .layer(OnetakeLayer::new(engine, policy).unwrap())
        .layer(axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
            let steps = Arc::clone(&steps);
            async move {
                let response = next.run(request).await;
                steps.reach("before the answer");
                response
            }
        }));
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let unfinished = orders.port.with_extension("unfinished");
    std::fs::write(&unfinished, listener.local_addr().unwrap().port().to_string()).unwrap();
    std::fs::rename(unfinished, orders.port).unwrap();
    axum::serve(listener, app).await.unwrap();
}

async fn open(url: &str) -> Arc<dyn Store> {
    if let Some(folder) = url.strip_prefix("embedded:") {
        return Arc::new(EmbeddedStore::open(folder).unwrap());
    }
    if let Some(file) = url.strip_prefix("sqlite:") {
        return Arc::new(SqliteStore::open_in(Path::new(file)).unwrap());
    }
    Arc::new(PostgresStore::open(url, patient()).await.unwrap())
}

/// Long timeouts, for slow test machines.
pub(crate) fn patient() -> PostgresOptions {
    let patience = Duration::from_secs(30);
    PostgresOptions {
        connect_timeout: patience,
        command_timeout: patience,
        ..PostgresOptions::default()
    }
}

/// The point at which a server may be frozen.
pub(crate) async fn middle(orders: &Orders, steps: &Steps) {
    if let Some(gate) = &orders.gate {
        steps.reach("in the middle");
        while !gate.exists() {
            breathe().await;
        }
    }
}

/// Pays with an effect outside of the store, which cannot be rolled back.
async fn pay(State(place): State<Arc<(Orders, Arc<Steps>)>>) -> String {
    let (orders, steps) = &*place;
    steps.reach("before the effect");
    let mut effects = OpenOptions::new().create(true).append(true).open(&orders.effects).unwrap();
    effects.write_all(b"paid\n").unwrap();
    effects.sync_all().unwrap();
    steps.reach("after the effect");
    middle(orders, steps).await;
    let number = std::fs::read_to_string(&orders.effects).unwrap().lines().count();
    format!("payment {number}")
}
