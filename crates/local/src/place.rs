//! Slots: where a proxy listens and where its traffic comes from; and the kernel's word on
//! whether that is free.

use crate::config::Config;
use egress_core::{MachineKey, Slot};
use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt::set_socket_reuseaddr,
    },
};
use std::{
    collections::{HashMap, HashSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

/// A slot, read: `<listen address>_<port>_<egress address>`, which is also the name of the
/// machine's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) listen: IpAddr,
    pub(crate) port: u16,
    pub(crate) egress: IpAddr,
}

impl Place {
    pub(crate) fn slot(self) -> Slot {
        Slot::new(format!("{}_{}_{}", self.listen, self.port, self.egress))
    }

    /// Reads a slot. Only the very text that [`slot`](Self::slot) writes is one, so that two
    /// texts never mean one place and no text leads out of the directory.
    pub(crate) fn parse(slot: &Slot) -> Option<Self> {
        let mut parts = slot.as_str().split('_');
        let place = Self {
            listen: parts.next()?.parse().ok()?,
            port: parts.next()?.parse().ok().filter(|port| *port != 0)?,
            egress: parts.next()?.parse().ok()?,
        };
        (parts.next().is_none() && place.slot() == *slot).then_some(place)
    }

    pub(crate) const fn socket(self) -> SocketAddr {
        SocketAddr::new(self.listen, self.port)
    }

    /// Where clients find the proxy: a wildcard is no address to connect to.
    pub(crate) const fn reported(self) -> IpAddr {
        if self.listen.is_unspecified() {
            self.egress
        } else {
            self.listen
        }
    }
}

/// Every place that a key may take, the key's own first choice first, then on from there. A
/// manifest's `port` is the only one looked at then.
pub(crate) fn candidates<'a>(
    config: &Config,
    addresses: &'a [IpAddr],
    key: &MachineKey,
    port: Option<u16>,
) -> impl Iterator<Item = Place> + 'a {
    let listen = config.listen;
    let first_port = port.unwrap_or(config.port_range.from);
    let ports = if port.is_some() {
        1
    } else {
        config.port_range.count()
    };
    let width = addresses.len() as u64;
    let count = width * ports;
    let start = key.spread(count);
    (0..count).map(move |step| {
        let index = (start + step) % count;
        // Neighbours differ in the address first: machines spread over the egress addresses.
        let egress = addresses[(index % width) as usize];
        let port = first_port + (index / width) as u16;
        Place {
            listen: listen.unwrap_or(egress),
            port,
            egress,
        }
    })
}

/// What the kernel says of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortSight {
    Free,
    /// Someone listens there, or uses it for a connection.
    Taken,
    /// The address is not on this host.
    NotHere,
    /// This user may not bind it.
    Forbidden,
}

/// Asks by binding, without listening: no client ever connects to the question.
pub(crate) fn look_at_port(address: SocketAddr) -> io::Result<PortSight> {
    match bound(address) {
        Ok(_) => Ok(PortSight::Free),
        Err(Errno::ADDRINUSE) => Ok(PortSight::Taken),
        Err(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => Ok(PortSight::NotHere),
        Err(Errno::ACCESS | Errno::PERM) => Ok(PortSight::Forbidden),
        Err(error) => Err(error.into()),
    }
}

fn bound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // As proxyd's listener does: connections in TIME_WAIT do not count as taken.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Whether an address is on this host.
pub(crate) fn address_on_host(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Who holds a port, as far as `/proc` tells this user; for people only.
pub(crate) fn holder(address: SocketAddr) -> String {
    let Some((inode, uid)) = listening_socket(address) else {
        return "a socket that does not listen".to_owned();
    };
    let wanted = format!("socket:[{inode}]");
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for path in pids.filter(|path| path.file_name().is_some_and(is_number)) {
        let Ok(fds) = fs::read_dir(path.join("fd")) else {
            continue;
        };
        let holds = fds
            .flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()));
        if holds {
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            let pid = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            return format!("process {pid} ({})", name.trim());
        }
    }
    format!("a process of user {uid}")
}

fn is_number(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
}

/// Inode and user of the socket that listens at an address.
fn listening_socket(address: SocketAddr) -> Option<(u64, u32)> {
    let found = listening()
        .into_iter()
        .find(|socket| socket.stands_at(address));
    found.map(|socket| (socket.inode, socket.uid))
}

/// A socket that listens, as the kernel lists it.
struct Listening {
    at: SocketAddr,
    inode: u64,
    uid: u32,
}

impl Listening {
    /// Whether nobody else can listen at this address while it does.
    fn stands_at(&self, address: SocketAddr) -> bool {
        let (ip, other) = (self.at.ip(), address.ip());
        let same = ip == other || ip.is_unspecified() || other.is_unspecified();
        same && self.at.port() == address.port()
    }
}

/// Every socket that listens, from `/proc/net/tcp` and `tcp6` (proc(5)).
fn listening() -> Vec<Listening> {
    let read = |name| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let [v4, v6] = [read("tcp"), read("tcp6")];
    let one = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state) = (fields.get(1)?, fields.get(3)?);
        let (ip, port) = local.split_once(':')?;
        let at = SocketAddr::new(proc_address(ip)?, u16::from_str_radix(port, 16).ok()?);
        let (inode, uid) = (fields.get(9)?.parse().ok()?, fields.get(7)?.parse().ok()?);
        (*state == "0A").then_some(Listening { at, inode, uid })
    };
    v4.lines().chain(v6.lines()).filter_map(one).collect()
}

/// How many sockets of the range nobody listens on, `ours` aside. Asking the kernel for each by
/// binding it would take seconds where the range is wide.
pub(crate) fn free_sockets(config: &Config, ours: &HashSet<SocketAddr>) -> u64 {
    let range = config.port_range;
    let addresses = match config.listen {
        Some(listen) => vec![listen],
        None => config.addresses(),
    };
    let within = |port: u16| (range.from..=range.to).contains(&port);
    let strangers = listening();
    let mut held = 0;
    for address in &addresses {
        let at = |socket: &SocketAddr| socket.ip() == *address && within(socket.port());
        let mut ports: HashSet<u16> = ours
            .iter()
            .filter(|s| at(s))
            .map(SocketAddr::port)
            .collect();
        ports.extend(strangers.iter().filter_map(|socket| {
            let port = socket.at.port();
            let taken = within(port) && socket.stands_at(SocketAddr::new(*address, port));
            taken.then_some(port)
        }));
        held += ports.len() as u64;
    }
    (addresses.len() as u64 * range.count()).saturating_sub(held)
}

/// An address as `/proc/net/tcp` writes it: hex words of 32 bits in the host's byte order.
fn proc_address(hex: &str) -> Option<IpAddr> {
    let words: Vec<[u8; 4]> = (0..hex.len() / 8)
        .map(|i| {
            u32::from_str_radix(hex.get(i * 8..i * 8 + 8)?, 16)
                .ok()
                .map(u32::to_ne_bytes)
        })
        .collect::<Option<_>>()?;
    match words.as_slice() {
        [v4] => Some(IpAddr::V4(Ipv4Addr::from(*v4))),
        [a, b, c, d] => {
            let bytes: [u8; 16] = [*a, *b, *c, *d].concat().try_into().ok()?;
            let v6 = Ipv6Addr::from(bytes);
            Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4))
        }
        _ => None,
    }
}

/// The sockets that a set of slots stands for: with a common listening address, two slots
/// that differ in their egress address only want the same socket. Each with that address.
pub(crate) fn egress_of_sockets<'a>(
    slots: impl Iterator<Item = &'a Slot>,
) -> HashMap<SocketAddr, IpAddr> {
    let places = slots.filter_map(Place::parse);
    places.map(|place| (place.socket(), place.egress)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PortRange;
    use std::{fmt::Write as _, net::TcpListener};

    fn key(uid: &str) -> MachineKey {
        MachineKey::new(uid.parse().unwrap())
    }

    #[test]
    fn a_slot_reads_back_and_no_other_text_is_one() {
        for text in ["127.0.0.1_20001_192.0.2.10", "::_80_2001:db8::1"] {
            assert_eq!(
                Place::parse(&Slot::new(text)).unwrap().slot().as_str(),
                text
            );
        }
        for text in [
            "",
            "127.0.0.1_20001",
            "127.0.0.1_0_127.0.0.1",
            "127.0.0.1_020001_127.0.0.1",
            "0:0::1_20001_::1",
            "127.0.0.1_20001_127.0.0.1_",
            "../x",
            "127.0.0.1_20001_127.0.0.1/..",
        ] {
            assert_eq!(Place::parse(&Slot::new(text)), None, "{text}");
        }
    }

    #[test]
    fn candidates_are_the_same_for_the_same_key_and_cover_every_place_once() {
        let config = Config {
            port_range: PortRange {
                from: 2000,
                to: 2009,
            },
            ..Config::default()
        };
        let addresses = ["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()];
        let first: Vec<Place> = candidates(&config, &addresses, &key("a"), None).collect();
        let again: Vec<Place> = candidates(&config, &addresses, &key("a"), None).collect();
        assert_eq!(first, again);
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 20);
        let other = candidates(&config, &addresses, &key("b"), None).next();
        assert_ne!(other, first.first().copied());
        let asked: Vec<u16> = candidates(&config, &addresses, &key("a"), Some(3128))
            .map(|p| p.port)
            .collect();
        assert_eq!(asked, [3128, 3128]);
    }

    #[test]
    fn the_kernel_tells_free_taken_and_not_here_and_who_holds_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(look_at_port(address).unwrap(), PortSight::Taken);
        let me = format!("process {} (", std::process::id());
        assert!(holder(address).starts_with(&me), "{}", holder(address));
        drop(listener);
        assert_eq!(look_at_port(address).unwrap(), PortSight::Free);
        assert_eq!(
            look_at_port("192.0.2.1:2000".parse().unwrap()).unwrap(),
            PortSight::NotHere
        );
    }

    #[test]
    fn a_socket_that_someone_listens_on_and_one_of_ours_are_not_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Two ports on each of two addresses, of which the kernel has one.
        let from = port.min(u16::MAX - 1);
        let config = Config {
            addresses: vec!["127.0.0.1".parse().unwrap(), "127.0.77.7".parse().unwrap()],
            port_range: PortRange { from, to: from + 1 },
            ..Config::default()
        };
        let other = if from == port { from + 1 } else { from };
        let ours = HashSet::from([SocketAddr::from(([127, 0, 77, 7], other))]);
        // A stranger may come to one of the others while this runs; a free one never appears.
        let with = free_sockets(&config, &ours);
        assert!(with <= 2, "{with}");
        let only = Config {
            port_range: PortRange {
                from: port,
                to: port,
            },
            ..config
        };
        assert_eq!(free_sockets(&only, &HashSet::new()), 1);
        let both = HashSet::from([SocketAddr::from(([127, 0, 77, 7], port))]);
        assert_eq!(free_sockets(&only, &both), 0);
    }

    #[test]
    fn addresses_of_proc_are_read_in_host_order() {
        let hex = |bytes: &[u8]| {
            let mut text = String::new();
            for word in bytes.chunks(4) {
                let word = u32::from_ne_bytes(word.try_into().unwrap());
                write!(text, "{word:08X}").unwrap();
            }
            text
        };
        let v4: Ipv4Addr = "192.0.2.10".parse().unwrap();
        let v6: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(proc_address(&hex(&v4.octets())), Some(v4.into()));
        assert_eq!(proc_address(&hex(&v6.octets())), Some(v6.into()));
        assert_eq!(
            proc_address(&hex(&v4.to_ipv6_mapped().octets())),
            Some(v4.into())
        );
        assert_eq!(proc_address("zz"), None);
    }
}
