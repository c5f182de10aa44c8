use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use onetake_client::{Error, Onetake, OnetakeLayer};
use tower::{ServiceBuilder, ServiceExt as _};

pub async fn charge(onetake: &Onetake, api: &str) -> Result<u16, Error> {
    let client = ServiceBuilder::new()
        .layer(OnetakeLayer::new(onetake.clone()))
        .service(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());
    let request = Request::post(format!("{api}/charges")).body(Full::from(r#"{"amount":10}"#));
    let request = request.map_err(|error| Error::Inner(error.into()))?;
    let response = client.oneshot(request).await?;
    Ok(response.status().as_u16())
}
