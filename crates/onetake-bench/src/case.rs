//! The form of a case: the requests, and the programs that get them in turn.

/// One case of the benchmark.
#[derive(Debug)]
pub(crate) struct Case {
    /// The name for `--case`.
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// A sentence for `--list`.
    pub(crate) about: &'static str,
    pub(crate) measure: Measure,
}

/// A set of cases with a common subject. Its name can stand for its cases in `--case`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Gateway,
    Stores,
    Grpc,
    Envoy,
    Growth,
    /// Programs of others. They are left out unless they are asked for.
    Peers,
}

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Stores => "stores",
            Self::Grpc => "grpc",
            Self::Envoy => "envoy",
            Self::Growth => "growth",
            Self::Peers => "peers",
        }
    }
}

/// The way in which a case is measured.
#[derive(Debug)]
pub(crate) enum Measure {
    /// Throughput, latency and cost of each contender, in interleaved rounds.
    Load(Traffic, &'static [Contender]),
    /// Many duplicates of one running key beside other traffic.
    HotKey,
    /// Memory and wake-ups of programs with idle connections.
    Idle,
    /// Fresh keys on stores with different numbers of live keys.
    Growth,
    /// Fresh keys without and beside the sweep of many expired records.
    Sweep,
}

/// The requests of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) wire: Wire,
    /// The size of request and response bodies. The small ones are 31 and 58 bytes.
    pub(crate) body: Body,
    /// The numbers of connections, unless an option says otherwise.
    pub(crate) connections: &'static [usize],
}

impl Traffic {
    /// Small requests without TLS on HTTP/1.1.
    pub(crate) const SMALL: Self =
        Self { wire: Wire::Http1, body: Body::Small, connections: &[64] };
    /// The same, at three numbers of connections.
    pub(crate) const MAIN: Self = Self { connections: &[2, 64, 256], ..Self::SMALL };
}

/// The size of the bodies of requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Small,
    /// This many bytes in either direction.
    Bytes(usize),
}

/// The protocol between the load generator and a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Http1,
    /// HTTP/1.1 in TLS.
    Tls,
    /// HTTP/2 without TLS.
    Http2,
    /// HTTP/2 in TLS.
    TlsHttp2,
    /// Unary gRPC calls, without TLS.
    Grpc,
}

impl Wire {
    pub(crate) fn has_tls(self) -> bool {
        matches!(self, Self::Tls | Self::TlsHttp2)
    }

    pub(crate) fn has_streams(self) -> bool {
        matches!(self, Self::Http2 | Self::TlsHttp2 | Self::Grpc)
    }
}

/// A program in a case, and the keys that it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    pub(crate) keys: Keys,
}

/// The keys of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// No key: a gateway only forwards.
    None,
    /// A new key in every request.
    Fresh,
    /// Each connection repeats one key.
    Repeated,
    /// Every tenth request repeats the key before it.
    TenthRepeated,
}

impl Keys {
    /// Returns the number of a request's key on its connection, and whether it was sent before.
    pub(crate) fn of_request(self, number: u64) -> Option<(u64, bool)> {
        match self {
            Self::None => None,
            Self::Fresh => Some((number, false)),
            Self::Repeated => Some((0, number > 0)),
            Self::TenthRepeated if number % 10 == 9 => Some((number - 1, true)),
            Self::TenthRepeated => Some((number, false)),
        }
    }
}

/// A program that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// nginx as a proxy, for the protocol of the case.
    Nginx,
    /// nginx that answers by itself.
    NginxDirect,
    /// A bare proxy.
    Proxy,
    /// A bare proxy with two durable appends for each request.
    Limit,
    /// A proxy with the common SQL pattern on PostgreSQL: a row inserted before the call, and updated
    /// after it.
    SqlPattern,
    /// The gateway.
    Onetake(Setup),
    /// Envoy as a proxy.
    Envoy,
    /// Envoy with `onetake ext-proc` on a new embedded store.
    ExtProc,
    /// A program of others.
    Peer(Peer),
}

/// The store and the options of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    Embedded,
    Encrypted,
    Sqlite,
    Postgres,
    /// Redis as a filter in front of PostgreSQL.
    Filter,
    Redis,
    DynamoDb,
}

/// Idempotency middleware, or an engine for durable calls. Each is an API of its own, without an
/// upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    AxumIdempotent,
    ExpressIdempotency,
    NodeIdempotency,
    Restate,
}
