//! What the guest's agent answers, and what is said when it does not.

use super::{
    World,
    answers::{Outcome, Refusal, Reply},
    control::AgentBehaviour,
    guest::{Machine, Net},
    params::Params,
};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl World {
    /// `…/agent/<command>`.
    pub(super) fn ask_agent(&mut self, params: &Params, command: &str) -> Outcome {
        let node = params.text("node").unwrap_or_default();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        let silence = self.pace.of(self.pace.t.agent_silence);
        let guest = self.machine_or_missing(node, vmid)?;
        if !guest.config.contains_key("agent") {
            return Err(Refusal::died("No QEMU guest agent configured"));
        }
        if guest.running.is_none() {
            return Err(Refusal::died(format!("VM {vmid} is not running")));
        }
        if !self.agent_is_there(vmid, guest) {
            return Err(Refusal::died("QEMU guest agent is not running").after(silence));
        }
        let behaviour = guest.agent.unwrap_or(self.default_agent);
        if behaviour == AgentBehaviour::Slow {
            let word = if self.version >= 9 { "qga" } else { "qmp" };
            let wait = self.pace.of(5.0);
            return Err(Refusal::died(format!(
                "VM {vmid} {word} command 'guest-{command}' failed - got timeout"
            ))
            .after(wait));
        }
        if behaviour == AgentBehaviour::Refusing && command != "ping" {
            let desc = format!("Command guest-{command} has been disabled");
            return Ok(result(
                json!({"error": {"class": "CommandNotFound", "desc": desc}}),
            ));
        }
        Ok(match command {
            "network-get-interfaces" => result(self.interfaces(vmid, guest, behaviour)),
            "get-host-name" => result(json!({"host-name": "guest"})),
            "get-osinfo" => result(json!({
                "kernel-version": "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1 (2026-11-12)",
                "machine": "x86_64",
                "kernel-release": "6.12.117+deb13-cloud-amd64",
            })),
            "shutdown" => {
                self.power_off(vmid);
                result(json!({}))
            }
            _ => result(json!({})),
        })
    }

    /// Whether something answers the ping.
    fn agent_is_there(&self, vmid: u32, guest: &Machine) -> bool {
        let Some(running) = &guest.running else {
            return false;
        };
        let boot = self.pace.of(self.pace.t.boot);
        let booted = self.now >= running.since + boot;
        let reported =
            !self.setup.outside_guests || self.reports.contains_key(&(vmid, guest.starts));
        let behaviour = guest.agent.unwrap_or(self.default_agent);
        booted
            && reported
            && running.agent_device
            && Machine::agent_enabled(&guest.config)
            && running.qmp == "running"
            && !running.hung
            && !matches!(behaviour, AgentBehaviour::Silent | AgentBehaviour::Missing)
    }

    fn interfaces(&self, vmid: u32, guest: &Machine, behaviour: AgentBehaviour) -> Value {
        let mac = guest
            .config
            .get("net0")
            .and_then(|net| Net::parse(net).mac)
            .unwrap_or_default()
            .to_lowercase();
        let mut addresses: Vec<IpAddr> = match self.reports.get(&(vmid, guest.starts)) {
            Some(reported) => reported.clone(),
            None if guest.addresses.is_empty() => vec![IpAddr::V4(own_address(vmid))],
            None => guest.addresses.clone(),
        };
        let link_local = link_local(&mac);
        let mac = match behaviour {
            AgentBehaviour::Addressless => {
                addresses.clear();
                mac
            }
            AgentBehaviour::Lying => {
                addresses = vec![IpAddr::V4(Ipv4Addr::new(203, 0, 113, 66))];
                "02:00:00:00:00:66".to_owned()
            }
            _ => mac,
        };
        addresses.extend(link_local.map(IpAddr::V6));
        let statistics = |rx: u64, tx: u64| {
            json!({
                "rx-bytes": rx * 110, "rx-packets": rx, "rx-errs": 0, "rx-dropped": 0,
                "tx-bytes": tx * 86, "tx-packets": tx, "tx-errs": 0, "tx-dropped": 0,
            })
        };
        let listed: Vec<Value> = addresses
            .iter()
            .map(|address| match address {
                IpAddr::V4(_) => {
                    json!({"ip-address": address, "ip-address-type": "ipv4", "prefix": 24})
                }
                IpAddr::V6(_) => {
                    json!({"ip-address": address, "ip-address-type": "ipv6", "prefix": 64})
                }
            })
            .collect();
        json!([
            {
                "name": "lo", "hardware-address": "00:00:00:00:00:00",
                "ip-addresses": [
                    {"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8},
                    {"ip-address": "::1", "ip-address-type": "ipv6", "prefix": 128},
                ],
                "statistics": statistics(0, 0),
            },
            {
                "name": "eth0", "hardware-address": mac, "ip-addresses": listed,
                "statistics": statistics(1, 7),
            },
        ])
    }
}

fn result(value: Value) -> Reply {
    json!({"result": value}).into()
}

/// The address of a guest that nothing was said about: one of 198.18.0.0/15, where nothing
/// listens.
fn own_address(vmid: u32) -> Ipv4Addr {
    let host = vmid % 131_000 + 10;
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + host)
}

fn link_local(mac: &str) -> Option<Ipv6Addr> {
    let bytes: Vec<u8> = mac
        .split(':')
        .filter_map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    let mac: [u8; 6] = bytes.try_into().ok()?;
    let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Some(Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        word(mac[0] ^ 2, mac[1]),
        word(mac[2], 0xff),
        word(0xfe, mac[3]),
        word(mac[4], mac[5]),
    ))
}
