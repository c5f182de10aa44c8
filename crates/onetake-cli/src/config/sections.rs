//! The sections of the file, other than routes.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use http::{HeaderValue, Uri};
use ipnet::IpNet;
use onetake_relay::{RelayOptions, WebhookSecret};
use onetake_stores::{ServerUrl, StoreUrl};

use super::address::{
    parse_nats, parse_network, parse_origin, parse_service, parse_store, parse_upstream_host,
};
use super::error::ValueError;
use super::form::{
    Form, boolean, duration, file, integer, list, listen, or_variable, plain, secret, size, table,
    text, upstream, words,
};
use super::limits::Limits;
use super::policy::{PolicyOptions, RouteOptions, defaults};
use super::reader::Value;
use super::table::table;

const ANY: (usize, usize) = (0, usize::MAX);
/// Maximum number of secrets of one kind: the one in use, and older ones.
const SECRETS_MAX: usize = 8;
/// Default folder of the journal, for outcomes that the store has not accepted at shutdown.
const JOURNAL_FOLDER: &str = "onetake-journal";

table! {
    /// The whole file.
    pub(super) struct File [Debug] ("the file", "") {
        /// The listener for clients, and the upstream of their requests.
        gateway: Gateway = table().or_empty(),
        /// The listener for operators, probes and metrics.
        admin: Admin = table().or_empty(),
        /// The store of records.
        store: StoreConfig = table::<StoreConfig>().then(store).or_empty(),
        /// The deletion of expired records.
        sweep: Sweep = table().or_empty(),
        /// The listener for Envoy, for `onetake ext-proc`.
        ext_proc: ExtProc = table().or_empty(),
        /// The limits on connections, requests and memory.
        limits: Limits = table().or_empty(),
        /// The delivery of the outbox, for `onetake relay`.
        relay: Relay = table().or_empty(),
        /// Secrets of the operator. The first of each kind is used, and all are recognised.
        secrets: SecretsConfig = table().or_empty(),
        /// The options of routes that do not say otherwise, and of requests without a route.
        defaults: PolicyOptions = defaults().or_empty(),
        /// The routes. The first route that matches a request counts.
        route: Vec<RouteOptions> = list(table(), ANY, "[[route]]").or("[]"),
    }
}

table! {
    /// `[gateway]`
    pub struct Gateway [Clone, Debug, PartialEq, Eq] ("[gateway]", "[gateway]") {
        /// The IP address and port where clients connect.
        listen: SocketAddr = listen().or("\"127.0.0.1:8080\""),
        /// The URL for requests whose route has none: `http://HOST:PORT`, `https://HOST:PORT`, or
        /// `h2c://HOST:PORT` for HTTP/2 without TLS. A path is put in front of the paths of
        /// requests. Required, unless every route has its own.
        upstream: Option<Uri> = upstream().optional(),
        /// The `Host` header that upstreams get: that of the client (`"pass"`), the host of the
        /// upstream's URL (`"upstream"`), or a host of your own.
        upstream_host: UpstreamHost =
            text(r"[A-Za-z0-9\[][A-Za-z0-9.:\[\]-]*", "\"pass\"", parse_upstream_host).or("\"pass\""),
        /// The time for which an idle HTTP/1.1 connection to an upstream is kept for the next request.
        /// It must be shorter than the time for which the upstream keeps it: see below.
        upstream_keep_alive: Duration = duration("100ms", "5m", "4s").or("\"4s\""),
        /// The time without a sign of life after which an HTTP/2 connection to an upstream with
        /// requests in progress is checked by a ping. gRPC servers close connections with more
        /// than one ping in five minutes.
        upstream_ping_interval: Duration = duration("1s", "1h", "6m").or("\"6m\""),
        /// The networks whose `X-Forwarded-*`, `Forwarded` and tenant headers count.
        trusted_proxies: Vec<IpNet> =
            list(text(BLOCK, "\"127.0.0.0/8\"", parse_network), ANY, "[\"127.0.0.0/8\", \"::1\"]")
            .or("[\"127.0.0.0/8\", \"::1\"]"),
        /// The requests that no route matches: passed on under `[defaults]`, or refused with 404.
        /// GET, HEAD, OPTIONS and TRACE are always passed on.
        unmatched: Unmatched = words([("pass", Unmatched::Pass), ("refuse", Unmatched::Refuse)])
            .or("\"pass\""),
        /// Whether informational responses of upstreams, such as `103 Early Hints`, are forwarded to
        /// HTTP/1.1 clients. Some clients and proxies take them for the final response.
        early_hints: bool = boolean().or("false"),
        /// The time for which an idle client connection is kept open. It should be longer than that
        /// of a load balancer in front of the gateway, or the balancer sends requests into
        /// connections that are just being closed.
        keep_alive: Duration = duration("1s", "1h", "75s").or("\"75s\""),
        /// The time between SIGTERM and the end of the listener. `/readyz` answers 503 meanwhile, so
        /// that load balancers stop sending traffic.
        shutdown_delay: Duration = duration("0s", "10m", "5s").or("\"5s\""),
        /// The time after `shutdown_delay` for which running requests may finish.
        shutdown_limit: Duration = duration("0s", "1h", "20s").or("\"20s\""),
        /// The most payloads that `duplicate_payload` remembers in this process, at about 250 bytes each.
        duplicate_payloads_max: usize = integer(1, 10_000_000).or("100000"),
        /// The origins whose pages may send keyed requests: see [Browsers](#browsers).
        cors: Option<Cors> = table::<Cors>().then(cors).optional().else_says("none: browsers send keys to the same origin only"),
        /// PEM files: the server's certificate, followed by those that signed it, and its private
        /// key. Clients then connect with TLS only.
        tls: Option<Identity> = table().optional().else_says("none: clients connect without TLS"),
        /// PEM files for `https://` upstreams, `forward_auth`, `reconcile` and the relay's webhook:
        /// the only roots to check servers by, and the gateway's own certificate.
        upstream_tls: UpstreamTls = table::<UpstreamTls>().then(upstream_tls).or_default()
            .else_says("the system's roots, no certificate"),
    }
}

/// The `Host` header that upstreams get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamHost {
    /// The client's.
    Pass,
    /// The host of the upstream's URL.
    Upstream,
    /// This one.
    Name(HeaderValue),
}

table! {
    /// `cors`
    pub struct Cors [Clone, Debug, PartialEq, Eq] ("cors", "{ origins = [\"https://app.example.com\"] }") {
        /// The origins as browsers send them, such as `"https://app.example.com"`, or `"*"` for all.
        origins: Vec<String> = list(text(ORIGIN, "\"https://app.example.com\"", parse_origin), (1, 100), "[\"https://app.example.com\"]").required(),
        /// Whether pages may send cookies and TLS client certificates. Not with the origin `"*"`.
        credentials: bool = boolean().or("false"),
        /// The time for which browsers may keep the answer to a preflight.
        max_age: Duration = duration("0s", "1d", "10m").or("\"10m\""),
    }
}

const ORIGIN: &str = r"\*|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+";

fn cors(cors: Cors, value: &Value<'_>) -> Option<Cors> {
    if cors.credentials && cors.origins.iter().any(|origin| origin == "*") {
        let what = "the origin \"*\" cannot be combined with credentials: any page could act for your users";
        let fault = ValueError::new(what, "name the origins, or remove `credentials`");
        return value.field("credentials")?.refuse(fault);
    }
    Some(cors)
}

/// The treatment of requests that no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// They are passed on under `[defaults]`.
    Pass,
    /// They are refused with 404.
    Refuse,
}

table! {
    /// A certificate and its private key.
    pub struct Identity [Clone, Debug, PartialEq, Eq]
        ("tls", "{ certificate = \"cert.pem\", private_key = \"key.pem\" }") {
        /// The certificate in PEM, followed by those that signed it.
        certificate: PathBuf = file("\"cert.pem\"").required(),
        /// The private key of the certificate, in PEM and without a password.
        private_key: PathBuf = file("\"key.pem\"").required().formerly("key"),
    }
}

table! {
    /// `upstream_tls`
    pub struct UpstreamTls [Clone, Debug, Default, PartialEq, Eq]
        ("upstream_tls", "{ roots = \"ca.pem\" }", serde_json::json!({
        "dependentRequired": { "certificate": ["private_key"], "private_key": ["certificate"] }
    })) {
        /// The only roots, in PEM, to check servers by.
        roots: Option<PathBuf> = file("\"ca.pem\"").optional().else_says("the system's roots"),
        /// The certificate of the gateway, in PEM, for servers that ask for one.
        certificate: Option<PathBuf> = file("\"client.pem\"").optional(),
        /// The private key of the certificate, in PEM.
        private_key: Option<PathBuf> = file("\"client-key.pem\"").optional().formerly("key"),
    }
}

impl UpstreamTls {
    /// The gateway's own certificate, for servers that ask for one.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let (certificate, private_key) = (self.certificate.clone()?, self.private_key.clone()?);
        Some(Identity { certificate, private_key })
    }
}

fn upstream_tls(tls: UpstreamTls, value: &Value<'_>) -> Option<UpstreamTls> {
    let (missing, there) = match (&tls.certificate, &tls.private_key) {
        (Some(_), None) => ("private_key", "certificate"),
        (None, Some(_)) => ("certificate", "private_key"),
        _ => return Some(tls),
    };
    let fix = format!("write for example {missing} = \"{missing}.pem\" next to it");
    let fault = ValueError::new(format!("missing, and `{there}` needs it"), fix);
    value.problems.add(&value.node.at, &value.path_of(missing), None, fault);
    None
}

const BLOCK: &str = r"[0-9]{1,3}(\.[0-9]{1,3}){3}(/0*([0-9]|[12][0-9]|3[0-2]))?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(/0*([0-9]{1,2}|1[01][0-9]|12[0-8]))?";

table! {
    /// `[admin]`
    pub struct Admin [Clone, Debug, PartialEq, Eq] ("[admin]", "[admin]") {
        /// The IP address and port for operators, probes and metrics.
        listen: SocketAddr = listen().or("\"127.0.0.1:9091\""),
        /// The token of operators: 16 to 512 visible ASCII characters. Required if the listener is
        /// not on loopback.
        token: Option<Token> = secret(r"\s*[!-~]{16,512}\s*", parse_token).optional()
            .else_says("none, on loopback"),
    }
}

/// The token of operators.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token; `None` if it is too short, too long, or has other than visible ASCII characters.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        // A shorter token could be guessed, even within the rate limit.
        let fits = (16..=512).contains(&text.len());
        (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(text.to_owned()))
    }

    /// The token itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

fn parse_token(text: &str) -> Result<Token, ValueError> {
    let what = "a token has 16 to 512 visible ASCII characters";
    Token::new(text).ok_or(ValueError::new(what, "create one with `openssl rand -hex 32`"))
}

table! {
    /// `[store]`
    pub struct StoreConfig [Clone, Debug, PartialEq, Eq] ("[store]", "[store]") {
        /// `embedded:FOLDER`, `sqlite:FILE`, `postgres://…`, `redis://…`, `redis-cluster://…`,
        /// `dynamodb://REGION/TABLE`, or `memory:` for tests.
        url: StoreUrl = or_variable(store_url(STORE)).or("\"embedded:./onetake-data\""),
        /// The URL of a Redis in front of PostgreSQL.
        filter: Option<ServerUrl> = or_variable(store_url(REDIS).then(redis)).optional(),
        /// Accepts stores that can lose acknowledged writes: Redis alone for the presets `payment`
        /// and `high-consequence`, and a PostgreSQL that does not fsync.
        allow_lossy: bool = boolean().or("false"),
        /// The longest time until a connection to a server is established.
        connect_timeout: Duration = duration("10ms", "1m", "2s").or("\"2s\""),
        /// The longest time for one statement or command of a server, and a second more for each MiB that it writes.
        timeout: Duration = duration("10ms", "1m", "2s").or("\"2s\""),
        /// The longest time that a request waits for its claim. Then it is answered as if the store were unreachable.
        claim_timeout: Duration = duration("10ms", "1m", "5s").or("\"5s\""),
        /// The longest time that a request waits until its outcome is saved, and a second more for each MiB. Then it
        /// is answered with 503 `outcome_pending`.
        settle_timeout: Duration = duration("10ms", "1m", "5s").or("\"5s\""),
        /// The folder on this machine for outcomes that the store did not accept before shutdown.
        journal: Option<PathBuf> = file("\"/var/lib/onetake/journal\"").optional()
            .else_says("next to the files of the store, or `./onetake-journal` for a server"),
    } and {
        /// `[secrets] encryption`: the first secret encrypts recordings, and all of them decrypt.
        encryption: Vec<Secret>,
        /// `[limits] max_store_memory`: the memory of the embedded store, in bytes.
        memory_bytes: usize,
    }
}

const STORE: &str = r"memory:|(embedded|sqlite):(/|/?[^/][\s\S]*)|(postgres|postgresql|dynamodb)://\S+|rediss?(-cluster)?://\S+";
const REDIS: &str = r"rediss?(-cluster)?://\S+";

fn store_url(pattern: &'static str) -> Form<StoreUrl> {
    text(pattern, "\"embedded:./onetake-data\"", parse_store).then(|url, value| {
        Some(match url {
            StoreUrl::Embedded(path) => StoreUrl::Embedded(value.in_folder(path)),
            StoreUrl::Sqlite(path) => StoreUrl::Sqlite(value.in_folder(path)),
            server => server,
        })
    })
}

fn redis(url: StoreUrl, value: &Value<'_>) -> Option<ServerUrl> {
    let fix = "write for example filter = \"redis://127.0.0.1:6379\"";
    let fault = ValueError::new("not a Redis URL; only Redis can be a filter", fix);
    match url {
        StoreUrl::Redis(server) => Some(server),
        other => value.refuse(fault.showing(Some(other.to_string()))),
    }
}

/// Refuses a filter in front of other stores than PostgreSQL, and names the folder of the journal.
fn store(mut store: StoreConfig, value: &Value<'_>) -> Option<StoreConfig> {
    if store.filter.is_some() && !matches!(store.url, StoreUrl::Postgres(_)) {
        let url = &store.url;
        let what = format!("a filter works only in front of PostgreSQL, and store.url is {url}");
        let fix = "write url = \"postgres://HOST/DATABASE\", or remove the filter";
        let shown = store.filter.as_ref().map(ToString::to_string);
        value.field("filter")?.refuse::<()>(ValueError::new(what, fix).showing(shown));
    }
    store.journal = store.journal.or_else(|| match &store.url {
        StoreUrl::Memory => None,
        StoreUrl::Embedded(folder) => Some(folder.join("journal")),
        StoreUrl::Sqlite(file) => Some(file.with_file_name(JOURNAL_FOLDER)),
        _ => Some(PathBuf::from(JOURNAL_FOLDER)),
    });
    Some(store)
}

table! {
    /// `[sweep]`
    pub struct Sweep [Clone, Debug, PartialEq, Eq] ("[sweep]", "[sweep]") {
        /// The pause between two sweeps.
        interval: Duration = duration("1s", "1d", "15m").or("\"15m\""),
        /// The most records that one step of a sweep deletes.
        batch: usize = integer(1, 100_000).or("5000"),
    }
}

table! {
    /// `[ext_proc]`
    pub struct ExtProc [Clone, Debug, PartialEq, Eq] ("[ext_proc]", "[ext_proc]") {
        /// The IP address and port where Envoy connects.
        listen: SocketAddr = listen().or("\"127.0.0.1:9002\""),
        /// The largest message of Envoy. A message holds a body, up to the size of Envoy's buffer.
        max_message: usize = size("1B", "64MiB").or("\"16MiB\""),
        /// PEM files: the server's certificate, followed by those that signed it, and its private
        /// key. Envoy then connects with TLS only.
        tls: Option<Identity> = table().optional().else_says("none: Envoy connects without TLS"),
    }
}

table! {
    /// `[relay]`
    pub struct Relay [Clone, Debug] ("[relay]", "[relay]") {
        /// The receiver of messages: `nats://HOST:4222` or `tls://HOST:4222` (JetStream; several
        /// hosts separated by commas), or the `http://` or `https://` URL of a webhook. Required.
        sink: Option<Sink> = or_variable(text(r"(nats|tls)://\S+|https?://\S+", "\"nats://127.0.0.1:4222\"", parse_sink)).optional(),
        /// The beginning of NATS subjects, in front of the topic.
        subject_prefix: String =
            plain(r"([A-Za-z0-9_-][A-Za-z0-9_.-]{0,254})?", "\"payments.\"", is_prefix, (
                "not a valid prefix of a NATS subject",
                "write up to 255 letters, digits, - and _, in words separated by dots",
            )).or("\"\""),
        /// The secrets that sign webhooks: `whsec_` and base64 of 24 to 64 bytes. All of them sign.
        /// Required for a webhook.
        secrets: Vec<WebhookSecret> = list(
            secret(r"\s*whsec_[A-Za-z0-9+/]{32,88}={0,2}\s*", parse_webhook_secret),
            (0, SECRETS_MAX),
            "[{ env = \"ONETAKE_WEBHOOK_SECRET\" }]",
        ).or("[]"),
        /// The most messages taken at a time.
        batch: usize = integer(1, 1_000).or("100"),
        /// The time until another relay takes the messages of a relay that died.
        hold: Duration = duration("100ms", "1h", "30s").or("\"30s\""),
        /// The pause after a turn without messages.
        poll: Duration = duration("1ms", "1m", "200ms").or("\"200ms\""),
        /// The longest time that a receiver may take for a message, at most three quarters of
        /// `hold`.
        timeout: Duration = duration("10ms", "5m", "10s").or("\"10s\""),
        /// The longest pause between two tries.
        backoff_max: Duration = duration("10ms", "1d", "30s").or("\"30s\""),
        /// The number of failures after which a message is parked, if others are delivered
        /// meanwhile.
        tries_max: Option<usize> = integer(1, 1_000_000).optional().else_says("never"),
        /// The time for which delivered messages are kept.
        kept: Duration = duration("0s", "400d", "24h").or("\"24h\""),
        /// The IP address and port of `/metrics` and `/livez` of the relay. Elsewhere than on
        /// loopback, `[admin] token` is required.
        listen: Option<SocketAddr> = listen().optional(),
    }
}

impl Relay {
    /// The options of the relay itself.
    #[must_use]
    pub fn options(&self) -> RelayOptions {
        let usual = RelayOptions::default();
        RelayOptions {
            batch_items: self.batch,
            hold: self.hold,
            idle_poll: self.poll,
            backoff_min: usual.backoff_min.min(self.backoff_max),
            backoff_max: self.backoff_max,
            tries_max: self.tries_max.and_then(|tries| u32::try_from(tries).ok()),
            kept: self.kept,
            ..usual
        }
    }
}

/// The receiver of messages.
#[derive(Clone, Debug)]
pub enum Sink {
    /// `nats://…`, `tls://…`: the servers of NATS JetStream.
    Nats(ServerUrl),
    /// `http://…`, `https://…`: the endpoint of a webhook.
    Webhook(Uri),
}

fn parse_sink(text: &str) -> Result<Sink, ValueError> {
    const FIX: &str = "write \"nats://HOST:4222\" or \"tls://HOST:4222\" for NATS JetStream, or \
                       \"https://HOST/PATH\" for a webhook";
    match text.split_once("://") {
        Some(("nats" | "tls", _)) => parse_nats(text, FIX).map(Sink::Nats),
        Some(("http" | "https", _)) => parse_service(text, FIX).map(Sink::Webhook),
        _ => Err(ValueError::new("not the URL of a NATS server or a webhook", FIX).showing(None)),
    }
}

/// Checks a subject prefix: all words before its last dot must be complete.
fn is_prefix(text: &str) -> bool {
    let is_whole = !text.starts_with('.') && !text.contains("..");
    is_whole && text.len() <= 255 && text.chars().all(is_word)
}

/// A letter, a digit, or one of `-_.`.
fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_.".contains(character)
}

fn parse_webhook_secret(text: &str) -> Result<WebhookSecret, ValueError> {
    let fix =
        "create one with `echo whsec_$(openssl rand -base64 32)`, and give it to the receiver";
    text.parse::<WebhookSecret>().map_err(|error| ValueError::new(error.to_string(), fix))
}

table! {
    /// `[secrets]`: of each kind, the first signs or seals, and all verify.
    pub struct SecretsConfig [Clone, Debug, PartialEq, Eq] ("[secrets]", "[secrets]") {
        /// Secrets that seal the digests of requests, their fingerprints.
        request_digests: Vec<Secret> = secrets().or("[]").formerly("fingerprint"),
        /// Secrets that encrypt recordings.
        encryption: Vec<Secret> = secrets().or("[]"),
        /// Secrets that sign issued keys.
        issued_keys: Vec<Secret> = secrets().or("[]"),
    }
}

table! {
    /// A secret and its name.
    pub struct Secret [Clone, PartialEq, Eq]
        ("a secret", "{ id = \"k1\", secret = { env = \"ONETAKE_SECRET\" } }") {
        /// The name of the secret, which is kept beside the sealed data.
        id: String = plain("[A-Za-z0-9_.-]{1,32}", "\"k1\"", is_id, (
            "not a name", "write up to 32 letters, digits and - _ .",
        )).required(),
        /// 32 bytes in base64.
        secret: [u8; 32] = secret(r"\s*[A-Za-z0-9+/_-]{43}=?\s*", parse_bytes).required().formerly("key"),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.id)
    }
}

fn secrets() -> Form<Vec<Secret>> {
    let example = "[{ id = \"k1\", secret = { env = \"ONETAKE_SECRET\" } }]";
    list(table::<Secret>(), (0, SECRETS_MAX), example).then(move |secrets, value| {
        for (element, (index, secret)) in
            value.list(example)?.iter().zip(secrets.iter().enumerate())
        {
            if secrets.iter().take(index).any(|other| other.id == secret.id) {
                let what = "another secret has the same `id`";
                let fault = ValueError::new(what, "give each secret its own `id`");
                element.field("id")?.refuse::<()>(fault);
            }
        }
        Some(secrets)
    })
}

fn is_id(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.chars().all(is_word)
}

fn parse_bytes(text: &str) -> Result<[u8; 32], ValueError> {
    let decoded = [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD]
        .into_iter()
        .find_map(|alphabet| alphabet.decode(text).ok());
    let what = match decoded.map(<[u8; 32]>::try_from) {
        Some(Ok(key)) => return Ok(key),
        Some(Err(bytes)) => format!("the value has {} bytes in base64, not 32", bytes.len()),
        None => "the value is not base64".to_owned(),
    };
    Err(ValueError::new(what, "create one with `openssl rand -base64 32`"))
}
