//! `claim`: proposes a host and a UUID, and changes nothing.

use super::{
    Kvm2, SETTLE,
    call::Call,
    hosts::Host,
    names,
    placement::{self, Candidate},
    scan::{Elsewhere, Scan},
    survey::free_memory,
};
use egress_core::{
    Claim, ClusterId, ErrorClass, Host as HostName, MachineKey, Mark, Slot, Standing,
    machine::WantedMachine,
};
use egress_provider::{Operation, Result};
use std::collections::BTreeSet;
use uuid::Uuid;

impl Kvm2 {
    pub(super) async fn claim_slot(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        let call = self.call(Operation::Claim, key.name());
        let scan = call.scan().await?;
        match self.elsewhere_when_new(&scan, key, None) {
            Elsewhere::Nowhere => {}
            Elsewhere::Ours(host, _, mark) => return call.claim_of(key, &scan, host, &mark).await,
            Elsewhere::NotOwned(host, uuid) => {
                return Err(call.not_owned(&self.hosts[host], uuid));
            }
            // Its machine may be there.
            Elsewhere::Silent(said) => return Err(call.error(ErrorClass::Transient, said)),
        }
        let taken: BTreeSet<Uuid> = taken.iter().filter_map(names::uuid_of).collect();
        let used: BTreeSet<Uuid> = scan.seen.iter().map(|seen| seen.domain.uuid).collect();
        let settle = self.pace.wait(SETTLE);
        let free = names::candidates(key, attempt).find(|uuid| {
            !taken.contains(uuid) && !used.contains(uuid) && !self.hints().is_resting(*uuid, settle)
        });
        let Some(uuid) = free else {
            let said = "every place of this attempt is taken";
            return Err(call.error(ErrorClass::Capacity, said));
        };
        let host = call.place(&scan, key, wanted).await?;
        let id = host.id().ok_or_else(|| {
            let said = "a host that answered is not known";
            call.error(ErrorClass::Internal, said)
        })?;
        let mac = Some(names::fresh_mac());
        Ok(self.claim_at(
            key,
            id.cluster.clone(),
            Some(id.name.clone()),
            names::slot_of(uuid),
            (attempt, Standing::Unsent),
            mac,
        ))
    }

    fn claim_at(
        &self,
        key: &MachineKey,
        cluster: ClusterId,
        host: Option<HostName>,
        slot: Slot,
        (attempt, standing): (u32, Standing),
        mac: Option<String>,
    ) -> Claim {
        Claim {
            provider: self.name.clone(),
            cluster,
            slot,
            host,
            attempt,
            standing,
            handles: Vec::new(),
            mac,
            seed: Some(self.seed_volume(key, attempt)),
            unsettled: false,
            retiring: None,
        }
    }
}

impl<'a> Call<'a> {
    /// A claim on what bears the key's mark already.
    async fn claim_of(
        &self,
        key: &MachineKey,
        scan: &Scan,
        host: usize,
        mark: &Mark,
    ) -> Result<Claim> {
        let provider = self.provider;
        let place = &provider.hosts[host];
        let session = self.kept(place).await?;
        let uuid = names::uuid_of(&mark.slot);
        let uuid =
            uuid.ok_or_else(|| self.error(ErrorClass::Internal, "its mark names no slot"))?;
        let machine = self.look(&session, place, uuid).await?;
        let mac = machine.and_then(|machine| machine.view.macs.into_iter().next());
        debug_assert!(scan.seen.iter().any(|seen| seen.domain.uuid == uuid));
        Ok(provider.claim_at(
            key,
            mark.cluster.clone(),
            place.id().map(|id| id.name.clone()),
            mark.slot.clone(),
            (mark.attempt, Standing::Seen),
            mac,
        ))
    }

    /// The host for a new machine, among those that answer.
    async fn place(
        &self,
        scan: &Scan,
        key: &MachineKey,
        wanted: &WantedMachine,
    ) -> Result<&'a Host> {
        let provider = self.provider;
        if let [only] = provider.hosts.as_slice() {
            // Room is looked at when it is made.
            return Ok(only);
        }
        let mut candidates = Vec::new();
        for (index, host) in provider.hosts.iter().enumerate() {
            if scan.silent.iter().any(|(silent, _)| *silent == index) {
                continue;
            }
            let session = self.kept(host).await?;
            let memory = session.memory().await.map_err(|f| self.failed(f))?;
            let of_ours = scan.seen.iter().filter(|seen| {
                let mark = seen.text.as_deref().and_then(Mark::find);
                seen.host == index
                    && mark.is_some_and(|mark| {
                        mark.installation == provider.identity.installation
                            && mark.provider == provider.name
                    })
            });
            candidates.push(Candidate {
                host: index,
                memory: free_memory(&provider.config, memory),
                machines: of_ours.count(),
                has_namesake: scan
                    .seen
                    .iter()
                    .any(|seen| seen.host == index && seen.domain.name == key.name()),
            });
        }
        let needed = u64::from(wanted.size.memory_mib) << 20;
        let chosen = placement::choose(&candidates, needed).ok_or_else(|| {
            let said = format!(
                "no host that answers has {} MiB of memory free beside the reserve",
                wanted.size.memory_mib
            );
            self.error(ErrorClass::Capacity, said)
        })?;
        Ok(&provider.hosts[chosen])
    }

    /// A domain with this key's name or UID that is not proven ours.
    pub(super) fn not_owned(&self, host: &Host, uuid: Uuid) -> egress_provider::Error {
        let said = format!(
            "the domain {uuid} on {} has this proxy's name or mark and is not proven ours: restore its mark, rename it, or remove it",
            host.told()
        );
        self.error(ErrorClass::NotOwned, said)
    }
}
