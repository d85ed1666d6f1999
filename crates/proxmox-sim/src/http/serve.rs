//! Starting the simulator and ending it.

use super::{
    authority::{Authority, write_secret},
    connection, control,
};
use crate::{
    exchange::{Answer, Request},
    guests,
    world::{Control, Setup, World},
};
use serde::Serialize;
use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use tokio::{net::TcpListener, task::JoinSet};

/// How a simulator is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the first node listens; further nodes take the ports behind it. Port 0 takes free
    /// ones.
    pub listen: SocketAddr,
    /// What runs in started machines.
    pub guests: GuestKind,
    /// Where the certificate authority, the token file and the guests' files lie.
    pub state_dir: PathBuf,
    /// Divides every duration of the world; 1 is real time.
    pub speed: f64,
    /// The world it begins with; [`now`] is its time where it is to be today's.
    pub setup: Setup,
}

/// The time of day, as a world begins with it: in seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What runs in a started machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// Nothing: the agent reports an address where nothing listens.
    None,
    /// The real proxy, with the configuration on the machine's seed.
    Proxyd {
        /// The program.
        program: PathBuf,
        /// What stands before `--config FILE` on its command line.
        arguments: Vec<String>,
    },
}

/// What a client of the simulator must know; the first line that `sim proxmox` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The first node's URL.
    pub url: String,
    /// The URLs of all nodes, the first one first.
    pub urls: Vec<String>,
    /// The certificate authority to trust.
    pub ca_file: PathBuf,
    /// A token that may do all the product needs.
    pub token_file: PathBuf,
    /// The first node's name.
    pub node: String,
    /// The template's number.
    pub template: u32,
    /// The storage for machines.
    pub storage: String,
    /// The storage for seeds.
    pub iso_storage: String,
    /// Where `POST` takes what happens beside the API.
    pub control_url: String,
}

/// The world and its clock.
pub(crate) struct Shared {
    world: Mutex<World>,
    began: Instant,
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut World, Duration) -> T) -> T {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: the world's time never goes back.
        let now = self.began.elapsed();
        act(&mut world, now)
    }

    /// Puts a request to the world.
    pub(crate) fn step(&self, request: &Request) -> Answer {
        self.with(|world, now| world.step(request, now))
    }

    /// Does something beside the API.
    pub(crate) fn control(&self, control: Control) -> Result<serde_json::Value, String> {
        self.with(|world, now| world.control(control, now))
    }

    /// The machines that run now.
    pub(crate) fn guests(&self) -> Vec<crate::world::Guest> {
        self.with(World::guests)
    }

    /// Tells what the agent of a machine's boot reports from now on.
    pub(crate) fn report(&self, vmid: u32, boot: u64, addresses: Option<Vec<IpAddr>>) {
        self.with(|world, now| world.guest_reports(vmid, boot, addresses, now));
    }
}

/// A simulator that serves until it is stopped or dropped.
#[derive(Debug)]
pub struct Running {
    facts: Facts,
    tasks: JoinSet<()>,
    /// Held for as long as it runs.
    _lock: fs::File,
}

impl Running {
    /// What its clients must know.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Ends it with its guests and waits until all of it has ended.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Binds the port of each node, all of them or none.
async fn bind(listen: SocketAddr, nodes: usize) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for index in 0..nodes {
        let mut at = listen;
        if listen.port() != 0 {
            let index = u16::try_from(index).map_err(io::Error::other)?;
            let port = listen.port().checked_add(index).ok_or_else(|| {
                io::Error::other(format!("no port is left behind {listen} for {nodes} nodes"))
            })?;
            at.set_port(port);
        }
        listeners.push(
            TcpListener::bind(at)
                .await
                .map_err(|error| io::Error::new(error.kind(), format!("{at}: {error}")))?,
        );
    }
    Ok(listeners)
}

/// What a world's setup must hold for clients to begin: template, image and ISO storage, token.
struct Essentials {
    template: u32,
    storage: String,
    iso_storage: String,
    token: String,
}

fn essentials(setup: &Setup) -> io::Result<Essentials> {
    let missing = |what: &str| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the world has no {what}"),
        )
    };
    let storing = |content: &str| {
        setup
            .storages
            .iter()
            .find(|storage| storage.enabled && storage.content.iter().any(|held| held == content))
            .map(|storage| storage.name.clone())
    };
    let token = setup.tokens.first().ok_or_else(|| missing("token"))?;
    Ok(Essentials {
        template: setup
            .guests
            .iter()
            .find(|guest| {
                guest
                    .config
                    .get("template")
                    .is_some_and(|value| value == "1")
            })
            .map(|guest| guest.vmid)
            .ok_or_else(|| missing("template"))?,
        storage: storing("images").ok_or_else(|| missing("storage for images"))?,
        iso_storage: storing("iso").ok_or_else(|| missing("storage for ISOs"))?,
        token: format!("{}={}\n", token.id, token.secret),
    })
}

/// Starts a simulator and answers when all its ports are open.
///
/// # Errors
///
/// The state folder cannot be written, a port is taken, or the setup lacks a node, a token, a
/// template or a storage for images or ISOs.
pub async fn serve(options: Options) -> io::Result<Running> {
    let mut setup = options.setup;
    setup.speed = options.speed;
    setup.outside_guests = matches!(options.guests, GuestKind::Proxyd { .. });
    let essentials = essentials(&setup)?;
    let nodes: Vec<String> = setup.nodes.iter().map(|node| node.name.clone()).collect();
    let node = nodes
        .first()
        .cloned()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the world has no node"))?;

    fs::create_dir_all(&options.state_dir)?;
    let state_dir = options.state_dir.canonicalize()?;
    let lock = hold(&state_dir)?;
    let authority = Authority::open(&state_dir)?;
    setup.ca_fingerprint = Some(authority.fingerprint()?);
    let token_file = state_dir.join("token");
    write_secret(&token_file, &essentials.token)?;

    let listeners = bind(options.listen, nodes.len()).await?;
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let reachable = if options.listen.ip().is_unspecified() {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        options.listen.ip()
    };
    let mut urls = Vec::new();
    for listener in &listeners {
        urls.push(format!(
            "https://{}",
            SocketAddr::new(reachable, listener.local_addr()?.port())
        ));
    }
    let facts = Facts {
        url: urls[0].clone(),
        urls,
        ca_file: authority.file().to_path_buf(),
        token_file,
        node,
        template: essentials.template,
        storage: essentials.storage,
        iso_storage: essentials.iso_storage,
        control_url: format!("http://{}/", control.local_addr()?),
    };

    let shared = Arc::new(Shared {
        world: Mutex::new(World::new(setup)),
        began: Instant::now(),
    });
    let mut tasks = JoinSet::new();
    for (name, listener) in nodes.into_iter().zip(listeners) {
        let tls = authority.acceptor(&name, options.listen.ip())?;
        let (shared, name) = (Arc::clone(&shared), Arc::<str>::from(name));
        tasks.spawn(accept(listener, move |stream| {
            connection::serve(Arc::clone(&shared), Arc::clone(&name), tls.clone(), stream)
        }));
    }
    let controlled = Arc::clone(&shared);
    tasks.spawn(accept(control, move |stream| {
        control::serve(Arc::clone(&controlled), stream)
    }));
    if let GuestKind::Proxyd { program, arguments } = options.guests {
        let folder = state_dir.join("guests");
        let supervisor = guests::Supervisor::new(program, arguments, folder, Arc::clone(&shared))?;
        tasks.spawn(supervisor.run());
    }
    Ok(Running {
        facts,
        tasks,
        _lock: lock,
    })
}

/// Keeps a second simulator out of the state folder: it would end the guests of the first.
fn hold(state_dir: &Path) -> io::Result<fs::File> {
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(state_dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            write!(file, "{}", std::process::id())?;
            Ok(file)
        }
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)?;
            Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("the simulator of process {pid} uses this folder"),
            ))
        }
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Serves each connection in a task of its own; they end with the listener.
async fn accept<F>(listener: TcpListener, serve: impl Fn(tokio::net::TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream));
                }
                Err(error) => {
                    // Out of descriptors, mostly: existing connections must end first.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
