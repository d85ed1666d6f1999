//! `seal`: takes the seed out of the machine, then deletes it.

use super::{
    Kvm2,
    call::Call,
    domain_xml::empty_drive,
    look::Machine,
    names::{VolumeKind, own_volume},
    power::Power,
};
use crate::client::{Kind, Session, affect, device};
use egress_core::{Claim, ErrorClass, MachineKey, Standing, machine::Whose};
use egress_provider::{Operation, Permit, Progress, Result};
use std::time::Duration;

impl Kvm2 {
    pub(super) async fn seal_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, uuid) = self.call_at(Operation::Seal, claim)?;
        let host = call.home(claim).await?;
        let session = call.fresh(host).await?;
        let Some(machine) = call.look(&session, host, uuid).await? else {
            let said = "no domain can be seen at its UUID: it is looked for again";
            return Err(call.error(ErrorClass::Busy, said));
        };
        let mark = match call.whose_at(key, &claim.slot, &machine) {
            Whose::Ours(mark) => mark,
            Whose::Foreign { .. } => {
                let said = "a domain of someone else has the UUID";
                return Err(call.error(ErrorClass::Conflict, said));
            }
            Whose::NotOwned => {
                let trouble = super::create::next::not_owned();
                return Err(call.error(trouble.class, trouble.said));
            }
        };
        if let Power::Changing(step) = machine.power {
            return Ok(call.in_progress(step, Duration::from_secs(1)));
        }
        if claim.standing < Standing::Started && machine.power != Power::Running {
            let said = "the machine still needs its seed";
            return Err(call.error(ErrorClass::Busy, said));
        }
        call.take_out(&session, &machine, key, permit).await?;
        let pool = call.pool(&session, self.pool_of(claim)).await?;
        for attempt in [claim.attempt, mark.attempt] {
            let name = self.volume(key, attempt, VolumeKind::Seed);
            let Some(volume) = call.find_volume(&session, &pool, &name).await? else {
                continue;
            };
            let last = call.may(permit)?;
            match session.delete_volume(&volume, last).await {
                Err(failure) if failure.kind != Kind::NoVolume => return Err(call.failed(failure)),
                _ => {}
            }
        }
        Ok(Progress::Done)
    }
}

impl Call<'_> {
    /// Empties every drive that holds a seed of the key, now and for each start after it.
    async fn take_out(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        key: &MachineKey,
        permit: &Permit,
    ) -> Result<()> {
        let prefix = self.provider.volume_prefix();
        let holds_seed = |source: &str| {
            let name = source.rsplit('/').next().unwrap_or_default();
            own_volume(name, &prefix)
                .is_some_and(|own| own.machine == key.name() && own.kind == VolumeKind::Seed)
        };
        let holders = machine.view.drives.iter().filter(|drive| {
            drive.device == "cdrom" && drive.source.as_deref().is_some_and(holds_seed)
        });
        // The definition first has it in hand, too; a running one is forced: whoever still
        // reads it has had the time from its start to its first proof.
        let flags = match machine.power {
            Power::Off | Power::Crashed | Power::Hibernated => affect::CONFIG,
            _ => affect::CONFIG | affect::LIVE | device::FORCE,
        };
        for drive in holders {
            let xml = empty_drive(&drive.target, &drive.bus);
            let last = self.may(permit)?;
            let sent = session
                .update_device(&machine.domain, &xml, flags, last)
                .await;
            sent.map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }
}
