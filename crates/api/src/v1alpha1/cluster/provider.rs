//! `ProxyProvider`: what a configured provider last said of itself.

use super::if_readable;
use crate::v1alpha1::{API_VERSION, Condition, GROUP, PROXY_PROVIDER_KIND, VERSION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{ClusterResourceScope, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct};
use std::borrow::Cow;

/// The most findings that are told of one provider; the first ones, errors before warnings.
pub const MAX_PROVIDER_FINDINGS: usize = 32;

/// What a configured provider last said of itself. Cluster-scoped, named as the provider in
/// the configuration, written by the operator and read-only for people.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ProxyProvider {
    /// Names, and everything the server adds.
    pub metadata: ObjectMeta,
    /// What it said; `None` also where it cannot be read.
    #[serde(default, deserialize_with = "if_readable")]
    pub status: Option<ProxyProviderStatus>,
}

impl ProxyProvider {
    /// The object of a provider, without a status: that is written beside it.
    pub fn new(name: &str) -> Self {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        Self {
            metadata,
            status: None,
        }
    }
}

impl Serialize for ProxyProvider {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = 3 + usize::from(self.status.is_some());
        let mut object = serializer.serialize_struct(PROXY_PROVIDER_KIND, fields)?;
        object.serialize_field("apiVersion", API_VERSION)?;
        object.serialize_field("kind", PROXY_PROVIDER_KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        if let Some(status) = &self.status {
            object.serialize_field("status", status)?;
        }
        object.end()
    }
}

/// What a provider last said of itself. Written, never read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyProviderStatus {
    /// The kind of hypervisor: `proxmox`, `kvm2`, `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The hypervisor's version, as it says itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `Ready`, with the checker's reason and what to do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What the last check found, and what the last complete listing found that belongs to no
    /// Proxy; errors first, at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<ProviderFinding>,
    /// What there is on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<ProviderCounts>,
    /// When all machines of ours were last listed without an error (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_complete_listing: Option<String>,
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderFinding {
    /// Whether it stands in the way of making machines.
    pub severity: ProviderSeverity,
    /// Its reason, in one word of a closed set.
    pub reason: String,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub remedy: String,
}

/// Only errors make a provider not ready.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum ProviderSeverity {
    /// No machine can be made until it is mended.
    Error,
    /// Worth knowing.
    Warning,
}

/// What there is on a provider, by our records and by the last complete listing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderCounts {
    /// Proxies whose record promises a place on it.
    pub proxies: i64,
    /// Machines of ours, by the last complete listing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<i64>,
    /// Of these, machines and seeds that no Proxy accounts for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaccounted: Option<i64>,
    /// Slots (a VMID of `vmidRange`, a port of `portRange` on an address) that nobody was seen to
    /// hold, by the last check, where the provider counts them. Whether there is memory and
    /// storage for so many is another matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_slots: Option<i64>,
}

impl ProxyProviderStatus {
    /// Takes findings: errors first, at most [`MAX_PROVIDER_FINDINGS`], texts
    /// cut to what the definition allows.
    #[must_use]
    pub fn with_findings(mut self, findings: impl IntoIterator<Item = ProviderFinding>) -> Self {
        self.findings = findings.into_iter().collect();
        self.findings.sort_by_key(|finding| finding.severity);
        self.findings.truncate(MAX_PROVIDER_FINDINGS);
        for finding in &mut self.findings {
            super::told::cut(&mut finding.found, super::schema::MAX_FINDING_CHARS);
            super::told::cut(&mut finding.remedy, super::schema::MAX_FINDING_CHARS);
        }
        self
    }
}

impl Resource for ProxyProvider {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        PROXY_PROVIDER_KIND.into()
    }
    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "proxyproviders".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
