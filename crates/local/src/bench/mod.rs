//! The test bench of the conformance suite: what people and kernels do to such machines.

mod ground;

pub use ground::{Ground, PATIENCE, is_alive};

use crate::{Config, place::Place};
use async_trait::async_trait;
use egress_core::{Identity, ProviderName, Slot, WriterId, proxy_config::ProxydConfig};
use egress_provider::{
    Provider,
    conformance::{Harness, Lock, Offered, PowerEvent, Refusal, Stranger},
};
use ground::BETWEEN_LOOKS;
use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What a test put into a machine's directory to keep it.
const KEEP: &str = "keep-this";

/// The test bench of one provider: everything it makes lies in one directory, and
/// [`clear`](Self::clear) takes all of it away.
#[derive(Debug)]
pub struct Bench {
    ground: Ground,
    /// Strangers "run" by listening.
    listeners: Mutex<HashMap<Slot, TcpListener>>,
    locks: Mutex<HashMap<Slot, File>>,
    /// What was there at the last look, and every difference since the first one.
    seen: Mutex<(BTreeMap<String, String>, Vec<String>)>,
}

/// No code panics while it holds one of these locks, so what they guard is whole.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bench {
    /// A bench that makes the directory `root`, which must not be there yet, for providers
    /// that are made with `config`; only the drain is shortened to a second.
    pub fn new(
        root: PathBuf,
        name: ProviderName,
        identity: Identity,
        config: Config,
    ) -> io::Result<Self> {
        let config = Config {
            drain_seconds: config.drain_seconds.min(1),
            ..config
        };
        Ok(Self {
            ground: Ground::new(root, name, identity, config)?,
            listeners: Mutex::default(),
            locks: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// Ends every process that was started here, and removes the directory. It blocks until
    /// they have ended.
    pub fn clear(&self) -> io::Result<()> {
        held(&self.listeners).clear();
        held(&self.locks).clear();
        self.ground.clear()
    }

    fn hidden_machines(&self) -> PathBuf {
        self.ground.root().join("hidden")
    }

    /// Everything that a mutating call can change, each thing with its present shape.
    fn snapshot(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for state in ["state", "other"] {
            files(&self.ground.root().join(state), &mut all);
        }
        // What a process writes into its log is not a request to the host.
        all.retain(|path, _| !path.ends_with("proxyd.log"));
        for (pid, arguments) in self.ground.processes() {
            all.insert(format!("process {pid}"), arguments.join(" "));
        }
        all
    }

    async fn kill_at(&self, slot: &Slot) -> Offered {
        for pid in self.ground.processes_at(slot) {
            self.ground.signal(pid, Signal::KILL);
            until("a killed process ends", || !is_alive(pid)).await?;
        }
        Ok(())
    }

    /// Ends the process at a slot and takes over the lock that it held. Answers with that and
    /// with the arguments for another one.
    async fn stop_process(&self, slot: &Slot, mark: &str) -> Offered<(File, [String; 6])> {
        self.kill_at(slot).await?;
        let directory = self.ground.directory(slot);
        let lock = File::options()
            .read(true)
            .write(true)
            .open(directory.join("lock"))
            .map_err(stumbled)?;
        // A killed process lets go when the last of its threads is gone.
        until("the lock is free", || {
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        })
        .await?;
        let config = directory.join("config.json").display().to_string();
        let arguments = ["proxyd", "--config", &config, "--detach", "--mark", mark];
        Ok((lock, arguments.map(str::to_owned)))
    }

    async fn restart_process(&self, slot: &Slot, mark: &str) -> Offered {
        let (lock, arguments) = self.stop_process(slot, mark).await?;
        self.ground
            .start(&arguments, Some(lock))
            .map_err(stumbled)?;
        let socket = socket(slot)?;
        until("a restarted process listens", || listens(socket)).await
    }

    /// Puts a process in the place of the machine's own that is deaf to SIGTERM.
    async fn deafen(&self, slot: &Slot) -> Offered {
        let mark = fs::read_to_string(self.ground.directory(slot).join("mark"));
        let (lock, arguments) = self.stop_process(slot, &mark.map_err(stumbled)?).await?;
        let socket = socket(slot)?;
        let mut listener = None;
        until("the port of a killed process is free", || {
            listener = TcpListener::bind(socket).ok();
            listener.is_some()
        })
        .await?;
        let Some(listener) = listener else {
            return Err(stumbled("no port to listen at"));
        };
        let deaf = self
            .ground
            .start_deaf(&arguments, lock, listener)
            .map_err(stumbled)?;
        until("a process is deaf", || deaf.exists()).await
    }
}

/// Looks until it holds; the harness stumbled when it does not in time.
async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Offered {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > end {
            return Err(stumbled(format!("waited too long until {what}")));
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(())
}

fn place(slot: &Slot) -> Offered<Place> {
    Place::parse(slot).ok_or_else(|| stumbled(format!("{slot} is no slot")))
}

/// The socket that a slot names.
fn socket(slot: &Slot) -> Offered<SocketAddr> {
    place(slot).map(Place::socket)
}

fn listens(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

fn files(directory: &Path, all: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        // Gone meanwhile, or being replaced: the next look tells.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            all.insert(path.display().to_string(), "directory".to_owned());
            files(&path, all);
        } else {
            let text = fs::read_to_string(&path).unwrap_or_default();
            all.insert(path.display().to_string(), text);
        }
    }
}

fn stumbled(error: impl std::fmt::Display) -> Refusal {
    Refusal::Stumbled(error.to_string())
}

#[async_trait]
impl Harness for Bench {
    fn identity(&self) -> Identity {
        self.ground.identity().clone()
    }

    async fn restart(&self) -> Offered<Arc<dyn Provider>> {
        Ok(Arc::new(self.ground.provider()))
    }

    async fn heal(&self) -> Offered {
        held(&self.locks).clear();
        self.ground.put_program().map_err(stumbled)?;
        if self.hidden_machines().exists() {
            fs::remove_file(self.ground.machines()).map_err(stumbled)?;
            fs::rename(self.hidden_machines(), self.ground.machines()).map_err(stumbled)?;
        }
        Ok(())
    }

    async fn inventory(&self) -> Offered<Vec<String>> {
        let all = self.snapshot();
        // The directories above the machines come with the first and go with the last.
        let above = ["state", "other"].map(|s| self.ground.root().join(s).display().to_string());
        Ok(all
            .into_keys()
            .filter(|path| !above.contains(path))
            .collect())
    }

    fn call_deadline(&self) -> Duration {
        Duration::from_secs(15)
    }

    async fn other_installation(&self) -> Offered<Arc<dyn Provider>> {
        let own = self.ground.identity();
        let identity = Identity {
            installation: format!("{}-2", own.installation)
                .parse()
                .map_err(stumbled)?,
            writer: Some(WriterId::new("another-writer")),
        };
        let name = self.ground.provider().name().clone();
        let state = self.ground.root().join("other");
        Ok(Arc::new(self.ground.provider_as(name, identity, state)))
    }

    async fn mutations(&self) -> Offered<Vec<String>> {
        let now = self.snapshot();
        let mut seen = held(&self.seen);
        let (before, mutations) = &mut *seen;
        for (what, shape) in &now {
            match before.get(what) {
                None => mutations.push(format!("made {what}")),
                Some(old) if old != shape => mutations.push(format!("changed {what}")),
                Some(_) => {}
            }
        }
        mutations.extend(
            before
                .keys()
                .filter(|k| !now.contains_key(*k))
                .map(|k| format!("removed {k}")),
        );
        *before = now;
        Ok(mutations.clone())
    }

    async fn describe(&self, slot: &Slot) -> Offered<Option<String>> {
        let part = format!("/{slot}");
        let mut text = String::new();
        for (what, shape) in self.snapshot() {
            if what.contains(&part) || shape.contains(&format!("{part}/")) {
                writeln!(text, "{what}: {shape}").map_err(stumbled)?;
            }
        }
        if held(&self.listeners).contains_key(slot) && listens(socket(slot)?) {
            text.push_str("it listens\n");
        }
        Ok((!text.is_empty()).then_some(text))
    }

    async fn place(&self, slot: &Slot, stranger: &Stranger) -> Offered {
        if stranger.template {
            return Err(Refusal::NotOffered("make a template: there are none here"));
        }
        let directory = self.ground.directory(slot);
        fs::create_dir_all(&directory).map_err(stumbled)?;
        let name = serde_json::json!({ "key": stranger.name }).to_string();
        fs::write(directory.join("config.json"), name).map_err(stumbled)?;
        if let Some(text) = &stranger.text {
            fs::write(directory.join("mark"), text).map_err(stumbled)?;
        }
        let listener = TcpListener::bind(socket(slot)?).map_err(stumbled)?;
        held(&self.listeners).insert(slot.clone(), listener);
        Ok(())
    }

    async fn copy(&self, slot: &Slot) -> Offered<Slot> {
        let from = self.ground.directory(slot);
        let mut place = place(slot)?;
        let free = TcpListener::bind((place.listen, 0)).and_then(|free| free.local_addr());
        place.port = free.map_err(stumbled)?.port();
        let copy = place.slot();
        let to = self.ground.directory(&copy);
        fs::create_dir_all(&to).map_err(stumbled)?;
        for file in fs::read_dir(from).map_err(stumbled)?.flatten() {
            fs::copy(file.path(), to.join(file.file_name())).map_err(stumbled)?;
        }
        // A person who copies it gives it a port of its own and runs it.
        let path = to.join("config.json");
        let text = fs::read(&path).map_err(stumbled)?;
        let mut config: ProxydConfig = serde_json::from_slice(&text).map_err(stumbled)?;
        config.listen.set_port(place.port);
        fs::write(&path, serde_json::to_vec(&config).map_err(stumbled)?).map_err(stumbled)?;
        let mark = fs::read_to_string(to.join("mark")).map_err(stumbled)?;
        self.restart_process(&copy, &mark).await?;
        Ok(copy)
    }

    async fn remove(&self, slot: &Slot) -> Offered {
        held(&self.listeners).remove(slot);
        held(&self.locks).remove(slot);
        self.kill_at(slot).await?;
        match fs::remove_dir_all(self.ground.directory(slot)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(stumbled(error)),
            _ => {
                // Without the last machine the directory above goes too, as with the provider.
                let _not_empty = fs::remove_dir(self.ground.slots());
                let _not_empty = fs::remove_dir(self.ground.machines());
                Ok(())
            }
        }
    }

    async fn rename(&self, slot: &Slot, name: &str) -> Offered {
        let path = self.ground.directory(slot).join("config.json");
        let text = fs::read(&path).map_err(stumbled)?;
        let mut config: ProxydConfig = serde_json::from_slice(&text).map_err(stumbled)?;
        name.clone_into(&mut config.key);
        fs::write(&path, serde_json::to_vec(&config).map_err(stumbled)?).map_err(stumbled)
    }

    async fn edit_mark(&self, slot: &Slot, text: Option<&str>) -> Offered {
        let path = self.ground.directory(slot).join("mark");
        match text {
            Some(text) => fs::write(&path, text).map_err(stumbled)?,
            None => fs::remove_file(&path).map_err(stumbled)?,
        }
        // Arguments cannot be edited: whoever wants others starts the process again.
        self.restart_process(slot, text.unwrap_or_default()).await
    }

    async fn power(&self, slot: &Slot, event: PowerEvent) -> Offered {
        let processes = self.ground.processes_at(slot);
        let [pid] = processes.as_slice() else {
            return Err(stumbled(format!("{} processes at {slot}", processes.len())));
        };
        let pid = *pid;
        match event {
            PowerEvent::Off => {
                self.ground.signal(pid, Signal::TERM);
                until("a process ends after SIGTERM", || !is_alive(pid)).await
            }
            PowerEvent::Crashed => self.kill_at(slot).await,
            PowerEvent::Paused => {
                self.ground.signal(pid, Signal::STOP);
                until("a stopped process is stopped", || {
                    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    stat.contains(") T ")
                })
                .await
            }
            PowerEvent::Hung => self.deafen(slot).await,
            PowerEvent::Started | PowerEvent::Hibernated | PowerEvent::IoError => {
                Err(Refusal::NotOffered("do this to a process"))
            }
        }
    }

    async fn protect(&self, slot: &Slot) -> Offered {
        fs::write(self.ground.directory(slot).join(KEEP), "").map_err(stumbled)
    }

    async fn unprotect(&self, slot: &Slot) -> Offered {
        fs::remove_file(self.ground.directory(slot).join(KEEP)).map_err(stumbled)
    }

    async fn lock(&self, slot: &Slot, lock: Lock) -> Offered {
        let directory = self.ground.directory(slot);
        if lock != Lock::Clone || directory.exists() {
            return Err(Refusal::NotOffered("hide what a running process bears"));
        }
        fs::create_dir_all(&directory).map_err(stumbled)?;
        let file = File::create(directory.join("lock")).map_err(stumbled)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(stumbled)?;
        held(&self.locks).insert(slot.clone(), file);
        Ok(())
    }

    async fn unlock(&self, slot: &Slot) -> Offered {
        let locked = held(&self.locks).contains_key(slot);
        if locked {
            self.remove(slot).await
        } else {
            Ok(())
        }
    }

    async fn break_precondition(&self) -> Offered {
        fs::remove_file(self.ground.program()).map_err(stumbled)
    }

    async fn blind_spot(&self) -> Offered {
        // Something else stands where the machines' directories are looked for.
        fs::rename(self.ground.machines(), self.hidden_machines()).map_err(stumbled)?;
        fs::write(self.ground.machines(), "").map_err(stumbled)
    }
}
