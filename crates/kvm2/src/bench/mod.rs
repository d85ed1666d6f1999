//! The test bench of this provider: a real libvirtd behind a `relay`, and everything that
//! people and accidents do to domains.

mod relay;

use crate::{
    Config, HostBlock, Kvm2,
    client::{
        Client, Dialer, Domain, DomainState, Failure, HostUri, Kind, Metadata, Session, Transport,
        affect, undefine, xml,
    },
    provider::{
        descriptions::DomainView,
        domain_xml::{Escaped, NAMESPACE, PREFIX, mark_element, seed_volume},
        names::{VolumeKind, uuid_of, volume_name, volume_prefix},
    },
};
use async_trait::async_trait;
use egress_core::{Host, Identity, MachineKey, ProviderName, Slot};
use egress_provider::{
    Provider,
    conformance::{Agent, Harness, Landing, Network, Offered, PowerEvent, Refusal, Stranger},
};
use relay::Relay;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use uuid::Uuid;

/// How much shorter the provider's waits are here.
const SPEED: f64 = 40.0;
/// How long one step of the bench's own may take.
const STEP: Duration = Duration::from_mins(1);
/// The longest that a case may let pass.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long a machine's agent is not asked again after an answer, in the provider's pace.
const ASKED: Duration = Duration::from_millis(300);

/// A libvirtd, the relay before it, and the provider's configuration.
pub struct Bench {
    name: ProviderName,
    identity: Identity,
    config: Config,
    payload: Option<PathBuf>,
    direct: Client,
    relay: Relay,
    beside: Option<Beside>,
}

/// The second host: machines are moved there, and it can fall silent.
struct Beside {
    direct: Client,
    relay: Relay,
}

impl Bench {
    /// Over the libvirtd at this URI, which must be a socket of this host. `config` is the
    /// provider's, whose hosts are replaced by the relay; the relay's socket lies in
    /// `directory`. The machines of the provider must be the only ones in its pool.
    pub fn start(
        name: ProviderName,
        identity: Identity,
        mut config: Config,
        payload: Option<PathBuf>,
        uri: &HostUri,
        directory: &Path,
    ) -> std::io::Result<Self> {
        let (direct, relay) = reach(uri, directory.join("relay"))?;
        config.hosts = vec![through(&relay)];
        Ok(Self {
            name,
            identity,
            direct,
            config,
            payload,
            relay,
            beside: None,
        })
    }

    /// The same with a second host, whose pool is the same storage. Strangers are made on the
    /// first alone: cases that need one are for one host.
    pub fn beside(mut self, uri: &HostUri, directory: &Path) -> std::io::Result<Self> {
        let (direct, relay) = reach(uri, directory.join("relay-beside"))?;
        self.config.hosts.push(through(&relay));
        self.beside = Some(Beside { direct, relay });
        Ok(self)
    }

    /// Loses the answer of a mutating request, or the request: the one after so many more.
    pub fn lose_after(&self, others: usize, landing: Landing) {
        self.relay.lose(others, landing);
    }

    /// A new process of the provider, at its own pace.
    pub fn process(&self) -> Arc<dyn Provider> {
        self.provider(self.identity.clone())
    }

    fn relays(&self) -> impl Iterator<Item = &Relay> {
        let beside = self.beside.iter().map(|host| &host.relay);
        std::iter::once(&self.relay).chain(beside)
    }

    fn hosts(&self) -> impl Iterator<Item = &Client> {
        let beside = self.beside.iter().map(|host| &host.direct);
        std::iter::once(&self.direct).chain(beside)
    }

    fn provider(&self, identity: Identity) -> Arc<dyn Provider> {
        let provider = Kvm2::new(
            self.name.clone(),
            identity,
            self.config.clone(),
            self.payload.clone(),
        );
        Arc::new(provider.at_speed(SPEED))
    }

    async fn session(&self) -> Offered<Session> {
        self.direct.open(STEP).await.map_err(failed)
    }

    /// The domain at a slot, and the way to it.
    async fn at(&self, slot: &Slot) -> Offered<(Session, Domain)> {
        let found = self.find(slot).await?;
        found.ok_or_else(|| stumbled(format!("no domain at {slot}")))
    }

    /// The same; `None` where there is none on any host.
    async fn find(&self, slot: &Slot) -> Offered<Option<(Session, Domain)>> {
        for client in self.hosts() {
            let session = client.open(STEP).await.map_err(failed)?;
            match session.domain(uuid(slot)?).await {
                Ok(domain) => return Ok(Some((session, domain))),
                Err(failure) if failure.kind == Kind::NoDomain => {}
                Err(failure) => return Err(failed(failure)),
            }
        }
        Ok(None)
    }

    fn prefix(&self) -> String {
        volume_prefix(&self.identity.installation, &self.name)
    }

    async fn define(
        &self,
        uuid: Uuid,
        name: &str,
        text: Option<&str>,
    ) -> Offered<(Session, Domain)> {
        let session = self.session().await?;
        let metadata = text.map(|text| format!("<metadata>{}</metadata>", mark_element(text)));
        let xml = format!(
            "<domain type='qemu'><name>{}</name><uuid>{uuid}</uuid>{}<memory unit='MiB'>16</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='{}'>hvm</type></os><devices/></domain>",
            Escaped(name),
            metadata.unwrap_or_default(),
            Escaped(&self.config.machine_type),
        );
        let domain = session.define(name, &xml, 0, end()).await.map_err(failed)?;
        session.start(&domain, end()).await.map_err(failed)?;
        Ok((session, domain))
    }

    /// Waits until a domain is off.
    async fn off(&self, session: &Session, domain: &Domain) -> Offered {
        const SHUT_OFF: i32 = 5;
        let end = Instant::now() + STEP;
        while Instant::now() < end {
            let state = session.domain_state(domain).await.map_err(failed)?;
            if matches!(
                state,
                DomainState {
                    state: SHUT_OFF,
                    ..
                }
            ) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(stumbled("the domain does not end"))
    }
}

/// The way to a libvirtd, and a relay before it.
fn reach(uri: &HostUri, socket: PathBuf) -> std::io::Result<(Client, Relay)> {
    let Transport::Unix(Some(target)) = uri.transport() else {
        let said = "the bench needs a socket by its path";
        return Err(std::io::Error::other(said));
    };
    let relay = Relay::start(socket, target.clone())?;
    let dialer = Dialer::new(uri.clone(), crate::client::TlsFiles::default());
    Ok((Client::new(dialer), relay))
}

/// A host behind a relay.
fn through(relay: &Relay) -> HostBlock {
    HostBlock {
        uri: format!("qemu+unix:///system?socket={}", relay.socket().display()),
    }
}

fn end() -> Instant {
    Instant::now() + STEP
}

fn stumbled(error: impl std::fmt::Display) -> Refusal {
    Refusal::Stumbled(error.to_string())
}

#[allow(clippy::needless_pass_by_value)] // passed to map_err as it is
fn failed(failure: Failure) -> Refusal {
    stumbled(failure)
}

fn uuid(slot: &Slot) -> Offered<Uuid> {
    uuid_of(slot).ok_or_else(|| stumbled(format!("{slot} is no UUID")))
}

/// Absent is as well.
fn or_gone(sent: Result<(), Failure>) -> Offered {
    match sent {
        Err(failure)
            if !matches!(
                failure.kind,
                Kind::NoDomain | Kind::WrongState | Kind::NoVolume
            ) =>
        {
            Err(failed(failure))
        }
        _ => Ok(()),
    }
}

/// Ends the QEMU of a domain, as the kernel does when memory is short.
fn kill_qemu(uuid: Uuid) -> Offered {
    let uuid = uuid.to_string();
    let processes = fs::read_dir("/proc").map_err(stumbled)?;
    for process in processes.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let mut words = arguments.split(|b| *b == 0);
        let is_qemu = words
            .next()
            .is_some_and(|program| String::from_utf8_lossy(program).contains("qemu-system"));
        let is_it = is_qemu && {
            let mut words = words.skip_while(|word| *word != b"-uuid");
            words.nth(1) == Some(uuid.as_bytes())
        };
        if is_it {
            let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| stumbled("no pid"))?;
            return rustix::process::kill_process(pid, rustix::process::Signal::KILL)
                .map_err(stumbled);
        }
    }
    Err(stumbled("its QEMU is not among the processes"))
}

#[async_trait]
impl Harness for Bench {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn restart(&self) -> Offered<Arc<dyn Provider>> {
        Ok(self.provider(self.identity.clone()))
    }

    async fn heal(&self) -> Offered {
        for relay in self.relays() {
            relay.heal().map_err(stumbled)?;
        }
        Ok(())
    }

    async fn inventory(&self) -> Offered<Vec<String>> {
        let mut lines = Vec::new();
        for client in self.hosts() {
            let session = client.open(STEP).await.map_err(failed)?;
            let domains = session.domains().await.map_err(failed)?;
            let pool = session.pool(&self.config.pool).await.map_err(failed)?;
            // Where another call is at work, what it knows is new enough.
            let _busy = session.refresh_pool(&pool).await;
            let volumes = session.volumes(&pool).await.map_err(failed)?;
            let domains = domains.into_iter();
            lines.extend(domains.map(|domain| format!("domain {} {}", domain.name, domain.uuid)));
            lines.extend(volumes.into_iter().map(|v| format!("volume {}", v.name)));
        }
        lines.sort();
        // Both see the same storage.
        lines.dedup();
        Ok(lines)
    }

    fn call_deadline(&self) -> Duration {
        Duration::from_mins(4)
    }

    fn steps_show_as_requests(&self) -> bool {
        true
    }

    async fn pace(&self) -> Offered<f64> {
        Ok(SPEED)
    }

    async fn pass(&self, time: Duration) -> Offered {
        if time > PATIENCE {
            return Err(Refusal::NotOffered("let more than two minutes pass"));
        }
        tokio::time::sleep(time).await;
        Ok(())
    }

    async fn catch_up(&self) -> Offered {
        tokio::time::sleep(ASKED).await;
        Ok(())
    }

    async fn other_installation(&self) -> Offered<Arc<dyn Provider>> {
        let name = format!("not-{}", self.identity.installation);
        Ok(self.provider(Identity {
            installation: name.parse().map_err(stumbled)?,
            writer: self.identity.writer.clone(),
        }))
    }

    async fn mutations(&self) -> Offered<Vec<String>> {
        Ok(self.relays().flat_map(Relay::mutations).collect())
    }

    async fn describe(&self, slot: &Slot) -> Offered<Option<String>> {
        let Some((session, domain)) = self.find(slot).await? else {
            return Ok(None);
        };
        let text = session.domain_xml(&domain, xml::INACTIVE).await;
        let text = text.map_err(failed)?;
        let state = session.domain_state(&domain).await.map_err(failed)?;
        let pool = session.pool(&self.config.pool).await.map_err(failed)?;
        let volumes = session.volumes(&pool).await.map_err(failed)?;
        let drives = DomainView::read(&text).map_err(stumbled)?.drives;
        let disks: Vec<_> = drives
            .iter()
            .filter_map(|drive| drive.source.clone())
            .filter(|source| volumes.iter().any(|volume| volume.key == *source))
            .collect();
        Ok(Some(format!("{state:?} {disks:?}\n{text}")))
    }

    async fn place(&self, slot: &Slot, stranger: &Stranger) -> Offered {
        if stranger.template {
            return Err(Refusal::NotOffered(
                "place a template: libvirt has no such thing",
            ));
        }
        let session = self.session().await?;
        // A name is there once on a host.
        let name = match session.domain_by_name(&stranger.name).await {
            Ok(_) => format!("{}-{slot}", stranger.name),
            Err(_) => stranger.name.clone(),
        };
        let text = stranger.text.as_deref();
        self.define(uuid(slot)?, &name, text).await.map(drop)
    }

    async fn copy(&self, slot: &Slot) -> Offered<Slot> {
        let (session, domain) = self.at(slot).await?;
        let text = session.domain_xml(&domain, xml::INACTIVE).await;
        let view = DomainView::read(&text.map_err(failed)?).map_err(stumbled)?;
        let copy = Uuid::new_v4();
        let name = format!("{}-clone", view.name);
        self.define(copy, &name, view.mark.as_deref()).await?;
        Ok(Slot::new(copy.to_string()))
    }

    async fn remove(&self, slot: &Slot) -> Offered {
        let Some((session, domain)) = self.find(slot).await? else {
            return Ok(());
        };
        let text = session.domain_xml(&domain, xml::INACTIVE).await;
        let view = DomainView::read(&text.map_err(failed)?).map_err(stumbled)?;
        or_gone(session.destroy(&domain, end()).await)?;
        let flags = undefine::MANAGED_SAVE | undefine::SNAPSHOTS_METADATA;
        or_gone(session.undefine(&domain, flags, end()).await)?;
        let pool = session.pool(&self.config.pool).await.map_err(failed)?;
        for source in view.drives.into_iter().filter_map(|drive| drive.source) {
            let name = source.rsplit('/').next().unwrap_or_default();
            if let Ok(volume) = session.volume(&pool, name).await {
                or_gone(session.delete_volume(&volume, end()).await)?;
            }
        }
        Ok(())
    }

    async fn rename(&self, slot: &Slot, name: &str) -> Offered {
        // Only a domain that is off can be renamed.
        let (session, domain) = self.at(slot).await?;
        session.destroy(&domain, end()).await.map_err(failed)?;
        self.off(&session, &domain).await?;
        session.rename(&domain, name, end()).await.map_err(failed)?;
        let (session, renamed) = self.at(slot).await?;
        session.start(&renamed, end()).await.map_err(failed)
    }

    async fn edit_mark(&self, slot: &Slot, text: Option<&str>) -> Offered {
        let (session, domain) = self.at(slot).await?;
        let which = Metadata::Element {
            namespace: NAMESPACE,
            prefix: PREFIX,
        };
        let element = text.map(|text| format!("<mark>{}</mark>", Escaped(text)));
        let flags = affect::LIVE | affect::CONFIG;
        session
            .set_metadata(&domain, which, element.as_deref(), flags, end())
            .await
            .map_err(failed)
    }

    async fn power(&self, slot: &Slot, event: PowerEvent) -> Offered {
        if event == PowerEvent::Started {
            return Err(Refusal::NotOffered(
                "start a domain without its configuration: the definition is the configuration",
            ));
        }
        let (session, domain) = self.at(slot).await?;
        match event {
            PowerEvent::Off => session.destroy(&domain, end()).await.map_err(failed),
            PowerEvent::Paused => session.pause(&domain, end()).await.map_err(failed),
            PowerEvent::Hibernated => session.hibernate(&domain, end()).await.map_err(failed),
            PowerEvent::Crashed => {
                kill_qemu(domain.uuid)?;
                self.off(&session, &domain).await
            }
            PowerEvent::IoError => {
                self.relay.stick(domain.uuid);
                Ok(())
            }
            // A machine without an operating system hears nothing anyway.
            PowerEvent::Hung | PowerEvent::Started => Ok(()),
        }
    }

    async fn agent(&self, slot: &Slot, agent: Agent) -> Offered {
        for relay in self.relays() {
            relay.set_agent(uuid(slot)?, agent);
        }
        Ok(())
    }

    async fn migrate(&self, slot: &Slot) -> Offered<Host> {
        let Some(beside) = &self.beside else {
            return Err(Refusal::NotOffered(
                "move a machine: the bench has one host only",
            ));
        };
        let (from, domain) = self.at(slot).await?;
        let text = from.domain_xml(&domain, xml::INACTIVE).await;
        let text = text.map_err(failed)?;
        let mut to = beside.direct.open(STEP).await.map_err(failed)?;
        if to.domain(domain.uuid).await.is_ok() {
            to = self.session().await?;
        }
        or_gone(from.destroy(&domain, end()).await)?;
        let flags = undefine::MANAGED_SAVE | undefine::SNAPSHOTS_METADATA;
        from.undefine(&domain, flags, end()).await.map_err(failed)?;
        let moved = to.define(&domain.name, &text, 0, end()).await;
        let moved = moved.map_err(failed)?;
        to.start(&moved, end()).await.map_err(failed)?;
        Ok(Host::new(to.hostname().await.map_err(failed)?))
    }

    async fn blind_spot(&self) -> Offered {
        let Some(beside) = &self.beside else {
            return Err(Refusal::NotOffered(
                "hide a host: the bench has one host only",
            ));
        };
        beside.relay.set_network(Network::Down).map_err(stumbled)
    }

    async fn leave_seed(&self, key: &MachineKey) -> Offered<String> {
        // As a seed of ours is called, and for an attempt that no machine has.
        let name = volume_name(&self.prefix(), key.name(), 0, VolumeKind::Seed);
        let session = self.session().await?;
        let pool = session.pool(&self.config.pool).await.map_err(failed)?;
        let xml = seed_volume(&name, 2048);
        let made = session.create_volume(&pool, &name, &xml, end()).await;
        made.map_err(failed)?;
        Ok(name)
    }

    async fn remove_seed(&self, name: &str) -> Offered {
        let session = self.session().await?;
        let pool = session.pool(&self.config.pool).await.map_err(failed)?;
        match session.volume(&pool, name).await {
            Ok(volume) => or_gone(session.delete_volume(&volume, end()).await),
            Err(failure) => or_gone(Err(failure)),
        }
    }

    async fn lose_answer(&self, landing: Landing) -> Offered {
        self.relay.lose(0, landing);
        Ok(())
    }

    async fn network(&self, network: Network) -> Offered {
        self.relay.set_network(network).map_err(stumbled)
    }

    async fn change_cluster(&self) -> Offered {
        self.relay.change_host();
        Ok(())
    }

    async fn fill_up(&self) -> Offered {
        self.relay.fill_up();
        Ok(())
    }

    async fn break_precondition(&self) -> Offered {
        // Only a start needs it.
        self.relay.take_network_down();
        Ok(())
    }
}
