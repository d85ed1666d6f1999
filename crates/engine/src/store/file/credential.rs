//! Generated credentials: one file each, readable by the engine's user alone.

use super::{
    FileStore,
    disk::{self, Readers},
    names, schema_of,
};
use crate::{
    Credential,
    store::{StoreError, StoreErrorKind},
};
use egress_core::{ProxyId, proxy_config::GENERATED_USER};
use secrecy::{ExposeSecret, zeroize::Zeroizing};
use serde::{Deserialize, Serialize};
use std::path::Path;

const SCHEMA: u32 = 1;

impl Credential {
    /// A new one with 128 random bits, as 26 characters that need no quoting anywhere.
    /// Fails only where the kernel gives no random bytes.
    pub fn generate(generation: u32) -> Result<Self, getrandom::Error> {
        let mut bits = Zeroizing::new([0; 16]);
        getrandom::fill(bits.as_mut())?;
        let mut text = data_encoding::BASE32_NOPAD.encode(bits.as_ref());
        text.make_ascii_lowercase();
        Ok(Self {
            user: GENERATED_USER.to_owned(),
            password: text.into(),
            generation,
        })
    }
}

/// The credentials of a state directory. They are written as records are: whole or not at
/// all. Removing a record leaves them; they go with [`remove`](Self::remove).
#[derive(Clone)]
pub struct Credentials {
    pub(super) store: FileStore,
}

#[derive(Serialize)]
struct Written<'a> {
    schema: u32,
    proxy: &'a ProxyId,
    user: &'a str,
    password: &'a str,
    generation: u32,
}

#[derive(Deserialize)]
struct Read {
    proxy: ProxyId,
    user: String,
    password: String,
    generation: u32,
}

impl Credentials {
    /// The credential of a Proxy, if there is one; read from disk each time.
    pub async fn load(&self, id: &ProxyId) -> Result<Option<Credential>, StoreError> {
        let owner = id.clone();
        self.store
            .on_disk(id, move |directory| {
                let path = names::json_path(&directory.credentials, &owner);
                let bytes = disk::read(&path)?.map(Zeroizing::new);
                bytes.map(|bytes| decode(&owner, &path, &bytes)).transpose()
            })
            .await
    }

    /// Puts a credential in place of the one before. One that cannot be read is not
    /// overwritten: `Corrupt`.
    pub async fn save(&self, id: &ProxyId, credential: &Credential) -> Result<(), StoreError> {
        let (owner, credential) = (id.clone(), credential.clone());
        self.store
            .on_disk(id, move |directory| {
                let path = names::json_path(&directory.credentials, &owner);
                if let Some(present) = disk::read(&path)?.map(Zeroizing::new) {
                    decode(&owner, &path, &present)?;
                }
                // With room for all of it: a buffer that grows leaves copies behind.
                let mut bytes = Zeroizing::new(Vec::with_capacity(4096));
                let written = Written {
                    schema: SCHEMA,
                    proxy: &owner,
                    user: &credential.user,
                    password: credential.password.expose_secret(),
                    generation: credential.generation,
                };
                serde_json::to_writer(&mut *bytes, &written).expect("plain fields are always JSON");
                directory.disk.write(&path, Readers::Owner, &bytes)
            })
            .await
    }

    /// Removes the credential of a Proxy, also one that cannot be read; none is fine.
    pub async fn remove(&self, id: &ProxyId) -> Result<(), StoreError> {
        let owner = id.clone();
        self.store
            .on_disk(id, move |directory| {
                let path = names::json_path(&directory.credentials, &owner);
                directory.disk.remove(&path, &directory.credentials)
            })
            .await
    }
}

/// The reasons name no content: a parser's message may quote the password.
fn decode(id: &ProxyId, path: &Path, bytes: &[u8]) -> Result<Credential, StoreError> {
    let corrupt = |why: &str| StoreError {
        kind: StoreErrorKind::Corrupt,
        text: format!(
            "{} cannot be read as the credential of {id}: {why}; it was left as it is: restore \
             it, or remove it and rotate the credential",
            path.display()
        ),
        source: None,
    };
    match schema_of(bytes) {
        Ok(SCHEMA) => {}
        Ok(_) => return Err(corrupt("its layout is not known here")),
        Err(_) => return Err(corrupt("it is not one JSON object with a schema")),
    }
    let read: Read =
        serde_json::from_slice(bytes).map_err(|_| corrupt("a field is missing or wrong"))?;
    if read.proxy != *id {
        return Err(corrupt("it is another proxy's"));
    }
    Ok(Credential {
        user: read.user,
        password: read.password.into(),
        generation: read.generation,
    })
}
