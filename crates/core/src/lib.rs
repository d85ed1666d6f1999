//! Words and decisions: no I/O, no clock, no randomness, no async.
//!
//! Start with [`machine`] (what we promise, remember and recognise), then [`plan`]
//! (what to do next, as a pure function), [`status`] (what a person is told) and
//! [`audit`] (a second opinion on every plan).

pub mod audit;
pub mod backoff;
pub mod document;
pub mod events;
pub mod finding;
pub mod history;
pub mod machine;
pub mod plan;
pub mod proxy;
pub mod proxy_config;
pub mod status;

#[cfg(test)]
mod support;

pub use machine::{
    Claim, ClusterId, ErrorClass, Handle, Host, Identity, Installation, MachineKey, MachineUid,
    Mark, Proven, ProviderName, ProxyId, Record, SeedVolume, Slot, Spent, Standing, WriterId,
};
