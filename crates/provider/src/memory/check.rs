//! `check`: whether machines can be made here.

use super::{
    Memory,
    state::{Faults, Network},
};
use crate::{CheckFinding, CheckReason, Operation, Report, Result, Severity};
use egress_core::ClusterId;

impl Memory {
    pub(super) async fn check_world(&self) -> Result<Report> {
        let mut report = Report::default();
        if self.settings.range.is_empty() {
            let (first, last) = (self.settings.range.start(), self.settings.range.end());
            report.findings.push(error(
                CheckReason::RangeInvalid,
                format!("the range {first}-{last} holds no slot"),
                "begin the range at or below its end",
            ));
        }
        let (faults, cluster, refused) = {
            let state = self.world.state();
            let refused = state.credential.file != state.credential.accepted;
            (state.faults.clone(), state.cluster.clone(), refused)
        };
        if faults.network == Network::Silent {
            // The answer that never comes ends with the call's deadline.
            let call = self.call(Operation::Check, self.name.as_str());
            drop(call.read(|_, _| ()).await);
        }
        if faults.network != Network::Up {
            report.findings.push(error(
                CheckReason::Unreachable,
                "no answer",
                "check that the hypervisor runs and can be reached from here",
            ));
        } else if refused {
            report.findings.push(error(
                CheckReason::Unauthorized,
                "the credential is refused",
                "write a valid credential to the configured file",
            ));
        } else {
            report.version = Some("memory 1".to_owned());
            report.free_slots = Some(self.free_slots());
            self.find_faults(&faults, &cluster, &mut report.findings);
        }
        Ok(report)
    }

    /// The slots of the range that hold no machine, and none that was given up lately.
    fn free_slots(&self) -> u64 {
        let state = self.world.state();
        let held = |slot: &u32| state.machines.contains_key(slot) || state.freed.contains_key(slot);
        self.settings
            .range
            .clone()
            .filter(|slot| !held(slot))
            .count() as u64
    }

    /// What an answering hypervisor shows of itself.
    fn find_faults(&self, faults: &Faults, cluster: &ClusterId, found: &mut Vec<CheckFinding>) {
        if *cluster != self.cluster {
            found.push(error(
                CheckReason::ClusterChanged,
                format!("cluster {cluster} answers, not {}", self.cluster),
                "point the provider at its cluster again, or configure a new provider",
            ));
        }
        found.extend(faults.denied.iter().map(|kind| {
            error(
                CheckReason::MissingPrivileges,
                format!("the privilege to {kind} is missing"),
                "grant the privilege to the credential",
            )
        }));
        if faults.no_template {
            found.push(error(
                CheckReason::TemplateInvalid,
                "the template does not exist",
                "make the template, or configure another one",
            ));
        }
        if faults.no_quorum {
            found.push(error(
                CheckReason::NoQuorum,
                "the cluster has no quorum",
                "bring the missing hosts back",
            ));
        }
        if faults.partial {
            found.push(error(
                CheckReason::VisibilityLimited,
                "only a part of the machines is shown",
                "let the credential see all machines",
            ));
        }
        found.extend(faults.hosts_down.iter().map(|host| {
            error(
                CheckReason::NodeInvalid,
                format!("{} does not answer", self.world.host(*host)),
                "bring the host back",
            )
        }));
        if faults.full {
            found.push(CheckFinding {
                severity: Severity::Warning,
                ..error(
                    CheckReason::LowCapacity,
                    "no room for another machine",
                    "remove machines, or add storage and memory",
                )
            });
        }
    }
}

fn error(reason: CheckReason, found: impl Into<String>, remedy: &str) -> CheckFinding {
    let (found, remedy) = (found.into(), remedy.to_owned());
    CheckFinding {
        reason,
        severity: Severity::Error,
        field: None,
        found,
        remedy,
    }
}
