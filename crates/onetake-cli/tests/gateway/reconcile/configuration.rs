//! The configuration of a gateway that reconciles.

use super::interrupted_upstream::Shop;
use super::reconciliation_service::Desk;

/// Options of the reconciler in these tests: longer than the tests take, so that no question times
/// out and is repeated.
pub(crate) const PATIENT: &str = "timeout = \"30s\", give_up_after = \"1h\"";

/// The configuration: `more` belongs to `reconcile`, and `lines` to the route.
pub(crate) fn config(shop: &Shop, desk: &Desk, store: &str, more: &str, lines: &str) -> String {
    format!(
        r#"
[gateway]
listen = "127.0.0.1:0"
upstream = "http://{}"
[admin]
listen = "127.0.0.1:0"
[store]
url = "{store}"
[[route]]
match = "POST /pay"
tenant = "public"
key = {{ min_length = 1 }}
upstream_timeout = "2s"
grace = "100ms"
on_unknown = "reconcile"
reconcile = {{ request = "GET http://{}/by/{{key}}", {more} }}
{lines}
"#,
        shop.address, desk.address
    )
}
