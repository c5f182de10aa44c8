//! Options of routes for reconciliation.

use super::PolicyRow;

pub(super) const ROWS: &[PolicyRow] = &[(
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
        ("on_unknown = \"reconcile\"\nreconcile = \"POST http://a/{derived_key}\"", "reconcile"),
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
        ("on_unknown = \"reconcile\"\nreconcile = \"GET http://me@a/{derived_key}\"", "reconcile"),
        ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}#x\"", "reconcile"),
        ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived key}\"", "reconcile"),
        ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key\"", "reconcile"),
        ("on_unknown = \"reconcile\"\nreconcile = {}", "reconcile"),
        ("on_unknown = \"reconcile\"\nreconcile = { request = 1 }", "reconcile.request"),
        (
            "on_unknown = \"reconcile\"\nreconcile = { url = \"GET http://a/{derived_key}\" }",
            "reconcile.url",
        ),
        ("on_unknown = \"reconcile\"\nreconcile = \"GET https://a..b/{derived_key}\"", "reconcile"),
        (
            "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}/{id}\"",
            "reconcile",
        ),
        ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}}\"", "reconcile"),
        ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{key}\"", "reconcile"),
        ("on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{tenant}/{key}\"", "reconcile"),
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
)];
