//! All that is remembered of a Proxy. Backoff and last failures live in the process.

use super::{Claim, Installation, MachineUid, ProviderName, ProxyId, Slot};
use crate::proxy_config::DEFAULT_PORT;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::net::{IpAddr, SocketAddr};

/// Why a slot may not be taken again by this Proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpentWhy {
    /// Someone else held it.
    Refused,
    /// A machine of ours was there and is proven gone.
    Freed,
}

/// A slot that an earlier attempt used up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// The provider whose slot it is.
    pub provider: ProviderName,
    /// The slot.
    pub slot: Slot,
    /// The attempt that used it.
    pub attempt: u32,
    /// What happened there.
    pub why: SpentWhy,
}

/// What the last proof showed. It stands until a newer proof fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proven {
    /// Where the proxy answered with our key. Another address or port is not proven by it.
    #[serde(deserialize_with = "proven_at")]
    pub address: SocketAddr,
    /// The egress address the proof observed, once probes look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<IpAddr>,
    /// The generation of the credential that was used; 0 without credentials.
    pub credential_generation: u32,
}

/// Where it was proven. Records of the first layout before its first release name no port: the next
/// answer writes down the right one.
fn proven_at<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let without_port = || {
        let ip: Option<IpAddr> = text.parse().ok();
        ip.map(|ip| SocketAddr::new(ip, DEFAULT_PORT))
    };
    text.parse()
        .ok()
        .or_else(without_port)
        .ok_or_else(|| D::Error::custom(format!("{text:?} is no address with a port")))
}

/// Our memory of one Proxy, kept under a version check. Its existence is the finalizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The layout of this record; see [`Record::SCHEMA`].
    pub schema: u32,
    /// The UID the machine's key is made from; never changes while the record lives.
    pub machine_uid: MachineUid,
    /// The installation that wrote it. Another one's record stops the Proxy (`InstallationChanged`).
    pub installation: Installation,
    /// Whose record it is; a record under another name is a copy.
    pub proxy: ProxyId,
    /// The highest attempt number ever used.
    pub last_attempt: u32,
    /// The place of the present machine, if one is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Slots that earlier attempts used up, newest last, at most [`Record::MAX_SPENT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<Spent>,
    /// The last proof, if the present machine was ever proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<Proven>,
}

impl Record {
    /// The layout this code reads and writes.
    pub const SCHEMA: u32 = 1;
    /// How many spent slots are kept.
    pub const MAX_SPENT: usize = 32;

    /// A record that holds the finalizer and promises nothing yet.
    pub fn new(machine_uid: MachineUid, installation: Installation, proxy: ProxyId) -> Self {
        Self {
            schema: Self::SCHEMA,
            machine_uid,
            installation,
            proxy,
            last_attempt: 0,
            claim: None,
            spent: Vec::new(),
            proven: None,
        }
    }
    /// Holds this claim, and its attempt number as used.
    #[must_use]
    pub fn with_claim(mut self, claim: Claim) -> Self {
        self.last_attempt = self.last_attempt.max(claim.attempt);
        self.claim = Some(claim);
        self
    }
    /// Gives the claim up and remembers its slot as spent.
    #[must_use]
    pub fn without_claim(mut self, why: SpentWhy) -> Self {
        if let Some(claim) = self.claim.take() {
            self.spent.push(Spent {
                provider: claim.provider,
                slot: claim.slot,
                attempt: claim.attempt,
                why,
            });
            let excess = self.spent.len().saturating_sub(Self::MAX_SPENT);
            self.spent.drain(..excess);
        }
        self.proven = None;
        self
    }
}

#[cfg(test)]
mod tests;
