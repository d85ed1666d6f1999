//! The names that stand in paths and parameters, parsed once.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::{fmt, str::FromStr};

/// The id of a guest, cluster-wide: 100 to 999 999 999 (§5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vmid(u32);

impl Vmid {
    /// The lowest id.
    pub const MIN: u32 = 100;
    /// The highest id.
    pub const MAX: u32 = 999_999_999;
    /// The id, when it is within bounds.
    pub const fn new(id: u32) -> Option<Self> {
        if id >= Self::MIN && id <= Self::MAX {
            Some(Self(id))
        } else {
            None
        }
    }
    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vmid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Vmid {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        text.parse().ok().and_then(Self::new).ok_or(BadId {
            what: "VMID",
            text: text.to_owned(),
        })
    }
}

/// The name of a cluster node: letters, digits and dashes (§4.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let fits = !text.is_empty()
            && text.len() <= 63
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadId {
                what: "node name",
                text: text.to_owned(),
            })
        }
    }
}

/// A text that is not the id it stands for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}")]
pub struct BadId {
    /// Which kind of id was expected.
    pub what: &'static str,
    /// What stood there.
    pub text: String,
}

/// Everything but the unreserved characters of RFC 3986 is encoded: a form of Proxmox VE
/// also splits at `;`, and cuts a value at a second `=` (§1.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A path segment, a query value or a form value, percent-encoded.
pub(crate) fn encoded(text: &str) -> impl fmt::Display + '_ {
    utf8_percent_encode(text, ENCODED)
}
