//! The admin page of standalone mode: the engine's, and `prune`.

use crate::{admin_client::TOKEN_FILE, failure::Failure};
use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Serialize;
use std::{
    fs::{self, OpenOptions},
    io::Write,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};
use tokio::sync::{mpsc, oneshot};

/// The answer to `prune`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pruned {
    /// The Proxies that are deleted now, as namespace/name.
    pub deleting: Vec<String>,
    /// Why nothing was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A request to prune, with the way to answer it.
pub type PruneRequest = oneshot::Sender<Pruned>;

#[derive(Clone)]
struct Prune {
    token: String,
    requests: mpsc::Sender<PruneRequest>,
}

/// The engine's routes and `POST /v1/prune`, which needs the token of the state directory.
/// Requests that a web page made a browser send are refused.
pub fn router(engine: Router, token: String, requests: mpsc::Sender<PruneRequest>) -> Router {
    let prune = Router::new()
        .route("/v1/prune", post(prune))
        .with_state(Prune { token, requests });
    engine
        .merge(prune)
        .layer(middleware::from_fn(only_local_names))
}

/// A page of some other name may resolve to this address (DNS rebinding); the name that the
/// client asked for shows it.
async fn only_local_names(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|h| h.to_str().ok())
        .and_then(|h| h.parse::<axum::http::uri::Authority>().ok());
    let local = host.is_some_and(|h| {
        let name = h.host().trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    });
    if local {
        next.run(request).await
    } else {
        (
            StatusCode::MISDIRECTED_REQUEST,
            "ask for a loopback address\n",
        )
            .into_response()
    }
}

async fn prune(State(prune): State<Prune>, request: Request) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|h| h.to_str().ok());
    if given != Some(&format!("Bearer {}", prune.token)) {
        return (
            StatusCode::UNAUTHORIZED,
            "the token is in the state directory\n",
        )
            .into_response();
    }
    let (answer, answered) = oneshot::channel();
    if prune.requests.send(answer).await.is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the engine stops\n").into_response();
    }
    match answered.await {
        Ok(pruned) => Json(pruned).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the engine stops\n").into_response(),
    }
}

/// Writes a new token into the state directory, readable by its user alone.
pub fn write_token(dir: &Path) -> Result<String, Failure> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|e| Failure::failed(format!("the kernel gives no random bytes: {e}")))?;
    let token = data_encoding::HEXLOWER.encode(&bits);
    let path = dir.join(TOKEN_FILE);
    let write = || {
        let _ = fs::remove_file(&path);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(token.as_bytes())
    };
    write().map_err(|e: std::io::Error| {
        Failure::refused(format!(
            "{} cannot be written ({e}): mend the state directory",
            path.display()
        ))
    })?;
    Ok(token)
}

/// Removes what [`write_token`] wrote.
pub fn remove_token(dir: &Path) {
    let _ = fs::remove_file(dir.join(TOKEN_FILE));
}
