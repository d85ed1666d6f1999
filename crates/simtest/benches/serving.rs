//! From a written manifest to `Serving` in a real standalone engine, over the bare time to
//! start the same proxy by hand and have its first authenticated answer. Both are taken by
//! turns, so that what disturbs the machine disturbs both.

mod measure;

use egress_core::proxy_config::{GENERATED_USER, Limits, ProxydConfig, ReadyLine};
use egress_engine::{Credential, HttpProber, Prober};
use measure::{figure, head, number, program, quantile, row};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStderr, Command},
    task::JoinSet,
    time::timeout,
};

const PROGRAM: &str = "BENCH_EGRESS_PROXIES";
const HOPELESS: Duration = Duration::from_mins(1);
/// A file system in memory: what is left there is the engine's own work.
const MEMORY: &str = "/dev/shm";
/// Rounds with one engine: few enough that its earlier proxies are no load.
const ROUNDS_AN_ENGINE: usize = 20;

#[tokio::main(worker_threads = 2)]
async fn main() {
    let program = program(PROGRAM);
    println!(
        "Milliseconds from the manifest to `Serving` (engine), and from the start of the process \
         to its first authenticated answer (bare).\n"
    );
    head(&[
        "proxies at once",
        "state directory",
        "a durable write p50",
        "engine p50",
        "bare p50",
        "ratio p50",
        "engine p99",
        "bare p99",
        "ratio p99",
        "rounds",
    ]);
    let (single, crowd) = (number("--single-rounds", 200), number("--crowd-rounds", 10));
    for (base, kind, count, rounds) in [
        (env::temp_dir(), "on disk", 1, single),
        (env::temp_dir(), "on disk", 100, crowd),
        (PathBuf::from(MEMORY), "in memory", 1, single),
        (PathBuf::from(MEMORY), "in memory", 100, crowd),
    ] {
        let (mut ours, mut bare, mut durable) = (Vec::new(), Vec::new(), Vec::new());
        let mut site = None;
        for round in 0..rounds as usize {
            eprintln!("{count} at once, round {} of {rounds}", round + 1);
            if count > 1 || round % ROUNDS_AN_ENGINE == 0 {
                site = None; // the old engine ends before a new one begins
            }
            let site = match &mut site {
                Some(site) => site,
                None => site.insert(Site::start(&program, &base).await),
            };
            durable.push(write_durably(site.dir.path()));
            ours.extend(site.declare(&format!("round-{round}"), count).await);
            bare.extend(start_by_hand(&program, &site.dir.path().join("bare"), count).await);
        }
        let at = |values: &[f64], part| quantile(values, part);
        let mut cells = vec![
            count.to_string(),
            kind.to_owned(),
            figure(at(&durable, 0.5)),
        ];
        for part in [0.5, 0.99] {
            let (ours, bare) = (at(&ours, part), at(&bare, part));
            cells.extend([
                figure(ours),
                figure(bare),
                format!("**{}x**", figure(ours / bare)),
            ]);
        }
        cells.push(rounds.to_string());
        row(cells);
    }
}

/// A standalone engine with directories of its own.
struct Site {
    dir: TempDir,
    installation: String,
    log: Lines<BufReader<ChildStderr>>,
    engine: Child,
}

impl Site {
    async fn start(program: &Path, base: &Path) -> Self {
        let dir = tempfile::tempdir_in(base).expect("a directory can be made");
        let name = dir.path().file_name().unwrap_or_default().to_string_lossy();
        let installation = format!("bench{}", name.replace('.', "-").to_lowercase());
        let path = |name: &str| dir.path().join(name);
        // Apart from each other: the engine looks again at whatever changes beside its files.
        for name in ["config", "manifests", "bare"] {
            fs::create_dir(path(name)).expect("a directory can be made");
        }
        let config = format!(
            "installation: {installation}\nproviders: [{{name: here, local: \
             {{addresses: [127.0.0.1]}}}}]\n"
        );
        fs::write(path("config/config.yaml"), config).expect("a file can be written");
        let mut engine = Command::new(program)
            .args(["--log-format", "json", "standalone", "--config"])
            .arg(path("config/config.yaml"))
            .arg("--manifests")
            .arg(path("manifests"))
            .arg("--state-dir")
            .arg(path("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the engine starts");
        let printed = engine.stdout.take().expect("piped");
        let told = timeout(HOPELESS, BufReader::new(printed).lines().next_line()).await;
        told.expect("the engine says that it watches")
            .expect("its output can be read");
        let log = engine.stderr.take().expect("piped");
        Self {
            log: BufReader::new(log).lines(),
            installation,
            engine,
            dir,
        }
    }

    /// Puts a manifest with so many proxies in place: the milliseconds until each serves.
    async fn declare(&mut self, name: &str, count: usize) -> Vec<f64> {
        let manifest = |number| {
            format!(
                "apiVersion: egress-proxies.io/v1alpha1\nkind: Proxy\nmetadata: \
                 {{name: {name}-{number}}}\nspec: {{provider: here}}\n"
            )
        };
        let text = (0..count).map(manifest).collect::<Vec<_>>().join("---\n");
        let unfinished = self.dir.path().join("unfinished");
        fs::write(&unfinished, text).expect("a file can be written");
        let place = self.dir.path().join(format!("manifests/{name}.yaml"));
        let begun = Instant::now();
        fs::rename(unfinished, place).expect("a file can be renamed");

        let mut times = Vec::new();
        let told = timeout(HOPELESS, async {
            while times.len() < count {
                let line = self.log.next_line().await.expect("a log");
                let line = line.expect("the engine runs");
                if line.contains(r#""reason":"Serving""#) && line.contains(name) {
                    times.push(millis(begun));
                }
            }
        });
        told.await.expect("every proxy serves");
        times
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.engine.start_kill();
        for pid in machines_of(&self.installation) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The processes that bear a mark of this installation.
fn machines_of(installation: &str) -> Vec<Pid> {
    let marked = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let arguments = fs::read(entry.path().join("cmdline")).ok()?;
        let named = format!(r#""installation":"{installation}""#);
        String::from_utf8_lossy(&arguments)
            .contains(&named)
            .then(|| Pid::from_raw(pid))?
    };
    let processes = fs::read_dir("/proc").expect("/proc");
    processes.flatten().filter_map(marked).collect()
}

/// Starts so many proxies at once with nothing around them: the milliseconds until each has
/// answered.
async fn start_by_hand(program: &Path, dir: &Path, count: usize) -> Vec<f64> {
    let credential = Credential {
        user: GENERATED_USER.to_owned(),
        password: "0123456789abcdef0123456789abcdef".into(),
        generation: 1,
    };
    let configs: Vec<PathBuf> = (0..count)
        .map(|number| write_config(dir, number, &credential))
        .collect();
    let begun = Instant::now();
    let mut starts = JoinSet::new();
    for config in configs {
        let (program, credential) = (program.to_owned(), credential.clone());
        starts.spawn(async move {
            let mut child = Command::new(program)
                .args(["proxyd", "--config"])
                .arg(config)
                .args(["--detach", "--mark", "bench"])
                .env_clear()
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .expect("the proxy starts");
            let printed = child.stdout.take().expect("piped");
            let line = BufReader::new(printed).lines().next_line().await;
            let line = line.expect("a pipe").expect("a ready line");
            let ready: ReadyLine = serde_json::from_str(&line).expect("a ready line");
            let answer = HttpProber
                .identify(ready.listen, Some(&credential), HOPELESS)
                .await;
            let time = millis(begun);
            answer.expect("the proxy says who it is");
            (time, child)
        });
    }
    // All live until the last has answered, as with the engine.
    let ended = starts.join_all().await;
    ended.into_iter().map(|(time, _)| time).collect()
}

fn write_config(dir: &Path, number: usize, credential: &Credential) -> PathBuf {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = ProxydConfig {
        key: format!("bare-{number}"),
        attempt: 1,
        listen: free,
        management: Some(free),
        egress: Some(Ipv4Addr::LOCALHOST.into()),
        clients: Vec::new(),
        auth: credential.auth(),
        limits: Limits::default(),
    };
    let path = dir.join(format!("bare-{number}.json"));
    let text = serde_json::to_vec(&config).expect("plain data");
    fs::write(&path, text).expect("a file can be written");
    path
}

/// What the disk asks for one small file that a power cut must not take: the milliseconds until
/// it and its name are there for good.
fn write_durably(dir: &Path) -> f64 {
    let begun = Instant::now();
    let (new, place) = (dir.join("durable.new"), dir.join("durable"));
    let mut file = fs::File::create(&new).expect("a file can be made");
    file.write_all(&[b'x'; 800])
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(new, place))
        .and_then(|()| fs::File::open(dir)?.sync_all())
        .expect("a file can be written");
    millis(begun)
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
