//! The test bench of the conformance suite: what people and kernels do to such machines.

use crate::world::{World, is_alive, kill, listens, signal, socket, wait_until};
use async_trait::async_trait;
use egress_core::{Identity, Slot, WriterId, proxy_config::ProxydConfig};
use egress_provider::{
    Provider,
    conformance::{Harness, Lock, Offered, PowerEvent, Refusal, Stranger},
};
use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

/// See the module.
pub struct Bench {
    world: World,
    /// Strangers "run" by listening.
    listeners: Mutex<HashMap<Slot, TcpListener>>,
    locks: Mutex<HashMap<Slot, File>>,
    /// What was there at the last look, and every difference since the first one.
    seen: Mutex<(BTreeMap<String, String>, Vec<String>)>,
}

/// What a test put into a machine's directory to keep it.
const KEEP: &str = "keep-this";

impl Bench {
    pub fn new() -> Self {
        let mut world = World::new();
        world.config.port_range.to = 23_999;
        Self {
            world,
            listeners: Mutex::default(),
            locks: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    fn machines(&self) -> PathBuf {
        self.world.state().join("machines")
    }

    fn hidden_machines(&self) -> PathBuf {
        self.world.root.path().join("hidden")
    }

    /// Everything that a mutating call can change, each thing with its present shape.
    fn snapshot(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for state in ["state", "other"] {
            files(&self.world.root.path().join(state), &mut all);
        }
        // What a process writes into its log is not a request to the host.
        all.retain(|path, _| !path.ends_with("proxyd.log"));
        for (pid, arguments) in self.world.processes() {
            all.insert(format!("process {pid}"), arguments.join(" "));
        }
        all
    }

    fn restart_process(&self, slot: &Slot, mark: &str, deaf: bool) {
        let directory = self.world.directory(slot);
        for (pid, _) in self.world.processes_at(slot) {
            kill(pid);
        }
        let lock = File::options()
            .read(true)
            .write(true)
            .open(directory.join("lock"))
            .unwrap();
        // A killed process lets go when the last of its threads is gone.
        wait_until("the lock is free", || {
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        let config = directory.join("config.json").to_str().unwrap().to_owned();
        let arguments =
            ["proxyd", "--config", &config, "--detach", "--mark", mark].map(str::to_owned);
        self.world.start(&arguments, Some(lock), deaf);
        wait_until("a restarted process listens", || listens(socket(slot)));
    }
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
        World::identity()
    }

    async fn restart(&self) -> Offered<Arc<dyn Provider>> {
        Ok(Arc::new(self.world.provider()))
    }

    async fn heal(&self) -> Offered {
        self.locks.lock().unwrap().clear();
        if !self.world.program().exists() {
            let program = std::env::current_exe().map_err(stumbled)?;
            std::os::unix::fs::symlink(program, self.world.program()).map_err(stumbled)?;
        }
        if self.hidden_machines().exists() {
            fs::remove_file(self.machines()).map_err(stumbled)?;
            fs::rename(self.hidden_machines(), self.machines()).map_err(stumbled)?;
        }
        Ok(())
    }

    async fn inventory(&self) -> Offered<Vec<String>> {
        let all = self.snapshot();
        // The directories above the machines come with the first and go with the last.
        let above =
            ["state", "other"].map(|s| self.world.root.path().join(s).display().to_string());
        Ok(all
            .into_keys()
            .filter(|path| !above.contains(path))
            .collect())
    }

    fn call_deadline(&self) -> Duration {
        Duration::from_secs(15)
    }

    async fn other_installation(&self) -> Offered<Arc<dyn Provider>> {
        let identity = Identity {
            installation: "another".parse().map_err(stumbled)?,
            writer: Some(WriterId::new("writer-2")),
        };
        let state = self.world.root.path().join("other");
        Ok(Arc::new(self.world.provider_as("local", identity, state)))
    }

    async fn mutations(&self) -> Offered<Vec<String>> {
        let now = self.snapshot();
        let mut seen = self.seen.lock().unwrap();
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
        if self.listeners.lock().unwrap().contains_key(slot) && listens(socket(slot)) {
            text.push_str("it listens\n");
        }
        Ok((!text.is_empty()).then_some(text))
    }

    async fn place(&self, slot: &Slot, stranger: &Stranger) -> Offered {
        if stranger.template {
            return Err(Refusal::NotOffered("make a template: there are none here"));
        }
        let directory = self.world.directory(slot);
        fs::create_dir_all(&directory).map_err(stumbled)?;
        let name = serde_json::json!({ "key": stranger.name }).to_string();
        fs::write(directory.join("config.json"), name).map_err(stumbled)?;
        if let Some(text) = &stranger.text {
            fs::write(directory.join("mark"), text).map_err(stumbled)?;
        }
        let listener = TcpListener::bind(socket(slot)).map_err(stumbled)?;
        self.listeners
            .lock()
            .unwrap()
            .insert(slot.clone(), listener);
        Ok(())
    }

    async fn copy(&self, slot: &Slot) -> Offered<Slot> {
        let from = self.world.directory(slot);
        let address = socket(slot).ip();
        let port = (24_000..24_100)
            .find(|port| !listens((address, *port).into()))
            .unwrap();
        let copy = Slot::new(format!("{address}_{port}_{address}"));
        let to = self.world.directory(&copy);
        fs::create_dir_all(&to).map_err(stumbled)?;
        for file in fs::read_dir(from).map_err(stumbled)?.flatten() {
            fs::copy(file.path(), to.join(file.file_name())).map_err(stumbled)?;
        }
        // A person who copies it gives it a port of its own and runs it.
        let path = to.join("config.json");
        let text = fs::read(&path).map_err(stumbled)?;
        let mut config: ProxydConfig = serde_json::from_slice(&text).map_err(stumbled)?;
        config.listen.set_port(port);
        fs::write(&path, serde_json::to_vec(&config).map_err(stumbled)?).map_err(stumbled)?;
        let mark = fs::read_to_string(to.join("mark")).map_err(stumbled)?;
        self.restart_process(&copy, &mark, false);
        Ok(copy)
    }

    async fn remove(&self, slot: &Slot) -> Offered {
        self.listeners.lock().unwrap().remove(slot);
        self.locks.lock().unwrap().remove(slot);
        for (pid, _) in self.world.processes_at(slot) {
            kill(pid);
        }
        match fs::remove_dir_all(self.world.directory(slot)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(stumbled(error)),
            _ => {
                // Without the last machine the directory above goes too, as with the provider.
                let _not_empty = fs::remove_dir(self.machines().join("local"));
                let _not_empty = fs::remove_dir(self.machines());
                Ok(())
            }
        }
    }

    async fn rename(&self, slot: &Slot, name: &str) -> Offered {
        let path = self.world.directory(slot).join("config.json");
        let text = fs::read(&path).map_err(stumbled)?;
        let mut config: ProxydConfig = serde_json::from_slice(&text).map_err(stumbled)?;
        name.clone_into(&mut config.key);
        fs::write(&path, serde_json::to_vec(&config).map_err(stumbled)?).map_err(stumbled)
    }

    async fn edit_mark(&self, slot: &Slot, text: Option<&str>) -> Offered {
        let path = self.world.directory(slot).join("mark");
        match text {
            Some(text) => fs::write(&path, text).map_err(stumbled)?,
            None => fs::remove_file(&path).map_err(stumbled)?,
        }
        // Arguments cannot be edited: whoever wants others starts the process again.
        self.restart_process(slot, text.unwrap_or_default(), false);
        Ok(())
    }

    async fn power(&self, slot: &Slot, event: PowerEvent) -> Offered {
        let processes = self.world.processes_at(slot);
        let [(pid, _)] = processes.as_slice() else {
            return Err(stumbled(format!("{} processes at {slot}", processes.len())));
        };
        match event {
            PowerEvent::Off => {
                signal(*pid, Signal::TERM);
                wait_until("a process ends after SIGTERM", || !is_alive(*pid));
            }
            PowerEvent::Crashed => kill(*pid),
            PowerEvent::Paused => {
                signal(*pid, Signal::STOP);
                wait_until("a stopped process is stopped", || {
                    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    stat.contains(") T ")
                });
            }
            PowerEvent::Hung => {
                let mark = fs::read_to_string(self.world.directory(slot).join("mark"));
                self.restart_process(slot, &mark.map_err(stumbled)?, true);
            }
            PowerEvent::Started | PowerEvent::Hibernated | PowerEvent::IoError => {
                return Err(Refusal::NotOffered("do this to a process"));
            }
        }
        Ok(())
    }

    async fn protect(&self, slot: &Slot) -> Offered {
        fs::write(self.world.directory(slot).join(KEEP), "").map_err(stumbled)
    }

    async fn unprotect(&self, slot: &Slot) -> Offered {
        fs::remove_file(self.world.directory(slot).join(KEEP)).map_err(stumbled)
    }

    async fn lock(&self, slot: &Slot, lock: Lock) -> Offered {
        let directory = self.world.directory(slot);
        if lock != Lock::Clone || directory.exists() {
            return Err(Refusal::NotOffered("hide what a running process bears"));
        }
        fs::create_dir_all(&directory).map_err(stumbled)?;
        let file = File::create(directory.join("lock")).map_err(stumbled)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(stumbled)?;
        self.locks.lock().unwrap().insert(slot.clone(), file);
        Ok(())
    }

    async fn unlock(&self, slot: &Slot) -> Offered {
        if self.locks.lock().unwrap().contains_key(slot) {
            return self.remove(slot).await;
        }
        Ok(())
    }

    async fn break_precondition(&self) -> Offered {
        fs::remove_file(self.world.program()).map_err(stumbled)
    }

    async fn blind_spot(&self) -> Offered {
        // Something else stands where the machines' directories are looked for.
        fs::rename(self.machines(), self.hidden_machines()).map_err(stumbled)?;
        fs::write(self.machines(), "").map_err(stumbled)
    }
}
