//! Options of routes that say where the key comes from.

use super::PolicyRow;

pub(super) const ROWS: &[PolicyRow] = &[
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
];
