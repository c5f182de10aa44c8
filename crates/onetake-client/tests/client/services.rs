//! Services behind the gateway, with axum.

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use onetake_client::service::{Operation, Outcome, Reconciled, reconcile};
use serde_json::json;
use tower::ServiceExt as _;

const DERIVED: &str = "3f6e277c-ac68-44a0-b80b-1417955e0d84";

async fn charge(operation: Operation) -> (StatusCode, Outcome, String) {
    let Some(derived) = operation.derived_key else {
        return (StatusCode::BAD_REQUEST, Outcome::Release, String::new());
    };
    let (key, fence) = (operation.key.unwrap_or_default(), operation.fence.unwrap_or_default());
    let step = derived.step("charge-card");
    (StatusCode::CREATED, Outcome::Record, format!("{key} {fence} {step} {}", step.compensation()))
}

async fn find(derived_key: String) -> Result<Reconciled, &'static str> {
    match derived_key.as_str() {
        "done" => Ok(Reconciled::json(StatusCode::CREATED, &json!({ "charge": 1 }))),
        "never" => Ok(Reconciled::Release),
        "broken" => Err("database"),
        _ => Ok(Reconciled::Unknown),
    }
}

async fn ask(request: http::request::Builder) -> (StatusCode, Response<()>, String) {
    let app: Router = Router::new()
        .route("/charges", post(charge))
        .route("/reconcile/{derived_key}", get(reconcile(find)));
    let response = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    (parts.status, Response::from_parts(parts, ()), body)
}

#[tokio::test]
async fn a_handler_knows_the_attempt_and_says_what_became_of_it() {
    let request = Request::post("/charges")
        .header("idempotency-key", "order-2041")
        .header("idempotency-fence", u64::MAX)
        .header("idempotency-derived-key", DERIVED);
    let (status, head, body) = ask(request).await;
    assert_eq!(status, 201);
    assert_eq!(head.headers()["onetake-outcome"], "record");
    let step = "7ea19fb2-56ba-4aa6-80aa-cade2facfd7e";
    let undo = "ced33355-2859-46b1-ac0b-970637b65976";
    assert_eq!(body, format!("order-2041 18446744073709551615 {step} {undo}"));
}

#[tokio::test]
async fn a_request_that_did_not_pass_the_gateway_has_no_derived_key() {
    for wrong in [None, Some("no uuid")] {
        let mut request = Request::post("/charges").header("idempotency-fence", "-1");
        if let Some(wrong) = wrong {
            request = request.header("idempotency-derived-key", wrong);
        }
        let (status, head, _) = ask(request).await;
        assert_eq!(status, 400);
        assert_eq!(head.headers()["onetake-outcome"], "release");
    }
}

#[tokio::test]
async fn the_reconcile_endpoint_answers_as_the_gateway_expects() {
    let (status, head, body) = ask(Request::get("/reconcile/done")).await;
    assert_eq!((status.as_u16(), body.as_str()), (200, r#"{"charge":1}"#));
    assert_eq!(head.headers()["onetake-outcome"], "record");
    assert_eq!(head.headers()["onetake-status"], "201");
    assert_eq!(head.headers()["content-type"], "application/json");
    for (path, status, outcome) in
        [("never", 404, "release"), ("broken", 503, "unknown"), ("other", 503, "unknown")]
    {
        let (answered, head, body) = ask(Request::get(format!("/reconcile/{path}"))).await;
        assert_eq!((answered.as_u16(), body.as_str()), (status, ""), "{path}");
        assert_eq!(head.headers()["onetake-outcome"], outcome, "{path}");
    }
}
