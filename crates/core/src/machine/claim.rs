//! Where a machine is to be, written down before anything is asked for.

use super::{ClusterId, Host, Mark, ProviderName, Slot};
use serde::{Deserialize, Serialize};

/// How the attempt of a claim stands. Later values are further on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// Recorded; no creating request was sent yet.
    Unsent,
    /// A creating request may have been sent; whether it arrived is not known from this.
    Sent,
    /// The hypervisor took the request; the claim's handles name its tasks.
    Accepted,
    /// The machine was seen at the slot, bearing our mark.
    Seen,
    /// The machine was started with its full configuration at least once.
    Started,
    /// The seed was taken out after the first proof.
    Sealed,
}

/// A task of the hypervisor that a call began; opaque to everyone but the provider.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handle {
    /// The step it carries out, in the provider's words (`clone`, `upload`, ...).
    pub step: String,
    /// The task's id, in the hypervisor's words.
    pub id: String,
}

/// The volume that carries the machine's first configuration, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SeedVolume {
    /// Its full name, in the provider's words.
    pub name: String,
    /// The storage, and host where that matters.
    pub location: String,
}

/// Why a machine is being taken down. Once it is recorded the machine goes, whatever is wanted
/// later, and nobody misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Retirement {
    /// The user's machine, proxy or userData fields changed.
    SpecChanged,
    /// The user moved the Proxy to another provider.
    ProviderChanged,
    /// The machine stopped for the third time within an hour.
    CrashLoop,
    /// The machine has no guest agent and can never report an address.
    NoAgent,
    /// The machine reported no address within the boot time-out.
    NeverReported,
    /// Someone else holds the slot; what we left there is removed, theirs is not touched.
    SlotTaken,
    /// The user deleted the Proxy. Declared again before all is gone, it gets another machine.
    Deleted,
}

impl Retirement {
    /// Every cause.
    pub const ALL: [Self; 7] = [
        Self::SpecChanged,
        Self::ProviderChanged,
        Self::CrashLoop,
        Self::NoAgent,
        Self::NeverReported,
        Self::SlotTaken,
        Self::Deleted,
    ];
    /// Whether the machine was at fault: then replacements that follow each other slow down.
    pub const fn is_fault(self) -> bool {
        matches!(self, Self::CrashLoop | Self::NoAgent | Self::NeverReported)
    }
}

/// A promised place. It says where to look, never whose the machine there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The provider that proposed the slot.
    pub provider: ProviderName,
    /// The cluster it was proposed on.
    pub cluster: ClusterId,
    /// The place itself.
    pub slot: Slot,
    /// The host: part of the identity where a slot is only unique per host, else a hint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// 1 for the first machine of a Proxy, one more for each machine after it.
    pub attempt: u32,
    /// How this attempt stands.
    pub standing: Standing,
    /// Tasks in flight, one for each step begun and not yet known to have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handles: Vec<Handle>,
    /// The NIC's MAC address: chosen by us, or recorded when first read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The seed, where the provider uses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeedVolume>,
    /// More than one creating request of this attempt was sent, or something beside the machine,
    /// and not all of it is known to have ended: whoever reads this waits the settle bound out
    /// before the slot is given up, even when a machine was seen since. A claim that stands at
    /// `Sent` without it speaks of one request, which has landed once its machine is seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsettled: bool,
    /// Set before the first deleting request, so that a crash resumes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retiring: Option<Retirement>,
}

impl Claim {
    /// Where a machine is that was found by its mark.
    pub fn found(mark: Mark) -> Self {
        Self {
            provider: mark.provider,
            cluster: mark.cluster,
            slot: mark.slot,
            host: None,
            attempt: mark.attempt,
            standing: Standing::Seen,
            handles: Vec::new(),
            mac: None,
            seed: None,
            unsettled: false,
            retiring: None,
        }
    }
}
