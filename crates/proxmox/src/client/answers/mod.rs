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
use serde_json::{Map, Value, value::RawValue};
use std::collections::BTreeMap;

/// Why a `data` has not the shape it should have; for people.
pub type Misfit = String;

/// A type that an answer's `data` is read into.
pub trait Answered: Sized {
    /// Reads it.
    fn read(data: Value) -> Result<Self, Misfit>;

    /// Reads it from its JSON. What may be a list of ten thousands is not held as a whole in
    /// between.
    fn read_text(json: &RawValue) -> Result<Self, Misfit> {
        Self::read(serde_json::from_str(json.get()).map_err(|e| e.to_string())?)
    }
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
    Ok(values.into_iter().filter_map(entry).collect())
}

/// The same, of a list that is still text.
fn entries_of_text<T: serde::de::DeserializeOwned>(json: &RawValue) -> Result<Vec<T>, Misfit> {
    let texts: Vec<&RawValue> =
        serde_json::from_str(json.get()).map_err(|_| "not a list".to_owned())?;
    let values = texts
        .into_iter()
        .map(|text| serde_json::from_str(text.get()));
    Ok(values.flatten().filter_map(entry).collect())
}

fn entry<T: serde::de::DeserializeOwned>(value: Value) -> Option<T> {
    shape(value)
        .inspect_err(|misfit| tracing::debug!(%misfit, "an entry of a list was left out"))
        .ok()
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
