//! `check`: what stands in the way of making machines, each with a remedy. Pure but for its
//! survey.

mod findings;
mod privileges;

pub(super) use privileges::{needed_privileges, uses_vnet};

use super::{
    Proxmox,
    call::Call,
    names,
    shared::OTHER_CLUSTER,
    survey::{NoSurvey, Survey},
};
use crate::{
    client::{CertificateTrouble, Failure, Kind, NodeName, Vmid},
    config::Config,
};
use egress_core::ErrorClass;
use egress_provider::{CheckFinding, CheckReason, Error, Operation, Report, Result, Severity};
use findings::{Findings, fault};

impl Proxmox {
    pub(super) async fn check_all(&self) -> Result<Report> {
        let call = self.call(Operation::Check, self.name.as_str());
        let mut report = Report::default();
        match call.survey(true).await {
            Ok(survey) => {
                call.look_for_all_remains().await;
                report.version = Some(survey.version.text.clone());
                report.findings = self.findings(&survey, None);
                report.free_slots = Some(free_vmids(&self.config, &survey));
            }
            Err(NoSurvey::Failed(failure)) => {
                report.findings.push(of_failure(&failure));
                // The token is read first, and what is wrong with it hides the other file.
                let unread = (failure.kind == Kind::TokenUnusable)
                    .then(|| self.client.ca_trouble())
                    .flatten();
                report.findings.extend(unread.map(ca_unusable));
            }
            Err(NoSurvey::Error(error)) => report.findings.push(of_error(&error)),
        }
        Ok(report)
    }

    /// All findings; with a node, only what matters to a machine there.
    pub(super) fn findings(&self, survey: &Survey, node: Option<&NodeName>) -> Vec<CheckFinding> {
        let mut findings = Findings::default();
        let config = &self.config;
        findings.version(survey);
        findings.cluster(survey);
        findings.privileges(config, survey);
        findings.unlisted(config, survey);
        findings.templates(config, survey, node);
        findings.storages(config, survey, node);
        findings.network(config, survey, node);
        findings.pool_and_range(config, survey);
        findings.memory(config, survey);
        findings.tags(
            survey,
            &names::installation_tag(&self.identity.installation),
        );
        findings.payload(config, self.payload.is_there());
        let hints = self.hints();
        for ((_, vmid), remains) in &hints.left_behind {
            // Whoever has the VMID now has disks of such names, and they are not to be removed.
            if survey.snapshot.guests.contains_key(vmid) {
                continue;
            }
            findings.warn(
                CheckReason::StorageUnavailable,
                format!(
                    "left behind when machine {vmid} was destroyed: {}",
                    remains.told()
                ),
                "remove it with `pvesm free`, or grant Datastore.Allocate on its storage",
            );
        }
        drop(hints);
        // What stands in the way first.
        findings
            .0
            .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings.0
    }
}

impl Call<'_> {
    /// A survey's first error as this call's own.
    pub(super) fn refuse_on(&self, findings: &[CheckFinding]) -> Result<()> {
        let first = findings.iter().find(|f| f.severity == Severity::Error);
        first.map_or(Ok(()), |finding| {
            let said = format!("{}: {}", finding.found, finding.remedy);
            Err(self.error(class_of(finding.reason), said))
        })
    }

    pub(super) fn no_survey(&self, why: NoSurvey) -> Error {
        match why {
            NoSurvey::Failed(failure) => self.failed(failure),
            NoSurvey::Error(error) => error,
        }
    }
}

/// What a caller of `create` may do about a finding.
const fn class_of(reason: CheckReason) -> ErrorClass {
    match reason {
        CheckReason::MissingPrivileges
        | CheckReason::Unauthorized
        | CheckReason::VisibilityLimited
        | CheckReason::TagNotAllowed => ErrorClass::Unauthorized,
        CheckReason::TemplateInvalid
        | CheckReason::NetworkInvalid
        | CheckReason::PoolInvalid
        | CheckReason::RangeInvalid
        | CheckReason::NodeInvalid
        | CheckReason::VersionUnsupported
        | CheckReason::DomainTypeInvalid
        | CheckReason::CertificateInvalid
        | CheckReason::ConfigInvalid => ErrorClass::Permanent,
        CheckReason::ClusterChanged => ErrorClass::NeedsOperator,
        CheckReason::LowCapacity => ErrorClass::Capacity,
        CheckReason::Ready
        | CheckReason::Unreachable
        | CheckReason::StorageUnavailable
        | CheckReason::ClockSkewed
        | CheckReason::NoQuorum => ErrorClass::Transient,
    }
}

/// What a person can do where the host refuses us as a whole, whatever was asked.
pub(super) fn refused_wholly(kind: &Kind) -> Option<(CheckReason, &'static str)> {
    match kind {
        Kind::CertificateInvalid(trouble)
            if matches!(**trouble, CertificateTrouble::Expired { .. }) =>
        {
            Some((
                CheckReason::CertificateInvalid,
                "renew it on the host: `pvecm updatecerts --force`, or order it anew where it is of another authority",
            ))
        }
        Kind::CertificateInvalid(_) | Kind::CaUnusable => Some((
            CheckReason::CertificateInvalid,
            "give in `caFile` the authority that signed the host's certificate, and in `urls` a name that it holds",
        )),
        Kind::Unauthenticated | Kind::TokenUnusable => Some((
            CheckReason::Unauthorized,
            "write `user@realm!id=secret` of a living token into `tokenFile`",
        )),
        _ => None,
    }
}

/// The VMIDs of the range that no guest is seen to have.
fn free_vmids(config: &Config, survey: &Survey) -> u64 {
    let guests = survey.snapshot.guests.keys();
    let used = guests.filter(|vmid| config.vmid_range.contains(vmid.get()));
    let used = used.count() as u64;
    config.vmid_range.count().saturating_sub(used)
}

fn of_failure(failure: &Failure) -> CheckFinding {
    let (reason, remedy) = match &failure.kind {
        Kind::Forbidden { .. } => (
            CheckReason::MissingPrivileges,
            "grant the token that privilege on that path",
        ),
        kind => refused_wholly(kind).unwrap_or((
            CheckReason::Unreachable,
            "see that the API servers in `urls` run and can be reached from here",
        )),
    };
    // What was asked is of no use to people.
    let found = match failure.status {
        Some(status) => format!("{status} {}", failure.said),
        None => failure.said.clone(),
    };
    fault(reason, found, remedy)
}

fn ca_unusable(why: String) -> CheckFinding {
    fault(
        CheckReason::CertificateInvalid,
        why,
        "give in `caFile` the authority that signed the host's certificate",
    )
}

fn of_error(error: &Error) -> CheckFinding {
    let (reason, remedy) = match error.class() {
        ErrorClass::NeedsOperator => (CheckReason::ClusterChanged, OTHER_CLUSTER),
        ErrorClass::Unauthorized => (
            CheckReason::Unauthorized,
            "mend the token in `tokenFile` or its privileges",
        ),
        ErrorClass::Permanent => (CheckReason::CertificateInvalid, "mend `caFile` and `urls`"),
        _ => (
            CheckReason::Unreachable,
            "see that the API servers in `urls` run and can be reached from here",
        ),
    };
    let found = error.said().trim_end_matches(remedy);
    fault(reason, found.trim_end_matches(": ").to_owned(), remedy)
}

/// The bytes of a storage that stay free.
pub(super) fn reserved(config: &Config, total: u64) -> u64 {
    total / 100 * u64::from(config.reserve.storage_percent)
}

/// Whether a template is shown as one, for `list`'s proof that the token sees machines.
pub(super) fn sees_template(config: &Config, snapshot: &super::shared::Snapshot) -> bool {
    let mut vmids = config.template_vmids().into_iter().filter_map(Vmid::new);
    vmids.any(|vmid| snapshot.guests.contains_key(&vmid))
}
