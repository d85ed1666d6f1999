//! Worlds, crashes and load for the engine. Development only: nothing ships from here.
//!
//! [`ground`] is what outlives a process (hypervisor, store, passwords), [`process`] one
//! process of the product on it, [`fuse`] what cuts a process down at its n-th effect.
//! The crash walks are in `tests/`.

pub mod fuse;
pub mod ground;
pub mod process;
