//! Options of routes that say where the tenant comes from.

use super::PolicyRow;

pub(super) const ROWS: &[PolicyRow] = &[(
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
)];
