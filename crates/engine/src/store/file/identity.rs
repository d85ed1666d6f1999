//! Whose state directory it is.

use super::{OpenError, disk};
use egress_core::{Installation, WriterId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{fs, io, path::Path};

const SCHEMA: u32 = 1;

/// The content of `identity.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredIdentity {
    pub(super) schema: u32,
    pub(super) installation: Installation,
    pub(super) host: String,
    pub(super) writer: WriterId,
}

impl StoredIdentity {
    /// One with a writer id that no mark bears yet.
    pub(super) fn new(installation: &Installation, host: &str) -> Self {
        Self {
            schema: SCHEMA,
            installation: installation.clone(),
            host: host.to_owned(),
            writer: WriterId::new(uuid::Uuid::new_v4().to_string()),
        }
    }

    /// What the file says; `None` where there is none.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, OpenError> {
        let Some(bytes) = disk::read(path)? else {
            return Ok(None);
        };
        let unreadable = |why: String| OpenError::IdentityUnreadable {
            path: path.into(),
            why,
        };
        let schema = super::schema_of(&bytes).map_err(unreadable)?;
        if schema != SCHEMA {
            return Err(unreadable(format!(
                "its layout is {schema}, known here is {SCHEMA}"
            )));
        }
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| unreadable(error.to_string()))
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("plain fields are always JSON");
        bytes.push(b'\n');
        bytes
    }
}

/// What tells this host from others, the same after a reboot: a hash of the machine id (which
/// itself is not to be handed around, machine-id(5)), or of the host name where there is none.
pub fn host_id() -> io::Result<String> {
    for path in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        match fs::read_to_string(path) {
            // `uninitialized` is what an image holds until its first boot.
            Ok(text) if text.trim().len() >= 32 => return Ok(hashed("machine-id", text.trim())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hashed(
        "hostname",
        &rustix::system::uname().nodename().to_string_lossy(),
    ))
}

fn hashed(kind: &str, text: &str) -> String {
    let digest = Sha256::digest(format!("egress-proxies/v1 {kind} {text}"));
    data_encoding::HEXLOWER.encode(&digest[..16])
}
