//! One call of the contract on its way: its deadline, its errors, its mutating requests.

use super::{Proxmox, check::refused_wholly};
use crate::client::{Client, Failure, Kind, Prepared, READ_DEADLINE, Upid, answers::Answered};
use egress_core::{ErrorClass, Handle};
use egress_provider::{Error, Operation, Permit, Result};
use std::{borrow::Cow, time::Duration};
use tokio::time::Instant;

/// How long the reads of one call may take together. A mutating request that was written is
/// waited for beyond that: nobody else learns its outcome.
const CALL_DEADLINE: Duration = Duration::from_mins(1);
/// No read is given less, however fast the world: the way there and back takes time of ours.
const LEAST_DEADLINE: Duration = Duration::from_secs(2);

/// One call. Its target is what its errors name.
pub(super) struct Call<'a> {
    pub(super) provider: &'a Proxmox,
    pub(super) operation: Operation,
    pub(super) target: String,
    deadline: Instant,
}

impl Proxmox {
    pub(super) fn call(&self, operation: Operation, target: impl Into<String>) -> Call<'_> {
        Call {
            provider: self,
            operation,
            target: target.into(),
            deadline: Instant::now() + self.pace.wait(CALL_DEADLINE).max(2 * LEAST_DEADLINE),
        }
    }
}

impl Call<'_> {
    /// An error of this call.
    pub(super) fn error(&self, class: ErrorClass, said: impl Into<String>) -> Error {
        Error::new(class, self.operation, self.target.clone(), said)
    }

    /// A failure of the client as an error of this call.
    pub(super) fn failed(&self, failure: Failure) -> Error {
        let mut said = failure.to_string();
        if let Kind::Forbidden {
            path: Some(path),
            privilege: Some(privilege),
        } = &failure.kind
            && !said.contains(privilege.as_str())
        {
            said = format!("{said}: the token lacks {privilege} on {path}");
        }
        if let Some(remedy) = remedy(&failure) {
            said = format!("{said}: {remedy}");
        }
        if matches!(failure.kind, Kind::UnexpectedAnswer | Kind::Unclassified) {
            tracing::warn!(operation = %self.operation, target = self.target, said, "an answer of Proxmox VE that is not known");
        }
        self.error(failure.class, said)
    }

    /// The client for reads, bounded by what is left of this call's time.
    pub(super) fn reads(&self) -> Client {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let longest = self.provider.pace.wait(READ_DEADLINE).max(LEAST_DEADLINE);
        self.provider.client.within(left.min(longest))
    }

    /// The moment after which this call waits for no read any more.
    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Sends one mutating request. `ask` is asked right before it is written.
    pub(super) async fn send<T: Answered>(
        &self,
        permit: &Permit,
        request: std::result::Result<Prepared<T>, Failure>,
        ask: impl FnOnce() -> Result<()>,
    ) -> Result<std::result::Result<T, Failure>> {
        let request = request.map_err(|failure| self.failed(failure))?;
        permit.ask(self.operation, &self.target)?;
        ask()?;
        Ok(request.write_before(permit.not_after()).send().await)
    }

    /// The same for a request that a proof of ownership allows: `ask` spends it, and answers
    /// until when it is good. A connection that is ready only then carries nothing.
    pub(super) async fn send_proven<T: Answered>(
        &self,
        permit: &Permit,
        request: std::result::Result<Prepared<T>, Failure>,
        ask: impl FnOnce() -> Result<Instant>,
    ) -> Result<std::result::Result<T, Failure>> {
        let request = request.map_err(|failure| self.failed(failure))?;
        permit.ask(self.operation, &self.target)?;
        let last = ask()?.min(permit.not_after());
        Ok(request.write_before(last).send().await)
    }
}

/// A task as it stands in a claim.
pub(super) fn handle(step: &str, upid: &Upid) -> Handle {
    Handle {
        step: step.to_owned(),
        id: upid.to_string(),
    }
}

/// What a person can do about a failure whose text does not say so.
pub(super) fn remedy(failure: &Failure) -> Option<Cow<'static, str>> {
    if failure.kind == Kind::StorageUnavailable {
        return Some("`pvesm status` on the node shows it: bring it back, or enable it".into());
    }
    if let Kind::Forbidden {
        privilege: Some(_), ..
    } = &failure.kind
    {
        return Some("grant the token that privilege on that path".into());
    }
    let of_the_host = refused_wholly(&failure.kind).map(|(_, remedy)| remedy.into());
    of_the_host.or_else(|| lock_remedy(failure).map(Into::into))
}

/// What a person can do where the lock on a file is not given back.
fn lock_remedy(failure: &Failure) -> Option<String> {
    let held = failure.kind == Kind::LockTimeout;
    let file = held.then(|| lock_file(&failure.said)).flatten()?;
    Some(format!(
        "something else works there; if this stays, `fuser -v {file}` as root on the node shows which process holds the lock, and one that hangs has to be ended"
    ))
}

/// The file of a lock that could not be had, where the text names one by its path.
fn lock_file(said: &str) -> Option<&str> {
    let (_, from) = said.split_once("'/")?;
    let (path, _) = from.split_once('\'')?;
    let start = said.len() - from.len() - 1;
    said.get(start..=start + path.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::CertificateTrouble;

    #[test]
    fn a_certificate_that_expired_is_to_be_renewed_and_no_other_authority_named() {
        let remedy = |trouble| {
            let kind = Kind::CertificateInvalid(Box::new(trouble));
            refused_wholly(&kind).unwrap().1
        };
        let expired = remedy(CertificateTrouble::Expired { not_after: None });
        assert!(expired.starts_with("renew it"), "{expired}");
        let unknown = remedy(CertificateTrouble::UnknownCa);
        assert!(unknown.contains("`caFile`"), "{unknown}");
    }

    #[test]
    fn a_lock_file_is_read_from_the_text_that_names_it() {
        for (said, file) in [
            (
                "can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout",
                Some("/var/lock/qemu-server/lock-9000.conf"),
            ),
            ("can't acquire lock 'storage-local' - got timeout", None),
            ("got lock request timeout", None),
        ] {
            assert_eq!(lock_file(said), file);
        }
    }
}
