//! The proxy over real sockets on loopback.

mod admission;
mod connecting;
mod draining;
mod forwarding;
mod framing;
mod limits;
mod process;
mod stage;
