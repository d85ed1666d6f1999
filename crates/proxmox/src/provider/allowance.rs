//! Whether the conformance suite may make machines on a host.

use super::{Proxmox, survey::NoSurvey};
use egress_core::ErrorClass;
use egress_provider::{Operation, Result};

/// The line in a template's description that allows it.
pub const CONFORMANCE_LINE: &str = "egress-proxies: conformance allowed";

impl Proxmox {
    /// Fails unless the description of every template holds [`CONFORMANCE_LINE`]: the suite
    /// makes and removes machines, and hosts that others use are none of its business.
    pub async fn allows_conformance(&self) -> Result<()> {
        let call = self.call(Operation::Check, "templates");
        let survey = call.survey(true).await.map_err(|none| match none {
            NoSurvey::Failed(failure) => call.failed(failure),
            NoSurvey::Error(error) => error,
        })?;
        if survey.templates.is_empty() {
            return Err(call.error(ErrorClass::Permanent, "no template was found"));
        }
        for template in &survey.templates {
            let config = template.config.as_ref().map_err(|failure| {
                call.error(
                    failure.class,
                    format!("template {}: {failure}", template.vmid),
                )
            })?;
            let description = config.description.as_deref().unwrap_or_default();
            if !description
                .lines()
                .any(|line| line.trim() == CONFORMANCE_LINE)
            {
                return Err(call.error(
                    ErrorClass::Permanent,
                    format!(
                        "the description of template {} does not allow the suite: add the line `{CONFORMANCE_LINE}` if machines may be made and removed here",
                        template.vmid
                    ),
                ));
            }
        }
        Ok(())
    }
}
