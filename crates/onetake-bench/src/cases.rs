//! The cases of the benchmark. The first contender is the one that the others are compared with.

use crate::case::{
    Body, Case, Contender, Group, Keys, Measure, Peer, Program, Setup, Traffic, Wire,
};

const EMBEDDED: Program = Program::Onetake(Setup::Embedded);

const fn contender(name: &'static str, program: Program, keys: Keys) -> Contender {
    Contender { name, program, keys }
}

const PASS_THROUGH: &[Contender] = &[
    contender("nginx", Program::Nginx, Keys::None),
    contender("proxy", Program::Proxy, Keys::None),
    contender("onetake", EMBEDDED, Keys::None),
];

const BESIDE_NGINX: &[Contender] =
    &[contender("nginx", Program::Nginx, Keys::None), contender("onetake", EMBEDDED, Keys::None)];

const FRESH: &[Contender] =
    &[contender("limit", Program::Limit, Keys::Fresh), contender("onetake", EMBEDDED, Keys::Fresh)];

/// All cases, in the order in which they run.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "pass-through",
        group: Group::Gateway,
        about: "requests without a key",
        measure: Measure::Load(Traffic::MAIN, PASS_THROUGH),
    },
    Case {
        name: "fresh",
        group: Group::Gateway,
        about: "a new key in every request, both writes durable",
        measure: Measure::Load(Traffic::MAIN, FRESH),
    },
    Case {
        name: "replay",
        group: Group::Gateway,
        about: "each connection repeats one key",
        measure: Measure::Load(
            Traffic::MAIN,
            &[
                contender("nginx", Program::Nginx, Keys::Repeated),
                contender("direct", Program::NginxDirect, Keys::Repeated),
                contender("onetake", EMBEDDED, Keys::Repeated),
            ],
        ),
    },
    Case {
        name: "replay-10",
        group: Group::Gateway,
        about: "new keys, and every tenth request repeats the key before it",
        measure: Measure::Load(
            Traffic::SMALL,
            &[
                contender("limit", Program::Limit, Keys::TenthRepeated),
                contender("onetake", EMBEDDED, Keys::TenthRepeated),
            ],
        ),
    },
    Case {
        name: "hot-key",
        group: Group::Gateway,
        about: "duplicates of one running key, beside new keys at a steady rate",
        measure: Measure::HotKey,
    },
    Case {
        name: "pass-64k",
        group: Group::Gateway,
        about: "bodies of 64 KiB in either direction, without a key",
        measure: Measure::Load(
            Traffic { body: Body::Bytes(64 << 10), ..Traffic::SMALL },
            PASS_THROUGH,
        ),
    },
    Case {
        name: "pass-1m",
        group: Group::Gateway,
        about: "bodies of 1 MiB in either direction, without a key",
        measure: Measure::Load(
            Traffic { body: Body::Bytes(1 << 20), connections: &[16], ..Traffic::SMALL },
            PASS_THROUGH,
        ),
    },
    Case {
        name: "fresh-64k",
        group: Group::Gateway,
        about: "bodies of 64 KiB in either direction, with new keys",
        measure: Measure::Load(Traffic { body: Body::Bytes(64 << 10), ..Traffic::SMALL }, FRESH),
    },
    Case {
        name: "fresh-1m",
        group: Group::Gateway,
        about: "bodies of 1 MiB in either direction, with new keys",
        measure: Measure::Load(
            Traffic { body: Body::Bytes(1 << 20), connections: &[16], ..Traffic::SMALL },
            FRESH,
        ),
    },
    Case {
        name: "tls",
        group: Group::Gateway,
        about: "requests without a key over TLS",
        measure: Measure::Load(Traffic { wire: Wire::Tls, ..Traffic::SMALL }, BESIDE_NGINX),
    },
    Case {
        name: "http2",
        group: Group::Gateway,
        about: "requests without a key over HTTP/2",
        measure: Measure::Load(Traffic { wire: Wire::Http2, ..Traffic::SMALL }, BESIDE_NGINX),
    },
    Case {
        name: "tls-http2",
        group: Group::Gateway,
        about: "requests without a key over HTTP/2 in TLS",
        measure: Measure::Load(Traffic { wire: Wire::TlsHttp2, ..Traffic::SMALL }, BESIDE_NGINX),
    },
    Case {
        name: "encrypted",
        group: Group::Gateway,
        about: "new keys, with and without encryption of recordings",
        measure: Measure::Load(
            Traffic::SMALL,
            &[
                contender("plain", EMBEDDED, Keys::Fresh),
                contender("encrypted", Program::Onetake(Setup::Encrypted), Keys::Fresh),
            ],
        ),
    },
    Case {
        name: "idle",
        group: Group::Gateway,
        about: "memory and wake-ups with idle connections",
        measure: Measure::Idle,
    },
    Case {
        name: "sweep",
        group: Group::Gateway,
        about: "new keys beside the sweep of many expired records",
        measure: Measure::Sweep,
    },
    Case {
        name: "stores-fresh",
        group: Group::Stores,
        about: "new keys on every store",
        measure: Measure::Load(
            Traffic::SMALL,
            &[
                contender("embedded", EMBEDDED, Keys::Fresh),
                contender("sqlite", Program::Onetake(Setup::Sqlite), Keys::Fresh),
                contender("postgres", Program::Onetake(Setup::Postgres), Keys::Fresh),
                contender("filter", Program::Onetake(Setup::Filter), Keys::Fresh),
                contender("redis", Program::Onetake(Setup::Redis), Keys::Fresh),
                contender("dynamodb", Program::Onetake(Setup::DynamoDb), Keys::Fresh),
            ],
        ),
    },
    Case {
        name: "stores-replay",
        group: Group::Stores,
        about: "each connection repeats one key, on every store",
        measure: Measure::Load(
            Traffic::SMALL,
            &[
                contender("embedded", EMBEDDED, Keys::Repeated),
                contender("sqlite", Program::Onetake(Setup::Sqlite), Keys::Repeated),
                contender("postgres", Program::Onetake(Setup::Postgres), Keys::Repeated),
                contender("filter", Program::Onetake(Setup::Filter), Keys::Repeated),
                contender("redis", Program::Onetake(Setup::Redis), Keys::Repeated),
                contender("dynamodb", Program::Onetake(Setup::DynamoDb), Keys::Repeated),
            ],
        ),
    },
    Case {
        name: "postgres",
        group: Group::Stores,
        about: "new keys on PostgreSQL, beside the common SQL pattern on the same server",
        measure: Measure::Load(
            Traffic::SMALL,
            &[
                contender("pattern", Program::SqlPattern, Keys::Fresh),
                contender("onetake", Program::Onetake(Setup::Postgres), Keys::Fresh),
            ],
        ),
    },
    Case {
        name: "grpc",
        group: Group::Grpc,
        about: "unary gRPC calls without a key",
        measure: Measure::Load(Traffic { wire: Wire::Grpc, ..Traffic::SMALL }, BESIDE_NGINX),
    },
    Case {
        name: "grpc-keyed",
        group: Group::Grpc,
        about: "unary gRPC calls through the gateway: without a key, with new keys, and repeated",
        measure: Measure::Load(
            Traffic { wire: Wire::Grpc, ..Traffic::SMALL },
            &[
                contender("no key", EMBEDDED, Keys::None),
                contender("fresh", EMBEDDED, Keys::Fresh),
                contender("replay", EMBEDDED, Keys::Repeated),
            ],
        ),
    },
    Case {
        name: "envoy-pass",
        group: Group::Envoy,
        about: "requests without a key: Envoy, Envoy with `onetake ext-proc`, and the gateway",
        measure: Measure::Load(
            Traffic { connections: &[2, 64], ..Traffic::SMALL },
            &[
                contender("envoy", Program::Envoy, Keys::None),
                contender("ext-proc", Program::ExtProc, Keys::None),
                contender("onetake", EMBEDDED, Keys::None),
            ],
        ),
    },
    Case {
        name: "envoy-fresh",
        group: Group::Envoy,
        about: "new keys: plain Envoy, Envoy with `onetake ext-proc`, and the gateway",
        measure: Measure::Load(
            Traffic { connections: &[2, 64], ..Traffic::SMALL },
            &[
                contender("envoy", Program::Envoy, Keys::Fresh),
                contender("ext-proc", Program::ExtProc, Keys::Fresh),
                contender("onetake", EMBEDDED, Keys::Fresh),
            ],
        ),
    },
    Case {
        name: "envoy-replay",
        group: Group::Envoy,
        about: "repeated keys: plain Envoy, Envoy with `onetake ext-proc`, and the gateway",
        measure: Measure::Load(
            Traffic { connections: &[2, 64], ..Traffic::SMALL },
            &[
                contender("envoy", Program::Envoy, Keys::Repeated),
                contender("ext-proc", Program::ExtProc, Keys::Repeated),
                contender("onetake", EMBEDDED, Keys::Repeated),
            ],
        ),
    },
    Case {
        name: "growth",
        group: Group::Growth,
        about: "new keys on stores with more and more live keys",
        measure: Measure::Growth,
    },
    Case {
        name: "peers-fresh",
        group: Group::Peers,
        about: "new keys: the gateway on the embedded store, and programs of others",
        measure: Measure::Load(
            Traffic::SMALL,
            &[
                contender("onetake", EMBEDDED, Keys::Fresh),
                contender("axum", Program::Peer(Peer::AxumIdempotent), Keys::Fresh),
                contender("express", Program::Peer(Peer::ExpressIdempotency), Keys::Fresh),
                contender("node", Program::Peer(Peer::NodeIdempotency), Keys::Fresh),
                contender("restate", Program::Peer(Peer::Restate), Keys::Fresh),
            ],
        ),
    },
    Case {
        name: "peers-replay",
        group: Group::Peers,
        about: "repeated keys: the gateway on the embedded store, and programs of others",
        measure: Measure::Load(
            Traffic::SMALL,
            &[
                contender("onetake", EMBEDDED, Keys::Repeated),
                contender("axum", Program::Peer(Peer::AxumIdempotent), Keys::Repeated),
                contender("express", Program::Peer(Peer::ExpressIdempotency), Keys::Repeated),
                contender("node", Program::Peer(Peer::NodeIdempotency), Keys::Repeated),
                contender("restate", Program::Peer(Peer::Restate), Keys::Repeated),
            ],
        ),
    },
];
