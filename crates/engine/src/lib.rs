//! The loops around the decisions of `egress-core`: look, decide, act, for one Proxy
//! ([`pass()`]) and for all ([`mod@run`]); and where records are kept ([`store`]).
//!
//! Read [`pass()`] first: it is the whole life of a Proxy, one step at a time.

pub mod admin;
pub mod checker;
pub mod credentials;
mod execute;
mod listing;
pub mod metrics;
mod observe;
pub mod pass;
pub mod permit;
pub mod presence;
pub mod probe;
mod providers;
pub mod run;
pub mod store;
#[cfg(test)]
mod support;
pub mod sweep;
pub mod sweeper;

pub use credentials::{Credential, Credentials, Found, FoundText};
pub use pass::{Outcome, PassError, foresee, pass};
pub use permit::{Always, Never, PermitSource};
pub use probe::{HttpProber, Prober};
pub use providers::{ProviderLane, Providers};
pub use run::{Engine, Farewell, Handle, ProxyView};
