//! What the reads answer, as types.
//!
//! Lenient about spelling and about keys that come and go between versions; strict about the
//! few without which an answer means nothing, such as a digest or a state.

mod cluster;
mod guest;
mod node;
mod task;

pub use cluster::{
    ClusterNode, ClusterOptions, ClusterStatus, Pool, Privileges, Resource, ResourceKind, Version,
    VmidState,
};
pub(crate) use guest::AgentAnswer;
pub use guest::{GuestInterface, VmConfig, VmStatus};
pub use node::{
    Bridge, Certificate, Node, NodeTime, StorageStatus, Vnet, Volume, cluster_fingerprint,
};
pub use task::{Task, TaskLog};

use super::lenient;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Why a `data` has not the shape it should have; for people.
pub type Misfit = String;

/// A type that an answer's `data` is read into.
pub trait Answered: Sized {
    /// Reads it.
    fn read(data: Value) -> Result<Self, Misfit>;
}

fn shape<T: serde::de::DeserializeOwned>(data: Value) -> Result<T, Misfit> {
    serde_json::from_value(data).map_err(|e| e.to_string())
}

/// The entries of a list that have the shape; an entry without it is left out and logged,
/// so that one odd guest of somebody else does not hide all others.
fn entries<T: serde::de::DeserializeOwned>(data: Value) -> Result<Vec<T>, Misfit> {
    let Value::Array(values) = data else {
        return Err("not a list".to_owned());
    };
    Ok(values
        .into_iter()
        .filter_map(|value| {
            shape(value)
                .inspect_err(|misfit| tracing::debug!(%misfit, "an entry of a list was left out"))
                .ok()
        })
        .collect())
}

fn scalars(map: &Map<String, Value>) -> BTreeMap<String, String> {
    map.iter()
        .filter_map(|(key, value)| Some((key.clone(), lenient::as_text(value)?)))
        .collect()
}

/// A call whose success says everything.
impl Answered for () {
    fn read(_: Value) -> Result<Self, Misfit> {
        Ok(())
    }
}
