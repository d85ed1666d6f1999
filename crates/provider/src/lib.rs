//! The contract between the engine and a hypervisor: [`Provider`], what it answers with,
//! and what it must never do. `docs/provider-contract.md` has the rules by id; the suite
//! in [`conformance`] has at least one case for each.
//!
//! To write a provider, read [`Provider`], then [`memory`], which is the contract with
//! nothing else in the way, then `docs/guides/writing-a-provider.md`.

mod capability;
mod error;
mod listing;
mod pace;
mod permit;
mod progress;
mod report;

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod layer;
pub mod memory;

pub use capability::{AddressSource, Capabilities, CreateKind, LateCreate, Placement, UserData};
pub use error::{Error, Operation, Result};
pub use listing::{CopiedMark, Leftover, ListedMachine, Listing, RecordedSlot};
pub use pace::Pace;
pub use permit::{PROOF_LIFETIME, Permit, Proof};
pub use progress::Progress;
pub use report::{CheckFinding, CheckReason, Report, Severity};

use egress_core::machine::{Claim, MachineKey, ObservedMachine, ProviderName, Slot, WantedMachine};

/// One kind of hypervisor, as one configured instance.
///
/// Every call ends by its own deadline (T1), may be dropped at any await (T2) and holds no
/// lock past its return. No call waits for the hypervisor to finish: a call begins work,
/// answers [`Progress::InProgress`], and is called again. Calls for one key never overlap:
/// the engine serialises them; calls for different keys do.
///
/// A provider knows its own [`egress_core::Identity`] (installation and writer) from its
/// construction and decides whose a machine is with [`egress_core::machine::whose`] alone.
#[async_trait::async_trait]
pub trait Provider: Send + Sync {
    /// The name its user gave it.
    fn name(&self) -> &ProviderName;

    /// The kind, as it stands in configuration and in `providerID` (`proxmox`, `kvm2`, `local`).
    fn kind(&self) -> &'static str;

    /// What engine and suite need to know, as data. Constant over the provider's life.
    fn capabilities(&self) -> Capabilities;

    /// Looks, without changing anything, whether machines can be made here: each fault with
    /// a closed reason and a remedy. Fails only when the report itself could not be made.
    async fn check(&self) -> Result<Report>;

    /// Proposes a place. A machine that already bears the key's mark comes first: its claim
    /// then stands at [`Standing::Seen`](egress_core::Standing) with the mark's attempt.
    /// Else a slot that is free now, the same first choice for the same key, then probing
    /// on, skipping `taken` (slots spent or recorded by others); it stands at `Unsent`.
    /// Changes nothing. `Capacity` when no slot is left.
    async fn claim(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim>;

    /// Whether the machine that is to follow the one of this claim could be made: what `create`
    /// would refuse before its first request (C4), but for room and places that come free with
    /// the one that goes. The claim may be another provider's. The errors are those of `create`.
    /// Changes nothing.
    async fn survey(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Result<()>;

    /// Drives the machine towards *exists, marked, configured, started* (C1-C6). Safe to
    /// repeat from any state: resumes its own half-made machine, starts a stopped one,
    /// answers `Done` for one that runs with its full configuration. `Conflict` when the
    /// slot is proven someone else's; that machine is then never touched.
    async fn create(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress>;

    /// Looks at the machine of a claim, wherever it is now. Changes nothing (G1). Fails only
    /// when nothing was learned about this key; listed but undecidable is
    /// [`MachineState::Unknown`](egress_core::machine::MachineState).
    ///
    /// `Absent` is the result of one complete look at the slot and for the key's mark; the
    /// engine waits until the last attempt is settled before it believes it (G2).
    async fn get(&self, key: &MachineKey, claim: &Claim) -> Result<ObservedMachine>;

    /// After the first proof: takes the seed out of the machine and deletes it, such that
    /// the machine boots without it from then on. `Done` at once where there is none.
    async fn seal(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress>;

    /// Removes machine, disks and seed (D1-D6). `Done` only when proven gone; absent is
    /// `Done`; a foreign machine at the slot is not touched and counts as absent. Needs the
    /// claim and the provider's own configuration, nothing of the user's (D5).
    async fn delete(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress>;

    /// Every machine that bears a mark of this installation and provider, half-made ones and
    /// leftover seeds included; complete or an error (L1). `recorded` names slots to look at
    /// even when no tag or name leads there.
    async fn list(&self, recorded: &[RecordedSlot]) -> Result<Listing>;
}
