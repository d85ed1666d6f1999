//! Names to addresses, in Rust: a static glibc has no name service switch.
//!
//! `/etc/hosts` first, then the name servers of `/etc/resolv.conf`. Both are read at the
//! first name and again when they change, since a machine may start its proxy before its
//! network is up; without them the proxy still serves addresses and `localhost`.

use crate::answer::Refusal;
use hickory_resolver::{
    Hosts, TokioResolver,
    config::{LookupIpStrategy, ResolveHosts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{Name, RecordType},
    },
    system_conf::parse_resolv_conf,
};
use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};
use tokio::time::{Duration, Instant};

/// How often the two files are looked at, at most.
const RECHECK: Duration = Duration::from_secs(5);
/// How many answers are kept.
const CACHED_ANSWERS: u64 = 1024;

/// The address family that outgoing connections can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
    Both,
}

impl Family {
    /// The family of a source address; both where there is none.
    pub(crate) fn of(egress: Option<IpAddr>) -> Self {
        match egress {
            None => Self::Both,
            Some(IpAddr::V4(_)) => Self::V4,
            Some(IpAddr::V6(_)) => Self::V6,
        }
    }

    pub(crate) fn includes(self, address: IpAddr) -> bool {
        match self {
            Self::Both => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// What the two files said when they were last read.
#[derive(Clone)]
struct Sources {
    hosts: Arc<Hosts>,
    /// `None` where no name server is known.
    resolver: Option<TokioResolver>,
    stamps: [Option<(SystemTime, u64)>; 2],
    checked: Instant,
}

/// Looks names up; cheap until the first name.
pub(crate) struct Names {
    family: Family,
    resolv_conf: PathBuf,
    hosts: PathBuf,
    /// Of all name servers; resolv.conf has no word for it.
    port: u16,
    sources: Mutex<Option<Sources>>,
}

impl Names {
    pub(crate) fn system(family: Family) -> Self {
        Self::from_files(family, "/etc/resolv.conf".into(), "/etc/hosts".into(), 53)
    }

    fn from_files(family: Family, resolv_conf: PathBuf, hosts: PathBuf, port: u16) -> Self {
        Self {
            family,
            resolv_conf,
            hosts,
            port,
            sources: Mutex::new(None),
        }
    }

    /// The addresses of a name, of our family, in the order to try them; never empty.
    pub(crate) async fn lookup(&self, text: &str) -> Result<Vec<IpAddr>, Refusal> {
        let mut name = Name::from_ascii(text).map_err(|_| Refusal::DnsFailed)?;
        // A name with a dot is complete: appending this host's search domains to it could
        // only lead somewhere the client did not ask for.
        if text.contains('.') {
            name.set_fqdn(true);
        }
        let sources = self.sources();
        let mut addresses = static_addresses(&sources.hosts, &name);
        if addresses.is_empty() {
            let resolver = sources.resolver.ok_or(Refusal::DnsFailed)?;
            let answer = resolver
                .lookup_ip(name)
                .await
                .map_err(|error| match error {
                    NetError::Timeout => Refusal::DnsTimeout,
                    _ => Refusal::DnsFailed,
                })?;
            addresses.extend(answer.iter());
        }
        let found = !addresses.is_empty();
        addresses.retain(|address| self.family.includes(*address));
        match addresses.is_empty() {
            false => Ok(addresses),
            true if found => Err(Refusal::Unroutable),
            true => Err(Refusal::DnsFailed),
        }
    }

    fn sources(&self) -> Sources {
        let mut held = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(sources) = held.as_mut() {
            if now < sources.checked + RECHECK {
                return sources.clone();
            }
            sources.checked = now;
            if sources.stamps == self.stamps() {
                return sources.clone();
            }
        }
        let stamps = self.stamps();
        let sources = Sources {
            hosts: Arc::new(read_hosts(&self.hosts)),
            resolver: self.resolver(),
            stamps,
            checked: now,
        };
        *held = Some(sources.clone());
        sources
    }

    fn stamps(&self) -> [Option<(SystemTime, u64)>; 2] {
        [&self.resolv_conf, &self.hosts].map(|path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }

    fn resolver(&self) -> Option<TokioResolver> {
        let text = fs::read(&self.resolv_conf)
            .inspect_err(|error| tracing::warn!(%error, "resolv.conf is unreadable"))
            .ok()?;
        let (mut config, mut options) = parse_resolv_conf(text)
            .inspect_err(|error| tracing::warn!(%error, "resolv.conf names no name server"))
            .ok()?;
        for connection in config
            .name_servers
            .iter_mut()
            .flat_map(|s| &mut s.connections)
        {
            connection.port = self.port;
        }
        options.cache_size = CACHED_ANSWERS;
        options.use_hosts_file = ResolveHosts::Never;
        options.try_tcp_on_error = true;
        options.ip_strategy = match self.family {
            Family::V4 => LookupIpStrategy::Ipv4Only,
            Family::V6 => LookupIpStrategy::Ipv6Only,
            Family::Both => LookupIpStrategy::Ipv4AndIpv6,
        };
        let provider = TokioRuntimeProvider::default();
        let mut builder = TokioResolver::builder_with_config(config, provider);
        *builder.options_mut() = options;
        builder.build().ok()
    }
}

fn read_hosts(path: &Path) -> Hosts {
    let mut hosts = Hosts::default();
    let read = File::open(path).and_then(|file| hosts.read_hosts_conf(file));
    if let Err(error) = read {
        tracing::warn!(%error, "the hosts file is unreadable");
    }
    hosts
}

fn static_addresses(hosts: &Hosts, name: &Name) -> Vec<IpAddr> {
    let of_type = |record| {
        let found = hosts.lookup_static_host(&Query::query(name.clone(), record));
        found.into_iter().flat_map(|lookup| {
            let records: Vec<_> = lookup
                .answers()
                .iter()
                .filter_map(|r| r.data.ip_addr())
                .collect();
            records
        })
    };
    let mut addresses: Vec<IpAddr> = of_type(RecordType::A)
        .chain(of_type(RecordType::AAAA))
        .collect();
    // RFC 6761, 6.3: never a question for a name server.
    if addresses.is_empty() && name.to_ascii().trim_end_matches('.') == "localhost" {
        addresses.extend([
            IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ]);
    }
    addresses
}

#[cfg(test)]
mod tests;
