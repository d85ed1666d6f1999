//! The admin page: health, metrics, and all Proxies as JSON. It listens on loopback.

use crate::{Handle, ProxyView};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use egress_core::ProxyId;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde::Serialize;
use serde_json::{Value, json};
use std::{future::Future, sync::Arc};
use tokio::net::TcpListener;

/// The group and version of what is shown.
const API_VERSION: &str = "egress-proxies.io/v1alpha1";

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
    declarations: Declarations,
}

/// What a user declared of a Proxy, as the API writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    /// Its metadata, an object.
    pub metadata: Value,
    /// Its spec.
    pub spec: Value,
}

/// Tells what a user declared of a Proxy, where that is known.
pub type Declarations = Arc<dyn Fn(&ProxyId) -> Option<Declaration> + Send + Sync>;

/// All Proxies as `/v1/proxies` shows them.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyListJson {
    /// The version of the group.
    pub api_version: &'static str,
    /// `ProxyList`.
    pub kind: &'static str,
    /// Each Proxy.
    pub items: Vec<ProxyJson>,
}

/// One Proxy as `/v1/proxies` shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyJson {
    /// The version of the group.
    pub api_version: &'static str,
    /// `Proxy`.
    pub kind: &'static str,
    /// As declared, else the name and the namespace alone.
    pub metadata: Value,
    /// As declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
    /// The status, as the API has it, with `lastTransitionTime` in each condition.
    pub status: Value,
}

impl ProxyJson {
    /// A Proxy as it is seen, and as it was declared where that is known.
    pub fn of(view: &ProxyView, declared: Option<Declaration>) -> Self {
        let mut status = serde_json::to_value(&view.status).unwrap_or_default();
        let conditions = status.get_mut("conditions").and_then(|c| c.as_array_mut());
        for (condition, since) in conditions.into_iter().flatten().zip(&view.since) {
            condition["lastTransitionTime"] = since.to_string().into();
        }
        let (metadata, spec) = if let Some(declared) = declared {
            (declared.metadata, Some(declared.spec))
        } else {
            let id = &view.proxy;
            let named = json!({"name": id.name(), "namespace": id.namespace()});
            (named, None)
        };
        Self {
            api_version: API_VERSION,
            kind: "Proxy",
            metadata,
            spec,
            status,
        }
    }
}

/// The routes: `/healthz`, `/readyz`, `/metrics`, `/v1/proxies`.
pub fn router(
    handle: Handle,
    registry: Arc<Registry>,
    troubles: Troubles,
    declarations: Declarations,
) -> Router {
    let of = handle.clone();
    let readiness = move || {
        let mut troubles = troubles();
        troubles.extend(of.store_trouble());
        let ready = troubles.is_empty();
        Readiness { ready, troubles }
    };
    routes(Admin {
        views: Arc::new(move || handle.views()),
        registry,
        readiness: Arc::new(readiness),
        declarations,
    })
}

/// The same routes where engines come and go: `views` and `readiness` ask the present one.
/// What was declared lies in the cluster, and is not shown.
pub fn router_of(views: Views, registry: Arc<Registry>, readiness: Ready) -> Router {
    routes(Admin {
        views,
        registry,
        readiness,
        declarations: Arc::new(|_| None),
    })
}

fn routes(admin: Admin) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/proxies", get(proxies))
        .with_state(admin)
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

async fn proxies(State(admin): State<Admin>) -> Json<ProxyListJson> {
    let shown = |view: &Arc<ProxyView>| ProxyJson::of(view, (admin.declarations)(&view.proxy));
    Json(ProxyListJson {
        api_version: API_VERSION,
        kind: "ProxyList",
        items: (admin.views)().iter().map(shown).collect(),
    })
}
