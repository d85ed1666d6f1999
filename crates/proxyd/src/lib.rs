//! The forward proxy that runs in each machine, and as a process of the local provider.
//!
//! A connection's journey: [`Server`] accepts it, checks the client's network and the
//! connection limits, and hands it to hyper. Each request is authenticated, its target is
//! parsed into a type that can only be right, and it is either forwarded (plain HTTP, over
//! a pool of kept connections) or becomes a tunnel (CONNECT). One task serves a client from
//! accept to close: the connection to the target is polled by the task that needs it, so a
//! client that goes away takes everything of its own with it.
//!
//! Beside it, in machines: [`agent`], which answers a hypervisor instead of
//! `qemu-guest-agent`.
//!
//! The library emits `tracing` events, never a credential or a full URL; the binary decides
//! where they go.

mod access;
pub mod agent;
mod answer;
mod client;
mod clock;
mod config;
mod connect;
mod dial;
pub mod echo;
mod entry;
mod error;
mod forward;
mod headers;
mod link;
mod management;
mod metrics;
mod places;
mod pool;
mod resolve;
mod server;
mod target;
mod tunnel;

pub use config::{load_config, validate};
pub use entry::{Session, main_with};
pub use error::{Error, ErrorKind};
pub use server::{Server, run};
