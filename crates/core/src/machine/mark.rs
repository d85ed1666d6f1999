//! The mark on a machine, and the one answer to "whose is it".

use super::{
    ClusterId, ConfigHash, Installation, MachineKey, MachineUid, ProviderName, ProxyId, Slot,
    WriterId,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a line begins with that holds a mark.
pub const MARK_PREFIX: &str = "egress-proxies/v1 ";

/// Who we are: what every mark of ours says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The deployment.
    pub installation: Installation,
    /// The state directory (standalone), else `None`.
    pub writer: Option<WriterId>,
}

/// What a machine of ours says of itself; never secret. Written as one line:
/// [`MARK_PREFIX`], then a JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The deployment that made it.
    pub installation: Installation,
    /// The state directory that made it (standalone).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<WriterId>,
    /// The provider that made it.
    pub provider: ProviderName,
    /// The cluster it was made on; at any other it is void.
    pub cluster: ClusterId,
    /// The slot it was made for; at any other it is void.
    pub slot: Slot,
    /// The machine UID.
    pub uid: MachineUid,
    /// Whose machine it is.
    pub proxy: ProxyId,
    /// Which attempt made it.
    pub attempt: u32,
    /// The configuration it was made from.
    pub config: ConfigHash,
    /// When the mark was written, by the writer's clock.
    pub written: jiff::Timestamp,
}

impl Mark {
    /// The first mark in a text of several lines. White space around lines does not count;
    /// a line that begins like a mark and does not parse gives `None`, as no mark does.
    pub fn find(text: &str) -> Option<Self> {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(MARK_PREFIX.trim_end()))
            .and_then(|json| serde_json::from_str(json.trim()).ok())
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        write!(f, "{MARK_PREFIX}{json}")
    }
}

/// A machine as the hypervisor shows it, as far as ownership is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// Where it was seen.
    pub slot: &'a Slot,
    /// The cluster it was seen on.
    pub cluster: &'a ClusterId,
    /// Its name there.
    pub name: Option<&'a str>,
    /// The text that would hold its mark.
    pub text: Option<&'a str>,
    /// A template is never a machine of ours.
    pub template: bool,
}

impl Sighting<'_> {
    /// The mark, if it is valid here: complete, at its own slot and cluster, not on a template.
    pub fn valid_mark(&self) -> Option<Mark> {
        self.text
            .and_then(Mark::find)
            .filter(|m| !self.template && m.slot == *self.slot && m.cluster == *self.cluster)
    }
}

/// The answer to "whose is it".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Bears a complete, valid mark of this key. Renaming it changes nothing.
    Ours(Box<Mark>),
    /// Proven someone else's. Only this frees a slot.
    Foreign {
        /// It bears a void mark: a person's copy of a machine of ours (`CopiedMark`).
        copied: bool,
    },
    /// Neither: no effect on this key until a person has looked.
    NotOwned,
}

/// Decides whose a machine is, for one key of one provider.
///
/// - Ours: a valid mark with this key's UID, written by this installation, writer and provider,
///   for the Proxy that asks.
/// - Foreign: no valid mark with this key's UID, and not this key's name. A name counts only
///   at the key's recorded slot or next to a valid mark.
/// - Anything between: not owned.
pub fn whose(
    key: &MachineKey,
    identity: &Identity,
    provider: &ProviderName,
    recorded: Option<&Slot>,
    seen: &Sighting<'_>,
) -> Whose {
    let same_name = seen.name == Some(key.name());
    match seen.valid_mark() {
        Some(mark) if mark.uid == *key.uid() => {
            let by_us = mark.installation == identity.installation
                && mark.writer == identity.writer
                && mark.provider == *provider
                && key.is_asked_by(&mark.proxy);
            if by_us {
                Whose::Ours(Box::new(mark))
            } else {
                Whose::NotOwned
            }
        }
        Some(_) if same_name => Whose::NotOwned,
        Some(_) => Whose::Foreign { copied: false },
        None if same_name && recorded == Some(seen.slot) => Whose::NotOwned,
        None => Whose::Foreign {
            copied: seen.text.and_then(Mark::find).is_some(),
        },
    }
}

#[cfg(test)]
mod tests;
