//! What a provider is asked to make.

use super::ProxyId;
use crate::proxy_config::ProxySettings;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// The size of the machine. The local provider has no use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MachineSize {
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The system disk in GiB; a smaller template disk is grown to it.
    pub disk_gib: u32,
}

/// A fingerprint over the user's machine, proxy and userData fields, and nothing else:
/// an upgrade of the product changes no hash and so replaces no machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConfigHash(String);

impl ConfigHash {
    /// The hash of the canonical text of those fields: 16 hex digits of its SHA-256.
    pub fn of(canonical: &[u8]) -> Self {
        Self(data_encoding::HEXLOWER.encode(&Sha256::digest(canonical)[..8]))
    }
    /// The hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text of a user's cloud-config. It may hold secrets, so a debug print shows its length only.
#[derive(Clone, PartialEq, Eq)]
pub struct CloudConfig(String);

impl CloudConfig {
    /// How long a text may be, in bytes: as much as Kubernetes lets a Secret or a ConfigMap hold
    /// in all. Neither the seed nor cloud-init sets a lower bound.
    pub const MAX_BYTES: usize = 1024 * 1024;
    /// The text as the user wrote it; the provider checks it.
    pub const fn new(text: String) -> Self {
        Self(text)
    }
    /// The text, for the seed alone.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for CloudConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloudConfig({} bytes)", self.0.len())
    }
}

/// All a provider needs to make one machine. Holds verifiers, never passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedMachine {
    /// Whose machine it is, for its mark.
    pub proxy: ProxyId,
    /// Its size.
    pub size: MachineSize,
    /// How its proxy is set up.
    pub settings: ProxySettings,
    /// The fingerprint that goes into its mark.
    pub config_hash: ConfigHash,
    /// The user's own cloud-config, where the provider takes one.
    pub user_data: Option<CloudConfig>,
}
