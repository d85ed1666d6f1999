//! A running machine's addresses: by its agent, and by its network's leases where the agent says
//! nothing (G3, G5, G6).
//!
//! Leases lie: they outlive machines, and one card has several when its client id changes. So
//! they are read for a MAC that no other machine ever had, the newest counts, and the engine
//! believes an address only once the proxy there has answered with its key.

use super::{call::Call, hints::Reports, look::Machine};
use crate::{
    client::{AddressSource, Interface, Kind, Lease, Session},
    config::Plug,
};
use egress_core::{
    MachineKey, Standing,
    machine::{Addresses, MachineState, StopReason},
};
use egress_provider::Result;
use std::{net::IpAddr, time::Duration};
use tokio::time::Instant;

/// A machine without an address is asked at most so often.
const GAP: Duration = Duration::from_secs(2);
/// One whose address is known is asked at most so often.
const STEADY_GAP: Duration = Duration::from_secs(10);

impl Call<'_> {
    /// The state of a running machine.
    pub(super) async fn addresses(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        key: &MachineKey,
        mac: Option<&str>,
        standing: Standing,
    ) -> Result<MachineState> {
        let provider = self.provider;
        let uuid = machine.domain.uuid;
        let mut reports = provider.hints().reports(uuid, key);
        let gap = if reports.answered { STEADY_GAP } else { GAP };
        let rested = reports
            .asked
            .is_none_or(|at| provider.pace.since(at) >= gap);
        let mut has_no_agent = false;
        if rested && let Ok(_turn) = machine.host.agents.try_acquire() {
            has_no_agent = self.ask(session, machine, mac, &mut reports).await?;
            provider.hints().reported(uuid, key, reports.clone());
        } else {
            reports.waiting_since.get_or_insert_with(Instant::now);
        }
        let state = meaning(&reports, standing, has_no_agent, provider.boot_timeout());
        if state == MachineState::Stopped(StopReason::NeverReported) {
            tracing::warn!(
                domain = %uuid,
                said = reports.said,
                "no address within the boot time-out: no agent in the image, no route to a package mirror (`guestAgent: package`), no DHCP on the network, or a guest that does not boot; its console's log on the host shows which"
            );
        }
        Ok(state)
    }

    /// One question to the agent, and one to the network where it is silent. True where there is
    /// no agent to ask and no lease either.
    async fn ask(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        mac: Option<&str>,
        reports: &mut Reports,
    ) -> Result<bool> {
        let told = session
            .interfaces(&machine.domain, AddressSource::Agent)
            .await;
        reports.asked = Some(Instant::now());
        reports.answered = false;
        let mut has_no_agent = false;
        let mut found = Vec::new();
        match told {
            Ok(interfaces) => {
                found = usable(&interfaces, mac);
                if found.is_empty() {
                    let mac = mac.unwrap_or("(none)");
                    reports.said =
                        format!("the agent tells no usable address of the network card {mac}");
                }
            }
            Err(failure) => match failure.kind {
                Kind::NoAgent => {
                    has_no_agent = true;
                    reports.said = failure.said;
                }
                // Older and newer servers differ in what they call silence.
                Kind::AgentSilent
                | Kind::Unsupported
                | Kind::WrongState
                | Kind::Busy
                | Kind::Unclassified
                | Kind::HostFailed => reports.said = failure.said,
                _ => return Err(self.failed(failure)),
            },
        }
        if found.is_empty()
            && let Some(mac) = mac
        {
            found = self.leased(session, mac).await?;
        }
        if found.is_empty() {
            reports.waiting_since.get_or_insert_with(Instant::now);
            return Ok(has_no_agent);
        }
        reports.addresses = found;
        reports.answered = true;
        reports.waiting_since = None;
        reports.said.clear();
        Ok(false)
    }

    /// The address of the newest lease of this card, on a network of libvirt.
    async fn leased(&self, session: &Session, mac: &str) -> Result<Vec<IpAddr>> {
        let Plug::Network { name, .. } = self.provider.config.plug() else {
            return Ok(Vec::new());
        };
        let leases = async {
            let network = session.network(name).await?;
            session.leases(&network, mac).await
        };
        let leases = match leases.await {
            Ok(leases) => leases,
            // A network without a DHCP server of libvirt's, or none at all: no leases there.
            Err(failure)
                if matches!(
                    failure.kind,
                    Kind::NoNetwork
                        | Kind::NetworkInactive
                        | Kind::WrongState
                        | Kind::Unsupported
                        | Kind::HostFailed
                        | Kind::Unclassified
                ) =>
            {
                return Ok(Vec::new());
            }
            Err(failure) => return Err(self.failed(failure)),
        };
        let now = jiff::Timestamp::now().as_second();
        Ok(newest(leases, mac, now).into_iter().collect())
    }
}

/// The address of the newest lease of a card that has not ended. 0 is no end.
fn newest(leases: Vec<Lease>, mac: &str, now: i64) -> Option<IpAddr> {
    let holds = |lease: &Lease| {
        let of_it = lease.mac.as_deref();
        of_it.is_some_and(|m| m.eq_ignore_ascii_case(mac))
            && (lease.expiry == 0 || lease.expiry > now)
    };
    let newest = leases
        .into_iter()
        .filter(holds)
        .max_by_key(|lease| (lease.expiry == 0, lease.expiry));
    let address = newest.and_then(|lease| lease.address.parse().ok());
    address.filter(reaches_others)
}

/// What the reports of a running machine say of its state. What had an address stays, whatever
/// became of its agent: traffic proves it (G6).
fn meaning(
    reports: &Reports,
    standing: Standing,
    has_no_agent: bool,
    boot_timeout: Duration,
) -> MachineState {
    if reports.answered {
        return MachineState::Running(Addresses::Reported {
            addresses: reports.addresses.clone(),
            port: None,
        });
    }
    if !reports.addresses.is_empty() || standing >= Standing::Sealed {
        return MachineState::Running(Addresses::Unreported);
    }
    if has_no_agent {
        return MachineState::Stopped(StopReason::NoAgent);
    }
    let waited = reports.waiting_since.map(|since| since.elapsed());
    if waited.is_some_and(|waited| waited >= boot_timeout) {
        return MachineState::Stopped(StopReason::NeverReported);
    }
    MachineState::Provisioning
}

/// The addresses of the card with this MAC, IPv4 first. Never `lo`, never link-local.
fn usable(interfaces: &[Interface], mac: Option<&str>) -> Vec<IpAddr> {
    let Some(mac) = mac else { return Vec::new() };
    let mut found: Vec<IpAddr> = Vec::new();
    for card in interfaces {
        let is_it = card
            .mac
            .as_deref()
            .is_some_and(|m| m.eq_ignore_ascii_case(mac));
        if card.name == "lo" || !is_it {
            continue;
        }
        for address in card.addresses.iter().filter_map(|text| text.parse().ok()) {
            if reaches_others(&address) && !found.contains(&address) {
                found.push(address);
            }
        }
    }
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

/// Whether another host can send something there.
fn reaches_others(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !local && !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "52:54:00:00:00:01";

    fn card(name: &str, mac: Option<&str>, addresses: &[&str]) -> Interface {
        Interface {
            name: name.to_owned(),
            mac: mac.map(str::to_owned),
            addresses: addresses.iter().map(|a| (*a).to_owned()).collect(),
        }
    }

    /// B116, B123: bridges of the guest's own, and cards without addresses.
    #[test]
    fn only_the_card_we_configured_counts_and_only_what_others_can_reach() {
        let guest = [
            card("lo", Some(MAC), &["127.0.0.1", "::1"]),
            card("docker0", Some("02:42:00:00:00:01"), &["172.17.0.1"]),
            card(
                "enp1s0",
                Some("52:54:00:00:00:01"),
                &[
                    "fe80::1",
                    "2001:db8::7",
                    "169.254.1.1",
                    "192.0.2.150",
                    "192.0.2.150",
                    "not an address",
                ],
            ),
            card("enp2s0", None, &["192.0.2.9"]),
            card("enp3s0", Some(MAC), &[]),
        ];
        let found: Vec<_> = usable(&guest, Some(&MAC.to_uppercase()))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, ["192.0.2.150", "2001:db8::7"]);
        assert!(usable(&guest, None).is_empty());
    }

    #[test]
    fn b119_of_several_leases_of_a_card_the_newest_that_has_not_ended_counts() {
        let lease = |mac: &str, address: &str, expiry| Lease {
            expiry,
            mac: Some(mac.to_owned()),
            address: address.to_owned(),
        };
        let leases = vec![
            lease(MAC, "192.0.2.5", 900),
            lease(MAC, "192.0.2.6", 1200),
            lease(MAC, "192.0.2.7", 1100),
            lease("52:54:00:00:00:02", "192.0.2.8", 2000),
        ];
        let told = |now| newest(leases.clone(), MAC, now).map(|a| a.to_string());
        assert_eq!(told(1000).as_deref(), Some("192.0.2.6"));
        assert_eq!(told(1199).as_deref(), Some("192.0.2.6"));
        assert_eq!(told(1200), None);
        let endless = vec![lease(MAC, "192.0.2.5", 0), lease(MAC, "192.0.2.6", 1200)];
        let told = newest(endless, MAC, 1000).map(|a| a.to_string());
        assert_eq!(told.as_deref(), Some("192.0.2.5"));
    }

    /// B124: an agent that is lost later takes no address away.
    #[tokio::test(start_paused = true)]
    async fn silence_means_booting_then_never_and_after_an_address_only_silence() {
        let timeout = Duration::from_mins(10);
        let started = Standing::Started;
        let mut reports = Reports {
            waiting_since: Some(Instant::now()),
            ..Reports::default()
        };
        let told = |reports: &Reports, standing| meaning(reports, standing, false, timeout);
        assert_eq!(told(&reports, started), MachineState::Provisioning);
        assert_eq!(
            meaning(&reports, started, true, timeout),
            MachineState::Stopped(StopReason::NoAgent)
        );
        tokio::time::advance(timeout).await;
        assert_eq!(
            told(&reports, started),
            MachineState::Stopped(StopReason::NeverReported)
        );
        let silent = MachineState::Running(Addresses::Unreported);
        assert_eq!(told(&reports, Standing::Sealed), silent);
        reports.addresses = vec!["192.0.2.1".parse().unwrap()];
        assert_eq!(told(&reports, started), silent);
        reports.answered = true;
        assert!(matches!(
            told(&reports, started),
            MachineState::Running(Addresses::Reported { .. })
        ));
    }
}
