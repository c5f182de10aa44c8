//! `[relay]`: who delivers the outbox, and where to.

use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use onetake_relay::{RelayOptions, WebhookSecret};

use super::admin::Token;
use super::document::Draft;
use super::error::{Fault, Origin, Problems};
use super::fields;
use super::reader::{Section, Value};
use super::resolve::resolve_store;
use super::secrets::{Env, Found, SECRETS_MAX, elsewhere};
use super::store_url::{self, ServerUrl};
use super::tree::Kind;
use super::units::{self, RELAY_BACKOFF, RELAY_HOLD, RELAY_KEPT, RELAY_POLL, RELAY_TIMEOUT};
use super::url::{parse_auth_url, parse_listen};
use super::{StoreConfig, UpstreamTls};

/// The most messages of a turn that may be configured.
pub(super) const BATCH_MAX: usize = 1_000;
/// The most failures that may be configured.
pub(super) const TRIES_MAX: usize = 1_000_000;
/// The longest prefix of subjects.
pub(super) const PREFIX_LENGTH_MAX: usize = 255;
/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);

const SECRETS_EXAMPLE: &str = "[{ env = \"ONETAKE_WEBHOOK_SECRET\" }]";

/// `[relay]`, and what else a relay needs.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Whose outbox it is.
    pub store: StoreConfig,
    /// Where messages go.
    pub sink: SinkConfig,
    /// How long a receiver may take for a message.
    pub timeout: Duration,
    /// The relay's bounds.
    pub options: RelayOptions,
    /// Where metrics are served, if they are.
    pub listen: Option<SocketAddr>,
    /// What they are shown for; `[admin] token`.
    pub token: Option<Token>,
    /// How a webhook's `https://` is met: as upstreams are.
    pub tls: UpstreamTls,
}

/// `sink`
#[derive(Clone, Debug)]
pub enum SinkConfig {
    /// `nats://…`, `tls://…`: JetStream.
    Nats {
        /// Its servers.
        url: ServerUrl,
        /// What subjects begin with.
        subject_prefix: String,
    },
    /// `http://…`, `https://…`: a webhook.
    Webhook {
        /// The endpoint.
        url: Uri,
        /// What calls are signed with.
        secrets: Vec<WebhookSecret>,
    },
}

/// Where messages go, as it was written.
#[derive(Clone, Debug)]
enum Place {
    Nats(ServerUrl),
    Webhook(Uri),
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct RelayDraft {
    place: Option<(Place, Origin)>,
    prefix: Option<String>,
    secrets: Vec<WebhookSecret>,
    batch: Option<usize>,
    hold: Option<Duration>,
    poll: Option<Duration>,
    timeout: Option<Duration>,
    backoff_max: Option<Duration>,
    tries_max: Option<usize>,
    kept: Option<Duration>,
    listen: Option<(SocketAddr, Origin)>,
}

impl RelayDraft {
    pub(super) fn has_https_webhook(&self) -> bool {
        let scheme = match &self.place {
            Some((Place::Webhook(url), _)) => url.scheme(),
            _ => None,
        };
        scheme == Some(&Scheme::HTTPS)
    }
}

pub(super) fn read(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> RelayDraft {
    let Some(table) = Section::open(value, &fields::RELAY, "[relay]", problems) else {
        return RelayDraft::default();
    };
    let mut draft = RelayDraft::default();
    if let Some(value) = table.get("sink") {
        let place = value.parse("\"nats://127.0.0.1:4222\"", problems, parse_place);
        draft.place = place.map(|place| (place, value.node.at.clone()));
    }
    draft.prefix = table
        .get("subject_prefix")
        .and_then(|value| value.parse("\"payments.\"", problems, parse_prefix));
    if let Some(value) = table.get("secrets") {
        draft.secrets = read_secrets(&value, env, problems);
    }
    draft.batch = table.get("batch").and_then(|value| value.integer((1, BATCH_MAX), problems));
    draft.tries_max =
        table.get("tries_max").and_then(|value| value.integer((1, TRIES_MAX), problems));
    let mut duration =
        |name, limits| table.get(name).and_then(|value| units::duration(&value, limits, problems));
    draft.hold = duration("hold", &RELAY_HOLD);
    draft.poll = duration("poll", &RELAY_POLL);
    draft.timeout = duration("timeout", &RELAY_TIMEOUT);
    draft.backoff_max = duration("backoff_max", &RELAY_BACKOFF);
    draft.kept = duration("kept", &RELAY_KEPT);
    if let Some(value) = table.get("listen") {
        let listen = value.parse("\"127.0.0.1:9092\"", problems, parse_listen);
        draft.listen = listen.map(|listen| (listen, value.node.at.clone()));
    }
    draft
}

fn parse_place(text: &str) -> Result<Place, Fault> {
    const FIX: &str = "write \"nats://HOST:4222\" or \"tls://HOST:4222\" for NATS JetStream, or \
                       \"https://HOST/PATH\" for a webhook";
    match text.split_once("://") {
        Some(("nats" | "tls", _)) => store_url::nats(text, FIX).map(Place::Nats),
        Some(("http" | "https", _)) => parse_auth_url(text).map(Place::Webhook),
        _ => Err(Fault::new("not a place that messages can go to", FIX).hiding_value(true)),
    }
}

/// A prefix is the beginning of a subject: the words in front of its last dot are whole.
fn parse_prefix(text: &str) -> Result<String, Fault> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let whole = !text.starts_with('.') && !text.contains("..");
    match whole && text.len() <= PREFIX_LENGTH_MAX && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(
            "not the beginning of a subject",
            format!(
                "write up to {PREFIX_LENGTH_MAX} letters, digits, - and _, in words separated by dots"
            ),
        )),
    }
}

fn read_secrets(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Vec<WebhookSecret> {
    let elements = value.list(SECRETS_EXAMPLE, problems).unwrap_or_default();
    if elements.len() > SECRETS_MAX {
        let fix = format!("keep the newest, at most {SECRETS_MAX}");
        value.refuse(Fault::new("too many secrets", fix), problems);
    }
    elements.iter().filter_map(|element| read_secret(element, env, problems)).collect()
}

fn read_secret(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<WebhookSecret> {
    let Found { text, at, path } = match &value.node.kind {
        Kind::Text(text) => Found::here(text, value),
        _ => {
            let table = Section::open(
                value,
                &fields::SECRET_KEY,
                "{ env = \"ONETAKE_WEBHOOK_SECRET\" }",
                problems,
            )?;
            elsewhere(&table, value, env, problems)?
        }
    };
    let secret = text.trim().parse();
    if let Err(error) = &secret {
        let fault = Fault::new(
            format!("{error}"),
            "make one with `echo whsec_$(openssl rand -base64 32)`, and give it to the receiver",
        );
        problems.add(&at, &path, None, fault);
    }
    secret.ok()
}

/// Completes what a relay needs.
pub(super) fn resolve(mut draft: Draft, problems: &mut Problems<'_>) -> RelayConfig {
    let store = resolve_store(&draft, problems);
    let relay = std::mem::take(&mut draft.relay);
    let token = draft.admin_token.take();
    if let Some((listen, at)) = &relay.listen
        && !listen.ip().to_canonical().is_loopback()
        && !draft.admin_token_named
    {
        let what = "not on loopback, and there is no `admin.token`: anybody could see the metrics";
        let fix = format!(
            "write token = {{ env = \"ONETAKE_ADMIN_TOKEN\" }} below [admin], or listen on 127.0.0.1:{}",
            listen.port()
        );
        problems.add(at, "relay.listen", Some(format!("\"{listen}\"")), Fault::new(what, fix));
    }
    let (place, at) = relay.place.unwrap_or_else(|| {
        let fault = Fault::new(
            "it is missing: messages have nowhere to go",
            "write sink = \"nats://HOST:4222\" or \"https://HOST/PATH\" below [relay], or say --sink URL",
        );
        problems.add(&Origin::Absent, "relay.sink", None, fault);
        // Nobody sees it: there is a problem.
        (Place::Nats(ServerUrl::default()), Origin::Absent)
    });
    let sink = match place {
        Place::Nats(url) => {
            SinkConfig::Nats { url, subject_prefix: relay.prefix.unwrap_or_default() }
        }
        Place::Webhook(url) => {
            if relay.secrets.is_empty() {
                let fault = Fault::new(
                    "a webhook is signed, and there is no secret to sign with",
                    format!("write secrets = {SECRETS_EXAMPLE} below [relay]"),
                );
                problems.add(&at, "relay.secrets", None, fault);
            }
            SinkConfig::Webhook { url, secrets: relay.secrets }
        }
    };
    let usual = RelayOptions::default();
    let backoff_max = relay.backoff_max.unwrap_or(usual.backoff_max);
    let options = RelayOptions {
        batch_items: relay.batch.unwrap_or(usual.batch_items),
        hold: relay.hold.unwrap_or(usual.hold),
        idle_poll: relay.poll.unwrap_or(usual.idle_poll),
        backoff_min: usual.backoff_min.min(backoff_max),
        backoff_max,
        tries_max: relay.tries_max.and_then(|tries| u32::try_from(tries).ok()),
        kept: relay.kept.unwrap_or(usual.kept),
        ..usual
    };
    let (timeout, listen) = (relay.timeout.unwrap_or(TIMEOUT), relay.listen.map(|(at, _)| at));
    // What takes longer would be cut off, and repeated for ever.
    if timeout > options.deliver_within() {
        let fault = Fault::new(
            format!(
                "longer than three quarters of `hold` ({:?}), within which it must be told",
                options.hold
            ),
            "write a shorter timeout, or a longer hold, below [relay]",
        );
        problems.add(&at, "relay.timeout", Some(format!("{timeout:?}")), fault);
    }
    RelayConfig { store, sink, timeout, options, listen, token, tls: draft.upstream_tls }
}
