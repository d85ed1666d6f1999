//! `claim`: proposes a place, and changes nothing.

use super::{Local, held};
use crate::place::{Place, PortSight, candidates, egress_of_sockets, holder, look_at_port};
use egress_core::{
    Claim, ErrorClass, MachineKey, Mark, ProxyId, Slot, Standing,
    machine::{ConfigHash, WantedMachine},
};
use egress_provider::{Error, Operation, Result};
use jiff::Timestamp;
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
                refusals.push((socket, Refusal::Ours));
                continue;
            }
            let refusal = match look_at_port(socket) {
                // Better than a conflict at create, as long as there are others.
                Ok(PortSight::Free)
                    if offered.get(&socket).is_some_and(|offer| offer.to != *key) =>
                {
                    last_choice.get_or_insert(place);
                    continue;
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
                sight => Refusal::of(&sight),
            };
            refusals.push((socket, refusal));
        }
        if let Some(place) = last_choice {
            return Ok(place);
        }
        drop(offered);
        let said = self.no_port(port, &in_words(&refusals, holder));
        Err(Error::new(
            ErrorClass::Capacity,
            Operation::Claim,
            key.name(),
            said,
        ))
    }

    /// What is said when nothing is free for a machine, with why.
    pub(super) fn no_port(&self, wanted: Option<u16>, why: &str) -> String {
        if let Some(port) = wanted {
            return format!(
                "spec.proxy.port: {port}: it is not free on any address: {why}: choose another \
                 one, or end what holds it"
            );
        }
        let range = self.config.port_range;
        format!(
            "portRange: {}-{}: no port is free on any address: {why}: widen it, or end what uses \
             its ports",
            range.from, range.to
        )
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
        let (proxy, config) = (wanted.proxy.clone(), wanted.config_hash.clone());
        self.mark_of(key, claim, proxy, config, Timestamp::now())
    }

    /// The mark of a machine of this claim, made at this time for this Proxy.
    pub(super) fn mark_of(
        &self,
        key: &MachineKey,
        claim: &Claim,
        proxy: ProxyId,
        config: ConfigHash,
        written: Timestamp,
    ) -> Mark {
        Mark {
            installation: self.identity.installation.clone(),
            writer: self.identity.writer.clone(),
            provider: self.name.clone(),
            cluster: self.cluster.clone(),
            slot: claim.slot.clone(),
            uid: key.uid().clone(),
            proxy,
            attempt: claim.attempt,
            config,
            written,
        }
    }
}

/// Why a place was not proposed.
#[derive(Debug)]
pub(super) enum Refusal {
    Ours,
    Taken,
    NotHere,
    Forbidden,
    Failed(String),
}

impl Refusal {
    /// Why a port that is not free is not proposed.
    pub(super) fn of(sight: &std::io::Result<PortSight>) -> Self {
        match sight {
            Ok(PortSight::Free | PortSight::Taken) => Self::Taken,
            Ok(PortSight::NotHere) => Self::NotHere,
            Ok(PortSight::Forbidden) => Self::Forbidden,
            Err(error) => Self::Failed(error.to_string()),
        }
    }
}

/// How many refused places are told of: it is for people, and finding a holder is not cheap.
const TOLD: usize = 8;

/// Each reason once, with the first places that it is about.
pub(super) fn in_words(
    refusals: &[(SocketAddr, Refusal)],
    holder: impl Fn(SocketAddr) -> String,
) -> String {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for (socket, refusal) in refusals.iter().take(TOLD) {
        let (place, why) = match refusal {
            Refusal::Ours => (
                socket.to_string(),
                "belongs to another machine of ours".into(),
            ),
            Refusal::Taken => (
                socket.to_string(),
                format!("is held by {}", holder(*socket)),
            ),
            Refusal::NotHere => (socket.ip().to_string(), "is not on this host".into()),
            Refusal::Forbidden => (socket.to_string(), "needs a privilege".into()),
            Refusal::Failed(error) => (socket.to_string(), format!("cannot be used: {error}")),
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, places)) if places.contains(&place) => {}
            Some((_, places)) => places.push(place),
            None => reasons.push((why, vec![place])),
        }
    }
    let mut sentences: Vec<String> = reasons
        .iter()
        .map(|(why, places)| match places.split_first() {
            Some((first, [])) => format!("{first} {why}"),
            Some((first, others)) => format!("{first} {why}, likewise {}", others.join(", ")),
            None => why.clone(),
        })
        .collect();
    if let Some(left) = refusals.len().checked_sub(TOLD).filter(|left| *left > 0) {
        sentences.push(format!("{left} more"));
    }
    sentences.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_holder_is_named_once_with_its_places() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let refusals = [
            (at(1), Refusal::Taken),
            (at(2), Refusal::Ours),
            (at(3), Refusal::Taken),
            (at(4), Refusal::Taken),
            (SocketAddr::from(([192, 0, 2, 1], 1)), Refusal::NotHere),
            (SocketAddr::from(([192, 0, 2, 1], 2)), Refusal::NotHere),
        ];
        let holder = |socket: SocketAddr| match socket.port() {
            4 => "process 8 (squid)".to_owned(),
            _ => "process 7 (nginx)".to_owned(),
        };
        assert_eq!(
            in_words(&refusals, holder),
            "127.0.0.1:1 is held by process 7 (nginx), likewise 127.0.0.1:3; \
             127.0.0.1:2 belongs to another machine of ours; \
             127.0.0.1:4 is held by process 8 (squid); \
             192.0.2.1 is not on this host"
        );
    }

    #[test]
    fn of_many_refused_places_the_first_are_named_and_the_others_counted() {
        let many: Vec<(SocketAddr, Refusal)> = (1..=20)
            .map(|port| (SocketAddr::from(([127, 0, 0, 1], port)), Refusal::Taken))
            .collect();
        let asked = std::cell::Cell::new(0);
        let words = in_words(&many, |_| {
            asked.set(asked.get() + 1);
            "process 7 (nginx)".into()
        });
        assert_eq!(asked.get(), TOLD);
        assert_eq!(words.matches("process 7").count(), 1, "{words}");
        assert!(words.ends_with("127.0.0.1:8; 12 more"), "{words}");
    }
}
