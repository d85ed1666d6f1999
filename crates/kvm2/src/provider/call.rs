//! One call of the contract on its way: its errors, its connections, its requests that change
//! something.

use super::{
    Kvm2,
    descriptions::Unreadable,
    hosts::{Host, Trouble},
};
use crate::client::{Failure, Kind, READ_DEADLINE, Session};
use egress_core::{Claim, ClusterId, ErrorClass};
use egress_provider::{Error, Operation, Permit, Progress, Result};
use std::time::Duration;
use tokio::time::Instant;

/// No read is given less, however short waits are: the way there and back takes its time.
const LEAST_DEADLINE: Duration = Duration::from_secs(3);

/// One call. Its target is what its errors name.
pub(super) struct Call<'a> {
    pub(super) provider: &'a Kvm2,
    pub(super) operation: Operation,
    pub(super) target: String,
}

impl Kvm2 {
    pub(super) fn call(&self, operation: Operation, target: impl Into<String>) -> Call<'_> {
        Call {
            provider: self,
            operation,
            target: target.into(),
        }
    }

    fn read_deadline(&self) -> Duration {
        self.pace.wait(READ_DEADLINE).max(LEAST_DEADLINE)
    }
}

impl<'a> Call<'a> {
    /// An error of this call.
    pub(super) fn error(&self, class: ErrorClass, said: impl Into<String>) -> Error {
        Error::new(class, self.operation, self.target.clone(), said)
    }

    /// A failure of the client as an error of this call.
    pub(super) fn failed(&self, failure: Failure) -> Error {
        let said = failure.to_string();
        if matches!(failure.kind, Kind::UnexpectedAnswer | Kind::Unclassified) {
            tracing::warn!(operation = %self.operation, target = self.target, said, "an answer of libvirt that is not known");
        }
        self.error(failure.class, said)
    }

    /// A description that does not read.
    pub(super) fn unreadable(&self, why: &Unreadable) -> Error {
        self.error(ErrorClass::Internal, why.to_string())
    }

    /// Why a host cannot be spoken to.
    pub(super) fn trouble(&self, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Failed(failure) => self.failed(failure),
            Trouble::Changed(said) => self.error(ErrorClass::NeedsOperator, said),
            Trouble::Nameless(said) => self.error(ErrorClass::Internal, said),
        }
    }

    /// The host that a claim was made on, by the UUID that it names.
    pub(super) async fn home(&self, claim: &Claim) -> Result<&'a Host> {
        let hosts = &self.provider.hosts;
        let known = |cluster: &ClusterId| {
            hosts
                .iter()
                .find(|host| host.id().is_some_and(|id| id.cluster == *cluster))
        };
        if let Some(host) = known(&claim.cluster) {
            return Ok(host);
        }
        let mut silent = None;
        for host in hosts.iter().filter(|host| host.id().is_none()) {
            if let Err(trouble) = self.kept(host).await {
                silent.get_or_insert(trouble);
            }
        }
        if let Some(host) = known(&claim.cluster) {
            return Ok(host);
        }
        // It may be the one that did not answer.
        Err(silent.unwrap_or_else(|| {
            let name = claim.host.as_ref().map_or("", |host| host.as_str());
            let said = format!(
                "the record names the host {name} ({}), and none of `hosts` is it: configure it again, or remove the Proxy's record once its machine is gone",
                claim.cluster
            );
            self.error(ErrorClass::NeedsOperator, said)
        }))
    }

    /// The connection to a host that reads share.
    pub(super) async fn kept(&self, host: &Host) -> Result<Session> {
        let session = host.kept(self.provider.read_deadline()).await;
        session.map_err(|trouble| self.trouble(trouble))
    }

    /// A connection to a host for this call alone.
    pub(super) async fn fresh(&self, host: &Host) -> Result<Session> {
        let session = host.fresh(self.provider.read_deadline()).await;
        session.map_err(|trouble| self.trouble(trouble))
    }

    /// Asks the permit right before a request is written, and says until when it may be.
    pub(super) fn may(&self, permit: &Permit) -> Result<Instant> {
        permit.ask(self.operation, &self.target)?;
        Ok(permit.not_after())
    }

    /// The same for something beside the machine.
    pub(super) fn may_leave(&self, permit: &Permit) -> Result<Instant> {
        permit.ask_leaving(self.operation, &self.target)?;
        Ok(permit.not_after())
    }

    pub(super) fn in_progress(&self, step: &str, recheck: Duration) -> Progress {
        Progress::InProgress {
            step: step.to_owned(),
            handles: Vec::new(),
            recheck: self.provider.pace.wait(recheck),
        }
    }
}
