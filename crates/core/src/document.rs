//! Reads what a person wrote into a type, and tells every fault at once.
//!
//! `serde` stops at the first fault. So a document is kept as a tree of our own; each fault
//! is reported with its path, the field at fault is taken out (a missing one is filled in),
//! and the tree is read again, until it parses or nothing can be taken out any more.
//!
//! - Strict: no text becomes a number, no list becomes a struct, unknown fields of a type
//!   with `deny_unknown_fields` are faults.
//! - A field of a struct that is written without a value (`machine:`) counts as not written,
//!   as it does in Kubernetes.
//! - Enums are externally tagged (`auth: {generated: {}}`), exactly one variant at a time.
//! - A `flatten`ed or internally tagged type hides the paths within it: avoid both.
//! - An error made by `serde::de::Error::custom` of the form `what is wrong: what to do` is
//!   split there.

mod fault;
mod filling;
mod node;
#[cfg(test)]
mod tests;

use crate::finding::Finding;
use fault::{Fault, Segment};
use node::Node;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most faults told of one document; the rest waits until these are corrected.
pub const MAX_FINDINGS: usize = 100;

/// What could be read of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading<T> {
    /// The value, with every field at fault replaced by its default or something empty;
    /// `None` where that was not possible. Never use it while there are findings, except
    /// to look for more of them.
    pub value: Option<T>,
    /// Every fault, in the order met.
    pub findings: Vec<Finding>,
}

impl<T> Reading<T> {
    /// Adds what `validate` finds in the value, without what it finds in fields that are
    /// already reported.
    #[must_use]
    pub fn checked(mut self, validate: impl FnOnce(&T) -> Vec<Finding>) -> Self {
        let more = self.value.as_ref().map(validate).unwrap_or_default();
        add_unreported(&mut self.findings, more);
        self
    }

    /// The value if it is free of faults, else all of them (never an empty list).
    pub fn into_result(self) -> Result<T, Vec<Finding>> {
        match self.value {
            Some(value) if self.findings.is_empty() => Ok(value),
            _ => Err(self.findings),
        }
    }
}

/// Adds findings, without those in fields that are reported already, and without those of
/// lists that lack an element only because it is reported.
pub fn add_unreported(findings: &mut Vec<Finding>, more: impl IntoIterator<Item = Finding>) {
    let told = findings.len();
    for finding in more {
        if !findings[..told]
            .iter()
            .any(|known| finding.is_within(&known.path) || known.is_element_of(&finding.path))
        {
            findings.push(finding);
        }
    }
}

/// Reads a document into a type; every structural fault becomes a finding.
pub fn read_document<T: DeserializeOwned>(document: Value) -> Reading<T> {
    let mut root = Node::from(document);
    let mut findings = Vec::new();
    // Each round but the last takes something out or fills something in; the number of
    // rounds is bounded all the same, so that no type's own Deserialize can hang us.
    for _ in 0..12 * MAX_FINDINGS {
        let fault = match T::deserialize(&root) {
            Ok(value) => {
                return Reading {
                    value: Some(value),
                    findings,
                };
            }
            Err(fault) => fault,
        };
        if findings.len() == MAX_FINDINGS {
            findings.push(too_many());
            return Reading {
                value: None,
                findings,
            };
        }
        if !root.repair(fault, &mut findings) {
            break;
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new(
            "",
            root.written(),
            "cannot be read",
            "compare it with the documentation",
        ));
    }
    Reading {
        value: None,
        findings,
    }
}

fn too_many() -> Finding {
    Finding::new(
        "",
        format!("{MAX_FINDINGS} faults"),
        "there may be more",
        "correct these first",
    )
}

impl Node {
    /// Reports a fault, unless it only follows from an earlier one, and changes the tree so
    /// that it does not come up again. `false` when that is not possible.
    fn repair(&mut self, fault: Fault, findings: &mut Vec<Finding>) -> bool {
        let path = fault.path();
        if let Some(field) = fault.missing_field() {
            let Some(Self::Map(entries)) = self.at(&path) else {
                return self.give_up(&path);
            };
            if let Some((_, entry)) = entries.iter_mut().find(|(key, _)| key == field) {
                match entry {
                    // Reported before it was taken out.
                    Self::Removed => {}
                    Self::Null => findings.push(fault.finding(&path, None)),
                    _ => return self.give_up(&path),
                }
                *entry = Self::Filler(0);
                return true;
            }
            entries.push((field.to_owned(), Self::Filler(0)));
            findings.push(fault.finding(&path, None));
            return true;
        }
        let Some(node) = self.at(&path) else {
            return self.give_up(&path);
        };
        if node.fill_otherwise() {
            return true;
        }
        if matches!(node, Self::Filler(_)) {
            return self.give_up(&path);
        }
        findings.push(fault.finding(&path, Some(node)));
        match fault.unknown_field().and_then(|field| node.entry(field)) {
            Some(entry) => *entry = Self::Removed,
            None if path.is_empty() => return false,
            None => *node = Self::Removed,
        }
        true
    }

    /// Takes out the innermost written container on the way to `path`, whose fillings the
    /// type did not take. `false` at the root.
    fn give_up(&mut self, path: &[Segment]) -> bool {
        for length in (1..path.len()).rev() {
            if let Some(node) = self.at(&path[..length])
                && !matches!(node, Self::Filler(_) | Self::Removed)
            {
                *node = Self::Removed;
                return true;
            }
        }
        false
    }
}
