//! Names that can only be right: parsed once at the edge, never checked again.

use super::MachineKey;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A text that is not a legal name, with the rule it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a valid {what}: {rule}")]
pub struct InvalidName {
    /// Which kind of name was asked for.
    pub what: &'static str,
    /// The text that was given.
    pub value: String,
    /// The rule, in words that a person can follow.
    pub rule: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);
        impl $name {
            /// Wraps a text that its owner alone gives a meaning to.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// The place of a machine in its provider's words, opaque to everyone else
    /// (Proxmox: the VMID; libvirt: the domain UUID; local: a directory).
    Slot
);
text_id!(
    /// The hypervisor host a machine lives on, where the provider knows one.
    Host
);
text_id!(
    /// What identifies the hypervisor cluster itself, so that a provider block pointed
    /// at another cluster is noticed (`ClusterChanged`).
    ClusterId
);
text_id!(
    /// Which state directory wrote a mark (standalone only; empty elsewhere).
    WriterId
);

/// A DNS label as Kubernetes takes it (RFC 1123): 1 to 63 of `a-z 0-9 -`, no hyphen at either end.
fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// A DNS subdomain as Kubernetes takes it, which does not bound its parts.
fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

/// One or more of `a-z 0-9 -`, no hyphen at either end.
fn is_part(text: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(may_stand) && text.trim_matches('-') == text
}

const LABEL_RULE: &str = "use 1 to 63 of a-z, 0-9 and '-', not beginning or ending with '-'";
const SUBDOMAIN_RULE: &str = "use parts of a-z, 0-9 and '-' joined by '.', none beginning or ending with '-', 253 characters at most";

macro_rules! label_name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                if is_dns_label(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(InvalidName { what: $what, value: text.to_owned(), rule: LABEL_RULE })
                }
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

label_name!(
    /// One configured provider, by the name its user gave it.
    ProviderName,
    "provider name"
);
label_name!(
    /// One deployment of the product. Two installations on one hypervisor never act on
    /// each other's machines.
    Installation,
    "installation"
);

/// A Proxy by namespace and name, both as Kubernetes takes them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProxyId {
    namespace: String,
    name: String,
}

impl ProxyId {
    /// What stands for the Proxy of a machine where nothing tells it any more.
    pub fn unknown(key: &MachineKey) -> Self {
        Self {
            namespace: "unknown".to_owned(),
            name: key.name().to_owned(),
        }
    }
    /// Takes a namespace (DNS label) and a name (DNS subdomain, at most 253 characters).
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        if !is_dns_label(namespace) {
            return Err(InvalidName {
                what: "namespace",
                value: namespace.to_owned(),
                rule: LABEL_RULE,
            });
        }
        if !is_dns_subdomain(name) {
            return Err(InvalidName {
                what: "name",
                value: name.to_owned(),
                rule: SUBDOMAIN_RULE,
            });
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
    /// The name within the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ProxyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ProxyId {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (namespace, name) = text.split_once('/').ok_or_else(|| InvalidName {
            what: "Proxy",
            value: text.to_owned(),
            rule: "write namespace/name",
        })?;
        Self::new(namespace, name)
    }
}

impl TryFrom<String> for ProxyId {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<ProxyId> for String {
    fn from(id: ProxyId) -> Self {
        id.to_string()
    }
}
