//! Every field: a valid value, and an invalid one whose message names the field.

use super::*;

/// A file with a line in this section.
pub(super) fn file(section: &str, line: &str) -> String {
    let upstream = "upstream = \"http://127.0.0.1:3000\"\n";
    match section {
        "" => format!("{line}\n"),
        "gateway" if line.starts_with("upstream ") => format!("[gateway]\n{line}\n"),
        "gateway" => format!("[gateway]\n{upstream}{line}\n"),
        "route" if line.starts_with("match") => format!("[gateway]\n{upstream}[[route]]\n{line}\n"),
        "route" => format!("[gateway]\n{upstream}[[route]]\nmatch = \"POST /\"\n{line}\n"),
        _ => format!("[gateway]\n{upstream}[{section}]\n{line}\n"),
    }
}

/// Section, valid lines, and invalid ones with the field that the message must name.
type Row = (&'static str, Lines, Refused);
type Lines = &'static [&'static str];
type Refused = &'static [(&'static str, &'static str)];

/// Environment variables of the valid lines.
const VARIABLES: &[(&str, &str)] = &[
    ("TEST_STORE", "postgres://db/x"),
    ("TEST_FILTER", "redis://cache"),
    ("TEST_SINK", "nats://broker:4222"),
    ("TEST_SECRET", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
];

const SECTIONS: &[Row] = &[
    (
        "",
        &[],
        &[
            ("gateway = 1", "gateway"),
            ("admin = []", "admin"),
            ("store = \"memory:\"", "store"),
            ("sweep = \"15m\"", "sweep"),
            ("limits = 5", "limits"),
            ("ext_proc = \"127.0.0.1:9002\"", "ext_proc"),
            ("relay = \"nats://a\"", "relay"),
            ("secrets = [\"x\"]", "secrets"),
            ("defaults = true", "defaults"),
            ("route = {}", "route"),
            ("routes = []", "routes"),
        ],
    ),
    (
        "gateway",
        &[
            "listen = \"0.0.0.0:80\"",
            "upstream = \"http://api:80/\"",
            "upstream = \"https://api\"",
            "upstream = \"http://api:80/v2/charges.d/\"",
            "upstream_host = \"pass\"",
            "upstream_host = \"upstream\"",
            "upstream_host = \"api.example.com:8443\"",
            "upstream_host = \"[::1]:80\"",
            "upstream = \"h2c://api:50051\"",
            "upstream_ping_interval = \"30s\"",
            "trusted_proxies = []",
            "unmatched = \"pass\"",
            "unmatched = \"refuse\"",
            "keep_alive = \"75s\"",
            "shutdown_delay = \"0s\"",
            "shutdown_limit = \"20s\"",
            "cors = { origins = [\"https://app.example.com\", \"http://localhost:3000\"] }",
            "cors = { origins = [\"https://a\", \"capacitor://localhost\"], credentials = true, max_age = \"0s\" }",
            "cors = { origins = [\"*\"], max_age = \"1d\" }",
            "duplicate_payloads_max = 1",
            "duplicate_payloads_max = 10_000_000",
            "tls = { certificate = \"cert.pem\", private_key = \"/etc/onetake/key.pem\" }",
            "upstream_tls = {}",
            "upstream_tls = { roots = \"ca.pem\" }",
            "upstream_tls = { certificate = \"client.pem\", private_key = \"client.key\" }",
        ],
        &[
            ("listen = \"localhost:80\"", "gateway.listen"),
            ("unmatched = \"reject\"", "gateway.unmatched"),
            ("unmatched = false", "gateway.unmatched"),
            ("keep_alive = \"0s\"", "gateway.keep_alive"),
            ("keep_alive = 75", "gateway.keep_alive"),
            ("shutdown_delay = \"11m\"", "gateway.shutdown_delay"),
            ("shutdown_delay = true", "gateway.shutdown_delay"),
            ("shutdown_limit = \"2h\"", "gateway.shutdown_limit"),
            ("shutdown_limit = \"soon\"", "gateway.shutdown_limit"),
            ("duplicate_payloads_max = 0", "gateway.duplicate_payloads_max"),
            ("duplicate_payloads_max = \"1000\"", "gateway.duplicate_payloads_max"),
            ("cors = true", "gateway.cors"),
            ("cors = {}", "gateway.cors"),
            ("cors = { origins = [] }", "gateway.cors.origins"),
            ("cors = { origins = \"https://a\" }", "gateway.cors.origins"),
            ("cors = { origins = [\"app.example.com\"] }", "gateway.cors.origins[0]"),
            ("cors = { origins = [\"https://a/\"] }", "gateway.cors.origins[0]"),
            ("cors = { origins = [\"https://A\"] }", "gateway.cors.origins[0]"),
            ("cors = { origins = [\"https://a:443\"] }", "gateway.cors.origins[0]"),
            ("cors = { origins = [\"null\"] }", "gateway.cors.origins[0]"),
            ("cors = { origins = [\"*\"], credentials = true }", "gateway.cors.credentials"),
            (
                "cors = { origins = [\"https://a\"], credentials = \"yes\" }",
                "gateway.cors.credentials",
            ),
            ("cors = { origins = [\"https://a\"], max_age = \"25h\" }", "gateway.cors.max_age"),
            ("cors = { origins = [\"https://a\"], headers = [] }", "gateway.cors.headers"),
            ("listen = 80", "gateway.listen"),
            ("upstream = \"api:80\"", "gateway.upstream"),
            ("upstream = []", "gateway.upstream"),
            ("upstream = \"http://a/../b\"", "gateway.upstream"),
            ("upstream = \"http://a//b\"", "gateway.upstream"),
            ("upstream = \"http://a/b%2fc\"", "gateway.upstream"),
            ("upstream = \"http://a/b?c=d\"", "gateway.upstream"),
            ("upstream_host = \"\"", "gateway.upstream_host"),
            ("upstream_host = \"a b\"", "gateway.upstream_host"),
            ("upstream_host = \"me@a\"", "gateway.upstream_host"),
            ("upstream_host = 1", "gateway.upstream_host"),
            ("upstream = \"h2c://\"", "gateway.upstream"),
            ("upstream = \"h2://api:50051\"", "gateway.upstream"),
            ("upstream_ping_interval = \"0s\"", "gateway.upstream_ping_interval"),
            ("upstream = \"https://a..b\"", "gateway.upstream"),
            ("tls = true", "gateway.tls"),
            ("tls = {}", "gateway.tls"),
            ("tls = { certificate = \"cert.pem\" }", "gateway.tls.private_key"),
            ("tls = { private_key = \"key.pem\" }", "gateway.tls.certificate"),
            ("tls = { certificate = \"\", private_key = \"key.pem\" }", "gateway.tls.certificate"),
            (
                "tls = { certificate = \"cert.pem\", private_key = \"-----BEGIN PRIVATE KEY-----\" }",
                "gateway.tls.private_key",
            ),
            ("tls = { cert = \"cert.pem\", private_key = \"key.pem\" }", "gateway.tls.cert"),
            ("upstream_tls = \"ca.pem\"", "gateway.upstream_tls"),
            ("upstream_tls = { roots = [\"ca.pem\"] }", "gateway.upstream_tls.roots"),
            ("upstream_tls = { certificate = \"c.pem\" }", "gateway.upstream_tls.private_key"),
            ("upstream_tls = { private_key = \"c.key\" }", "gateway.upstream_tls.certificate"),
            ("upstream_tls = { root = \"ca.pem\" }", "gateway.upstream_tls.root"),
            ("trusted_proxies = [\"::1\", \"10.0.0.0/99\"]", "gateway.trusted_proxies[1]"),
            ("trusted_proxies = \"::1\"", "gateway.trusted_proxies"),
            ("prot = 1", "gateway.prot"),
        ],
    ),
    (
        "admin",
        &[
            "listen = \"[::1]:1\"",
            "listen = \"127.0.0.2:0\"",
            "token = \"sixteen-letters!\"",
            "listen = \"0.0.0.0:9091\"\ntoken = { env = \"TEST_SECRET\" }",
        ],
        &[
            ("token = \"fifteen-letters\"", "admin.token"),
            ("token = \"sixteen letters and blanks\"", "admin.token"),
            ("token = 1", "admin.token"),
            ("token = true", "admin.token"),
            ("token = { file = \"/nowhere/at/all\" }", "admin.token.file"),
            ("token = { env = \"ONETAKE_NOBODY_SETS_THIS\" }", "admin.token.env"),
            ("listen = \"0.0.0.0:9091\"", "admin.listen"),
            ("listen = \"127.0.0.1:8080\"", "admin.listen"),
            ("listen = true", "admin.listen"),
        ],
    ),
    (
        "ext_proc",
        &[
            "listen = \"0.0.0.0:9002\"",
            "max_message = \"64MiB\"",
            "tls = { certificate = \"cert.pem\", private_key = \"key.pem\" }",
        ],
        &[
            ("listen = \"localhost:9002\"", "ext_proc.listen"),
            ("max_message = \"65MiB\"", "ext_proc.max_message"),
            ("max_message = false", "ext_proc.max_message"),
            ("tls = { certificate = \"cert.pem\" }", "ext_proc.tls.private_key"),
            ("tls = true", "ext_proc.tls"),
            ("upstream = \"http://a\"", "ext_proc.upstream"),
        ],
    ),
    (
        "store",
        &[
            "url = \"memory:\"",
            "url = \"embedded:/x\"",
            "url = \"sqlite:/x.sqlite\"",
            "url = \"redis-cluster://a:1,b:2\"",
            "url = \"postgres://db/x\"\nfilter = \"rediss://a\"",
            "url = \"dynamodb://eu-central-1/onetake\"\nallow_lossy = false",
            "journal = \"/var/lib/onetake/journal\"",
            "timeout = \"10ms\"\nconnect_timeout = \"1m\"",
            "claim_timeout = \"10ms\"\nsettle_timeout = \"1m\"",
            "url = { env = \"TEST_STORE\" }\nfilter = { env = \"TEST_FILTER\" }",
        ],
        &[
            ("url = \"memory\"", "store.url"),
            ("url = 1", "store.url"),
            ("url = {}", "store.url"),
            ("url = { evn = \"X\" }", "store.url.evn"),
            ("url = { env = 1 }", "store.url.env"),
            ("url = { env = \"ONETAKE_NOBODY_SETS_THIS\" }", "store.url.env"),
            ("filter = \"redis://a\"", "store.filter"),
            ("url = \"redis://b\"\nfilter = \"redis://a\"", "store.filter"),
            ("url = \"postgres://db/x\"\nfilter = \"memory:\"", "store.filter"),
            ("url = \"postgres://db/x\"\nfilter = \"redis:a\"", "store.filter"),
            ("allow_lossy = \"yes\"", "store.allow_lossy"),
            ("journal = 1", "store.journal"),
            ("timeout = \"9ms\"", "store.timeout"),
            ("timeout = 2", "store.timeout"),
            ("connect_timeout = \"2m\"", "store.connect_timeout"),
            ("claim_timeout = \"0s\"", "store.claim_timeout"),
            ("settle_timeout = \"2m\"", "store.settle_timeout"),
        ],
    ),
    (
        "secrets",
        &[
            "request_digests = []",
            "request_digests = [{ id = \"f2\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]",
            "issued_keys = [{ id = \"i1\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\" }]",
            "issued_keys = [{ id = \"i1\", secret = { env = \"TEST_SECRET\" } }]",
            "encryption = [{ id = \"k1\", secret = { env = \"TEST_SECRET\" } }]",
            concat!(
                "request_digests = [{ id = \"f1\", secret = { file = \"",
                env!("CARGO_MANIFEST_DIR"),
                "/src/config/tests/zeros.base64\" } }]"
            ),
        ],
        &[
            ("request_digests = \"x\"", "secrets.request_digests"),
            ("issued_keys = \"x\"", "secrets.issued_keys"),
            ("encryption = \"x\"", "secrets.encryption"),
            ("encryption = [{ id = \"k1\", secret = \"AAAA\" }]", "secrets.encryption[0].secret"),
            ("request_digests = [\"x\"]", "secrets.request_digests[0]"),
            ("request_digests = [{ id = \"a\" }]", "secrets.request_digests[0].secret"),
            (
                "request_digests = [{ secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]",
                "secrets.request_digests[0].id",
            ),
            (
                "request_digests = [{ id = \"a b\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]",
                "secrets.request_digests[0].id",
            ),
            ("issued_keys = [{ id = \"a\", secret = \"AAAA\" }]", "secrets.issued_keys[0].secret"),
            ("issued_keys = [{ id = \"a\", secret = \"=\" }]", "secrets.issued_keys[0].secret"),
            ("issued_keys = [{ id = \"a\", secret = {} }]", "secrets.issued_keys[0].secret"),
            (
                "issued_keys = [{ id = \"a\", secret = { env = \"ONETAKE_NOBODY_SETS_THIS\" } }]",
                "secrets.issued_keys[0].secret.env",
            ),
            (
                "issued_keys = [{ id = \"a\", secret = { file = \"/nowhere/at/all\" } }]",
                "secrets.issued_keys[0].secret.file",
            ),
            ("issue_keys = []", "secrets.issue_keys"),
        ],
    ),
    (
        "sweep",
        &["interval = \"1s\"", "batch = 1", "batch = 100_000"],
        &[
            ("interval = \"25h\"", "sweep.interval"),
            ("interval = 60", "sweep.interval"),
            ("batch = 0", "sweep.batch"),
            ("batch = 100001", "sweep.batch"),
            ("batch = -1", "sweep.batch"),
            ("batch = 99999999999999999999", "sweep.batch"),
            ("batch = \"5000\"", "sweep.batch"),
        ],
    ),
    (
        "limits",
        &[
            "max_connections = 1\nmax_streams = 1\nmax_headers = 16\nmax_header_bytes = \"8KiB\"",
            "header_timeout = \"100ms\"",
            "max_requests = 1\nmax_requests_per_connection = 1\nmax_requests_per_upstream = 1",
            "max_queued_requests = 0\nqueue_timeout = \"1ms\"",
            "max_body_memory = \"4GiB\"\nmin_body_rate = 0\nmax_store_memory = \"8MiB\"",
        ],
        &[
            ("max_connections = 0", "limits.max_connections"),
            ("max_streams = 70000", "limits.max_streams"),
            ("max_headers = 15", "limits.max_headers"),
            ("max_header_bytes = \"8191B\"", "limits.max_header_bytes"),
            ("header_timeout = \"11m\"", "limits.header_timeout"),
            ("max_requests = 0", "limits.max_requests"),
            ("max_requests_per_connection = -1", "limits.max_requests_per_connection"),
            ("max_requests_per_upstream = \"8192\"", "limits.max_requests_per_upstream"),
            ("max_queued_requests = 1000001", "limits.max_queued_requests"),
            ("queue_timeout = \"0s\"", "limits.queue_timeout"),
            ("max_body_memory = \"1023KiB\"", "limits.max_body_memory"),
            ("max_body_memory = \"1PiB\"", "limits.max_body_memory"),
            // A body of 1 MiB, the default of routes, could not be read.
            ("max_body_memory = \"1535KiB\"", "limits.max_body_memory"),
            ("min_body_rate = \"240B\"", "limits.min_body_rate"),
            ("max_store_memory = \"7MiB\"", "limits.max_store_memory"),
            ("connections = 5", "limits.connections"),
        ],
    ),
    (
        "relay",
        &[
            "sink = \"nats://me:secret@a:4222,b:4222\"",
            "sink = { env = \"TEST_SINK\" }\nsubject_prefix = \"payments.\"",
            "sink = \"https://api/hooks?tenant=1\"\nsecrets = [\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]",
            "secrets = []",
            "batch = 1000\ntries_max = 20\nlisten = \"127.0.0.1:0\"",
            "hold = \"100ms\"\npoll = \"1ms\"\ntimeout = \"10ms\"\nbackoff_max = \"1d\"\nkept = \"0s\"",
        ],
        &[
            ("sink = \"kafka://a\"", "relay.sink"),
            ("sink = \"nats://a/b\"", "relay.sink"),
            ("sink = 1", "relay.sink"),
            ("subject_prefix = \"a b.\"", "relay.subject_prefix"),
            ("subject_prefix = \"a..b\"", "relay.subject_prefix"),
            ("secrets = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"", "relay.secrets"),
            ("secrets = [\"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]", "relay.secrets[0]"),
            ("secrets = [{ env = \"ONETAKE_NOBODY_SETS_THIS\" }]", "relay.secrets[0].env"),
            ("batch = 0", "relay.batch"),
            ("tries_max = 0", "relay.tries_max"),
            ("hold = \"2h\"", "relay.hold"),
            ("poll = \"0s\"", "relay.poll"),
            ("timeout = \"301s\"", "relay.timeout"),
            ("backoff_max = \"25h\"", "relay.backoff_max"),
            ("kept = \"401d\"", "relay.kept"),
            ("listen = 9092", "relay.listen"),
        ],
    ),
    (
        "route",
        &[
            "match = \"PUT /orders/{id}\"\nkey = { from = \"path\", name = \"id\" }\ntenant = \"public\"",
            "match = \"POST /{a}/{*b}\"\nkey = { from = \"derive\", parts = [\"path:a\", \"path:b\"] }\ntenant = \"public\"",
            "match = \"* /{*rest}\"",
            "match = \"grpc billing.v1.Payments/Charge\"",
            "match = \"grpc Payments/*\"",
            "preset = \"webhook\"",
            "preset = \"high-consequence\"",
        ],
        &[
            ("match = \"GET /\"", "route[0].match"),
            ("match = \"grpc billing.v1.Payments\"", "route[0].match"),
            ("match = 1", "route[0].match"),
            ("preset = \"payments\"", "route[0].preset"),
            ("preset = \"payment\"", "route[0].tenant"),
            ("preset = 24", "route[0].preset"),
            (
                "match = \"PUT /orders/{order}\"\nkey = { from = \"path\", name = \"id\" }\ntenant = \"public\"",
                "route[0].key",
            ),
        ],
    ),
    (
        "defaults",
        &[],
        &[("match = \"POST /\"", "defaults.match"), ("preset = \"job\"", "defaults.preset")],
    ),
];

/// Options that routes and `[defaults]` share: valid lines, and invalid ones with the rest of the
/// path.
const POLICY: &[(Lines, Refused)] = &[
    (
        &["namespace = \"pay/v1\""],
        &[("namespace = \"a b\"", "namespace"), ("namespace = 1", "namespace")],
    ),
    (
        &[
            "key = {}",
            "key = { from = \"header\", format = \"any\" }",
            "key.required = false",
            "key.min_length = 255",
            "key = { format = \"uuid\" }",
            "key = { from = \"issued\" }",
            "key = { from = \"header\", name = \"X-GitHub-Delivery\" }\ntenant = \"public\"",
            "key = { from = \"header\", name = \"svix-id\", format = \"any\", min_length = 8, required = false }\ntenant = \"public\"",
            "key = { from = \"query\", name = \"order id\" }\ntenant = \"credential\"",
            "key = { from = \"derive\", parts = [\"header:X-Shop\", \"query:page\", \"json:/a~1b\"] }\ntenant = \"public\"",
            "key = { from = \"grpc\", field_number = 5 }\ntenant = \"credential\"",
            "key = { from = \"grpc\", field = \"request_id\" }\ntenant = \"credential\"\ndescriptor_set = \"tests/common/billing.pb\"",
            "key = { from = \"json\", pointer = \"/transfer/client_reference\" }\ntenant = \"public\"",
            "key = { from = \"json\", pointer = \"/id\", required = false }\ntenant = \"public\"",
            "key = { from = \"derive\", parts = [\"json:/merchant_id\", \"json:/order_id\"] }\ntenant = \"credential\"",
        ],
        &[
            ("key = { from = \"header\", name = \"svix-id\" }", "tenant"),
            ("key = { from = \"query\", name = \"order\" }", "tenant"),
            ("key = { from = \"header\", name = \"a b\" }\ntenant = \"public\"", "key.name"),
            ("key = { from = \"header\", name = \"\" }\ntenant = \"public\"", "key.name"),
            ("key = { from = \"header\", name = 1 }\ntenant = \"public\"", "key.name"),
            ("key = { from = \"header\", name = \"X-Request-Id\" }\ntenant = \"public\"", "key"),
            ("key = { from = \"header\", name = \"Idempotency-Key\" }\ntenant = \"public\"", "key"),
            ("key = { name = \"svix-id\" }\ntenant = \"public\"", "key.name"),
            (
                "key = { from = \"json\", name = \"id\", pointer = \"/id\" }\ntenant = \"public\"",
                "key.name",
            ),
            ("key = { from = \"path\" }\ntenant = \"public\"", "key.from"),
            ("key = { from = \"path\", name = \"id\" }\ntenant = \"public\"", "key"),
            ("key = { from = \"query\" }\ntenant = \"public\"", "key.from"),
            (
                "key = { from = \"query\", name = \"q\", min_length = 3 }\ntenant = \"public\"",
                "key.min_length",
            ),
            (
                "key = { from = \"derive\", parts = [\"header:a b\"] }\ntenant = \"public\"",
                "key.parts[0]",
            ),
            (
                "key = { from = \"derive\", parts = [\"cookie:a\"] }\ntenant = \"public\"",
                "key.parts[0]",
            ),
            ("key = { from = \"derive\", parts = [\"path:id\"] }\ntenant = \"public\"", "key"),
            ("key = { from = \"json\" }\ntenant = \"public\"", "key.from"),
            ("key = { from = \"json\", pointer = \"id\" }\ntenant = \"public\"", "key.pointer"),
            ("key = { from = \"json\", pointer = \"\" }\ntenant = \"public\"", "key.pointer"),
            (
                "key = { from = \"json\", pointer = \"/id\", min_length = 3 }\ntenant = \"public\"",
                "key.min_length",
            ),
            (
                "key = { from = \"json\", pointer = \"/id\", format = \"uuid\" }\ntenant = \"public\"",
                "key.format",
            ),
            ("key = { from = \"json\", pointer = \"/id\" }", "tenant"),
            ("key = { pointer = \"/id\" }", "key.pointer"),
            ("key = { from = \"derive\" }\ntenant = \"public\"", "key.from"),
            ("key = { from = \"derive\", parts = [] }\ntenant = \"public\"", "key.parts"),
            ("key = { from = \"derive\", parts = [\"/a\"] }\ntenant = \"public\"", "key.parts[0]"),
            (
                "key = { from = \"derive\", parts = [\"json:a\"] }\ntenant = \"public\"",
                "key.parts[0]",
            ),
            ("key = { from = \"derive\", parts = \"json:/a\" }\ntenant = \"public\"", "key.parts"),
            ("key = { from = \"derive\", parts = [\"json:/a\"] }", "tenant"),
            ("key = { parts = [\"json:/a\"] }", "key.parts"),
            ("key = \"header\"", "key"),
            ("key = { from = \"haeder\" }", "key.from"),
            ("key = { format = \"all\" }", "key.format"),
            ("key = { required = \"yes\" }", "key.required"),
            ("key = { min_length = 0 }", "key.min_length"),
            ("key = { min_length = 256 }", "key.min_length"),
            ("key = { min_length = \"16\" }", "key.min_length"),
            ("key = { requird = true }", "key.requird"),
        ],
    ),
    (
        &[
            "tenant = \"credential\"",
            "tenant = \"public\"",
            "tenant = \"client-ip\"",
            "tenant = { header = \"X-A\" }",
            "tenant = { jwt = { verification_key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" } }",
            "tenant = { jwt = { claim = \"sub\", issuer = \"https://id\", audience = \"api\", verification_key = { env = \"TEST_SECRET\" }, algorithms = [\"HS256\"], leeway = \"0s\" } }",
            concat!(
                "tenant = { jwt = { verification_key = [{ file = \"",
                env!("CARGO_MANIFEST_DIR"),
                "/src/config/tests/ed25519.pem\", kid = \"k1\" }, { env = \"TEST_SECRET\" }, \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"], algorithms = [\"EdDSA\", \"HS256\"] } }"
            ),
            "tenant = { jwt = { jwks_url = \"https://id.example/keys?p=1\" } }",
            "tenant = { jwt = { jwks_url = \"http://127.0.0.1:9/keys\", verification_key = { env = \"TEST_SECRET\" } } }",
            "tenant = { jwt = { jwks_url = \"http://[::1]/keys\", algorithms = [\"RS256\"] } }",
            "tenant = { forward_auth = \"http://auth:4180/oauth2/auth?x=1\" }",
            "tenant = { forward_auth = \"https://auth\" }",
            "tenant = { forward_auth = { url = \"http://auth\" } }",
            "tenant = { forward_auth = { url = \"https://[::1]:8443/auth\" } }",
            "tenant = { forward_auth = { url = \"http://auth/\", header = \"Remote-User\", timeout = \"30s\", cache = \"0s\" } }",
        ],
        &[
            ("tenant = { jwt = \"sub\" }", "tenant.jwt"),
            ("tenant = { jwt = {} }", "tenant.jwt"),
            ("tenant = { jwt = { claim = \"sub\" } }", "tenant.jwt"),
            ("tenant = { jwt = { jwks_url = \"id.example/keys\" } }", "tenant.jwt.jwks_url"),
            ("tenant = { jwt = { jwks_url = \"https://me:pw@id/keys\" } }", "tenant.jwt.jwks_url"),
            ("tenant = { jwt = { keys = [] } }", "tenant.jwt.keys"),
            ("tenant = { jwt = { verification_key = \"AAAA\" } }", "tenant.jwt.verification_key"),
            ("tenant = { jwt = { verification_key = [] } }", "tenant.jwt.verification_key"),
            ("tenant = { jwt = { verification_key = [1] } }", "tenant.jwt.verification_key[0]"),
            ("tenant = { jwt = { verification_key = {} } }", "tenant.jwt.verification_key"),
            (
                "tenant = { jwt = { verification_key = { kid = \"k1\" } } }",
                "tenant.jwt.verification_key",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\", kid = 1 } } }",
                "tenant.jwt.verification_key.kid",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"ONETAKE_NOBODY_SETS_THIS\" } } }",
                "tenant.jwt.verification_key.env",
            ),
            (
                "tenant = { jwt = { verification_key = { file = \"/nowhere/at/all\" } } }",
                "tenant.jwt.verification_key.file",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\" }, claim = \"\" } }",
                "tenant.jwt.claim",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\" }, issuer = \"\" } }",
                "tenant.jwt.issuer",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\" }, audience = [] } }",
                "tenant.jwt.audience",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\" }, leeway = \"11m\" } }",
                "tenant.jwt.leeway",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\" }, algorithms = [] } }",
                "tenant.jwt.algorithms",
            ),
            (
                "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\" }, algorithms = [\"none\"] } }",
                "tenant.jwt.algorithms[0]",
            ),
            (
                "tenant = { jwt = { verification_key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\", algorithms = [\"RS256\"] } }",
                "tenant.jwt.verification_key",
            ),
            ("tenant = { forward_auth = 1 }", "tenant.forward_auth"),
            ("tenant = { forward_auth = \"https://a..b/auth\" }", "tenant.forward_auth"),
            ("tenant = { forward_auth = \"https://me@auth\" }", "tenant.forward_auth"),
            ("tenant = { forward_auth = {} }", "tenant.forward_auth"),
            ("tenant = { forward_auth = { url = \"auth\" } }", "tenant.forward_auth.url"),
            (
                "tenant = { forward_auth = { url = \"http://a\", header = \"a b\" } }",
                "tenant.forward_auth.header",
            ),
            (
                "tenant = { forward_auth = { url = \"http://a\", timeout = \"31s\" } }",
                "tenant.forward_auth.timeout",
            ),
            (
                "tenant = { forward_auth = { url = \"http://a\", cache = \"61s\" } }",
                "tenant.forward_auth.cache",
            ),
            ("tenant = { forward_auth = \"http://a\", header = \"X-A\" }", "tenant"),
            ("tenant = \"credentials\"", "tenant"),
            ("tenant = 1", "tenant"),
            ("tenant = {}", "tenant"),
            ("tenant = { haeder = \"X\" }", "tenant.haeder"),
            ("tenant = { header = \"X Y\" }", "tenant.header"),
            ("tenant = { header = 1 }", "tenant.header"),
        ],
    ),
    (
        &[
            "fingerprint = { mode = \"bytes\" }",
            "fingerprint = { mode = \"json\", exclude = [] }",
            "fingerprint = { mode = \"protobuf\", exclude = [\"/amount\"] }\ndescriptor_set = \"tests/common/billing.pb\"",
            "fingerprint = { mode = \"json\", include = [\"/a\"] }",
            "fingerprint = { mode = \"bytes\", headers = [\"X-Account\"] }",
        ],
        &[
            ("fingerprint = \"json\"", "fingerprint"),
            ("fingerprint = { mode = \"bytes\", headers = [\"a b\"] }", "fingerprint.headers[0]"),
            ("fingerprint = { mode = \"bytes\", headers = [\"Date\"] }", "fingerprint.headers[0]"),
            ("fingerprint = { mode = \"bytes\", headers = \"X-A\" }", "fingerprint.headers"),
            ("fingerprint = {}", "fingerprint"),
            ("fingerprint = { mode = \"jsn\" }", "fingerprint.mode"),
            ("fingerprint = { mode = \"protobuf\" }", "fingerprint"),
            ("fingerprint = { mode = \"protobuf\", include = [\"/a\"] }", "fingerprint.include"),
            (
                "fingerprint = { mode = \"protobuf\" }\ndescriptor_set = \"/nowhere/at/all.pb\"",
                "descriptor_set",
            ),
            ("fingerprint = { mod = \"json\" }", "fingerprint.mod"),
            ("fingerprint = { mode = \"bytes\", exclude = [\"/a\"] }", "fingerprint.exclude"),
            ("fingerprint = { mode = \"bytes\", include = [\"/a\"] }", "fingerprint.include"),
            ("fingerprint = { mode = \"json\", include = [] }", "fingerprint.include"),
            (
                "fingerprint = { mode = \"json\", include = [\"/a\"], exclude = [\"/b\"] }",
                "fingerprint.include",
            ),
            ("fingerprint = { mode = \"json\", exclude = [\"a\"] }", "fingerprint.exclude[0]"),
            ("fingerprint = { mode = \"json\", exclude = [\"\"] }", "fingerprint.exclude[0]"),
            (
                "fingerprint = { mode = \"json\", exclude = [\"/a\", \"/~2\"] }",
                "fingerprint.exclude[1]",
            ),
            ("fingerprint = { mode = \"json\", exclude = \"/a\" }", "fingerprint.exclude"),
        ],
    ),
    (
        &["ttl = \"400d\""],
        &[("ttl = \"401d\"", "ttl"), ("ttl = \"1y\"", "ttl"), ("ttl = 5", "ttl")],
    ),
    (&["lease = \"100ms\""], &[("lease = \"99ms\"", "lease"), ("lease = 1.5", "lease")]),
    (&["grace = \"0s\""], &[("grace = \"2h\"", "grace"), ("grace = 1979-05-27", "grace")]),
    (
        &["in_flight = \"wait\"", "in_flight = \"async\""],
        &[("in_flight = \"wiat\"", "in_flight"), ("in_flight = true", "in_flight")],
    ),
    (&["wait_timeout = \"5m\""], &[("wait_timeout = \"6m\"", "wait_timeout")]),
    (&["on_unknown = \"retry\""], &[("on_unknown = \"rerun\"", "on_unknown")]),
    (
        &[
            "on_unknown = \"reconcile\"\nreconcile = \"GET http://127.0.0.1:3000/charges/by-key/{derived_key}\"",
            "on_unknown = \"reconcile\"\nreconcile = \"GET https://a?key={derived_key}&ref={reference}\"",
            "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://[::1]:80/a/{derived_key}/b\", not_executed = [\"404\", \"410\"], request_headers = { X-Api-Key = \"abc\", Authorization = { env = \"TEST_SECRET\" } }, give_up_after = \"30d\", timeout = \"10ms\" }",
            "on_unknown = \"reconcile\"\ntenant = \"public\"\nreconcile = \"GET http://a/{key}\"",
            "on_unknown = \"reconcile\"\ntenant = \"client-ip\"\nreconcile = \"GET http://a/{tenant}/{key}\"",
        ],
        &[
            ("on_unknown = \"reconcile\"", "on_unknown"),
            ("reconcile = \"GET http://a/{derived_key}\"", "reconcile"),
            ("on_unknown = \"retry\"\nreconcile = \"GET http://a/{derived_key}\"", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = 1", "reconcile"),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"POST http://a/{derived_key}\"",
                "reconcile",
            ),
            ("on_unknown = \"reconcile\"\nreconcile = \"http://a/{derived_key}\"", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = \"GET /a/{derived_key}\"", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = \"GET ftp://a/{derived_key}\"", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/\"", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{reference}\"", "reconcile"),
            (
                "on_unknown = \"reconcile\"\ntenant = \"public\"\nreconcile = \"GET http://a/{tenant}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nttl = \"129s\"\nreconcile = \"GET http://a/{derived_key}\"",
                "ttl",
            ),
            (
                "on_unknown = \"reconcile\"\nttl = \"1h\"\nupstream_timeout = \"30m\"\nreconcile = \"GET http://a/{derived_key}\"",
                "ttl",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://{tenant}/{derived_key}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://a:{key}/{derived_key}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://me:{key}@a/{derived_key}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://me@a/{derived_key}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}#x\"",
                "reconcile",
            ),
            ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived key}\"", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key\"", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = {}", "reconcile"),
            ("on_unknown = \"reconcile\"\nreconcile = { request = 1 }", "reconcile.request"),
            (
                "on_unknown = \"reconcile\"\nreconcile = { url = \"GET http://a/{derived_key}\" }",
                "reconcile.url",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET https://a..b/{derived_key}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}/{id}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}}\"",
                "reconcile",
            ),
            ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{key}\"", "reconcile"),
            (
                "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{tenant}/{key}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{key}\", timeout = \"61s\" }",
                "reconcile.timeout",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{key}\", give_up_after = \"31d\" }",
                "reconcile.give_up_after",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", not_executed = \"404\" }",
                "reconcile.not_executed",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", not_executed = [\"404\", \"4xx\"] }",
                "reconcile.not_executed[1]",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", not_executed = [\"401\"] }",
                "reconcile.not_executed[0]",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", not_executed = [\"5xx\"] }",
                "reconcile.not_executed[0]",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", not_executed = [\"204\"] }",
                "reconcile.not_executed[0]",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = \"X\" }",
                "reconcile.request_headers",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { \"X Y\" = \"b\" } }",
                "reconcile.request_headers.\"X Y\"",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { X-A = \"\" } }",
                "reconcile.request_headers.X-A",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { Host = \"b\" } }",
                "reconcile.request_headers.Host",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { connection = \"b\" } }",
                "reconcile.request_headers.connection",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { X-A = \"a\", x-a = \"b\" } }",
                "reconcile.request_headers.x-a",
            ),
            (
                "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { X-A = { env = \"ONETAKE_NOBODY_SETS_THIS\" } } }",
                "reconcile.request_headers.X-A.env",
            ),
            (
                "on_unknown = \"reconcile\"\ntenant = \"client-ip\"\nreconcile = \"GET http://a/{key}\"",
                "reconcile",
            ),
            (
                "on_unknown = \"reconcile\"\ntenant = { jwt = { verification_key = { env = \"TEST_SECRET\" } } }\nreconcile = \"GET http://a/{tenant}/{key}\"",
                "reconcile",
            ),
        ],
    ),
    (
        &["on_store_down = \"fail-closed\"", "on_store_down = \"fail-open\""],
        &[("on_store_down = \"open\"", "on_store_down")],
    ),
    (&["upstream = \"http://127.0.0.1:3000\""], &[("upstream = 1", "upstream")]),
    (&["descriptor_set = \"billing.pb\""], &[("descriptor_set = \"\"", "descriptor_set")]),
    (
        &[],
        &[
            ("key = { from = \"grpc\" }\ntenant = \"public\"", "key.from"),
            ("key = { from = \"grpc\", field = \"id\" }\ntenant = \"public\"", "key"),
            ("key = { from = \"grpc\", field = \"a b\" }\ntenant = \"public\"", "key.field"),
            (
                "key = { from = \"grpc\", field_number = 0 }\ntenant = \"public\"",
                "key.field_number",
            ),
            (
                "key = { from = \"grpc\", field = \"id\", field_number = 1 }\ntenant = \"public\"",
                "key.field_number",
            ),
            ("key = { field_number = 1 }", "key.field_number"),
            ("key = { from = \"json\", pointer = \"/a\", field = \"id\" }", "key.field"),
        ],
    ),
    (&["upstream_timeout = \"1ms\""], &[("upstream_timeout = \"0s\"", "upstream_timeout")]),
    (
        &[
            "record = [\"500\"]",
            "release = [\"5xx\", \"5xx\"]",
            "mark_unknown = []",
            "record = [\"OK\", \"INTERNAL\"]\nrelease = [\"ABORTED\"]",
        ],
        &[
            ("record = [\"internal\"]", "record[0]"),
            ("record = [\"INTERNAL\"]\nrelease = [\"INTERNAL\"]", "release[0]"),
            ("record = [\"1xx\"]", "record[0]"),
            ("release = [404]", "release[0]"),
            ("mark_unknown = \"5xx\"", "mark_unknown"),
            ("record = [\"404\"]\nmark_unknown = [\"5xx\", \"404\"]", "mark_unknown[1]"),
        ],
    ),
    (&["errors = \"problem\"", "errors = \"stripe\""], &[("errors = \"problems\"", "errors")]),
    (
        &[
            "velocity = []",
            "key = { required = true }\nvelocity = [{ by = [\"tenant\", \"json:/card\"], limit = \"5/min\" }]",
            "key = { required = true }\nvelocity = [{ by = [], limit = \"100/s\" }, { by = [\"tenant\"], limit = \"1000/h\" }]",
        ],
        &[
            ("velocity = \"5/min\"", "velocity"),
            ("velocity = [{ by = [\"tenant\"], limit = \"5/min\" }]", "velocity"),
            ("key = { required = false }\nvelocity = [{ by = [], limit = \"5/s\" }]", "velocity"),
            ("velocity = [\"5/min\"]", "velocity[0]"),
            ("velocity = [{ limit = \"5/min\" }]", "velocity[0].by"),
            ("velocity = [{ by = [] }]", "velocity[0].limit"),
            ("velocity = [{ by = [\"card\"], limit = \"5/min\" }]", "velocity[0].by[0]"),
            ("velocity = [{ by = [\"json:card\"], limit = \"5/min\" }]", "velocity[0].by[0]"),
            ("velocity = [{ by = \"tenant\", limit = \"5/min\" }]", "velocity[0].by"),
            ("velocity = [{ by = [], limit = \"5\" }]", "velocity[0].limit"),
            ("velocity = [{ by = [], limit = \"0/min\" }]", "velocity[0].limit"),
            ("velocity = [{ by = [], limit = 5 }]", "velocity[0].limit"),
            ("velocity = [{ by = [], limit = \"5/min\", per = 1 }]", "velocity[0].per"),
        ],
    ),
    (
        &[
            "duplicate_payload = { action = \"log\" }",
            "duplicate_payload = { window = \"1s\", action = \"reject\" }",
            "duplicate_payload = { action = \"off\" }",
        ],
        &[
            ("duplicate_payload = \"log\"", "duplicate_payload"),
            ("duplicate_payload = {}", "duplicate_payload"),
            ("duplicate_payload = { window = \"10m\" }", "duplicate_payload.action"),
            ("duplicate_payload = { action = \"refuse\" }", "duplicate_payload.action"),
            (
                "duplicate_payload = { action = \"log\", window = \"0s\" }",
                "duplicate_payload.window",
            ),
            (
                "duplicate_payload = { action = \"log\", window = \"25h\" }",
                "duplicate_payload.window",
            ),
            ("duplicate_payload = { action = \"log\", windw = \"1m\" }", "duplicate_payload.windw"),
        ],
    ),
    (
        &["statuses = { mismatch = 409, in_flight = 425, wait_timeout = 503 }", "statuses = {}"],
        &[
            ("statuses = 422", "statuses"),
            ("statuses = { mismatch = 200 }", "statuses.mismatch"),
            ("statuses = { in_flight = 600 }", "statuses.in_flight"),
            ("statuses = { wait_timeout = \"504\" }", "statuses.wait_timeout"),
            ("statuses = { mismach = 422 }", "statuses.mismach"),
        ],
    ),
    (
        &["path_case = \"exact\"", "path_case = \"ignore\""],
        &[("path_case = \"insensitive\"", "path_case"), ("path_case = true", "path_case")],
    ),
    (
        &["trailing_slash = \"exact\"", "trailing_slash = \"ignore\""],
        &[
            ("trailing_slash = \"strict\"", "trailing_slash"),
            ("trailing_slash = 1", "trailing_slash"),
        ],
    ),
    (
        &["max_request_body = \"64MiB\"", "max_request_body = 1", "max_request_body = 0x10"],
        &[
            ("max_request_body = \"65MiB\"", "max_request_body"),
            ("max_request_body = 0", "max_request_body"),
            ("max_request_body = -1", "max_request_body"),
            ("max_request_body = true", "max_request_body"),
        ],
    ),
    (&["max_response_body = \"512KiB\""], &[("max_response_body = \"1MB\"", "max_response_body")]),
];

/// Files that are accepted.
pub(super) fn right() -> Vec<String> {
    let own = SECTIONS.iter().map(|(section, right, _)| (*section, *right));
    let policy = POLICY.iter().flat_map(|(right, _)| [("route", *right), ("defaults", *right)]);
    let files = own
        .chain(policy)
        .flat_map(|(section, lines)| lines.iter().map(move |line| file(section, line)));
    files.collect()
}

/// A file that is refused, with the field that the message names.
pub(super) struct Wrong {
    pub(super) line: &'static str,
    pub(super) text: String,
    pub(super) field: String,
}

/// Files that are refused.
pub(super) fn wrong() -> Vec<Wrong> {
    let own = SECTIONS.iter().map(|(section, _, wrong)| (*section, "", *wrong));
    let policy = POLICY
        .iter()
        .flat_map(|(_, wrong)| [("route", "route[0].", *wrong), ("defaults", "defaults.", *wrong)]);
    let files = own.chain(policy).flat_map(|(section, path, wrong)| {
        wrong.iter().map(move |(line, field)| Wrong {
            line,
            text: file(section, line),
            field: format!("{path}{field}"),
        })
    });
    files.collect()
}

#[test]
fn every_field_takes_right_values_and_refuses_wrong_ones() {
    let load = |text: &str| load(Some(text), "onetake.toml", env(VARIABLES), Overrides::default());
    for text in right() {
        load(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    }
    for Wrong { text, field, .. } in wrong() {
        let error = load(&text).expect_err(&text);
        let [problem] = error.problems() else { panic!("one fault expected\n{text}\n{error}") };
        assert_eq!(problem.field, field, "{text}\n{error}");
        assert!(problem.place.starts_with("onetake.toml:"), "{text}\n{error}");
        assert!(!problem.fix.is_empty(), "{text}\n{error}");
    }
}
