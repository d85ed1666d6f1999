//! The control URL: what people, accidents and hosts do to the world, as JSON over plain HTTP
//! on loopback.
//!
//! `POST /` with a [`Control`](crate::world::Control) as JSON answers 200 with what the world
//! says, as JSON, or 400 with `{"error": TEXT}`.

use super::serve::Shared;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc};
use tokio::net::TcpStream;

/// Serves one connection until it ends.
pub(super) async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(&shared, request).await) }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(shared: &Shared, request: http::Request<Incoming>) -> Response<Full<Bytes>> {
    let outcome = if request.method() == Method::POST {
        match request.into_body().collect().await {
            Ok(body) => serde_json::from_slice(&body.to_bytes())
                .map_err(|error| format!("no control of this simulator: {error}"))
                .and_then(|control| shared.control(control)),
            Err(error) => Err(error.to_string()),
        }
    } else {
        Err("send a control as JSON with POST".to_owned())
    };
    let (status, body): (_, Value) = match outcome {
        Ok(value) => (StatusCode::OK, value),
        Err(error) => (StatusCode::BAD_REQUEST, json!({ "error": error })),
    };
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
