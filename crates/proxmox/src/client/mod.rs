//! The client of the Proxmox VE API: thin, typed, and exact about what a failure proves.
//!
//! A [`Call`] is a request as a value; there is no other way to make one. A [`Wire`] carries
//! it. The answer becomes a type of [`answers`], or a [`Failure`] that [`errors`] sorted.
//! Reads are methods; mutations are [`Prepared`] first, so that a permit can be asked right
//! before they are written.

pub mod answers;
pub mod call;
pub mod errors;
mod exchange;
mod failure;
mod https;
mod ids;
mod lenient;
mod params;
mod reads;
pub mod record;
mod tls;
mod token;
mod upid;
mod upload;
mod wire;
mod writes;

pub use answers::{
    Bridge, Certificate, ClusterNode, ClusterOptions, ClusterStatus, GuestInterface, Node,
    NodeTime, Pool, Privileges, Resource, ResourceKind, StorageStatus, Task, TaskLog, Version,
    VmConfig, VmStatus, VmidState, Vnet, Volume, cluster_fingerprint,
};
pub use call::Call;
pub use exchange::{
    Client, ClientConfig, MUTATION_DEADLINE, Prepared, READ_DEADLINE, UPLOAD_DEADLINE,
};
pub use failure::{Failure, Kind, Lock};
pub use https::HttpsWire;
pub use ids::{BadId, NodeName, Vmid};
pub use params::{CloneVm, ConfigChange, Field, ResourceFilter, TaskFilter, TaskSource};
pub use tls::CertificateTrouble;
pub use upid::{TaskEnd, TaskState, Upid, poll_waits};
pub use upload::IsoName;
pub use wire::{BadUrl, BaseUrl, Reuse, Wire, WireAnswer, WireError, WireRequest};
