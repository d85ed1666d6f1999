//! Files of several YAML documents: Proxies, and the Secrets and ConfigMaps they refer to.

mod objects;
#[cfg(test)]
mod tests;

pub use objects::{BasicCredentials, ConfigMap, Secret};

use crate::{
    v1alpha1::{API_VERSION, PROXY_KIND, Proxy},
    yaml::{self, Position},
};
use egress_core::finding::{Finding, shortened};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

/// What can stand in a manifest file, as messages name it.
pub const SUPPORTED: [&str; 3] = [
    "egress-proxies.io/v1alpha1 Proxy",
    "v1 Secret",
    "v1 ConfigMap",
];

/// A kind that can stand in a manifest file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `egress-proxies.io/v1alpha1 Proxy`.
    Proxy,
    /// `v1 Secret`.
    Secret,
    /// `v1 ConfigMap`.
    ConfigMap,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proxy => "Proxy",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        })
    }
}

/// Which object a document is about, as far as its author got that right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The kind.
    pub kind: Kind,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A document without faults.
#[derive(Clone, Debug)]
pub enum Document {
    /// A Proxy that validates.
    Proxy(Box<Proxy>),
    /// A Secret.
    Secret(Secret),
    /// A ConfigMap.
    ConfigMap(ConfigMap),
}

/// One object of a manifest file, sound or not.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where its document stands.
    pub at: Position,
    /// Which object it is about; `None` where even that cannot be read, so that nobody may
    /// conclude from its absence that an object was removed.
    pub id: Option<ObjectId>,
    /// The object, or everything wrong with it.
    pub content: Result<Document, Vec<Finding>>,
    /// What could be read of a Proxy that has faults: only to look for more of them.
    pub partly: Option<Box<Proxy>>,
}

/// The objects of one manifest file.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// In the order written; lists are flattened.
    pub entries: Vec<Entry>,
}

impl Documents {
    /// Whether it is known of every object in the file which one it is.
    pub fn is_complete(&self) -> bool {
        self.entries.iter().all(|entry| entry.id.is_some())
    }
    /// Every fault as a line for people: `file.yaml: document 2: spec.proxy.port: ...`.
    pub fn faults(&self, file: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for entry in &self.entries {
            for finding in entry.content.as_ref().err().into_iter().flatten() {
                lines.push(format!("{file}: {}: {finding}", entry.at));
            }
        }
        lines
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}", self.document)?;
        match self.line {
            0 => Ok(()),
            line => write!(f, " (line {line})"),
        }
    }
}

/// Reads a manifest file. Never fails: what cannot be read is an [`Entry`] with findings.
pub fn documents(text: &str) -> Documents {
    let mut entries = Vec::new();
    for document in yaml::read_all(text) {
        match document.content {
            Ok(value) => read_object(document.at, value, &mut entries),
            Err(finding) => entries.push(Entry {
                at: document.at,
                id: None,
                content: Err(vec![finding]),
                partly: None,
            }),
        }
    }
    Documents { entries }
}

fn read_object(at: Position, mut document: Value, entries: &mut Vec<Entry>) {
    if text_at(&document, "apiVersion") == Some("v1")
        && text_at(&document, "kind") == Some("List")
        && let Some(Value::Array(items)) = document.get_mut("items").map(Value::take)
    {
        for (index, item) in items.into_iter().enumerate() {
            let mut entry = read_entry(at, item);
            if let Err(findings) = &mut entry.content {
                let prefix = format!("items[{index}]");
                *findings = std::mem::take(findings)
                    .into_iter()
                    .map(|f| f.under(&prefix))
                    .collect();
            }
            entries.push(entry);
        }
    } else {
        entries.push(read_entry(at, document));
    }
}

fn read_entry(at: Position, document: Value) -> Entry {
    let kind = match kind_of(&document) {
        Ok(kind) => kind,
        Err(findings) => {
            return Entry {
                at,
                id: None,
                content: Err(findings),
                partly: None,
            };
        }
    };
    let id = id_of(kind, &document);
    let mut partly = None;
    let content = match kind {
        Kind::Proxy => {
            let reading = Proxy::read(document);
            if !reading.findings.is_empty() {
                partly = reading.value.clone().map(Box::new);
            }
            reading.into_result().map(Box::new).map(Document::Proxy)
        }
        Kind::Secret => Secret::read(document).map(Document::Secret),
        Kind::ConfigMap => ConfigMap::read(document).map(Document::ConfigMap),
    };
    Entry {
        at,
        id,
        content,
        partly,
    }
}

fn kind_of(document: &Value) -> Result<Kind, Vec<Finding>> {
    let Some(object) = document.as_object() else {
        let shown = match document {
            Value::Array(items) => format!("(a list of {})", items.len()),
            Value::String(_) => "(a text)".to_owned(),
            other => other.to_string(),
        };
        let remedy = format!("write one of {}", SUPPORTED.join(", "));
        return Err(vec![Finding::new(
            "",
            shown,
            "must be a map of fields",
            remedy,
        )]);
    };
    let mut findings = Vec::new();
    for field in ["apiVersion", "kind"] {
        match object.get(field) {
            None | Some(Value::Null) => {
                let remedy = format!("write one of {}", SUPPORTED.join(", "));
                findings.push(Finding::new(field, "", "is required", remedy));
            }
            Some(Value::String(_)) => {}
            Some(other) => {
                findings.push(Finding::new(
                    field,
                    other,
                    "must be a text",
                    "put it in quotes",
                ));
            }
        }
    }
    let (Some(version), Some(kind)) = (text_at(document, "apiVersion"), text_at(document, "kind"))
    else {
        return Err(findings);
    };
    match (version, kind) {
        (API_VERSION, PROXY_KIND) => Ok(Kind::Proxy),
        ("v1", "Secret") => Ok(Kind::Secret),
        ("v1", "ConfigMap") => Ok(Kind::ConfigMap),
        _ => {
            let supported = SUPPORTED.map(|both| both.split_once(' ').unwrap_or_default());
            // The right kind in a wrong version is a fault of the version, else of the kind.
            let known_kind = supported.iter().find(|(_, known)| *known == kind);
            let (field, value, remedy) = match known_kind {
                Some((version_meant, _)) => (
                    "apiVersion",
                    version,
                    format!("write {version_meant} for a {kind}"),
                ),
                None => (
                    "kind",
                    kind,
                    format!("write one of {}", SUPPORTED.join(", ")),
                ),
            };
            let problem = format!("{version} {kind} is not supported");
            Err(vec![Finding::new(
                field,
                value,
                shortened(&problem),
                remedy,
            )])
        }
    }
}

fn id_of(kind: Kind, document: &Value) -> Option<ObjectId> {
    let metadata = document.get("metadata")?;
    let namespace = match metadata.get("namespace") {
        None | Some(Value::Null) => "default",
        Some(namespace) => namespace.as_str()?,
    };
    Some(ObjectId {
        kind,
        namespace: namespace.to_owned(),
        name: text_at(metadata, "name")
            .filter(|name| !name.is_empty())?
            .to_owned(),
    })
}

fn text_at<'a>(document: &'a Value, field: &str) -> Option<&'a str> {
    document.get(field).and_then(Value::as_str)
}

/// An object that more than one document declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The object.
    pub id: ObjectId,
    /// One of its files.
    pub file: String,
    /// Where in that file.
    pub at: Position,
    /// What to tell about it; names the other place.
    pub finding: Finding,
}

/// Every declaration of an object that is declared more than once, in these files or within
/// one of them: none of them is better than the others.
pub fn duplicates<'a>(files: impl IntoIterator<Item = (&'a str, &'a Documents)>) -> Vec<Duplicate> {
    let mut places: BTreeMap<&ObjectId, Vec<(&str, Position)>> = BTreeMap::new();
    for (file, documents) in files {
        for entry in &documents.entries {
            if let Some(id) = &entry.id {
                places.entry(id).or_default().push((file, entry.at));
            }
        }
    }
    let mut found = Vec::new();
    for (id, places) in places.iter().filter(|(_, places)| places.len() > 1) {
        for (index, (file, at)) in places.iter().enumerate() {
            let (other_file, other_at) = places[usize::from(index == 0)];
            let value = format!("{}/{}", id.namespace, id.name);
            let problem = format!("is also declared in {other_file}, {other_at}");
            found.push(Duplicate {
                id: (*id).clone(),
                file: (*file).to_owned(),
                at: *at,
                finding: Finding::new(
                    "metadata.name",
                    value,
                    problem,
                    "rename or remove one of them",
                ),
            });
        }
    }
    found
}
