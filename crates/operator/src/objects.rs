//! A Proxy as the API server has it, cut down to what is needed, with the record it carries.
//!
//! An object whose spec does not fit says so in its own status and hides no other.

use egress_api::v1alpha1::{ABANDON_ANNOTATION, Phase, Proxy, ProxyStatus, cluster::ProxyObject};
use egress_core::{ProxyId, finding::Finding};
use egress_engine::store::{
    Stored,
    layout::{self, Misfit},
};
use std::collections::BTreeMap;

/// The annotation that holds a Proxy's record.
pub const RECORD_ANNOTATION: &str = "egress-proxies.io/record";
/// The finalizer that keeps a Proxy while its record is needed.
pub const FINALIZER: &str = "egress-proxies.io/machine";
/// What an object remembers of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nothing was ever begun, or all is gone.
    Nothing,
    /// This is its record.
    Record(Box<Stored>),
    /// The record is that of another Proxy: the object was copied.
    Copied(ProxyId),
    /// The annotation cannot be read; the text says why.
    Unreadable(String),
    /// It holds the finalizer, or its status speaks of a machine that is being made, and there is
    /// no record: the annotation was taken away, as by `kubectl replace`.
    Lost,
}

/// One Proxy as the API server last showed it.
#[derive(Clone, Debug)]
pub struct Held {
    /// Which one.
    pub id: ProxyId,
    /// This object and no later one of its name.
    pub uid: String,
    /// The version of the whole object, opaque but for `is_older`.
    pub version: String,
    /// Rises with every change of the spec.
    pub generation: i64,
    /// It is being deleted.
    pub deleting: bool,
    /// All finalizers, ours included.
    pub finalizers: Vec<String>,
    /// What it remembers of its machine.
    pub memory: Memory,
    /// The manifest as far as it could be read.
    pub manifest: Option<Box<Proxy>>,
    /// Everything wrong with the manifest.
    pub findings: Vec<Finding>,
    /// Its machine is to be left behind when it is deleted.
    pub abandon: bool,
    /// The status that stands in it; `None` where it has none that can be read.
    pub status: Option<Box<ProxyStatus>>,
}

impl Held {
    /// Reads an object; `None` where its names are not those of a Proxy.
    pub fn of(mut object: ProxyObject) -> Option<Self> {
        let metadata = &mut object.metadata;
        let name = metadata.name.as_deref()?;
        let id = ProxyId::new(metadata.namespace.as_deref()?, name).ok()?;
        let annotations = metadata.annotations.take();
        metadata.labels = None;
        metadata.managed_fields = None;
        let finalizers = metadata.finalizers.take().unwrap_or_default();
        let reading = object.read();
        let deleting = object.is_being_deleted();
        let begun = !deleting && object.status.as_ref().is_some_and(is_making);
        let memory = memory(&id, annotations.as_ref(), &finalizers, begun);
        let metadata = object.metadata;
        Some(Self {
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or(0),
            deleting,
            finalizers,
            memory,
            abandon: annotations
                .as_ref()
                .and_then(|all| all.get(ABANDON_ANNOTATION))
                .is_some_and(|value| value == "true"),
            manifest: reading.value.map(Box::new),
            findings: reading.findings,
            status: object.status.map(Box::new),
            id,
        })
    }

    /// Whether our finalizer holds it.
    pub fn is_held(&self) -> bool {
        self.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// Whether it may have a machine, is to stay, and nothing of ours holds it.
    pub fn lacks_hold(&self) -> bool {
        let begun = matches!(self.memory, Memory::Record(_) | Memory::Lost);
        begun && !self.deleting && !self.is_held()
    }

    /// Whether nothing keeps it any more, so that the API server is removing it.
    pub fn is_ending(&self) -> bool {
        self.deleting && self.finalizers.is_empty()
    }
}

/// Whether the version `one` is known to be older than `other`. Versions of one resource are
/// decimal numbers that rise (KEP-5504); where they are none, nothing is known.
pub(crate) fn is_older(one: &str, other: &str) -> bool {
    match (one.parse::<u64>(), other.parse::<u64>()) {
        (Ok(one), Ok(other)) => one < other,
        _ => false,
    }
}

/// Whether a status speaks of a machine that may not be there yet: a search by its mark proves
/// nothing then. One that runs is found.
fn is_making(status: &ProxyStatus) -> bool {
    status.machine.is_some() && status.phase != Some(Phase::Running)
}

fn memory(
    id: &ProxyId,
    annotations: Option<&BTreeMap<String, String>>,
    finalizers: &[String],
    begun: bool,
) -> Memory {
    let Some(text) = annotations.and_then(|all| all.get(RECORD_ANNOTATION)) else {
        let held = finalizers.iter().any(|name| name == FINALIZER);
        return if held || begun {
            Memory::Lost
        } else {
            Memory::Nothing
        };
    };
    match layout::decode(id, text.as_bytes()) {
        Ok(stored) => Memory::Record(Box::new(stored)),
        Err(Misfit::OtherProxy(other)) => Memory::Copied(other),
        Err(Misfit::Unreadable(why)) => Memory::Unreadable(why),
    }
}
