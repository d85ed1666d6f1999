//! The provider for libvirt: a declared Proxy becomes exactly one QEMU domain.
//!
//! [`client`] speaks libvirt's remote protocol and knows nothing of the contract; `provider`
//! keeps the contract and knows nothing of messages. What either relies on is told, with
//! where it is known from, in `docs/kvm2-spec.md`.

#[cfg(feature = "conformance")]
pub mod bench;
pub mod client;
mod config;
mod provider;

pub use config::{Config, DomainType, GuestAgent, HostBlock, Reserve, SeedBus};
pub use provider::Kvm2;
