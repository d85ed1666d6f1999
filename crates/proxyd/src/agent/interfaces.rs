//! The machine's network cards with their addresses, in the shape that QEMU's agent gives them:
//! a card without addresses has no list of them.

use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    sys::socket::SockaddrStorage,
};
use serde::Serialize;
use std::{collections::BTreeMap, fs, io, net::IpAddr};

/// A network card.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Interface {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hardware_address: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ip_addresses: Vec<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    statistics: Option<Statistics>,
}

/// An address, and how many of its bits are the network's.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Address {
    #[serde(rename = "ip-address")]
    ip: IpAddr,
    #[serde(rename = "ip-address-type")]
    family: &'static str,
    prefix: u32,
}

/// Counters since boot.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Statistics {
    rx_bytes: u64,
    rx_packets: u64,
    rx_errs: u64,
    rx_dropped: u64,
    tx_bytes: u64,
    tx_packets: u64,
    tx_errs: u64,
    tx_dropped: u64,
}

/// The cards as they are now, in the kernel's order.
pub(super) fn observe() -> io::Result<Vec<Interface>> {
    let mut interfaces: Vec<Interface> = Vec::new();
    for entry in getifaddrs()? {
        let known = interfaces
            .iter()
            .position(|known| known.name == entry.interface_name);
        let at = known.unwrap_or_else(|| {
            interfaces.push(Interface {
                name: entry.interface_name.clone(),
                ..Interface::default()
            });
            interfaces.len() - 1
        });
        add(&mut interfaces[at], &entry);
    }
    // Counters are a courtesy: their lack hides no address.
    let counted = counters(&fs::read_to_string("/proc/net/dev").unwrap_or_default());
    for interface in &mut interfaces {
        interface.statistics = counted.get(&interface.name).map(statistics);
    }
    Ok(interfaces)
}

fn add(interface: &mut Interface, entry: &InterfaceAddress) {
    let Some(address) = &entry.address else {
        return;
    };
    if let Some(link) = address.as_link_addr() {
        interface.hardware_address = link.addr().map(|bytes| {
            let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            pairs.join(":")
        });
    }
    if let Some(ip) = ip(address) {
        interface.ip_addresses.push(Address {
            ip,
            family: if ip.is_ipv4() { "ipv4" } else { "ipv6" },
            prefix: entry.netmask.as_ref().and_then(self::ip).map_or(0, ones),
        });
    }
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
    four.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
}

/// The bits of a mask that are set.
fn ones(mask: IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => u32::from(mask).count_ones(),
        IpAddr::V6(mask) => u128::from(mask).count_ones(),
    }
}

/// The numbers of `/proc/net/dev` (`proc_pid_net(5)`) by card: eight received, then eight sent.
fn counters(text: &str) -> BTreeMap<String, [u64; 16]> {
    text.lines()
        .filter_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> = numbers
                .split_whitespace()
                .map(|number| number.parse().ok())
                .collect::<Option<_>>()?;
            Some((name.trim().to_owned(), numbers.try_into().ok()?))
        })
        .collect()
}

fn statistics(counted: &[u64; 16]) -> Statistics {
    Statistics {
        rx_bytes: counted[0],
        rx_packets: counted[1],
        rx_errs: counted[2],
        rx_dropped: counted[3],
        tx_bytes: counted[8],
        tx_packets: counted[9],
        tx_errs: counted[10],
        tx_dropped: counted[11],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_counters_are_read_by_their_columns() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       1       2    3    4    0     0          0         0        5       6    7    8    0     0       0          0
  eth0: many
";
        let counted = counters(text);
        assert_eq!(counted.len(), 1, "{counted:?}");
        assert_eq!(
            json!(statistics(&counted["lo"])),
            json!({"rx-bytes": 1, "rx-packets": 2, "rx-errs": 3, "rx-dropped": 4,
                "tx-bytes": 5, "tx-packets": 6, "tx-errs": 7, "tx-dropped": 8})
        );
    }

    #[test]
    fn a_mask_is_told_as_a_number_of_bits() {
        assert_eq!(ones("255.255.240.0".parse().unwrap()), 20);
        assert_eq!(ones("ffff:ffff:ffff:ffff::".parse().unwrap()), 64);
    }

    #[test]
    fn a_card_without_addresses_has_no_list_of_them() {
        let card = Interface {
            name: "eth1".into(),
            ..Interface::default()
        };
        assert_eq!(json!(card), json!({"name": "eth1"}));
    }
}
