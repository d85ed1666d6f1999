//! A Proxy with the metadata of the API server.

use super::if_readable;
use crate::v1alpha1::{
    API_VERSION, ApiVersion, GROUP, Metadata, PROXY_KIND, Proxy, ProxyKind, ProxySpec, ProxyStatus,
    VERSION,
};
use egress_core::document::Reading;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{NamespaceResourceScope, Resource};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;

/// A Proxy as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyObject {
    /// The version it is written in.
    #[serde(default)]
    pub api_version: ApiVersion,
    /// Its kind.
    #[serde(default)]
    pub kind: ProxyKind,
    /// Names, and everything the server adds.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: StoredSpec,
    /// What became of it; `None` also where it cannot be read.
    #[serde(
        default,
        deserialize_with = "if_readable",
        skip_serializing_if = "Option::is_none"
    )]
    pub status: Option<ProxyStatus>,
}

/// A spec as it is stored: mostly sound, as the API server checked it; else kept as it is, so
/// that its faults can be told.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StoredSpec {
    /// It has the structure of this version.
    Structured(Box<ProxySpec>),
    /// It has not, as when it was stored under another version of the definition.
    Foreign(Value),
}

impl Default for StoredSpec {
    fn default() -> Self {
        Self::Foreign(Value::Null)
    }
}

impl From<ProxySpec> for StoredSpec {
    fn from(spec: ProxySpec) -> Self {
        Self::Structured(Box::new(spec))
    }
}

impl<'de> Deserialize<'de> for StoredSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(match ProxySpec::deserialize(&value) {
            Ok(spec) => spec.into(),
            Err(_) => Self::Foreign(value),
        })
    }
}

impl ProxyObject {
    /// An object to be created.
    pub fn new(namespace: &str, name: &str, spec: ProxySpec) -> Self {
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        Self {
            metadata,
            spec: spec.into(),
            ..Self::default()
        }
    }

    /// The manifest that this object is, with every fault in it; what only the server sets is
    /// left out, UID and generation aside.
    pub fn read(&self) -> Reading<Proxy> {
        match &self.spec {
            StoredSpec::Structured(spec) => {
                let proxy = Proxy {
                    api_version: ApiVersion::V1Alpha1,
                    kind: ProxyKind::Proxy,
                    metadata: (&self.metadata).into(),
                    spec: (**spec).clone(),
                    status: None,
                };
                let sound = Reading {
                    value: Some(proxy),
                    findings: Vec::new(),
                };
                sound.checked(Proxy::validate)
            }
            StoredSpec::Foreign(spec) => {
                let mut document = json!({
                    "apiVersion": API_VERSION,
                    "kind": PROXY_KIND,
                    "metadata": Metadata::from(&self.metadata),
                });
                if !spec.is_null() {
                    document["spec"] = spec.clone();
                }
                Proxy::read(document)
            }
        }
    }

    /// Whether somebody asked for its deletion.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl From<&ObjectMeta> for Metadata {
    fn from(meta: &ObjectMeta) -> Self {
        Self {
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta
                .namespace
                .clone()
                .unwrap_or_else(|| "default".to_owned()),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            uid: meta.uid.clone(),
            generation: meta.generation,
        }
    }
}

impl Resource for ProxyObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        PROXY_KIND.into()
    }
    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "proxies".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
