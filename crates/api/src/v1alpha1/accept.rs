//! From a manifest without faults to the words of the core.

use super::{
    ABANDON_ANNOTATION, AuthSpec, DestinationsSpec, MachineSpec, Protocol, ProviderAbilities,
    Proxy, ServerSpec, UserDataSource, validate::network,
};
use egress_core::{
    ProxyId,
    finding::Finding,
    machine::{ConfigHash, MachineSize},
    proxy::{AuthSource, Intent, ProxySpec, SourceKind, UserDataRef},
};
use ipnet::IpNet;
use serde::Serialize;

/// A Proxy without faults, in the words of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedProxy {
    /// Which one.
    pub id: ProxyId,
    /// What is asked for.
    pub spec: ProxySpec,
    /// Whether everything is to stay as it is.
    pub paused: bool,
    /// Whether its machine is left behind when it is deleted.
    pub abandon: bool,
    /// The generation of the manifest; 0 where nobody counts it.
    pub generation: i64,
}

impl AcceptedProxy {
    /// What is to become of it while its manifest exists.
    pub fn intent(&self) -> Intent {
        if self.paused {
            Intent::Paused(self.spec.clone())
        } else {
            Intent::Run(self.spec.clone())
        }
    }
}

impl Proxy {
    /// The Proxy in the words of the core, or everything wrong with it at a provider of this
    /// kind; `None` leaves the provider's part out.
    pub fn accept(
        &self,
        provider: Option<&ProviderAbilities>,
    ) -> Result<AcceptedProxy, Vec<Finding>> {
        let findings = match provider {
            Some(provider) => self.validate_for(provider),
            None => self.validate(),
        };
        if findings.is_empty() {
            // What validation lets through converts; were that not so, it is told as a fault.
            self.convert().ok_or_else(|| vec![unconverted()])
        } else {
            Err(findings)
        }
    }

    fn convert(&self) -> Option<AcceptedProxy> {
        let spec = &self.spec;
        Some(AcceptedProxy {
            id: ProxyId::new(&self.metadata.namespace, &self.metadata.name).ok()?,
            spec: ProxySpec {
                provider: spec.provider.parse().ok()?,
                size: MachineSize {
                    cpus: spec.machine.cpus.try_into().ok()?,
                    memory_mib: spec.machine.memory_mib.try_into().ok()?,
                    disk_gib: spec.machine.disk_gib.try_into().ok()?,
                },
                port: spec.proxy.port.map(u16::try_from).transpose().ok()?,
                clients: clients(&spec.proxy)?,
                auth: match &spec.proxy.auth {
                    AuthSpec::Generated {} => AuthSource::Generated,
                    AuthSpec::SecretRef { name } => AuthSource::Secret(name.clone()),
                    AuthSpec::None {} => AuthSource::None,
                },
                user_data: spec.user_data.as_ref().map(reference),
                probe_interval: spec.probe.interval.parse().ok()?,
                probe_timeout: spec.probe.timeout.parse().ok()?,
                failure_threshold: spec.probe.failure_threshold.try_into().ok()?,
                config_hash: config_hash(&spec.machine, &spec.proxy, spec.user_data.as_ref())?,
            },
            paused: spec.paused,
            abandon: self
                .metadata
                .annotations
                .get(ABANDON_ANNOTATION)
                .is_some_and(|v| v == "true"),
            generation: self.metadata.generation.unwrap_or(0),
        })
    }
}

fn unconverted() -> Finding {
    Finding::new(
        "",
        "this Proxy",
        "cannot be converted",
        "report this as a fault of egress-proxies",
    )
}

fn reference(source: &UserDataSource) -> UserDataRef {
    let (kind, name, key) = match source {
        UserDataSource::SecretRef { name, key } => (SourceKind::Secret, name, key),
        UserDataSource::ConfigMapRef { name, key } => (SourceKind::ConfigMap, name, key),
    };
    UserDataRef {
        kind,
        name: name.clone(),
        key: key.clone(),
    }
}

/// The networks, sorted, each once.
fn clients(server: &ServerSpec) -> Option<Vec<IpNet>> {
    let mut clients: Vec<_> = server
        .clients
        .iter()
        .map(|text| network(text).ok())
        .collect::<Option<_>>()?;
    clients.sort_unstable();
    clients.dedup();
    Some(clients)
}

/// The text that is hashed. A machine is replaced when it changes, so it may never change
/// with an upgrade: these fields stay in this order with these names, defaults written out;
/// a field that comes later is left out while it holds its default.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Canonical<'a> {
    machine: &'a MachineSpec,
    proxy: CanonicalServer<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_data: Option<&'a UserDataSource>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CanonicalServer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<i64>,
    protocols: Vec<Protocol>,
    clients: Vec<IpNet>,
    auth: &'a AuthSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    destinations: Option<&'a DestinationsSpec>,
}

/// The fingerprint over the user's machine, proxy and userData fields: the same for the same
/// wish, however it is written. Of userData it covers the reference, not the text behind it. `None` where a network of `clients` is none.
pub fn config_hash(
    machine: &MachineSpec,
    server: &ServerSpec,
    user_data: Option<&UserDataSource>,
) -> Option<ConfigHash> {
    let mut protocols = server.protocols.clone();
    protocols.sort_unstable();
    protocols.dedup();
    let canonical = Canonical {
        machine,
        proxy: CanonicalServer {
            port: server.port,
            protocols,
            clients: clients(server)?,
            auth: &server.auth,
            destinations: server.destinations.as_ref(),
        },
        user_data,
    };
    let text = serde_json::to_vec(&canonical).ok()?;
    Some(ConfigHash::of(&text))
}

#[cfg(test)]
mod tests;
