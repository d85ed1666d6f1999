//! `check`: what stands in the way of making machines, each with a remedy.

use super::{
    Kvm2,
    call::Call,
    descriptions::DomainView,
    hosts::{Host, Trouble},
    survey::{Survey, version},
};
use crate::client::{Failure, Kind, Session, xml};
use egress_provider::{CheckFinding, CheckReason, Operation, Report, Result, Severity};

impl Kvm2 {
    pub(super) async fn check_all(&self) -> Result<Report> {
        let call = self.call(Operation::Check, self.name.as_str());
        let mut report = Report::default();
        for (index, host) in self.hosts.iter().enumerate() {
            let findings = match self.check_host(&call, host, &mut report).await {
                Ok(findings) => findings,
                Err(finding) => vec![finding],
            };
            report
                .findings
                .extend(findings.into_iter().map(|mut finding| {
                    if self.hosts.len() > 1 {
                        finding.found = format!("{}: {}", host.told(), finding.found);
                    }
                    if finding.reason == CheckReason::Unreachable {
                        finding.field = Some(format!("hosts[{index}].uri"));
                    }
                    finding
                }));
        }
        // What stands in the way first.
        report
            .findings
            .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(report)
    }

    async fn check_host(
        &self,
        call: &Call<'_>,
        host: &Host,
        report: &mut Report,
    ) -> Result<Vec<CheckFinding>, CheckFinding> {
        let session = host.kept(crate::client::READ_DEADLINE).await;
        let session = session.map_err(of_trouble)?;
        let mut survey = call.survey(&session).await.map_err(|error| CheckFinding {
            reason: CheckReason::Unreachable,
            severity: Severity::Error,
            field: None,
            found: error.said().to_owned(),
            remedy: "look at libvirt's log on the host".to_owned(),
        })?;
        report.version.get_or_insert_with(|| {
            let (libvirt, qemu) = (version(survey.libvirt), version(survey.hypervisor));
            format!("libvirt {libvirt}, QEMU {qemu}")
        });
        let used = base_in_use(call, &session, &mut survey).await;
        if let Err(error) = used {
            survey.findings.push(CheckFinding {
                reason: CheckReason::Unreachable,
                severity: Severity::Error,
                field: None,
                found: error.said().to_owned(),
                remedy: "look at libvirt's log on the host".to_owned(),
            });
        }
        Ok(survey.findings)
    }
}

/// Whether a domain writes to the base image: then every machine on it breaks.
async fn base_in_use(call: &Call<'_>, session: &Session, survey: &mut Survey) -> Result<()> {
    let Some(base) = survey.base.as_ref().map(|base| base.path.clone()) else {
        return Ok(());
    };
    let domains = session.domains().await.map_err(|f| call.failed(f))?;
    for domain in domains {
        let text = match session.domain_xml(&domain, xml::INACTIVE).await {
            Ok(text) => text,
            Err(failure) if failure.kind == Kind::NoDomain => continue,
            Err(failure) => return Err(call.failed(failure)),
        };
        // What another program wrote and we cannot read is no business of ours.
        let Ok(view) = DomainView::read(&text) else {
            continue;
        };
        let uses = |source: &Option<String>| source.as_deref() == Some(base.as_str());
        if view.drives.iter().any(|drive| uses(&drive.source)) {
            survey.findings.push(CheckFinding {
                reason: CheckReason::TemplateInvalid,
                severity: Severity::Error,
                field: Some("baseImage".to_owned()),
                found: format!("the domain {} has the base image as its own disk", domain.name),
                remedy: "give that domain a copy: what it writes breaks every machine that stands on the image".to_owned(),
            });
        }
    }
    Ok(())
}

fn of_trouble(trouble: Trouble) -> CheckFinding {
    let (reason, found, remedy) = match trouble {
        Trouble::Failed(failure) => of_failure(failure),
        Trouble::Changed(said) => (
            CheckReason::ClusterChanged,
            said,
            "compare `hosts` with the hosts",
        ),
        Trouble::Nameless(said) => (
            CheckReason::Unreachable,
            said,
            "look at `virsh capabilities` on the host",
        ),
    };
    CheckFinding {
        reason,
        severity: Severity::Error,
        field: None,
        found,
        remedy: remedy.to_owned(),
    }
}

fn of_failure(failure: Failure) -> (CheckReason, String, &'static str) {
    let found = failure.to_string();
    match failure.kind {
        Kind::CertificateInvalid | Kind::FilesUnusable => (
            CheckReason::CertificateInvalid,
            found,
            "compare caFile, certFile and keyFile with what the host's libvirt trusts and shows",
        ),
        Kind::Unauthenticated | Kind::AccessDenied => (
            CheckReason::Unauthorized,
            found,
            "add this user to the group libvirt, or have the host trust the certificate",
        ),
        _ => (
            CheckReason::Unreachable,
            found,
            "see that libvirtd runs there, and that the URI names its socket",
        ),
    }
}
