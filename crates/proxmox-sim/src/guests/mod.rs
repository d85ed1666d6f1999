//! What runs in started machines when the simulator is asked for real proxies.
//!
//! A machine is a process: at its first boot it reads the ISO in its drive as a guest would
//! ([`iso9660`], [`seed`]), keeps proxyd and its configuration on its disk and runs it on a
//! loopback address of its own. A seed without the program stands for an image that has one: ours.
//! The address is reported where seed or image bring a guest agent. Without seed and without disk
//! there is no proxy and no agent.

mod iso9660;
mod seed;
mod supervisor;

pub(crate) use supervisor::Supervisor;
