//! What users write: manifests as types, every fault in them as a finding, and the way from
//! a sound manifest to the words of the core.
//!
//! - [`v1alpha1`]: the group `egress-proxies.io`, its types and their validation.
//! - [`manifest`]: files of several YAML documents.
//! - [`yaml`]: YAML with limits, for manifests and configuration files alike.

pub mod manifest;
pub mod v1alpha1;
pub mod yaml;
