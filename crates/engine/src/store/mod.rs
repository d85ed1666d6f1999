//! Where records are kept, under a version check.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod file;
pub mod layout;
pub mod memory;

use egress_core::{ProxyId, Record};
use std::{fmt, time::Duration};

/// The version of a stored record, opaque to everyone but its store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub String);

/// A record with the version it was read at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: Record,
    /// Its version.
    pub version: Version,
}

/// What went wrong, by what it means for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// Someone else wrote since the version that was given: look again.
    Conflict,
    /// The record is there and cannot be read; it was left as it is.
    Corrupt,
    /// The record was taken away, and what was asked for in its name may come for so long.
    Settling(Duration),
    /// The store cannot be reached, read or written now; nothing was changed.
    Unavailable,
    /// The write may have had its effect.
    OutcomeUnknown,
    /// The store is no longer ours: taken over, removed, or its lock was lost.
    Lost,
}

/// An error of a store; its text names the record or file and what to do.
#[derive(Debug)]
pub struct StoreError {
    /// What it means for the record.
    pub kind: StoreErrorKind,
    /// What was being done, to which file or record, and the remedy.
    pub text: String,
    /// The error that caused it.
    pub source: Option<std::io::Error>,
}

impl StoreError {
    /// The text with its cause, for a log line or a status.
    pub fn chain(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {source}", self.text),
            None => self.text.clone(),
        }
    }

    /// The record changed, came or went since the version that the caller has.
    pub fn conflict(id: &ProxyId) -> Self {
        Self {
            kind: StoreErrorKind::Conflict,
            text: format!("the record of {id} is not at the expected version"),
            source: None,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_ref()
            .map(|e| e as &(dyn std::error::Error + 'static))
    }
}

/// Memory that outlives the process. One record a Proxy; its existence is the finalizer.
///
/// - A save names the version it was made from (`None`: there was no record) and fails with
///   `Conflict` when that is not the present one; then nothing was changed.
/// - A save that returned `Ok` survives a crash at any moment after; one cut off at any byte
///   leaves the old record or the new one, never a mixture.
/// - A record that cannot be read is an error that names it; it is never overwritten.
/// - A version is never used twice, not even after a removal: an old one stays wrong.
/// - After `OutcomeUnknown` the next load answers only with what a crash would also leave.
/// - A call that is dropped has happened fully, will happen fully, or never happens; calls
///   for the same record that come after it see which.
#[async_trait::async_trait]
pub trait Store: Send + Sync {
    /// The record of a Proxy, if it has one.
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError>;
    /// Writes a record; answers with its new version.
    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError>;
    /// Removes a record: releases the finalizer. Of a record that is gone: `Conflict`.
    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError>;
    /// Every record, each with its own result: one that cannot be read hides no other.
    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError>;
}
