use onetake_client::reqwest::SendWith as _;
use onetake_client::{Error, Onetake};
use serde_json::json;

pub async fn charge(client: &reqwest::Client, onetake: &Onetake, api: &str) -> Result<u16, Error> {
    let charge = client.post(format!("{api}/charges")).json(&json!({ "amount": 10 }));
    let response = charge.send_with(onetake).await?;
    Ok(response.status().as_u16())
}
