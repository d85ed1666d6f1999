//! The hard stop that `create` and `delete` share.

use super::{
    call::{Call, handle},
    names,
    tasks::STOP,
};
use crate::client::{Kind, NodeName, Vmid};
use egress_core::ErrorClass;
use egress_provider::{Permit, Progress, Proof, Result};

/// Ends a shutdown of ours that waits for its guest, which would hold the machine's lock; known
/// from 8.2 on (read, §7.3).
const OVERRULE: &str = "overrule-shutdown";

impl Call<'_> {
    /// Stops a machine that was proven ours a moment ago. A hung guest takes over a minute.
    pub(super) async fn stop(
        &self,
        node: &NodeName,
        vmid: Vmid,
        proof: Proof,
        permit: &Permit,
    ) -> Result<Progress> {
        let provider = self.provider;
        let overrule = !provider.hints().cannot_overrule;
        provider.hints().changed(vmid);
        let request = provider.client.stop(node, vmid, overrule);
        let ask = || {
            let last = proof.spend(self.operation, &names::slot_of(vmid))?;
            provider.hints().stop_requested(vmid);
            Ok(last)
        };
        match self.send_proven(permit, request, ask).await? {
            Ok(upid) => Ok(self.in_progress(STOP, vec![handle(STOP, &upid)])),
            Err(failure) => match &failure.kind {
                // Refused before anything was done: the next call asks without it.
                Kind::ParameterInvalid { fields } if fields.contains_key(OVERRULE) => {
                    provider.hints().cannot_overrule = true;
                    let said = "this version of Proxmox VE cannot overrule a shutdown: the next request does without";
                    Err(self.error(ErrorClass::Busy, said))
                }
                _ => Err(self.failed(failure)),
            },
        }
    }
}
