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
                    // What names no field of its own is about the way to this host.
                    finding.field.get_or_insert(format!("hosts[{index}].uri"));
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
    let (reason, field, found, remedy) = match trouble {
        Trouble::Failed(failure) => of_failure(&failure),
        Trouble::Changed(said) => (
            CheckReason::ClusterChanged,
            None,
            said,
            "compare `hosts` with the hosts",
        ),
        Trouble::Nameless(said) => (
            CheckReason::Unreachable,
            None,
            said,
            "look at `virsh capabilities` on the host",
        ),
    };
    CheckFinding {
        reason,
        severity: Severity::Error,
        field: field.map(str::to_owned),
        found,
        remedy: remedy.to_owned(),
    }
}

/// Why there is no connection: the reason, the field that is about it, what was found, and what
/// to do.
fn of_failure(failure: &Failure) -> (CheckReason, Option<&'static str>, String, &'static str) {
    let (reason, field, remedy) = match failure.kind {
        Kind::CertificateUntrusted => (
            CheckReason::CertificateInvalid,
            Some("caFile"),
            "name the authority that signed the host's certificate",
        ),
        Kind::CertificateExpired => (
            CheckReason::CertificateInvalid,
            None,
            "renew the host's certificate and restart its libvirtd, or set the clocks",
        ),
        Kind::CertificateForOthers => (
            CheckReason::CertificateInvalid,
            None,
            "name the host as its certificate does, or have it made for this name too",
        ),
        Kind::CertificateInvalid => (
            CheckReason::CertificateInvalid,
            None,
            "look at the host's certificate with `certtool -i` or `openssl x509 -text`",
        ),
        Kind::FilesUnusable => (
            CheckReason::CertificateInvalid,
            Some("caFile, certFile, keyFile"),
            "give the files in PEM, readable for the user that this runs as",
        ),
        Kind::HostKeyChanged => (
            CheckReason::CertificateInvalid,
            None,
            "find out why; where the host was set up anew, remove the old key with `ssh-keygen -R` and log in once by hand",
        ),
        Kind::HostKeyUnknown => (
            CheckReason::CertificateInvalid,
            None,
            "compare its fingerprint and log in once by hand as the user that this runs as",
        ),
        Kind::CertificateRefused => (
            CheckReason::Unauthorized,
            Some("certFile"),
            "have it signed by the authority that the host trusts, valid now, for clients, and allowed there (`tls_allowed_dn_list`)",
        ),
        Kind::LoginRefused => (
            CheckReason::Unauthorized,
            None,
            "`ssh -o BatchMode=yes` must log in there, as the user that this runs as",
        ),
        Kind::Unauthenticated | Kind::AccessDenied => (
            CheckReason::Unauthorized,
            None,
            "add this user to the group libvirt",
        ),
        _ => (
            CheckReason::Unreachable,
            None,
            "see that libvirtd runs there, that the URI names its socket, and that the account there may open it",
        ),
    };
    (reason, field, failure.to_string(), remedy)
}
