//! The one config write, and the size of the system disk.

use super::Creation;
use crate::{
    client::{ConfigChange, Failure, Kind, NodeName, VmConfig},
    config::CloudInitDrive,
    provider::{
        call::handle,
        grammar::{Nic, boot_disk, drives, with_tags},
        look::Machine,
        names,
        tasks::RESIZE,
    },
};
use egress_core::{Handle, Standing};
use egress_provider::{Progress, Result};

impl Creation<'_> {
    /// One config write with everything, bound to the digest that was just read; then the
    /// growth of the disk or, where it is large enough, the start at once (rule 6).
    pub(super) async fn configure(&self, machine: &Machine) -> Result<Progress> {
        let call = &self.call;
        let provider = call.provider;
        let mut change = self.change(&machine.config);
        if provider.hints().tags_refused {
            change.tags = None;
        }
        let sent = self.write(&machine.node, change.clone()).await?;
        match sent {
            Ok(()) => {}
            Err(failure)
                if matches!(failure.kind, Kind::ForbiddenTag { .. }) && change.tags.is_some() =>
            {
                // The write is not atomic: what came before the tags is there, with a new digest.
                provider.hints().tags_refused = true;
                tracing::warn!(vmid = %self.vmid, said = failure.said, "machines get no tags");
                let again = call
                    .reads()
                    .vm_config(&machine.node, self.vmid)
                    .await
                    .map_err(|failure| call.failed(failure))?;
                let change = ConfigChange {
                    tags: None,
                    digest: Some(again.digest),
                    ..change
                };
                let sent = self.write(&machine.node, change).await?;
                sent.map_err(|failure| call.failed(failure))?;
            }
            Err(failure) => {
                if failure.kind == Kind::VolumeMissing {
                    // An upload that just ended may not show yet; after a while it is lost.
                    provider.hints().seed_was_missing(self.vmid);
                }
                return Err(call.failed(failure));
            }
        }
        provider.hints().seed_is_there(self.vmid);
        self.grow_and_start(machine).await
    }

    async fn write(
        &self,
        node: &NodeName,
        change: ConfigChange,
    ) -> Result<std::result::Result<(), Failure>> {
        let provider = self.call.provider;
        provider.hints().changed(self.vmid);
        let request = provider.client.set_config(node, self.vmid, change);
        self.call.send(self.permit, request, || Ok(())).await
    }

    fn change(&self, present: &VmConfig) -> ConfigChange {
        let provider = self.call.provider;
        let config = &provider.config;
        let own_tag = names::installation_tag(&provider.identity.installation);
        let seed = &provider.seed_names(self.key, &[self.claim.attempt])[0];
        let moves = config.bridge.is_some() || config.vlan_tag.is_some();
        let net0 = moves
            .then(|| Nic::parse(present.keys.get("net0")?))
            .flatten()
            .map(|nic| {
                nic.moved(config.bridge.as_deref(), config.vlan_tag)
                    .to_string()
            });
        let memory = u64::from(self.wanted.size.memory_mib);
        let balloon = present
            .keys
            .get("balloon")
            .and_then(|text| text.parse::<u64>().ok());
        let replaced: Vec<String> = if config.cloud_init_drive == CloudInitDrive::Replace {
            drives(&present.keys)
                .filter(|(key, drive)| drive.is_cloud_init() && *key != config.seed_drive)
                .map(|(key, _)| key.to_owned())
                .collect()
        } else {
            Vec::new()
        };
        ConfigChange {
            digest: Some(present.digest.clone()),
            drive: Some((config.seed_drive.clone(), format!("{seed},media=cdrom"))),
            net0,
            tags: Some(with_tags(&present.tags, &[names::PRODUCT_TAG, &own_tag])),
            cores: Some(self.wanted.size.cpus),
            sockets: Some(1),
            memory_mib: Some(memory),
            // A template's balloon may not be greater than the machine's memory.
            balloon_mib: balloon.filter(|least| *least > memory).map(|_| memory),
            agent: (!present.agent_enabled()).then(|| "enabled=1".to_owned()),
            onboot: Some(true),
            protection: Some(false),
            delete: replaced,
            ..ConfigChange::default()
        }
    }

    /// Grows the system disk to what is wished for, in absolute size: a repeat changes nothing
    /// (F20). A machine that was started once is left as it is: a resize whose worker was
    /// killed leaves the configuration with the old size for ever.
    pub(super) async fn grow(&self, machine: &Machine) -> Result<Option<Handle>> {
        let call = &self.call;
        if self.claim.standing >= Standing::Started {
            return Ok(None);
        }
        let config = &call.provider.config;
        let wanted = u64::from(self.wanted.size.disk_gib) << 30;
        let disk = boot_disk(&machine.config.keys, &config.seed_drive);
        let Some((disk, drive)) = disk.filter(|(_, drive)| drive.bytes.is_some_and(|b| b < wanted))
        else {
            return Ok(None);
        };
        tracing::debug!(vmid = %self.vmid, disk, from = drive.bytes, to = wanted, "growing the system disk");
        let request = call
            .provider
            .client
            .resize(&machine.node, self.vmid, &disk, wanted);
        let upid = call
            .send(self.permit, request, || Ok(()))
            .await?
            .map_err(|failure| call.failed(failure))?;
        Ok(Some(handle(RESIZE, &upid)))
    }
}
