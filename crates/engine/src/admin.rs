//! The admin page: health, metrics, and all Proxies as JSON. It listens on loopback.

use crate::{Handle, ProxyView};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde::Serialize;
use std::{future::Future, sync::Arc};
use tokio::net::TcpListener;

/// What `/readyz` says in detail.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// Whether everything below is well.
    pub ready: bool,
    /// Each thing that is not, with what to do.
    pub troubles: Vec<String>,
}

/// Tells what is not well, beside the store, which the engine knows itself.
pub type Troubles = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Tells whether all is well, and what is not.
pub type Ready = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// Tells how every Proxy stands.
pub type Views = Arc<dyn Fn() -> Vec<Arc<ProxyView>> + Send + Sync>;

#[derive(Clone)]
struct Admin {
    views: Views,
    registry: Arc<Registry>,
    readiness: Ready,
}

/// One Proxy as `/v1/proxies` shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyJson {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The status, as the API has it, with `lastTransitionTime` in each condition.
    pub status: serde_json::Value,
}

impl From<&ProxyView> for ProxyJson {
    fn from(view: &ProxyView) -> Self {
        let mut status = serde_json::to_value(&view.status).unwrap_or_default();
        let conditions = status.get_mut("conditions").and_then(|c| c.as_array_mut());
        for (condition, since) in conditions.into_iter().flatten().zip(&view.since) {
            condition["lastTransitionTime"] = since.to_string().into();
        }
        Self {
            namespace: view.proxy.namespace().to_owned(),
            name: view.proxy.name().to_owned(),
            status,
        }
    }
}

/// The routes: `/healthz`, `/readyz`, `/metrics`, `/v1/proxies`.
pub fn router(handle: Handle, registry: Arc<Registry>, troubles: Troubles) -> Router {
    let of = handle.clone();
    let readiness = move || {
        let mut troubles = troubles();
        troubles.extend(of.store_trouble());
        let ready = troubles.is_empty();
        Readiness { ready, troubles }
    };
    router_of(
        Arc::new(move || handle.views()),
        registry,
        Arc::new(readiness),
    )
}

/// The same routes where engines come and go: `views` and `readiness` ask the present one.
pub fn router_of(views: Views, registry: Arc<Registry>, readiness: Ready) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/proxies", get(proxies))
        .with_state(Admin {
            views,
            registry,
            readiness,
        })
}

/// Serves `router` until `stop` resolves.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let readiness = (admin.readiness)();
    let code = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, Json(readiness)).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &admin.registry) {
        Ok(()) => (
            [(
                CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

async fn proxies(State(admin): State<Admin>) -> Json<Vec<ProxyJson>> {
    Json(
        (admin.views)()
            .iter()
            .map(|v| ProxyJson::from(v.as_ref()))
            .collect(),
    )
}
