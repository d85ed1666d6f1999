//! How a record's file is called.
//!
//! Namespaces and names are DNS labels and subdomains by their type: no slash, no leading
//! dot, lower case only. So they can stand in a path as they are, and no two of them meet
//! on a file system that ignores case.

use egress_core::ProxyId;
use std::path::{Path, PathBuf};

/// A file name holds 255 bytes at most, a name 253: the longest ones get a shorter ending.
const LONGEST: usize = 250;
const ENDING: &str = ".json";
const SHORT_ENDING: &str = ".j";

/// The file of a record or credential below its directory.
pub(super) fn json_path(root: &Path, id: &ProxyId) -> PathBuf {
    let ending = if id.name().len() > LONGEST {
        SHORT_ENDING
    } else {
        ENDING
    };
    root.join(id.namespace())
        .join(format!("{}{ending}", id.name()))
}

/// The file of an incarnation number below its directory.
pub(super) fn plain_path(root: &Path, id: &ProxyId) -> PathBuf {
    root.join(id.namespace()).join(id.name())
}

/// Whose record a file holds, by its name; `None` for a file that is none of ours.
pub(super) fn owner(namespace: &str, file: &str) -> Option<ProxyId> {
    let id = match (file.strip_suffix(ENDING), file.strip_suffix(SHORT_ENDING)) {
        (Some(name), _) if name.len() <= LONGEST => ProxyId::new(namespace, name),
        (None, Some(name)) if name.len() > LONGEST => ProxyId::new(namespace, name),
        _ => return None,
    };
    id.ok()
}
