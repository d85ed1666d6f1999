//! Requests to the API server, each with an end, and what their failures mean.

use crate::objects::Held;
pub use egress_api::v1alpha1::cluster::FIELD_MANAGER;
use egress_api::v1alpha1::cluster::ProxyObject;
use egress_core::ProxyId;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::Value;
use std::{future::Future, time::Duration};
use tracing::Instrument as _;

/// A request that has no answer by then is given up.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Why a request did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The object is not at the version that was named.
    Conflict,
    /// There is no such object.
    Missing,
    /// It was refused and changed nothing: what was said.
    Refused(String),
    /// Nobody knows whether it had its effect: what is known.
    Unknown(String),
}

impl Failure {
    /// One word of a closed set.
    const fn word(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Missing => "missing",
            Self::Refused(_) => "refused",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Conflict => f.write_str("someone else wrote it meanwhile"),
            Self::Missing => f.write_str("there is no such object"),
            Self::Refused(why) | Self::Unknown(why) => f.write_str(why),
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let said = if status.message.is_empty() {
                    status.reason
                } else {
                    status.message
                };
                let said = format!("the API server answered {}: {said}", status.code);
                match status.code {
                    404 => Self::Missing,
                    409 => Self::Conflict,
                    400..500 => Self::Refused(said),
                    _ => Self::Unknown(said),
                }
            }
            other => Self::Unknown(format!("the API server cannot be asked: {}", chain(&other))),
        }
    }
}

/// An error with its causes, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

/// Makes a request that ends by the deadline.
pub(crate) async fn in_time<T>(
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Failure::Unknown(format!(
            "the API server did not answer within {} s",
            DEADLINE.as_secs()
        ))),
    }
}

/// A request that changes something, as a span tells of it.
pub(crate) struct Write<'a> {
    /// `PATCH` and so on.
    pub(crate) method: &'static str,
    /// `proxies/status` and so on.
    pub(crate) resource: &'static str,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
}

impl Write<'_> {
    /// Makes it, in a span with the words of OpenTelemetry's conventions where there are some.
    pub(crate) async fn in_span<T, E>(
        self,
        request: impl Future<Output = Result<T, E>>,
        error_type: impl FnOnce(&E) -> &'static str,
    ) -> Result<T, E> {
        let span = tracing::debug_span!(
            "api_write",
            otel.name = format_args!("{} {}", self.method, self.resource),
            otel.kind = "client",
            http.request.method = self.method,
            k8s.namespace.name = self.namespace,
            resource = self.resource,
            name = self.name,
            otel.status_code = tracing::field::Empty,
            "error.type" = tracing::field::Empty,
        );
        let result = request.instrument(span.clone()).await;
        if let Err(e) = &result {
            span.record("otel.status_code", "ERROR");
            span.record("error.type", error_type(e));
        }
        result
    }

    /// Makes a request that ends by the deadline, in a span.
    pub(crate) async fn in_time<T>(
        self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        self.in_span(in_time(request), Failure::word).await
    }
}

/// The Proxies behind the API server.
#[derive(Clone)]
pub struct Proxies {
    client: Client,
}

impl Proxies {
    /// Asks through this client.
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

    /// All in these namespaces, to watch; `None`: in every one.
    pub fn watched(&self, namespace: Option<&str>) -> Api<ProxyObject> {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn api(&self, id: &ProxyId) -> Api<ProxyObject> {
        Api::namespaced(self.client.clone(), id.namespace())
    }

    /// One as it is now; `None`: there is none.
    pub async fn get(&self, id: &ProxyId) -> Result<Option<Held>, Failure> {
        let api = self.api(id);
        match in_time(api.get_opt(id.name())).await? {
            Some(object) => held(object).map(Some),
            None => Ok(None),
        }
    }

    /// Changes metadata by a merge patch; answers with the object as it is then.
    pub async fn patch(&self, id: &ProxyId, patch: &Value) -> Result<Held, Failure> {
        let api = self.api(id);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let write = Write {
            method: "PATCH",
            resource: "proxies",
            namespace: Some(id.namespace()),
            name: id.name(),
        };
        let patch = Patch::Merge(patch);
        held(write.in_time(api.patch(id.name(), &params, &patch)).await?)
    }

    /// Applies a status; answers with the object as it is then.
    pub async fn apply_status(&self, id: &ProxyId, object: &Value) -> Result<Held, Failure> {
        let api = self.api(id);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let write = Write {
            method: "PATCH",
            resource: "proxies/status",
            namespace: Some(id.namespace()),
            name: id.name(),
        };
        let patch = Patch::Apply(object);
        held(
            write
                .in_time(api.patch_status(id.name(), &params, &patch))
                .await?,
        )
    }
}

fn held(object: ProxyObject) -> Result<Held, Failure> {
    Held::of(object).ok_or_else(|| {
        Failure::Unknown("the API server answered with an object that is no Proxy".into())
    })
}
