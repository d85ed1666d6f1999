//! The guest's agent: who may be asked when, and what its answers mean (rule 9, G3, G5, G6).
//!
//! A silent guest holds one of its node's three workers for 3 s, for every client of that node.
//! So one guest of a node is asked at a time, each at most every 5 s and none before it can
//! have booted; and of guests that do not answer at most 60 a minute are asked.

use super::{call::Call, held, hints::Reports};
use crate::client::{GuestInterface, Kind, NodeName, Vmid};
use egress_core::{
    MachineKey, Standing,
    machine::{Addresses, MachineState, StopReason},
};
use egress_provider::{Pace, Result};
use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

/// No guest reports an address before this uptime.
const PLAUSIBLE_BOOT: Duration = Duration::from_secs(5);
/// A machine is asked at most so often.
pub(super) const GAP: Duration = Duration::from_secs(5);
/// A machine whose address is known is asked at most so often, and rarer where there are many.
const STEADY_GAP: Duration = Duration::from_secs(10);
/// How long a look waits for those that ask on the same node: some dozens that answer, or none
/// that is silent.
const QUEUE: Duration = Duration::from_secs(1);
/// How many silent guests are asked in a minute.
const SILENT_A_MINUTE: usize = 60;

/// Turns to ask, shared by all machines of a provider.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub(super) pace: Pace,
    nodes: Mutex<HashMap<NodeName, Arc<tokio::sync::Mutex<()>>>>,
    silent: Mutex<VecDeque<Instant>>,
}

impl Turns {
    fn of_node(&self, node: &NodeName) -> Arc<tokio::sync::Mutex<()>> {
        held(&self.nodes).entry(node.clone()).or_default().clone()
    }
    /// The turn at a node, when it comes soon: after a start of ours many wait for one, and whoever
    /// has to come again is looked at seconds later.
    async fn next(&self, node: &NodeName) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let turn = self.of_node(node).lock_owned();
        let turn = tokio::time::timeout(self.pace.wait(QUEUE), turn)
            .await
            .ok()?;
        (!self.is_spent()).then_some(turn)
    }
    fn is_spent(&self) -> bool {
        let mut silent = held(&self.silent);
        while silent
            .front()
            .is_some_and(|at| self.pace.since(*at) >= Duration::from_mins(1))
        {
            silent.pop_front();
        }
        silent.len() >= SILENT_A_MINUTE
    }
    fn was_silent(&self) {
        held(&self.silent).push_back(Instant::now());
    }
}

/// How long the address of one of so many machines is believed without asking: with many,
/// turns go round at 60 a minute.
pub(super) fn steady_gap(machines: usize) -> Duration {
    STEADY_GAP.max(Duration::from_secs(machines as u64))
}

/// A machine that runs, as the agent's turn needs to know it.
pub(super) struct Running<'a> {
    pub(super) key: &'a MachineKey,
    pub(super) vmid: Vmid,
    pub(super) node: &'a NodeName,
    pub(super) mac: Option<&'a str>,
    pub(super) uptime: Duration,
    pub(super) standing: Standing,
}

impl Call<'_> {
    /// The state of a running machine, asking its agent when it is its turn.
    pub(super) async fn agent_turn(&self, machine: &Running<'_>) -> Result<MachineState> {
        let provider = self.provider;
        let mut reports = provider.hints().reports(machine.vmid, machine.key);
        let pace = provider.pace;
        let rested = reports.asked.is_none_or(|at| pace.since(at) >= GAP);
        // Both in whole seconds, as the host tells the one.
        let early = machine.uptime.as_secs() < pace.wait(PLAUSIBLE_BOOT).as_secs();
        let mut refusal = None;
        if early {
            reports.waiting_since.get_or_insert_with(Instant::now);
        } else if rested && let Some(_turn) = provider.turns.next(machine.node).await {
            refusal = self.ask(machine, &mut reports).await?;
        }
        provider
            .hints()
            .reported(machine.vmid, machine.key, reports.clone());
        let boot_timeout = provider.boot_timeout();
        // What had an address stays, whatever became of its agent: traffic proves it (G6).
        let refusal = refusal.filter(|state| {
            !had_address(&reports, machine.standing) || !matches!(state, MachineState::Stopped(_))
        });
        let state = refusal.unwrap_or_else(|| meaning(&reports, machine.standing, boot_timeout));
        if state == MachineState::Stopped(StopReason::NeverReported) {
            tracing::warn!(
                vmid = %machine.vmid,
                said = reports.said,
                "no address within the boot time-out: no agent in the image (`guestAgent: baked`), no route to a package mirror (`guestAgent: package`), no DHCP on the network, an image without cloud-init, or a guest that does not boot; log in on the console, with a user of `userData`, to see which"
            );
        }
        Ok(state)
    }

    /// One question. Answers a state where the answer leaves no choice.
    async fn ask(
        &self,
        machine: &Running<'_>,
        reports: &mut Reports,
    ) -> Result<Option<MachineState>> {
        let answer = self
            .reads()
            .agent_interfaces(machine.node, machine.vmid)
            .await;
        reports.asked = Some(Instant::now());
        reports.answered = false;
        match answer {
            Ok(interfaces) => {
                let allow_loopback = self.provider.config.allow_loopback;
                let found = addresses(&interfaces, machine.mac, allow_loopback);
                if found.is_empty() {
                    reports.waiting_since.get_or_insert_with(Instant::now);
                    let mac = machine.mac.unwrap_or("(none)");
                    let told = reported(&interfaces, mac);
                    let said = no_address(&told, mac);
                    if !told.is_empty() && said != reports.said {
                        tracing::warn!(vmid = %machine.vmid, "{said}");
                    }
                    reports.said = said;
                } else {
                    reports.addresses = found;
                    reports.answered = true;
                    reports.waiting_since = None;
                    reports.said.clear();
                }
            }
            Err(failure) => match &failure.kind {
                Kind::AgentNotRunning | Kind::AgentSilent => {
                    self.provider.turns.was_silent();
                    reports.waiting_since.get_or_insert_with(Instant::now);
                    reports.said = failure.said;
                }
                Kind::AgentRefused { class } => {
                    reports.said.clone_from(&failure.said);
                    if matches!(class.as_str(), "CommandNotFound" | "CommandDisabled") {
                        return Ok(Some(MachineState::Stopped(StopReason::NeverReported)));
                    }
                    reports.waiting_since.get_or_insert_with(Instant::now);
                }
                Kind::NoAgentConfigured => {
                    return Ok(Some(MachineState::Stopped(StopReason::NoAgent)));
                }
                Kind::NotRunning | Kind::NotExistOnNode => {
                    let why = "it stopped, or moved, while its agent was asked".to_owned();
                    return Ok(Some(MachineState::Unknown { why }));
                }
                _ => return Err(self.failed(failure)),
            },
        }
        Ok(None)
    }
}

/// Whether it had an address, for this process or for the one that sealed it (G6).
fn had_address(reports: &Reports, standing: Standing) -> bool {
    !reports.addresses.is_empty() || standing >= Standing::Sealed
}

/// What the reports of a running machine say of its state.
fn meaning(reports: &Reports, standing: Standing, boot_timeout: Duration) -> MachineState {
    if reports.answered {
        return MachineState::Running(Addresses::Reported {
            addresses: reports.addresses.clone(),
            port: None,
        });
    }
    if had_address(reports, standing) {
        return MachineState::Running(Addresses::Unreported);
    }
    if reports
        .waiting_since
        .is_some_and(|since| since.elapsed() >= boot_timeout)
    {
        return MachineState::Stopped(StopReason::NeverReported);
    }
    MachineState::Provisioning
}

/// The addresses of the NIC we know by its MAC, IPv4 first. Never `lo`, never link-local.
fn addresses(
    interfaces: &[GuestInterface],
    mac: Option<&str>,
    allow_loopback: bool,
) -> Vec<IpAddr> {
    let Some(mac) = mac else { return Vec::new() };
    let mut found: Vec<IpAddr> = interfaces
        .iter()
        .filter(|nic| {
            nic.name != "lo"
                && nic
                    .mac
                    .as_deref()
                    .is_some_and(|m| m.eq_ignore_ascii_case(mac))
        })
        .flat_map(|nic| nic.addresses.iter().copied())
        .filter(|address| {
            let usable = match address {
                IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
                IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
            };
            usable
                && !address.is_unspecified()
                && !address.is_multicast()
                && (allow_loopback || !address.is_loopback())
        })
        .collect();
    found.sort_by_key(IpAddr::is_ipv6);
    let mut seen = Vec::new();
    found.retain(|address| {
        let new = !seen.contains(address);
        seen.push(*address);
        new
    });
    found
}

/// All that the agent reports of this network card.
fn reported(interfaces: &[GuestInterface], mac: &str) -> Vec<IpAddr> {
    let is_ours = |nic: &&GuestInterface| {
        let its = nic.mac.as_deref();
        its.is_some_and(|its| its.eq_ignore_ascii_case(mac))
    };
    let ours = interfaces.iter().filter(is_ours);
    ours.flat_map(|nic| nic.addresses.iter().copied()).collect()
}

/// Why none of what is reported of this network card is the machine's address.
fn no_address(reported: &[IpAddr], mac: &str) -> String {
    if reported.is_empty() {
        return format!("the agent reports no address on the network card {mac}");
    }
    let remedy = if reported.iter().any(IpAddr::is_loopback) {
        ": `allowLoopback: true` lets those of a simulator count"
    } else {
        ""
    };
    let told: Vec<String> = reported.iter().map(ToString::to_string).collect();
    format!(
        "the agent reports only {} on the network card {mac}, which others cannot reach{remedy}",
        told.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(name: &str, mac: Option<&str>, addresses: &[&str]) -> GuestInterface {
        GuestInterface {
            name: name.to_owned(),
            mac: mac.map(str::to_owned),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    const MAC: &str = "BC:24:11:00:00:01";

    fn of(interfaces: &[GuestInterface]) -> Vec<String> {
        let found = addresses(interfaces, Some(MAC), false);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn b123_only_the_nic_we_configured_counts_and_only_what_others_can_reach() {
        let guest = [
            nic("lo", Some("00:00:00:00:00:00"), &["127.0.0.1", "::1"]),
            nic("docker0", Some("02:42:00:00:00:01"), &["172.17.0.1"]),
            nic(
                "ens18",
                Some("bc:24:11:00:00:01"),
                &[
                    "fe80::1",
                    "2001:db8::7",
                    "169.254.1.1",
                    "192.0.2.150",
                    "192.0.2.150",
                ],
            ),
            nic("ens19", None, &["192.0.2.9"]),
        ];
        assert_eq!(of(&guest), ["192.0.2.150", "2001:db8::7"]);
    }

    #[test]
    fn a_nic_without_a_lease_or_another_mac_reports_nothing() {
        assert_eq!(
            of(&[nic("ens18", Some("bc:24:11:00:00:01"), &[])]),
            Vec::<String>::new()
        );
        assert_eq!(
            of(&[nic("ens18", Some("bc:24:11:00:00:02"), &["192.0.2.1"])]),
            Vec::<String>::new()
        );
        let some = [nic("ens18", Some("bc:24:11:00:00:01"), &["192.0.2.1"])];
        assert_eq!(addresses(&some, None, false), Vec::<IpAddr>::new());
    }

    #[test]
    fn addresses_that_do_not_count_are_named_with_what_would_let_them() {
        let of = |addresses: &[&str]| {
            let guest = [nic("ens18", Some(MAC), addresses)];
            no_address(&reported(&guest, MAC), MAC)
        };
        assert!(of(&[]).ends_with("no address on the network card BC:24:11:00:00:01"));
        let linked = of(&["fe80::1"]);
        assert!(linked.contains("only fe80::1") && !linked.contains("allowLoopback"));
        assert!(
            of(&["127.9.0.1"]).ends_with("`allowLoopback: true` lets those of a simulator count")
        );
    }

    #[test]
    fn loopback_counts_where_it_is_allowed_and_never_on_lo() {
        let guest = [
            nic("lo", Some("bc:24:11:00:00:01"), &["127.0.0.1"]),
            nic("ens18", Some("bc:24:11:00:00:01"), &["127.9.0.1"]),
        ];
        assert_eq!(addresses(&guest, Some(MAC), false), Vec::<IpAddr>::new());
        assert_eq!(
            addresses(&guest, Some(MAC), true),
            ["127.9.0.1".parse::<IpAddr>().unwrap()]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn b121_b124_silence_means_booting_then_never_and_after_an_address_only_silence() {
        let timeout = Duration::from_mins(10);
        let mut reports = Reports {
            waiting_since: Some(Instant::now()),
            ..Reports::default()
        };
        let started = Standing::Started;
        assert_eq!(
            meaning(&reports, started, timeout),
            MachineState::Provisioning
        );
        tokio::time::advance(timeout).await;
        assert_eq!(
            meaning(&reports, started, timeout),
            MachineState::Stopped(StopReason::NeverReported)
        );
        let silent = MachineState::Running(Addresses::Unreported);
        assert_eq!(meaning(&reports, Standing::Sealed, timeout), silent);
        reports.addresses = vec!["192.0.2.1".parse().unwrap()];
        assert_eq!(meaning(&reports, started, timeout), silent);
        reports.answered = true;
        assert!(matches!(
            meaning(&reports, started, timeout),
            MachineState::Running(Addresses::Reported { .. })
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn sixty_silent_guests_a_minute_are_asked_and_no_more() {
        let turns = Turns::default();
        for _ in 0..SILENT_A_MINUTE {
            assert!(!turns.is_spent());
            turns.was_silent();
        }
        assert!(turns.is_spent());
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(!turns.is_spent());
    }

    #[test]
    fn with_many_machines_each_is_asked_more_rarely() {
        assert_eq!(steady_gap(1), Duration::from_secs(10));
        assert_eq!(steady_gap(10), Duration::from_secs(10));
        assert_eq!(steady_gap(1000), Duration::from_secs(1000));
    }
}
