//! Everything wrong with a Proxy that its structure does not show, told at once.

use super::{
    ABANDON_ANNOTATION, AuthSpec, Egress, MachineSpec, Metadata, ProbeSpec, Protocol, Proxy,
    ProxySpec, ServerSpec, UserDataSource,
};
use egress_core::{ProviderName, ProxyId, finding::Finding, machine::InvalidName};
use ipnet::IpNet;
use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive, str::FromStr, time::Duration};

pub(super) const CPUS: RangeInclusive<i64> = 1..=64;
pub(super) const MEMORY_MIB: RangeInclusive<i64> = 128..=1_048_576;
pub(super) const DISK_GIB: RangeInclusive<i64> = 1..=4_096;
pub(super) const PORT: RangeInclusive<i64> = 1..=65_535;
pub(super) const FAILURE_THRESHOLD: RangeInclusive<i64> = 1..=100;
pub(super) const MAX_CLIENTS: usize = 256;
pub(super) const INTERVAL: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_hours(1);
pub(super) const TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_mins(1);

/// What a kind of provider can do for a Proxy beyond making its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProviderAbilities {
    /// The kind, as messages name it: `local`.
    pub kind: &'static str,
    /// Whether its machines read user-data.
    pub user_data: bool,
}

impl Proxy {
    /// Everything wrong with it, wherever its machine is to be made.
    pub fn validate(&self) -> Vec<Finding> {
        let mut findings = self.metadata.validate();
        findings.extend(self.spec.validate());
        findings
    }
    /// Everything wrong with it, at a provider of this kind.
    pub fn validate_for(&self, provider: &ProviderAbilities) -> Vec<Finding> {
        let mut findings = self.validate();
        findings.extend(self.spec.refused_by(provider));
        findings
    }
}

impl Metadata {
    /// Everything wrong with it as the metadata of a Proxy.
    pub fn validate(&self) -> Vec<Finding> {
        let mut findings = self.validate_names();
        if let Some(value) = self.annotations.get(ABANDON_ANNOTATION)
            && !matches!(value.as_str(), "true" | "false")
        {
            findings.push(Finding::new(
                format!("metadata.annotations[\"{ABANDON_ANNOTATION}\"]"),
                written(value),
                "is neither \"true\" nor \"false\"",
                "write \"true\" to leave the machine behind when the Proxy is deleted, else remove it",
            ));
        }
        findings
    }

    pub(crate) fn validate_names(&self) -> Vec<Finding> {
        let namespace = ProxyId::new(&self.namespace, "x").err();
        let name = ProxyId::new("x", &self.name).err();
        let found = |path: &str, fault: InvalidName| {
            let problem = format!("is not a valid {}", fault.what);
            Finding::new(path, written(&fault.value), problem, fault.rule)
        };
        name.map(|fault| found("metadata.name", fault))
            .into_iter()
            .chain(namespace.map(|fault| found("metadata.namespace", fault)))
            .collect()
    }
}

impl ProxySpec {
    /// Everything wrong with it, wherever its machine is to be made.
    pub fn validate(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Err(fault) = ProviderName::from_str(&self.provider) {
            findings.push(Finding::new(
                "spec.provider",
                written(&self.provider),
                "is not a valid provider name",
                fault.rule,
            ));
        }
        self.machine.validate(&mut findings);
        self.proxy.validate(&mut findings);
        if let Some(source) = &self.user_data {
            source.validate(&mut findings);
        }
        if self.egress == Egress::Unique {
            findings.push(later("spec.egress", "unique", "write shared, or remove it"));
        }
        self.probe.validate(&mut findings);
        findings
    }

    /// The fields that a provider of this kind can do nothing with.
    pub fn refused_by(&self, provider: &ProviderAbilities) -> Vec<Finding> {
        match &self.user_data {
            Some(source) if !provider.user_data => vec![Finding::new(
                "spec.userData",
                format!("{{{}}}", source.field()),
                format!("is not supported by a provider of kind {}", provider.kind),
                "remove it, or choose another provider",
            )],
            _ => Vec::new(),
        }
    }
}

impl MachineSpec {
    fn validate(&self, findings: &mut Vec<Finding>) {
        findings.extend(bounded("spec.machine.cpus", self.cpus, &CPUS));
        findings.extend(bounded(
            "spec.machine.memoryMiB",
            self.memory_mib,
            &MEMORY_MIB,
        ));
        findings.extend(bounded("spec.machine.diskGiB", self.disk_gib, &DISK_GIB));
    }
}

impl ServerSpec {
    fn validate(&self, findings: &mut Vec<Finding>) {
        if let Some(port) = self.port {
            findings.extend(bounded("spec.proxy.port", port, &PORT));
        }
        self.validate_protocols(findings);
        if self.clients.len() > MAX_CLIENTS {
            findings.push(Finding::new(
                "spec.proxy.clients",
                format!("({} entries)", self.clients.len()),
                "are too many",
                format!("list at most {MAX_CLIENTS} networks"),
            ));
        }
        let clients = networks("spec.proxy.clients", &self.clients, findings);
        match &self.auth {
            AuthSpec::Generated {} => {}
            AuthSpec::SecretRef { name } => {
                findings.extend(object_name("spec.proxy.auth.secretRef.name", name));
            }
            AuthSpec::None {} if self.clients.is_empty() => findings.push(Finding::new(
                "spec.proxy.auth",
                "{none}",
                "would make an open proxy, as spec.proxy.clients is empty",
                "list the networks of its clients, or use generated",
            )),
            AuthSpec::None {} => {
                let open = IpNet::aggregate(&clients)
                    .into_iter()
                    .find(|net| net.prefix_len() == 0);
                if let Some(all) = open {
                    findings.push(Finding::new(
                        "spec.proxy.clients",
                        all,
                        "would make an open proxy, as spec.proxy.auth is none",
                        "list narrower networks, or use generated",
                    ));
                }
            }
        }
        if let Some(destinations) = &self.destinations {
            let entries = destinations.allow.len() + destinations.deny.len();
            let value = format!("({entries} entries)");
            findings.push(later("spec.proxy.destinations", &value, "remove it"));
        }
    }

    fn validate_protocols(&self, findings: &mut Vec<Finding>) {
        if self.protocols.is_empty() {
            findings.push(Finding::new(
                "spec.proxy.protocols",
                "[]",
                "leaves no protocol to speak",
                "write [http], or remove it",
            ));
        }
        for (index, protocol) in self.protocols.iter().enumerate() {
            let path = format!("spec.proxy.protocols[{index}]");
            match protocol {
                Protocol::Socks5 => {
                    findings.push(later(&path, "socks5", "write [http], or remove it"));
                }
                Protocol::Http if self.protocols[..index].contains(protocol) => {
                    findings.push(twice(&path, "http"));
                }
                Protocol::Http => {}
            }
        }
    }
}

impl UserDataSource {
    fn field(&self) -> &'static str {
        match self {
            Self::SecretRef { .. } => "secretRef",
            Self::ConfigMapRef { .. } => "configMapRef",
        }
    }
    fn validate(&self, findings: &mut Vec<Finding>) {
        let path = format!("spec.userData.{}", self.field());
        let (Self::SecretRef { name, key } | Self::ConfigMapRef { name, key }) = self;
        findings.extend(object_name(&format!("{path}.name"), name));
        if !is_data_key(key) {
            findings.push(Finding::new(
                format!("{path}.key"),
                written(key),
                "is not a valid key",
                "use 1 to 253 of a-z, A-Z, 0-9, '-', '_' and '.'",
            ));
        }
    }
}

impl ProbeSpec {
    fn validate(&self, findings: &mut Vec<Finding>) {
        for (path, texts) in [
            ("spec.probe.echoURLs", &self.echo_urls),
            ("spec.probe.expectEgress", &self.expect_egress),
        ] {
            if !texts.is_empty() {
                findings.push(later(path, &format!("[{}]", texts.join(", ")), "remove it"));
            }
        }
        let interval = lasting(
            "spec.probe.interval",
            self.interval.as_str(),
            &INTERVAL,
            findings,
        );
        let timeout = lasting(
            "spec.probe.timeout",
            self.timeout.as_str(),
            &TIMEOUT,
            findings,
        );
        if let (Some(interval), Some(timeout)) = (interval, timeout)
            && timeout > interval
        {
            findings.push(Finding::new(
                "spec.probe.timeout",
                &self.timeout,
                format!("is longer than spec.probe.interval, {}", self.interval),
                "shorten it, or lengthen the interval",
            ));
        }
        findings.extend(bounded(
            "spec.probe.failureThreshold",
            self.failure_threshold,
            &FAILURE_THRESHOLD,
        ));
    }
}

/// A field whose function comes with a later version.
fn later(path: &str, value: &str, remedy: &str) -> Finding {
    Finding::new(path, value, "is not supported by this version", remedy)
}

fn twice(path: &str, value: &str) -> Finding {
    Finding::new(path, value, "is listed twice", "remove one of them")
}

fn bounded(path: &str, value: i64, bounds: &RangeInclusive<i64>) -> Option<Finding> {
    let (least, most) = (bounds.start(), bounds.end());
    (!bounds.contains(&value)).then(|| {
        Finding::new(
            path,
            value,
            "is out of bounds",
            format!("write a number of {least} to {most}"),
        )
    })
}

/// The duration, if it is one within bounds.
fn lasting(
    path: &str,
    text: &str,
    bounds: &RangeInclusive<Duration>,
    findings: &mut Vec<Finding>,
) -> Option<Duration> {
    let Ok(duration) = super::parse_duration(text) else {
        findings.push(Finding::new(
            path,
            written(text),
            "is not a duration",
            "write whole numbers with the units h, m, s and ms, such as 30s",
        ));
        return None;
    };
    if !bounds.contains(&duration) {
        let remedy = format!(
            "write a duration of {:?} to {:?}",
            bounds.start(),
            bounds.end()
        );
        findings.push(Finding::new(path, text, "is out of bounds", remedy));
        return None;
    }
    Some(duration)
}

/// The networks of a list that are right.
fn networks(path: &str, texts: &[String], findings: &mut Vec<Finding>) -> Vec<IpNet> {
    let mut first_at = BTreeMap::new();
    for (index, text) in texts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        match network(text) {
            Ok(network) if first_at.contains_key(&network) => findings.push(twice(&path, text)),
            Ok(network) => {
                first_at.insert(network, index);
            }
            Err((problem, remedy)) => {
                findings.push(Finding::new(path, written(text), problem, remedy));
            }
        }
    }
    first_at.into_keys().collect()
}

/// A network in CIDR notation without host bits, or what is wrong and what to do.
pub(super) fn network(text: &str) -> Result<IpNet, (&'static str, String)> {
    let address = IpAddr::from_str(text).map(IpNet::from).ok();
    let network = address.or_else(|| IpNet::from_str(text).ok());
    // As the API server: a client over IPv4 is known by its IPv4 address alone.
    let network = network.filter(|network| !is_mapped(network)).ok_or((
        "is not a network in CIDR notation",
        "write one such as 10.0.0.0/8".to_owned(),
    ))?;
    if address.is_some() {
        return Err(("lacks a prefix length", format!("write {network}")));
    }
    if network == network.trunc() {
        Ok(network)
    } else {
        Err((
            "names a host within a network",
            format!("write {}", network.trunc()),
        ))
    }
}

/// Whether it is a network of IPv4 in the guise of IPv6.
fn is_mapped(network: &IpNet) -> bool {
    matches!(network, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some())
}

fn object_name(path: &str, name: &str) -> Option<Finding> {
    let fault = ProxyId::new("x", name).err()?;
    Some(Finding::new(
        path,
        written(name),
        "is not a valid name",
        fault.rule,
    ))
}

/// Whether a Secret or ConfigMap can have such a key.
pub(crate) fn is_data_key(key: &str) -> bool {
    (1..=253).contains(&key.len())
        && !matches!(key, "." | "..")
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A text as a finding repeats it: an empty one in quotes, so that it is seen.
fn written(text: &str) -> &str {
    if text.is_empty() { "\"\"" } else { text }
}
