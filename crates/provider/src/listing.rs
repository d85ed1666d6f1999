//! Everything of ours on one provider.

use egress_core::{Host, MachineKey, Mark, SeedVolume, Slot};

/// A slot that some record names, to be looked at by `list` whatever its tags say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSlot {
    /// The key whose record names it.
    pub key: MachineKey,
    /// The slot.
    pub slot: Slot,
}

/// A machine that bears a valid mark of this installation and provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMachine {
    /// Its mark.
    pub mark: Mark,
    /// Where it lives now.
    pub host: Option<Host>,
    /// Its seed, if one is attached or recorded there.
    pub seed: Option<SeedVolume>,
    /// When it was made, as the provider's `created-at` axis says.
    pub created_at: Option<jiff::Timestamp>,
}

/// A seed or other artefact of ours that no listed machine uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// What and where it is.
    pub volume: SeedVolume,
    /// The machine name it was made for, as far as its own name tells.
    pub machine: String,
    /// When it was made, where the storage says so.
    pub created_at: Option<jiff::Timestamp>,
}

/// A machine that bears a void mark: a person's copy of one of ours. Foreign, reported only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedMark {
    /// Where the copy is.
    pub slot: Slot,
    /// The mark it bears.
    pub mark: Mark,
}

/// The answer of `list`: complete, or the call failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Machines of ours.
    pub machines: Vec<ListedMachine>,
    /// Artefacts of ours without a machine.
    pub leftovers: Vec<Leftover>,
    /// Copies made by people.
    pub copies: Vec<CopiedMark>,
}
