//! Our own, deterministic name for a machine.

use super::{Installation, InvalidName, ProxyId};
use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
};
use uuid::Uuid;

/// The UUIDv5 namespace of standalone machine UIDs. Fixed for ever: another value would give
/// every machine another key.
const STANDALONE_UIDS: Uuid = Uuid::from_u128(0xe96a_dd33_f766_4dc3_a2ec_1ad1_309f_cc82);

/// The Proxy's UID when its machine was first claimed: 1 to 64 of `A-Z a-z 0-9 -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineUid(String);

impl MachineUid {
    /// Without an API server to give UIDs: UUIDv5 over installation, namespace/name and
    /// incarnation (1 for the first Proxy of that name, one more for each after it).
    pub fn standalone(installation: &Installation, proxy: &ProxyId, incarnation: u64) -> Self {
        let text = format!("{installation}/{proxy}/{incarnation}");
        Self(Uuid::new_v5(&STANDALONE_UIDS, text.as_bytes()).to_string())
    }
    /// Which incarnation in `1..=highest` this UID was made for, if it was
    /// [`standalone`](Self::standalone) that made it: how a lost number is found again.
    pub fn incarnation(
        &self,
        installation: &Installation,
        proxy: &ProxyId,
        highest: u64,
    ) -> Option<u64> {
        (1..=highest).find(|n| Self::standalone(installation, proxy, *n) == *self)
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MachineUid {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let legal = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if legal {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName {
                what: "machine UID",
                value: text.to_owned(),
                rule: "use 1 to 64 letters, digits and '-'",
            })
        }
    }
}

impl TryFrom<String> for MachineUid {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<MachineUid> for String {
    fn from(uid: MachineUid) -> Self {
        uid.0
    }
}

impl fmt::Display for MachineUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A machine UID and the name made from it: `proxy-` + 16 characters of lower-case base32
/// (RFC 4648, no padding) over the first 80 bits of SHA-256 of the UID. 22 characters,
/// a valid DNS label. Keys of one UID are equal, whoever asks with them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "MachineUid", into = "MachineUid")]
pub struct MachineKey {
    uid: MachineUid,
    name: String,
    /// Who asks with it, where it is known.
    proxy: Option<ProxyId>,
}

impl PartialEq for MachineKey {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl Eq for MachineKey {}

impl Hash for MachineKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
    }
}

impl PartialOrd for MachineKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MachineKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.uid.cmp(&other.uid)
    }
}

impl MachineKey {
    /// The key of a machine UID: always the same one.
    pub fn new(uid: MachineUid) -> Self {
        let digest = Sha256::digest(uid.as_str());
        let name = format!(
            "proxy-{}",
            BASE32_NOPAD.encode(&digest[..10]).to_ascii_lowercase()
        );
        Self {
            uid,
            name,
            proxy: None,
        }
    }
    /// The same, asked with by this Proxy: a UID comes from a record, which people can edit, and
    /// a machine whose mark names another Proxy is not this one's then.
    #[must_use]
    pub fn of(mut self, proxy: &ProxyId) -> Self {
        self.proxy = Some(proxy.clone());
        self
    }
    /// Whether a mark that names this Proxy can be one of this key. A mark that a person put
    /// back by the line we gave them may not know its Proxy ([`ProxyId::unknown`]).
    pub fn is_asked_by(&self, marked: &ProxyId) -> bool {
        let asks = self.proxy.as_ref();
        asks.is_none_or(|asks| asks == marked || *marked == ProxyId::unknown(self))
    }
    /// The UID it was made from.
    pub fn uid(&self) -> &MachineUid {
        &self.uid
    }
    /// The machine's name on the hypervisor.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// A number spread evenly over `0..range`, the same one for the same key: the first
    /// choice of a slot, and the jitter of a wait. `range` 0 gives 0.
    pub fn spread(&self, range: u64) -> u64 {
        let digest = Sha256::digest(self.uid.as_str());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        u64::from_be_bytes(first).checked_rem(range).unwrap_or(0)
    }
}

impl From<MachineUid> for MachineKey {
    fn from(uid: MachineUid) -> Self {
        Self::new(uid)
    }
}

impl From<MachineKey> for MachineUid {
    fn from(key: MachineKey) -> Self {
        key.uid
    }
}

impl fmt::Display for MachineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests;
