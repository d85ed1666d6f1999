//! The part of an object that all kinds share.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// On a Proxy that is being deleted, `"true"` forgets its machine without touching it.
pub const ABANDON_ANNOTATION: &str = "egress-proxies.io/abandon";

/// What Kubernetes sets in metadata and nobody here reads.
const SET_BY_SERVER: [&str; 9] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
];

/// An object's names, labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// The name within the namespace.
    pub name: String,
    /// The namespace; `default` where none is written.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Labels, for selectors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Set by Kubernetes: this object and no later one of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Set by Kubernetes: rises with every change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// Takes out of a document what a server set in it and nobody may write: an exported object
/// is a manifest, too.
pub(crate) fn without_server_fields(document: &mut Value) {
    let Some(object) = document.as_object_mut() else {
        return;
    };
    object.remove("status");
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in SET_BY_SERVER {
            metadata.remove(field);
        }
    }
}
