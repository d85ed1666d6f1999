//! The control channel of a simulator in another process: JSON over plain HTTP on loopback.

use super::ControlChannel;
use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, body::Bytes, header};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

/// The control URL of a simulator.
pub struct HttpControl {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl HttpControl {
    /// A channel to this URL, as the simulator prints it.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }
}

#[async_trait]
impl ControlChannel for HttpControl {
    async fn control(&self, order: Value) -> Result<Value, String> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(order.to_string()))
            .map_err(|error| error.to_string())?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| format!("the simulator's control URL does not answer: {error}"))?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| error.to_string())?
            .to_bytes();
        let answer = serde_json::from_slice(&body);
        if status.is_success() {
            return answer.map_err(|error| error.to_string());
        }
        let said = answer.ok().and_then(|answer: Value| {
            answer
                .get("error")
                .and_then(Value::as_str)
                .or_else(|| answer.as_str())
                .map(str::to_owned)
        });
        Err(said.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned()))
    }
}
