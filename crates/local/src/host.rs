//! Which host this is, and its clock.

use egress_core::{ClusterId, Host};
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    time::Duration,
};

/// The name space of the ids made from machine ids, so that no machine id is shown itself
/// (machine-id(5) asks for that).
const NAMESPACE: uuid::Uuid = uuid::Uuid::from_u128(0x6f2c_6bd0_3a5e_4e0b_9c61_0d7a_52e1_8f43);

/// What marks of this host name as their cluster: made from `/etc/machine-id`, else from the
/// host's name. A copy of a state directory on another host so bears void marks only.
pub fn cluster_id() -> ClusterId {
    let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .iter()
        .find_map(|path| {
            fs::read_to_string(path)
                .ok()
                .filter(|id| id.trim().len() == 32)
        })
        .unwrap_or_else(|| name().as_str().to_owned());
    ClusterId::new(uuid::Uuid::new_v5(&NAMESPACE, id.trim().as_bytes()).to_string())
}

/// The host's name.
pub(crate) fn name() -> Host {
    Host::new(rustix::system::uname().nodename().to_string_lossy())
}

/// The kernel's release.
pub(crate) fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Which boot this is: a new UUID each time. Empty where `/proc` is missing, and then
/// nothing that was written down before counts.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Time since boot, sleep included: the clock that start times of processes are told in.
pub(crate) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        now.tv_sec.cast_unsigned(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// The source address that the kernel would pick for the default route, else loopback.
/// Connecting a UDP socket looks the route up and sends nothing.
pub(crate) fn own_address() -> IpAddr {
    // Addresses for documentation (RFC 5737, RFC 3849): no route but the default one.
    [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")]
        .iter()
        .find_map(|(from, to)| {
            let socket = UdpSocket::bind(from).ok()?;
            socket.connect(to).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_host_gives_the_same_id_and_an_address_of_its_own() {
        assert_eq!(cluster_id(), cluster_id());
        assert!(crate::place::address_on_host(own_address()));
        assert_eq!(boot_id().len(), 36);
        assert!(since_boot() > Duration::ZERO);
    }
}
