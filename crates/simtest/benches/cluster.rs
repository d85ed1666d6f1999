//! The operator on a real API server, with many Proxies on a simulator: how long they take, what
//! they cost, what is written, and how long another replica takes to know them all.

mod measure;

use measure::{
    Kept, figure, head, memory, number, processor_time, program, row,
    standing::{first_line, manifests, provisioned, sealed, simulator},
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Clones that the configuration lets run at once, and the seconds that one takes on the
/// simulator, which is 100 times as fast as the host it was recorded on.
const CLONES: f64 = 50.0;
const HOPELESS: Duration = Duration::from_hours(1);

fn main() {
    let program = program("BENCH_EGRESS_PROXIES");
    println!(
        "A real API server, the simulator at 100 times the speed, {CLONES:.0} clones at once; all \
         on these cores. With guests, a `proxyd` for each machine: all are proven and sealed \
         before they stand still. Without, nothing answers, and each machine is looked at anew \
         whenever it is asked. `writes` are those to Proxies, statuses, Secrets and events; the \
         Lease is renewed beside them.\n"
    );
    head(&[
        "Proxies",
        "guests",
        "all provisioned, s",
        "writes a Proxy until then",
        "operator RSS, MiB",
        "standing still, % of a core",
        "writes an hour then",
        "known to the next leader after SIGTERM, s",
    ]);
    for (count, guests) in [
        (number("--some", 1_000), "proxyd"),
        (number("--many", 10_000), "none"),
    ] {
        if count > 0 {
            measure(&program, count, guests);
        }
    }
}

fn measure(program: &Path, count: u32, guests: &str) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let path = |name: &str| dir.path().join(name);
    let cluster = Cluster::start(program);
    fs::write(path("all.yaml"), manifests(count)).expect("a file can be written");
    cluster.kubectl(&["create", "--filename", &path("all.yaml").to_string_lossy()]);
    eprintln!("{count} Proxies declared");

    let config = path("config.yaml");
    let _sim = simulator(program, guests, &path("sim"), &config);
    let written = cluster.writes();
    let begun = Instant::now();
    let first = Replica::start(program, &config, &cluster.kubeconfig);
    first.wait_for(count);
    let up = begun.elapsed().as_secs_f64();
    eprintln!("all provisioned after {up:.0} s");
    while guests != "none" && sealed(&first.admin) < count as usize {
        assert!(begun.elapsed() < HOPELESS, "not all are sealed");
        thread::sleep(Duration::from_millis(500));
    }
    // What follows the start: seeds are taken out, events are told.
    thread::sleep(Duration::from_mins(1));
    let a_proxy = (cluster.writes() - written) / f64::from(count);

    let seconds = number("--idle-seconds", 60);
    let pid = first.process.0.id();
    let (used, written, since) = (processor_time(pid), cluster.writes(), Instant::now());
    thread::sleep(Duration::from_secs(seconds.into()));
    let passed = since.elapsed().as_secs_f64();
    let used = processor_time(pid).saturating_sub(used).as_secs_f64();
    let still = cluster.writes() - written;
    let held = memory(pid, "VmRSS");

    let second = Replica::start(program, &config, &cluster.kubeconfig);
    thread::sleep(Duration::from_secs(5));
    let stopped = Instant::now();
    first.terminate();
    second.wait_for(count);
    let taken = stopped.elapsed().as_secs_f64();
    row([
        count.to_string(),
        guests.to_owned(),
        figure(up),
        figure(a_proxy),
        figure(held),
        figure(100.0 * used / passed),
        figure(still * 3600.0 / passed),
        figure(taken),
    ]);
}

/// An API server of `cargo xtask kube-up`, with our definitions. It ends with its input.
struct Cluster {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    process: Child,
}

impl Cluster {
    fn start(program: &Path) -> Self {
        let mut command = Command::new(env!("CARGO"));
        command
            .args(["run", "--quiet", "--package", "xtask", "--", "kube-up"])
            .arg("--control")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("kube-up starts");
        let facts = first_line(process.stdout.take().expect("piped"));
        let facts: Value = serde_json::from_str(&facts).expect("its facts");
        let path = |name: &str| PathBuf::from(facts[name].as_str().expect("a path"));
        let cluster = Self {
            kubeconfig: path("kubeconfig"),
            kubectl: path("kubectl"),
            process,
        };
        let definitions = Command::new(program).arg("crds").output();
        let definitions = definitions.expect("it prints them").stdout;
        let file = cluster.kubeconfig.with_file_name("definitions.yaml");
        fs::write(&file, definitions).expect("a file can be written");
        cluster.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()]);
        let established = ["wait", "--for=condition=Established", "crd", "--all"];
        cluster.kubectl(&established);
        cluster
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let done = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .output()
            .expect("kubectl runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "kubectl {arguments:?}: {said}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// How many writes the server has taken of what the operator writes.
    fn writes(&self) -> f64 {
        let figures = self.kubectl(&["get", "--raw", "/metrics"]);
        let is_ours = |line: &&str| {
            let has = |label: &str, values: &[&str]| {
                let is = |value: &&str| line.contains(&format!("{label}=\"{value}\""));
                values.iter().any(is)
            };
            line.starts_with("apiserver_request_total{")
                && has("verb", &["POST", "PUT", "PATCH", "APPLY", "DELETE"])
                && has(
                    "resource",
                    &["proxies", "secrets", "events", "proxyproviders"],
                )
        };
        let counts = figures.lines().filter(is_ours);
        let count = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        counts.filter_map(count).sum()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// One operator.
struct Replica {
    process: Kept,
    admin: String,
}

impl Replica {
    fn start(program: &Path, config: &Path, kubeconfig: &Path) -> Self {
        let mut command = Command::new(program);
        command
            .args(["--log-level", "error", "operator", "--config"])
            .arg(config)
            .args(["--lease-namespace", "default"])
            .env("KUBECONFIG", kubeconfig)
            .stdout(Stdio::piped());
        let mut process = Kept(command.spawn().expect("the operator starts"));
        let line = first_line(process.0.stdout.take().expect("piped"));
        let admin = line.split("http://").nth(1).expect("its admin page");
        Self {
            admin: admin.trim_end_matches('/').to_owned(),
            process,
        }
    }

    /// Waits until it knows that so many machines run.
    fn wait_for(&self, count: u32) {
        let begun = Instant::now();
        while provisioned(&self.admin) < count as usize {
            assert!(begun.elapsed() < HOPELESS, "not all are provisioned");
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Ends it as a rollout does.
    fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process.0);
        let term = rustix::process::Signal::TERM;
        rustix::process::kill_process(pid, term).expect("it runs");
        let _ = self.process.0.wait();
    }
}
