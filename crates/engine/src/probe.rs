//! Asking a proxy who it is.

use crate::Credential;
use data_encoding::BASE64;
use egress_core::{
    proxy::ServingFault,
    proxy_config::{IDENTITY_PATH, IdentityAnswer},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{CONNECTION, HOST, PROXY_AUTHORIZATION},
};
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpStream;

/// The largest identity answer that is read, in bytes.
const MAX_ANSWER: usize = 16 * 1024;

/// Why a proxy did not say who it is, for code and for people.
pub type Fault = (ServingFault, String);

/// Asks proxies who they are.
#[async_trait::async_trait]
pub trait Prober: Send + Sync {
    /// Sends one request to the proxy itself, with credentials where it has some, and gives
    /// up after `timeout`.
    async fn identify(
        &self,
        endpoint: SocketAddr,
        credential: Option<&Credential>,
        timeout: Duration,
    ) -> Result<IdentityAnswer, Fault>;
}

/// The real one: HTTP/1.1 on a connection of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpProber;

#[async_trait::async_trait]
impl Prober for HttpProber {
    async fn identify(
        &self,
        endpoint: SocketAddr,
        credential: Option<&Credential>,
        timeout: Duration,
    ) -> Result<IdentityAnswer, Fault> {
        tokio::time::timeout(timeout, ask(endpoint, credential))
            .await
            .unwrap_or_else(|_| {
                Err((
                    ServingFault::Slow,
                    format!("no answer within {} ms", timeout.as_millis()),
                ))
            })
    }
}

async fn ask(
    endpoint: SocketAddr,
    credential: Option<&Credential>,
) -> Result<IdentityAnswer, Fault> {
    let closed =
        |what: &str, e: &dyn std::fmt::Display| (ServingFault::PortClosed, format!("{what}: {e}"));
    let stream = TcpStream::connect(endpoint)
        .await
        .map_err(|e| closed("connect", &e))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| closed("handshake", &e))?;
    // Ends with the response or with this call, whichever is first.
    let driver = tokio::spawn(connection);
    let _stop = tokio_util::task::AbortOnDropHandle::new(driver);

    let mut request = Request::get(IDENTITY_PATH)
        .header(HOST, endpoint.to_string())
        .header(CONNECTION, "close");
    if let Some(credential) = credential {
        let pair = format!(
            "{}:{}",
            credential.user,
            credential.password.expose_secret()
        );
        request = request.header(
            PROXY_AUTHORIZATION,
            format!("Basic {}", BASE64.encode(pair.as_bytes())),
        );
    }
    let wrong = |text: String| (ServingFault::WrongProxy, text);
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|e| wrong(format!("build request: {e}")))?;
    let response = sender
        .send_request(request)
        .await
        .map_err(|e| closed("request", &e))?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::PROXY_AUTHENTICATION_REQUIRED | StatusCode::FORBIDDEN => {
            return Err((
                ServingFault::AuthRejected,
                format!(
                    "the credentials were refused ({})",
                    response.status().as_u16()
                ),
            ));
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            return Err((
                ServingFault::Slow,
                "the proxy is overloaded or draining (503)".into(),
            ));
        }
        other => {
            return Err(wrong(format!(
                "answered {other} where the identity is asked for"
            )));
        }
    }
    let body = Limited::new(response.into_body(), MAX_ANSWER)
        .collect()
        .await
        .map_err(|e| closed("read answer", &e))?
        .to_bytes();
    serde_json::from_slice(&body).map_err(|e| wrong(format!("the answer is no identity: {e}")))
}
