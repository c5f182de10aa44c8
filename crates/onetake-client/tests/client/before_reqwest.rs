use serde_json::json;

pub async fn charge(client: &reqwest::Client, api: &str) -> Result<u16, reqwest::Error> {
    let charge = client.post(format!("{api}/charges")).json(&json!({ "amount": 10 }));
    let response = charge.send().await?;
    Ok(response.status().as_u16())
}
