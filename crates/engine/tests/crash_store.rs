//! The file store against `kill -9`, a full disk and one mounted for reading only.

use egress_core::{Installation, MachineUid, ProxyId, Record};
use egress_engine::store::{
    Store, StoreErrorKind,
    file::{FileStore, OpenError, OpenMode},
};
use std::{
    collections::{HashMap, HashSet},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

const WRITERS: usize = 4;
const KILLS: u32 = 60;
/// Every so many states a record is absent.
const CYCLE: u32 = 8;
const DIRECTORY: &str = "STORE_CRASH_DIRECTORY";
const STATES: &str = "STORE_CRASH_STATES";

fn lab() -> Installation {
    "lab".parse().unwrap()
}

fn open(root: &Path) -> FileStore {
    FileStore::open(root, &lab(), "here", OpenMode::default()).unwrap()
}

fn id(writer: usize) -> ProxyId {
    // Two namespaces, one of them removed and made again all the time.
    ProxyId::new(
        ["shop", "lab"][usize::from(writer == 0)],
        &format!("p{writer}"),
    )
    .unwrap()
}

/// State 0 is no record, then a life of records with rising numbers, then no record again.
fn is_absent(state: u32) -> bool {
    state.is_multiple_of(CYCLE)
}

/// Carries one record from state to state for ever and tells each one that was acknowledged.
async fn write_on(store: FileStore, writer: usize, mut state: u32) {
    let id = id(writer);
    loop {
        let stored = store.load(&id).await.unwrap();
        state += 1;
        if is_absent(state) {
            store.remove(&id, &stored.unwrap().version).await.unwrap();
        } else {
            let uid = if let Some(stored) = &stored {
                stored.record.machine_uid.clone()
            } else {
                let last = store.incarnation(&id).await.unwrap();
                MachineUid::standalone(&lab(), &id, last + 1)
            };
            let record = Record {
                last_attempt: state,
                ..Record::new(uid, lab(), id.clone())
            };
            store
                .save(&id, &record, stored.as_ref().map(|s| &s.version))
                .await
                .unwrap();
        }
        // One write call, so that a kill leaves whole lines.
        std::io::stdout()
            .write_all(format!("ack {writer} {state}\n").as_bytes())
            .unwrap();
    }
}

fn be_the_child(root: &str) {
    let states = std::env::var(STATES).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = open(Path::new(root));
        let writers = states.split(',').enumerate().map(|(writer, state)| {
            tokio::spawn(write_on(store.clone(), writer, state.parse().unwrap()))
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
    });
}

fn start_child(root: &Path, states: &[u32]) -> Child {
    let states: Vec<String> = states.iter().map(u32::to_string).collect();
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_killed_engine_loses_no_acknowledged_write",
            "--nocapture",
        ])
        .env(DIRECTORY, root)
        .env(STATES, states.join(","))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// An evenly spread number below the bound.
fn random_below(bound: u64) -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    u64::from_le_bytes(bytes) % bound
}

/// Reads the acknowledgements of a child that is killed a random time after its first one.
fn killed_acknowledgements(mut child: Child) -> Vec<(usize, u32)> {
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut running = Some(child);
    let mut killer = None;
    let mut acknowledged = Vec::new();
    for line in output.lines() {
        let line = line.unwrap();
        // The test harness's own words may stand before the first one on its line.
        let Some((_, words)) = line.split_once("ack ") else {
            continue;
        };
        let (writer, state) = words.split_once(' ').unwrap();
        acknowledged.push((writer.parse().unwrap(), state.parse().unwrap()));
        if let Some(mut victim) = running.take() {
            let delay = Duration::from_micros(random_below(40_000));
            killer = Some(std::thread::spawn(move || {
                std::thread::sleep(delay);
                victim.kill().unwrap();
                victim.wait().unwrap();
            }));
        }
    }
    let killer = killer.expect("the child acknowledged something");
    killer.join().unwrap();
    acknowledged
}

#[test]
fn a_killed_engine_loses_no_acknowledged_write() {
    if let Ok(root) = std::env::var(DIRECTORY) {
        return be_the_child(&root);
    }
    let root = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut states = vec![0; WRITERS];
    let mut given_up: HashMap<ProxyId, HashSet<MachineUid>> = HashMap::new();
    let mut living: HashMap<ProxyId, MachineUid> = HashMap::new();
    let (mut writes, mut in_flight, mut leftovers) = (0, 0, 0);
    for _ in 0..KILLS {
        let acknowledged = killed_acknowledgements(start_child(root.path(), &states));
        writes += acknowledged.len();
        for (writer, state) in acknowledged {
            assert_eq!(state, states[writer] + 1, "writer {writer} skipped a state");
            states[writer] = state;
        }
        leftovers += temporary_files(root.path()).len();
        let store = open(root.path());
        assert_eq!(temporary_files(root.path()), Vec::<PathBuf>::new());
        for (writer, state) in states.iter_mut().enumerate() {
            let id = id(writer);
            let found = runtime.block_on(store.load(&id)).unwrap();
            let fits = |state: u32| match &found {
                None => is_absent(state),
                Some(stored) => stored.record.last_attempt == state,
            };
            assert!(
                fits(*state) || fits(*state + 1),
                "{id} after {state} was acknowledged: {found:?}"
            );
            if !fits(*state) {
                *state += 1;
                in_flight += 1;
            }
            let uid = found.map(|stored| stored.record.machine_uid);
            let before = match uid.clone() {
                Some(uid) => living.insert(id.clone(), uid),
                None => living.remove(&id),
            };
            let past = given_up.entry(id.clone()).or_default();
            past.extend(before.filter(|before| Some(before) != uid.as_ref()));
            assert!(
                uid.is_none_or(|uid| !past.contains(&uid)),
                "a UID of {id} came back"
            );
        }
    }
    tell(&format!(
        "{KILLS} kills, {writes} acknowledged writes, {in_flight} writes that landed without being \
         acknowledged, {leftovers} temporary files left behind and removed"
    ));
    assert!(writes > KILLS as usize);
}

#[test]
fn a_killed_engine_leaves_no_lock_behind() {
    let root = TempDir::new().unwrap();
    let mut child = start_child(root.path(), &[0; WRITERS]);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ack ") {
        line.clear();
        assert_ne!(
            output.read_line(&mut line).unwrap(),
            0,
            "the child ended by itself"
        );
    }
    let refused = FileStore::open(root.path(), &lab(), "here", OpenMode { take_over: true });
    let pid = child.id();
    let refused = refused.map(drop).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        matches!(refused, OpenError::AlreadyRunning { pid: Some(named), .. } if named == pid),
        "{refused}"
    );
    open(root.path());
}

fn temporary_files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if entry.file_name().to_string_lossy().starts_with(".tmp-") {
                found.push(path);
            }
        }
    }
    found
}

/// Past the capture of the test harness, which hides what passing tests print.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "crash_store: {text}");
}

/// A small file system of its own in memory.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None`, said loudly, where we may not mount.
    fn mount() -> Option<Self> {
        let at = TempDir::new().unwrap();
        let mounted = run(
            "mount",
            &["-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs"],
            at.path(),
        );
        if !mounted {
            tell(
                "NOT RUN: the cases of a full disk and of a read-only one need root to mount a tmpfs",
            );
            return None;
        }
        Some(Self(at))
    }
    fn remount(&self, mode: &str) {
        assert!(run(
            "mount",
            &["-o", &format!("remount,{mode}")],
            self.0.path()
        ));
    }
    fn path(&self) -> PathBuf {
        self.0.path().join("state")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["-l"], self.0.path());
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> bool {
    let status = Command::new(program)
        .args(arguments)
        .arg(path)
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn record(writer: usize, number: u32) -> Record {
    let uid = MachineUid::standalone(&lab(), &id(writer), 1);
    Record {
        last_attempt: number,
        ..Record::new(uid, lab(), id(writer))
    }
}

#[tokio::test]
async fn a_full_disk_is_named_loses_nothing_and_is_forgotten_once_it_has_room() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let store = open(&disk.path());
    let version = store.save(&id(1), &record(1, 1), None).await.unwrap();
    let before = store.load(&id(1)).await.unwrap();

    let filler = disk.0.path().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
    for error in [
        store
            .save(&id(1), &record(1, 2), Some(&version))
            .await
            .unwrap_err(),
        store.save(&id(2), &record(2, 1), None).await.unwrap_err(),
        store.remove(&id(1), &version).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        assert!(error.text.contains("free some space"), "{error}");
        assert!(
            error.text.contains(&disk.path().display().to_string()),
            "{error}"
        );
    }
    assert_eq!(store.load(&id(1)).await.unwrap(), before);
    assert_eq!(store.load(&id(2)).await.unwrap(), None);
    drop(store);
    let store = open(&disk.path());
    assert_eq!(store.load(&id(1)).await.unwrap(), before);

    // Cut, not only removed: a child that another test is starting may hold it open still.
    file.set_len(0).unwrap();
    std::fs::remove_file(filler).unwrap();
    store.save(&id(2), &record(2, 1), None).await.unwrap();
    let version = store
        .save(&id(1), &record(1, 2), Some(&version))
        .await
        .unwrap();
    store.remove(&id(1), &version).await.unwrap();
    assert_eq!(temporary_files(&disk.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_disk_mounted_for_reading_only_is_read_and_written_again_once_it_can_be() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let store = open(&disk.path());
    let version = store.save(&id(1), &record(1, 1), None).await.unwrap();
    drop(store);

    disk.remount("ro");
    let store = open(&disk.path());
    assert_eq!(
        store.load(&id(1)).await.unwrap().unwrap().record,
        record(1, 1)
    );
    let error = store
        .save(&id(1), &record(1, 2), Some(&version))
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.text.contains("mounted for reading only"), "{error}");

    disk.remount("rw");
    store
        .save(&id(1), &record(1, 2), Some(&version))
        .await
        .unwrap();
    let second = FileStore::open(&disk.path(), &lab(), "here", OpenMode::default());
    assert!(matches!(second, Err(OpenError::AlreadyRunning { .. })));
}
