//! The provider for Proxmox VE: a declared Proxy becomes exactly one virtual machine.
//!
//! [`client`] speaks the API and knows nothing of the contract; `provider` keeps the
//! contract and knows nothing of HTTP. What either relies on is told, with where it is known
//! from, in `docs/proxmox-spec.md`; numbers such as F8 and §5.2 in comments are those of the
//! facts listed there.

#[cfg(feature = "conformance")]
pub mod bench;
pub mod client;
mod config;
mod provider;

pub use config::{CloudInitDrive, Config, GuestAgent, NodeTemplate, Reserve, VmidRange};
pub use provider::{CONFORMANCE_LINE, Payload, Proxmox};
