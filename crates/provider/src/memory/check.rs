//! `check`: whether machines can be made here.

use super::{Memory, state::Network};
use crate::{CheckFinding, CheckReason, Operation, Report, Result, Severity};

impl Memory {
    pub(super) async fn check_world(&self) -> Result<Report> {
        let mut report = Report::default();
        let mut find = |reason, severity, found: String, remedy: &str| {
            report.findings.push(CheckFinding {
                reason,
                severity,
                found,
                remedy: remedy.to_owned(),
            });
        };
        if self.settings.range.is_empty() {
            find(
                CheckReason::RangeInvalid,
                Severity::Error,
                format!(
                    "the range {}-{} holds no slot",
                    self.settings.range.start(),
                    self.settings.range.end()
                ),
                "begin the range at or below its end",
            );
        }
        let call = self.call(Operation::Check, self.name.as_str());
        let (network, refused, faults, cluster) = {
            let state = self.world.state();
            let refused = state.credential.file != state.credential.accepted;
            (
                state.faults.network,
                refused,
                state.faults.clone(),
                state.cluster.clone(),
            )
        };
        if network == Network::Silent {
            // The answer that never comes ends with the call's deadline.
            drop(call.read(|_, _| ()).await);
        }
        if network != Network::Up {
            find(
                CheckReason::Unreachable,
                Severity::Error,
                "no answer".to_owned(),
                "check that the hypervisor runs and can be reached from here",
            );
            return Ok(report);
        }
        if refused {
            find(
                CheckReason::Unauthorized,
                Severity::Error,
                "the credential is refused".to_owned(),
                "write a valid credential to the configured file",
            );
            return Ok(report);
        }
        report.version = Some("memory 1".to_owned());
        let mut find = |reason, severity, found: String, remedy: &str| {
            report.findings.push(CheckFinding {
                reason,
                severity,
                found,
                remedy: remedy.to_owned(),
            });
        };
        if cluster != self.cluster {
            find(
                CheckReason::ClusterChanged,
                Severity::Error,
                format!("cluster {cluster} answers, not {}", self.cluster),
                "point the provider at its cluster again, or configure a new provider",
            );
        }
        for kind in &faults.denied {
            find(
                CheckReason::MissingPrivileges,
                Severity::Error,
                format!("the privilege to {kind} is missing"),
                "grant the privilege to the credential",
            );
        }
        if faults.no_template {
            find(
                CheckReason::TemplateInvalid,
                Severity::Error,
                "the template does not exist".to_owned(),
                "make the template, or configure another one",
            );
        }
        if faults.no_quorum {
            find(
                CheckReason::NoQuorum,
                Severity::Error,
                "the cluster has no quorum".to_owned(),
                "bring the missing hosts back",
            );
        }
        if faults.partial {
            find(
                CheckReason::VisibilityLimited,
                Severity::Error,
                "only a part of the machines is shown".to_owned(),
                "let the credential see all machines",
            );
        }
        for host in &faults.hosts_down {
            find(
                CheckReason::NodeInvalid,
                Severity::Error,
                format!("{} does not answer", self.world.host(*host)),
                "bring the host back",
            );
        }
        if faults.full {
            find(
                CheckReason::LowCapacity,
                Severity::Warning,
                "no room for another machine".to_owned(),
                "remove machines or add storage and memory",
            );
        }
        Ok(report)
    }
}
