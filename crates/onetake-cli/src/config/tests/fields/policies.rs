//! The other options of routes.

use super::PolicyRow;

pub(super) const ROWS: &[PolicyRow] = &[
    (
        &["namespace = \"pay/v1\""],
        &[("namespace = \"a b\"", "namespace"), ("namespace = 1", "namespace")],
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
        &["on_store_down = \"fail-closed\"", "on_store_down = \"fail-open\""],
        &[("on_store_down = \"open\"", "on_store_down")],
    ),
    (&["upstream = \"http://127.0.0.1:3000\""], &[("upstream = 1", "upstream")]),
    (&["descriptor_set = \"billing.pb\""], &[("descriptor_set = \"\"", "descriptor_set")]),
    (
        &["request_timeout = \"2m\""],
        &[
            ("request_timeout = \"0s\"", "request_timeout"),
            ("request_timeout = \"61m\"", "request_timeout"),
            ("request_timeout = 30", "request_timeout"),
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
