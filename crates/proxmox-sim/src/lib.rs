//! A simulator of the Proxmox VE API: what it answers, when, and what lies on its storages.
//!
//! [`World`](world::World) is a pure step function: a request and the time in, an answer out. The HTTPS
//! server in [`http`] is a thin shell around it, as is a test that calls it in one process.
//! It shares no type with the client of the product: both would share the same mistakes.

pub mod exchange;
mod guests;
pub mod http;
pub mod world;
