//! The operator on Kubernetes: the same engine, driven by Proxy objects of a cluster.
//!
//! Read [`mod@run`] first: it shows how the parts hang together. [`store`] keeps records in
//! annotations of the objects, [`lease`] gives the right to act, [`wishes`] turns objects into
//! what is wanted, [`status`] writes back what became of it.

pub mod api;
pub mod cache;
pub mod config;
pub mod credentials;
#[cfg(any(test, feature = "conformance"))]
pub mod double;
pub mod figures;
pub mod lease;
pub mod news;
pub mod objects;
pub mod preview;
pub mod providers;
pub mod run;
pub mod status;
pub mod store;
pub mod texts;
pub mod watch;
pub mod wishes;

pub use config::{ConfigSource, Configuration};
pub use figures::Figures;
pub use lease::LeaseSettings;
pub use run::{Mirror, Operator, Settings};
