//! `claim`: proposes a place, and changes nothing.

use super::{Local, held};
use crate::place::{Place, PortSight, candidates, egress_of_sockets, holder, look_at_port};
use egress_core::{Claim, ErrorClass, MachineKey, Mark, Slot, Standing, machine::WantedMachine};
use egress_provider::{Error, Operation, Result};
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::time::Instant;

/// How long a proposed socket is not proposed to another key: until a record names it.
const OFFER_LIFETIME: Duration = Duration::from_secs(5);

/// A place that was proposed a moment ago.
#[derive(Debug)]
pub(super) struct Offer {
    to: MachineKey,
    until: Instant,
    egress: IpAddr,
}

impl Local {
    pub(super) async fn claim_place(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        let error = |class, said| Error::new(class, Operation::Claim, key.name(), said);
        let look = self
            .everything(Operation::Claim, key.name(), Duration::ZERO)
            .await?;
        let seen = self.of_key(key, None, &look);
        let marked = seen.processes.first().map(|p| &p.mark);
        let newest = || seen.directories.iter().max_by_key(|mark| mark.attempt);
        if let Some(mark) = marked.or_else(newest) {
            return Ok(self.claim_at(mark.slot.clone(), mark.attempt, Standing::Seen));
        }
        if let Some(slot) = seen.not_owned {
            let said = format!("the machine at {slot} bears this key and is not ours");
            return Err(error(ErrorClass::NotOwned, said));
        }

        let directories = look.directories.iter().map(|label| &label.slot);
        let processes = look.processes.iter().map(|process| &process.slot);
        let occupied = egress_of_sockets(taken.iter().chain(directories).chain(processes));
        let place = self.free_place(key, wanted.settings.port, &occupied)?;
        Ok(self.claim_at(place.slot(), attempt, Standing::Unsent))
    }

    /// The first candidate that nothing occupies and the kernel calls free; offers it.
    fn free_place(
        &self,
        key: &MachineKey,
        port: Option<u16>,
        occupied: &HashMap<SocketAddr, IpAddr>,
    ) -> Result<Place> {
        let now = Instant::now();
        let mut offered = held(&self.offered);
        offered.retain(|_, offer| now < offer.until);
        let offers = offered.iter().filter(|(_, offer)| offer.to != *key);
        let in_use: HashMap<SocketAddr, IpAddr> = offers
            .map(|(socket, offer)| (*socket, offer.egress))
            .chain(occupied.iter().map(|(socket, egress)| (*socket, *egress)))
            .collect();
        let (least_used, others) = self.addresses_by_use(&in_use);
        let mut refusals = Vec::new();
        let mut last_choice = None;
        let choices = candidates(&self.config, &least_used, key, port);
        for place in choices.chain(candidates(&self.config, &others, key, port)) {
            let socket = place.socket();
            if occupied.contains_key(&socket) {
                note(&mut refusals, || {
                    format!("{socket} belongs to another machine of ours")
                });
                continue;
            }
            match look_at_port(socket) {
                // Better than a conflict at create, as long as there are others.
                Ok(PortSight::Free)
                    if offered.get(&socket).is_some_and(|offer| offer.to != *key) =>
                {
                    last_choice.get_or_insert(place);
                }
                Ok(PortSight::Free) => {
                    let offer = Offer {
                        to: key.clone(),
                        until: now + OFFER_LIFETIME,
                        egress: place.egress,
                    };
                    offered.insert(socket, offer);
                    return Ok(place);
                }
                Ok(PortSight::Taken) => {
                    note(&mut refusals, || {
                        format!("{socket} is held by {}", holder(socket))
                    });
                }
                Ok(PortSight::NotHere) => {
                    note(&mut refusals, || {
                        format!("{} is not on this host", place.listen)
                    });
                }
                Ok(PortSight::Forbidden) => {
                    note(&mut refusals, || format!("{socket} needs a privilege"));
                }
                Err(error) => note(&mut refusals, || format!("{socket}: {error}")),
            }
        }
        if let Some(place) = last_choice {
            return Ok(place);
        }
        let range = self.config.port_range;
        let what = match port {
            Some(port) => format!("port {port} is not free on any address"),
            None => format!("no free port in {}-{} on any address", range.from, range.to),
        };
        let said = format!("{what}: {}", refusals.join("; "));
        Err(Error::new(
            ErrorClass::Capacity,
            Operation::Claim,
            key.name(),
            said,
        ))
    }

    /// The configured addresses that the fewest machines leave from, and all others: each
    /// machine is to have an egress address of its own while there are enough.
    fn addresses_by_use(&self, in_use: &HashMap<SocketAddr, IpAddr>) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let addresses = self.config.addresses();
        let uses = |address: &IpAddr| in_use.values().filter(|used| *used == address).count();
        let fewest = addresses.iter().map(uses).min().unwrap_or(0);
        addresses
            .iter()
            .partition(|address| uses(address) == fewest)
    }

    fn claim_at(&self, slot: Slot, attempt: u32, standing: Standing) -> Claim {
        Claim {
            provider: self.name.clone(),
            cluster: self.cluster.clone(),
            slot,
            host: Some(self.host.clone()),
            attempt,
            standing,
            handles: Vec::new(),
            mac: None,
            seed: None,
            unsettled: false,
            retiring: None,
        }
    }

    /// The mark that a machine made now for this claim bears.
    pub(super) fn mark(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Mark {
        Mark {
            installation: self.identity.installation.clone(),
            writer: self.identity.writer.clone(),
            provider: self.name.clone(),
            cluster: self.cluster.clone(),
            slot: claim.slot.clone(),
            uid: key.uid().clone(),
            proxy: wanted.proxy.clone(),
            attempt: claim.attempt,
            config: wanted.config_hash.clone(),
            written: jiff::Timestamp::now(),
        }
    }
}

/// Keeps the first few reasons: they are for people, and finding a holder is not cheap.
fn note(refusals: &mut Vec<String>, reason: impl FnOnce() -> String) {
    if refusals.len() < 3 {
        refusals.push(reason());
    }
}
