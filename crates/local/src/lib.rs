//! The provider that runs each proxy as a process of this host: the embedded default.
//!
//! A machine is two things that bear the same mark. Its *directory*,
//! `<state>/machines/<provider>/<slot>/`, holds the mark, the configuration and a lock; it
//! comes into being by one rename, complete, and goes by one. Its *process* is
//! `<program> proxyd --config … --detach --mark <mark>`, which outlives the engine and holds
//! the directory's lock as its standard input for as long as it lives: the kernel, not a
//! pid file, says whether it runs.
//!
//! ```text
//! claim ── first choice by key, then probing ──▶ slot 127.0.0.1_20001_192.0.2.10
//! create ─ stage ─ rename ─ lock ─ spawn ─ read the ready line ──▶ Done
//! delete ─ pidfd ─ check ─ SIGTERM ─ (SIGKILL) ─ rename away ─ remove ──▶ Done
//! ```
//!
//! A pid alone names nobody. A process is ours when, behind a pidfd opened before the look,
//! start time, user and the whole argument list with a valid mark agree. Where the state
//! directory was deleted, the scan of `/proc` still finds every process by that mark.

#[cfg(feature = "conformance")]
pub mod bench;
mod config;
mod directory;
mod host;
mod place;
mod process;
mod provider;

pub use config::{Config, PortRange};
pub use host::cluster_id;
pub use process::marks_on_this_host;
pub use provider::{Local, OWN_PROGRAM};
