//! What runs in started machines when the simulator is asked for real proxies.
//!
//! A machine is a process: at its first boot it reads the ISO in its drive as a guest would
//! ([`iso9660`], [`seed`]), keeps proxyd's configuration on its disk and runs the real program on
//! a loopback address of its own, which its guest agent reports. Without seed and without disk
//! there is no proxy and no agent.

mod iso9660;
mod seed;
mod supervisor;

pub(crate) use supervisor::Supervisor;
