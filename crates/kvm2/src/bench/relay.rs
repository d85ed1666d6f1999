//! A relay between provider and libvirtd: it reads every message, writes down what changes
//! something, loses what it is told to lose, and answers in the guests' place.
//!
//! Guests are played because a real one takes seconds to boot: the domains are real and have an
//! empty disk, and the relay answers what their agents would. Everything else comes from
//! libvirtd, but for the few facts that no test may spoil on a host: its UUID, a full pool, a
//! network that is down, a machine stuck on its storage.

use crate::{
    client::{
        errors::ServerError,
        frame::{Frame, MessageType, Status},
        procedure::{Effect, Procedure},
        xdr::{Reader, Writer},
    },
    provider::descriptions::DomainView,
};
use egress_provider::conformance::{Agent, Landing, Network};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream, unix::OwnedReadHalf, unix::OwnedWriteHalf},
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use uuid::Uuid;

/// The host's UUID while it is another host.
const ANOTHER_HOST: &str = "00000000-0000-4000-8000-0000000000ff";

#[derive(Default)]
struct World {
    network: Option<Network>,
    /// What becomes of a mutating request: of the one after so many others.
    losing: Option<(usize, Landing)>,
    mutations: Vec<String>,
    agents: BTreeMap<Uuid, Agent>,
    macs: BTreeMap<Uuid, String>,
    stuck: BTreeSet<Uuid>,
    is_full: bool,
    network_is_down: bool,
    is_another_host: bool,
}

impl World {
    fn is(&self, network: Network) -> bool {
        self.network == Some(network)
    }
}

struct Shared {
    world: Mutex<World>,
    target: PathBuf,
    /// Raised to end every connection.
    epoch: watch::Sender<u64>,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn end_connections(&self) {
        self.epoch.send_modify(|epoch| *epoch += 1);
    }
}

/// The relay; it ends when it is dropped.
pub(super) struct Relay {
    shared: Arc<Shared>,
    socket: PathBuf,
    listening: Mutex<Option<AbortHandle>>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Relay {
    /// Listens at `socket` and speaks to libvirtd at `target`.
    pub(super) fn start(socket: PathBuf, target: PathBuf) -> io::Result<Self> {
        let relay = Self {
            shared: Arc::new(Shared {
                world: Mutex::default(),
                target,
                epoch: watch::Sender::new(0),
            }),
            socket,
            listening: Mutex::default(),
        };
        relay.listen()?;
        Ok(relay)
    }

    fn listen(&self) -> io::Result<()> {
        self.hang_up();
        let listener = UnixListener::bind(&self.socket)?;
        let shared = self.shared.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connect(stream, shared.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        *self.held() = Some(task.abort_handle());
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn hang_up(&self) {
        if let Some(task) = self.held().take() {
            task.abort();
        }
        let _not_there = std::fs::remove_file(&self.socket);
        self.shared.end_connections();
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn mutations(&self) -> Vec<String> {
        self.shared.world().mutations.clone()
    }

    pub(super) fn lose(&self, others: usize, landing: Landing) {
        self.shared.world().losing = Some((others, landing));
    }

    pub(super) fn set_network(&self, network: Network) -> io::Result<()> {
        self.shared.world().network = Some(network);
        match network {
            Network::Down => self.hang_up(),
            Network::Up if self.held().is_none() => self.listen()?,
            Network::Up | Network::Hanging => self.shared.end_connections(),
        }
        Ok(())
    }

    pub(super) fn set_agent(&self, uuid: Uuid, agent: Agent) {
        self.shared.world().agents.insert(uuid, agent);
    }

    pub(super) fn stick(&self, uuid: Uuid) {
        self.shared.world().stuck.insert(uuid);
    }

    pub(super) fn fill_up(&self) {
        self.shared.world().is_full = true;
    }

    pub(super) fn take_network_down(&self) {
        self.shared.world().network_is_down = true;
    }

    pub(super) fn change_host(&self) {
        self.shared.world().is_another_host = true;
        self.shared.end_connections();
    }

    /// Every fault that lies on no machine is mended.
    pub(super) fn heal(&self) -> io::Result<()> {
        let changed = {
            let mut world = self.shared.world();
            world.losing = None;
            world.is_full = false;
            world.network_is_down = false;
            std::mem::take(&mut world.is_another_host)
        };
        if changed {
            self.shared.end_connections();
        }
        if !matches!(self.shared.world().network, None | Some(Network::Up)) {
            self.set_network(Network::Up)?;
        }
        Ok(())
    }
}

/// A call on its way, by its serial number.
#[derive(Clone)]
struct Pending {
    procedure: Procedure,
    /// The domain it is about, where it is about one.
    domain: Option<Uuid>,
    /// Its answer is lost.
    is_lost: bool,
}

type Calls = Arc<Mutex<HashMap<u32, Pending>>>;

async fn connect(client: UnixStream, shared: Arc<Shared>) {
    let mut epoch = shared.epoch.subscribe();
    let Ok(server) = UnixStream::connect(&shared.target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let calls = Calls::default();
    let up = forth(from_client, to_server, shared.clone(), calls.clone());
    let down = back(from_server, to_client, shared.clone(), calls);
    // Whichever ends first ends the connection.
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = epoch.changed() => {}
    }
}

fn held(calls: &Calls) -> MutexGuard<'_, HashMap<u32, Pending>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn forth(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: Arc<Shared>, calls: Calls) {
    while let Ok(frame) = Frame::read(&mut from).await {
        if shared.world().is(Network::Hanging) {
            continue;
        }
        if frame.header.kind == MessageType::Call {
            let procedure = Procedure::ALL
                .iter()
                .find(|p| p.number() == frame.header.procedure)
                .copied();
            if let Some(procedure) = procedure {
                let losing = note(&shared, procedure, &frame);
                let pending = Pending {
                    procedure,
                    domain: domain_of(procedure, &frame.body),
                    is_lost: losing == Some(Landing::Landed),
                };
                held(&calls).insert(frame.header.serial, pending);
                match losing {
                    Some(Landing::Lost) => return,
                    Some(Landing::Late(after)) => {
                        tokio::spawn(send_late(shared.target.clone(), frame, after));
                        return;
                    }
                    Some(Landing::Landed) | None => {}
                }
            }
        }
        let Some(bytes) = frame.encode() else { return };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Writes down a request that changes something, and says how its answer is to be lost.
fn note(shared: &Shared, procedure: Procedure, frame: &Frame) -> Option<Landing> {
    if procedure.effect() == Effect::Reads {
        return None;
    }
    let mut world = shared.world();
    let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(&frame.body)[..6]);
    let line = format!("{} {digest}", procedure.as_str());
    world.mutations.push(line);
    if procedure == Procedure::DomainDestroyFlags
        && let Some(uuid) = domain_of(procedure, &frame.body)
    {
        world.stuck.remove(&uuid);
    }
    match world.losing.take()? {
        (0, landing) => Some(landing),
        (others, landing) => {
            world.losing = Some((others - 1, landing));
            None
        }
    }
}

/// The domain that a call is about: its arguments begin with it.
fn domain_of(procedure: Procedure, body: &[u8]) -> Option<Uuid> {
    if !procedure.as_str().starts_with("Domain") || procedure == Procedure::DomainDefineXmlFlags {
        return None;
    }
    let mut reader = Reader::new(body);
    if procedure != Procedure::DomainLookupByUuid {
        reader.text().ok()?;
    }
    Uuid::from_slice(reader.fixed(16).ok()?).ok()
}

/// Sends one call over a connection of its own, when its sender believes it lost.
async fn send_late(target: PathBuf, frame: Frame, after: Duration) {
    tokio::time::sleep(after).await;
    let Ok(mut server) = UnixStream::connect(&target).await else {
        return;
    };
    let opening = [
        (Procedure::AuthList, Writer::new()),
        (
            Procedure::ConnectOpen,
            Writer::new().optional(Some("qemu:///system")).u32(0),
        ),
    ];
    let mut serial = 0;
    for (procedure, arguments) in opening {
        serial += 1;
        let mut opener = frame.clone();
        opener.header.procedure = procedure.number();
        opener.header.serial = serial;
        opener.body = arguments.into_bytes();
        let Some(bytes) = opener.encode() else { return };
        if server.write_all(&bytes).await.is_err() || Frame::read(&mut server).await.is_err() {
            return;
        }
    }
    let mut late = frame;
    late.header.serial = serial + 1;
    if let Some(bytes) = late.encode()
        && server.write_all(&bytes).await.is_ok()
    {
        // Closed before its answer, the call might not be taken up.
        let _answer = Frame::read(&mut server).await;
    }
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: Arc<Shared>, calls: Calls) {
    while let Ok(mut frame) = Frame::read(&mut from).await {
        if shared.world().is(Network::Hanging) {
            continue;
        }
        let serial = frame.header.serial;
        let pending = match frame.header.kind {
            MessageType::Reply => {
                let mut calls = held(&calls);
                // What is lost of an upload is the answer to its last byte.
                let goes_on = |p: &Pending| p.procedure == Procedure::StorageVolUpload;
                match calls.get(&serial) {
                    Some(pending) if goes_on(pending) => None,
                    _ => calls.remove(&serial),
                }
            }
            MessageType::Stream => held(&calls).remove(&serial),
            MessageType::Call | MessageType::Event => None,
        };
        if let Some(pending) = pending {
            if pending.is_lost {
                return;
            }
            rewrite(&shared, &pending, &mut frame);
        }
        let Some(bytes) = frame.encode() else { return };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// What an answer says in this world.
fn rewrite(shared: &Shared, pending: &Pending, frame: &mut Frame) {
    let mut world = shared.world();
    let is_ok = frame.header.status == Status::Ok;
    let number = |at: usize| 4 * at..4 * at + 4;
    match pending.procedure {
        Procedure::ConnectGetCapabilities if is_ok && world.is_another_host => {
            let Ok(text) = Reader::new(&frame.body).text() else {
                return;
            };
            let start = text.find("<uuid>").map(|at| at + "<uuid>".len());
            let end = text.find("</uuid>");
            if let (Some(start), Some(end)) = (start, end) {
                let changed = format!("{}{ANOTHER_HOST}{}", &text[..start], &text[end..]);
                frame.body = Writer::new().text(&changed).into_bytes();
            }
        }
        Procedure::StoragePoolGetInfo if is_ok && world.is_full => {
            // state, capacity, allocation, available
            if let Some(available) = frame.body.get_mut(20..28) {
                available.fill(0);
            }
        }
        Procedure::NetworkIsActive if is_ok && world.network_is_down => {
            if let Some(active) = frame.body.get_mut(number(0)) {
                active.fill(0);
            }
        }
        Procedure::DomainGetXmlDesc if is_ok => {
            let Ok(text) = Reader::new(&frame.body).text() else {
                return;
            };
            if let Ok(view) = DomainView::read(&text)
                && let Some(mac) = view.macs.first()
            {
                world.macs.insert(view.uuid, mac.clone());
            }
        }
        Procedure::DomainGetState if is_ok => {
            let is_stuck = pending.domain.is_some_and(|d| world.stuck.contains(&d));
            let is_running = frame.body.get(number(0)) == Some([0, 0, 0, 1].as_slice());
            if is_stuck && is_running {
                frame.body = Writer::new().i32(3).i32(5).into_bytes();
            }
        }
        Procedure::DomainInterfaceAddresses if !is_ok => {
            play_agent(&world, pending, frame);
        }
        _ => {}
    }
}

/// Answers in the place of a guest's agent, where libvirt says that there is none at work.
fn play_agent(world: &World, pending: &Pending, frame: &mut Frame) {
    const NOT_CONNECTED: i32 = 86;
    const NOT_CONFIGURED: i32 = 74;
    let asked = ServerError::decode(&frame.body).is_ok_and(|error| error.code == NOT_CONNECTED);
    let Some(uuid) = pending.domain.filter(|_| asked) else {
        return;
    };
    let agent = world.agents.get(&uuid).copied().unwrap_or(Agent::Answering);
    let interface = |name: &str, mac: &str, addresses: &[&str]| {
        let mut card = Writer::new()
            .text(name)
            .optional(Some(mac))
            .u32(addresses.len() as u32);
        for address in addresses {
            card = card.i32(0).text(address).u32(24);
        }
        card.into_bytes()
    };
    let mac = world.macs.get(&uuid).map_or("", String::as_str);
    let [.., a, b] = uuid.into_bytes();
    let address = format!("198.51.{}.{}", 100 + a % 2, b.clamp(1, 254));
    let cards = match agent {
        Agent::Silent => return,
        Agent::Missing => {
            let error = Writer::new()
                .i32(NOT_CONFIGURED)
                .i32(10)
                .optional(Some(
                    "argument unsupported: QEMU guest agent is not configured",
                ))
                .i32(2);
            // No domain, texts, numbers, network.
            frame.body = error
                .u32(0)
                .u32(0)
                .u32(0)
                .u32(0)
                .i32(0)
                .i32(0)
                .u32(0)
                .into_bytes();
            return;
        }
        Agent::Addressless => vec![interface("enp1s0", mac, &["fe80::1", "169.254.3.4"])],
        Agent::Answering => vec![
            interface("lo", "00:00:00:00:00:00", &["127.0.0.1", "::1"]),
            interface("docker0", "02:42:00:00:00:01", &["172.17.0.1"]),
            interface("enp1s0", mac, &["fe80::1", &address]),
        ],
    };
    frame.header.status = Status::Ok;
    let mut body = Writer::new().u32(cards.len() as u32).into_bytes();
    body.extend(cards.concat());
    frame.body = body;
}
