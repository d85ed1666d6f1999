//! Worlds, crashes and load for the engine. Development only: nothing ships from here.
//!
//! [`ground`] is what outlives a process (hypervisor, store, passwords), [`pve`] such a
//! hypervisor made of the simulator of Proxmox VE, [`process`] one process of the product on a
//! ground, [`records`] where its records are, [`fuse`] what cuts a process down at its n-th effect, [`walk`] the crash walks.
//! `tests/` runs them.

pub mod fuse;
pub mod ground;
pub mod process;
pub mod pve;
pub mod records;
pub mod walk;
