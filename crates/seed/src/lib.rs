//! The NoCloud seed: what a machine reads at its first boot. Values in, bytes out.
//!
//! One ISO 9660 image with the label `cidata` carries what cloud-init looks for (`user-data`,
//! `meta-data`, `vendor-data`, `network-config`) and what our vendor-data installs from it:
//! proxyd, its units, its configuration and the rules that bound it. The user's cloud-config goes in byte for byte; ours
//! lies in vendor-data and is made of scripts alone, because cloud-init lets each list of
//! user-data replace the same list of vendor-data. What in user-data would still undo ours is
//! refused by its key. `docs/seed.md` tells it all.

mod iso9660;
mod meta_data;
mod network_config;
mod program;
mod user_data;
mod vendor_data;

use egress_core::{
    finding::{Finding, suggestion},
    machine::CloudConfig,
    proxy_config::ProxydConfig,
};
use iso9660::File;
use std::{fmt, str::FromStr};

/// Where the guest agent, which tells a machine's address, comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuestAgent {
    /// The distribution's `qemu-guest-agent`, installed at the first boot.
    Package,
    /// It is in the image, and so is proxyd with a unit `proxyd.service`.
    Baked,
    /// proxyd, in a process of its own.
    Builtin,
}

impl GuestAgent {
    /// The word in a configuration file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Package => "package",
            Self::Baked => "baked",
            Self::Builtin => "builtin",
        }
    }

    /// Whether the seed must carry proxyd's program.
    pub const fn needs_payload(self) -> bool {
        !matches!(self, Self::Baked)
    }
}

impl fmt::Display for GuestAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for GuestAgent {
    type Err = Finding;

    /// The agent of a configuration's word.
    fn from_str(word: &str) -> Result<Self, Finding> {
        match word {
            "package" => Ok(Self::Package),
            "baked" => Ok(Self::Baked),
            "builtin" => Ok(Self::Builtin),
            _ => Err(Finding::new(
                "guestAgent",
                word,
                "names no source of the guest agent",
                suggestion(word, &["builtin", "package", "baked"]),
            )),
        }
    }
}

/// All that goes into one seed.
#[derive(Clone, Copy, Debug)]
pub struct Seed<'a> {
    /// proxyd's configuration. Its `key` is the machine's host name, and with `attempt` behind
    /// it cloud-init's instance id.
    pub proxyd: &'a ProxydConfig,
    /// The address of the machine's network card, as `52:54:00:12:34:56`; `None` where it is
    /// not known when the seed is made, and then every Ethernet card is configured.
    pub mac: Option<&'a str>,
    /// Where the guest agent comes from.
    pub guest_agent: GuestAgent,
    /// The static proxyd program; needed unless it is in the image.
    pub payload: Option<&'a [u8]>,
    /// The user's own cloud-config.
    pub user_data: Option<&'a CloudConfig>,
}

impl Seed<'_> {
    /// The bytes of the ISO image: the same for the same values. Otherwise all faults at once,
    /// each with its field: `userData...`, `guestAgent`, `payload`, `proxyd.key`, `mac`.
    pub fn render(&self) -> Result<Vec<u8>, Vec<Finding>> {
        let mut findings = self.own_faults();
        let mac = match self.mac.map(network_config::canonical_mac).transpose() {
            Ok(mac) => mac,
            Err(finding) => {
                findings.push(finding);
                None
            }
        };
        let written = self.user_data.map_or(user_data::NONE, CloudConfig::expose);
        findings.extend(user_data::faults(written, &self.proxyd.key));
        if !findings.is_empty() {
            return Err(findings);
        }

        let meta_data = meta_data::render(&self.proxyd.key, self.proxyd.attempt);
        let network_config = network_config::render(mac.as_deref());
        let vendor_data = vendor_data::render(self.guest_agent);
        let mut config =
            serde_json::to_vec_pretty(self.proxyd).expect("a configuration is plain data");
        config.push(b'\n');
        let unit = vendor_data::proxyd_unit(self.proxyd);

        let mut files = vec![
            File::new("meta-data", meta_data.as_bytes()),
            File::new("user-data", written.as_bytes()),
            File::new("vendor-data", vendor_data.as_bytes()),
            File::new("network-config", network_config.as_bytes()),
            File::new("proxyd.json", &config),
            File::new(
                "egress-proxies-first-boot.service",
                vendor_data::FIRST_BOOT_UNIT.as_bytes(),
            ),
        ];
        if let Some(payload) = self.payload {
            files.push(File::new("proxyd.service", unit.as_bytes()));
            files.push(File::new(
                "egress-proxies-policy.service",
                vendor_data::POLICY_UNIT.as_bytes(),
            ));
            files.push(File::new("policy.nft", vendor_data::POLICY.as_bytes()));
            files.push(File::new("proxyd", payload));
        }
        if self.guest_agent == GuestAgent::Builtin {
            files.push(File::new(
                "egress-proxies-agent.service",
                vendor_data::AGENT_UNIT.as_bytes(),
            ));
        }
        Ok(iso9660::render("cidata", &files))
    }

    /// Faults of what the provider gives.
    fn own_faults(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match (self.guest_agent.needs_payload(), self.payload) {
            (true, None) => findings.push(Finding::new(
                "payload",
                "",
                format!("`guestAgent: {}` needs the static proxyd", self.guest_agent),
                "build it with `cargo xtask payload` and name its folder with `--payload-dir`, \
                 or use an image with proxyd in it and `guestAgent: baked`",
            )),
            (false, Some(payload)) => findings.push(Finding::new(
                "payload",
                format!("{} bytes", payload.len()),
                "`guestAgent: baked` takes proxyd from the image",
                "give no payload",
            )),
            (true, Some(payload)) => {
                findings.extend(program::fault(payload).map(|fault| {
                    Finding::new(
                        "payload",
                        format!("{} bytes", payload.len()),
                        fault,
                        "build it with `cargo xtask payload`",
                    )
                }));
            }
            (false, None) => {}
        }
        if !is_host_name(&self.proxyd.key) {
            findings.push(Finding::new(
                "proxyd.key",
                &self.proxyd.key,
                "is no host name",
                "use 1 to 63 of `a-z 0-9 -`, with a letter or digit at both ends",
            ));
        }
        findings
    }
}

/// Whether the text is one label of a host name (RFC 1123, 2.1), in lower case.
fn is_host_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests;
