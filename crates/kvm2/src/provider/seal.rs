//! `seal`: takes the seed out of the machine, then deletes it.

use super::{
    Kvm2,
    call::Call,
    domain_xml::empty_drive,
    look::Machine,
    names::{VolumeKind, own_volume},
    power::Power,
    scan::Elsewhere,
};
use crate::client::{Session, affect, device};
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
        let home = call.home(claim).await?;
        let mut session = call.fresh(home).await?;
        let mut machine = call.look(&session, home, uuid).await?;
        if machine.is_none() {
            // It may have been moved.
            let scan = call.scan().await?;
            if let Elsewhere::Ours(host, found, _) = self.elsewhere(&scan, key, None)
                && found == uuid
            {
                session = call.fresh(&self.hosts[host]).await?;
                machine = call.look(&session, &self.hosts[host], uuid).await?;
            }
        }
        let Some(machine) = machine else {
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
        if !std::ptr::eq(machine.host, home) {
            // The seed was made at home, and may lie there as well.
            let at_home = call.fresh(home).await?;
            call.delete_seeds(&at_home, key, claim, mark.attempt, permit)
                .await?;
        }
        call.delete_seeds(&session, key, claim, mark.attempt, permit)
            .await?;
        Ok(Progress::Done)
    }
}

impl Call<'_> {
    async fn delete_seeds(
        &self,
        session: &Session,
        key: &MachineKey,
        claim: &Claim,
        marked: u32,
        permit: &Permit,
    ) -> Result<()> {
        let provider = self.provider;
        let pool = self.pool(session, provider.pool_of(claim)).await?;
        for attempt in [claim.attempt, marked] {
            let name = provider.volume(key, attempt, VolumeKind::Seed);
            if let Some(volume) = self.find_volume(session, &pool, &name).await? {
                self.delete_volume(session, &volume, permit).await?;
            }
        }
        Ok(())
    }

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
