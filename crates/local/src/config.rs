//! The `local:` block of a provider's configuration.

use crate::{host, place::address_on_host};
use egress_core::finding::Finding;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, net::IpAddr};

/// The lowest port that needs no privilege on a host that is set up as usual.
const FIRST_PORT: u16 = 1024;
/// The longest drain: an hour, in seconds.
const MAX_DRAIN_SECONDS: u32 = 3600;

/// The ports that proxies may listen on, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortRange {
    /// The first port.
    pub from: u16,
    /// The last port.
    pub to: u16,
}

impl Default for PortRange {
    /// Below the range that Linux takes the ports of outgoing connections from.
    fn default() -> Self {
        Self {
            from: 20_000,
            to: 29_999,
        }
    }
}

impl PortRange {
    /// How many ports there are; 0 when the ends are reversed.
    pub const fn count(self) -> u64 {
        if self.to < self.from {
            0
        } else {
            (self.to - self.from) as u64 + 1
        }
    }
}

/// The `local:` block of a provider's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// The source addresses of outgoing traffic: a new proxy takes one that the fewest use;
    /// each proxy also listens on its own. Empty: the address this host's default route would use.
    pub addresses: Vec<IpAddr>,
    /// Where all proxies listen instead.
    pub listen: Option<IpAddr>,
    /// The ports that proxies listen on, unless a manifest names one.
    pub port_range: PortRange,
    /// How long a proxy that is stopped may finish what is open, in seconds.
    pub drain_seconds: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            listen: None,
            port_range: PortRange::default(),
            drain_seconds: 10,
        }
    }
}

impl Config {
    /// The addresses in force now: the configured ones, else this host's own.
    pub fn addresses(&self) -> Vec<IpAddr> {
        if self.addresses.is_empty() {
            vec![host::own_address()]
        } else {
            self.addresses.clone()
        }
    }

    /// Everything that is wrong with this block, which stands at `path` in its document.
    /// Asks the kernel whether the addresses are on this host.
    pub fn validate(&self, path: &str) -> Vec<Finding> {
        let at = |field: &str| format!("{path}.{field}");
        let mut findings = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, address) in self.addresses.iter().enumerate() {
            let field = at(&format!("addresses[{index}]"));
            if !seen.insert(*address) {
                findings.push(Finding::new(
                    field,
                    address,
                    "listed twice",
                    "name each address once",
                ));
            } else if address.is_unspecified() {
                findings.push(Finding::new(
                    field,
                    address,
                    "not an address that traffic can come from",
                    "name an address of this host, or leave the list out",
                ));
            } else {
                findings.extend(unusable(&field, *address));
            }
        }
        if let Some(listen) = self.listen {
            findings.extend(unusable(&at("listen"), listen));
        }
        let PortRange { from, to } = self.port_range;
        if to < from {
            findings.push(Finding::new(
                at("portRange"),
                format_args!("{from}-{to}"),
                "ends before it begins: it holds no port",
                "write the lower port in from and the higher one in to",
            ));
        }
        if from < FIRST_PORT {
            findings.push(Finding::new(
                at("portRange.from"),
                from,
                "a privileged port",
                format!("use {FIRST_PORT} or higher"),
            ));
        }
        if self.drain_seconds > MAX_DRAIN_SECONDS {
            findings.push(Finding::new(
                at("drainSeconds"),
                self.drain_seconds,
                "longer than an hour",
                format!("use {MAX_DRAIN_SECONDS} or less"),
            ));
        }
        findings
    }
}

fn unusable(field: &str, address: IpAddr) -> Option<Finding> {
    let problem = match address {
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(v4) if v4.is_link_local() => "a link-local address",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "an IPv4 address written as IPv6",
        _ if !address_on_host(address) => "not an address of this host",
        _ => return None,
    };
    let remedy = "name an address that `ip address` shows on this host";
    Some(Finding::new(field, address, problem, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(config: &Config) -> Vec<String> {
        config
            .validate("local")
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn the_default_and_loopback_addresses_are_fine() {
        assert_eq!(texts(&Config::default()), Vec::<String>::new());
        let config: Config = serde_json::from_str(
            r#"{"addresses":["127.0.0.1","127.0.0.2"],"listen":"127.0.0.3",
                "portRange":{"from":20000,"to":20000},"drainSeconds":0}"#,
        )
        .unwrap();
        assert_eq!(texts(&config), Vec::<String>::new());
        assert_eq!(config.port_range.count(), 1);
    }

    #[test]
    fn every_fault_is_told_at_once() {
        let config: Config = serde_json::from_str(
            r#"{"addresses":["192.0.2.1","127.0.0.1","127.0.0.1","0.0.0.0","169.254.1.1"],
                "listen":"ff02::1","portRange":{"from":900,"to":80},"drainSeconds":4000}"#,
        )
        .unwrap();
        let texts = texts(&config);
        let expected = [
            "local.addresses[0]: 192.0.2.1: not an address of this host",
            "local.addresses[2]: 127.0.0.1: listed twice",
            "local.addresses[3]: 0.0.0.0: not an address that traffic can come from",
            "local.addresses[4]: 169.254.1.1: a link-local address",
            "local.listen: ff02::1: a multicast address",
            "local.portRange: 900-80: ends before it begins",
            "local.portRange.from: 900: a privileged port",
            "local.drainSeconds: 4000: longer than an hour",
        ];
        assert_eq!(texts.len(), expected.len(), "{texts:#?}");
        for (text, start) in texts.iter().zip(expected) {
            assert!(
                text.starts_with(start),
                "{text} does not start with {start}"
            );
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(serde_json::from_str::<Config>(r#"{"port":1}"#).is_err());
        assert!(serde_json::from_str::<Config>(r#"{"portRange":{"from":2000}}"#).is_err());
    }
}
