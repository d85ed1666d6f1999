//! The objects as the API server has them, and their custom resource definitions.
//!
//! Reading is lenient, on purpose: a watch fails as a whole when one object in it cannot be
//! read, and then one bad object would stop all others. So [`ProxyObject`] can be read
//! whatever its spec holds, and [`ProxyObject::read`] tells the faults.

mod crd;
mod object;
mod provider;
mod rules;
mod schema;
mod told;

pub use crd::{crds, proxy_crd, proxy_provider_crd};
pub use object::{ProxyObject, StoredSpec};
pub use provider::{
    MAX_PROVIDER_FINDINGS, ProviderCounts, ProviderFinding, ProviderSeverity, ProxyProvider,
    ProxyProviderStatus,
};
pub use told::{FIELD_MANAGER, condition};

use serde::{Deserialize, Deserializer, de::DeserializeOwned};

/// Reads what is there, and takes what cannot be read for missing: a status is written, never
/// read for a decision, and one of another version must not hide its object.
fn if_readable<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

#[cfg(test)]
mod tests;
