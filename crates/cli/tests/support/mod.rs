//! A place to run the built command in: directories, an engine, a look at the processes that
//! it started, and an end for all of them.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

#[allow(dead_code, reason = "only some test programs look at alerts")]
pub mod alerts;
#[allow(dead_code, reason = "only some test programs need an API server")]
pub mod cluster;
#[allow(
    dead_code,
    reason = "only some test programs need a collector of traces"
)]
pub mod collector;
#[allow(dead_code, reason = "only some test programs need an operator")]
pub mod field;
#[allow(dead_code, reason = "only some test programs need virtual machines")]
pub mod libvirt;
#[allow(
    dead_code,
    reason = "only some test programs need a late or refusing API server"
)]
pub mod relay;
#[allow(dead_code, reason = "only some test programs need a simulator")]
pub mod sim;

/// The command under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_egress-proxies");
/// Within this everything that is waited for happens, also on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// The time from one look to the next.
const BETWEEN_LOOKS: Duration = Duration::from_millis(15);
/// The loopback address that traffic leaves from, so that an echo page can tell it.
pub const EGRESS: &str = "127.0.0.9";

/// Looks until there is something; says what it waited for when there is not in time.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    wait(what, BETWEEN_LOOKS, DEADLINE, look)
}

/// The same for what must be met at once.
pub fn wait_closely_for<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    wait(what, Duration::ZERO, DEADLINE, look)
}

fn wait<T>(
    what: &str,
    pause: Duration,
    within: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let begin = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if begin.elapsed() > within => panic!("waited for {what}; seen: {seen}"),
            Err(_) => thread::sleep(pause),
        }
    }
}

/// `Ok` when the values are the same.
pub fn same<T: PartialEq + Debug>(seen: &T, wanted: &T) -> Result<(), String> {
    if seen == wanted {
        Ok(())
    } else {
        Err(format!("{seen:?}"))
    }
}

/// A child that is killed when dropped.
pub struct Running {
    pub child: Child,
    log: PathBuf,
}

impl Running {
    pub fn spawn(command: &mut Command, log: PathBuf) -> Self {
        let file = File::create(&log).expect("the log can be made");
        let errors = file.try_clone().expect("a second handle");
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .expect("the command starts");
        Self { child, log }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// What it printed so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal and waits for the end.
    pub fn stop(&mut self, signal: Signal) -> ExitStatus {
        let _ = kill_process(Pid::from_child(&self.child), signal);
        self.ended()
    }

    /// Waits for the end.
    pub fn ended(&mut self) -> ExitStatus {
        let log = self.log.clone();
        let child = &mut self.child;
        wait_for("the end of a process", || {
            child
                .try_wait()
                .expect("a child can be waited for")
                .ok_or_else(|| fs::read_to_string(&log).unwrap_or_default())
        })
    }

    pub fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child can be looked at")
            .is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- {} said:\n{}", self.log.display(), self.printed());
        }
    }
}

/// Directories and names for one engine.
pub struct Site {
    dir: TempDir,
    pub installation: String,
    state: PathBuf,
    program: PathBuf,
}

impl Site {
    /// An installation of this name, with a hundred ports from `first_port` on.
    pub fn new(topic: &str, first_port: u16) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("whole-")
            .tempdir()
            .expect("a directory");
        let installation = format!("whole-{topic}-{}", std::process::id());
        let state = dir.path().join("state");
        let site = Self {
            dir,
            installation,
            state,
            program: PROGRAM.into(),
        };
        fs::create_dir(site.manifests()).expect("a directory");
        site.configure(first_port, first_port + 99);
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    pub fn manifests(&self) -> PathBuf {
        self.path("manifests")
    }
    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }
    /// Uses another state directory.
    pub fn set_state(&mut self, dir: PathBuf) {
        self.state = dir;
    }
    /// Starts its engines from this file.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }
    pub fn config(&self) -> PathBuf {
        self.path("config.yaml")
    }

    pub fn configure(&self, from: u16, to: u16) {
        let text = format!(
            "installation: {}\nproviders: [{{name: here, local: {{addresses: [{EGRESS}], \
             listen: 127.0.0.1, portRange: {{from: {from}, to: {to}}}, drainSeconds: 0}}}}]\n",
            self.installation
        );
        fs::write(self.config(), text).expect("the configuration can be written");
    }

    /// Writes a manifest in one step.
    pub fn write(&self, name: &str, text: &str) {
        let unfinished = self.manifests().join(format!(".{name}"));
        fs::write(&unfinished, text).expect("a manifest can be written");
        fs::rename(unfinished, self.manifests().join(format!("{name}.yaml"))).expect("a rename");
    }
    pub fn declare(&self, name: &str) {
        self.write(
            name,
            &manifest(name, "provider: here, probe: {interval: 5s}"),
        );
    }
    pub fn undeclare(&self, name: &str) {
        fs::remove_file(self.manifests().join(format!("{name}.yaml"))).expect("it is there");
    }

    fn standalone(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("standalone").arg("--config").arg(self.config());
        command
            .arg("--manifests")
            .arg(self.manifests())
            .arg("--state-dir")
            .arg(self.state());
        command.args(more);
        command
    }

    /// Starts the engine and waits until its admin page answers.
    pub fn start(&self) -> Running {
        self.start_with(&[])
    }
    pub fn start_with(&self, more: &[&str]) -> Running {
        let mut engine = self.launch(more);
        wait_for("the admin page", || {
            assert!(
                engine.is_running(),
                "the engine ended: {}",
                engine.printed()
            );
            let page = engine.printed();
            page.contains("admin page http://")
                .then_some(())
                .ok_or(page)
        });
        engine
    }
    /// Starts the engine and waits for nothing.
    pub fn launch(&self, more: &[&str]) -> Running {
        Running::spawn(&mut self.standalone(more), self.path("engine.log"))
    }
    /// Runs an engine that refuses to start.
    pub fn refused(&self, more: &[&str]) -> Refusal {
        let mut refused = Running::spawn(&mut self.standalone(more), self.path("refused.log"));
        let status = refused.ended();
        Refusal {
            code: status.code(),
            text: refused.printed(),
        }
    }

    /// Runs a command that asks the engine.
    pub fn ask(&self, arguments: &[&str]) -> Output {
        Command::new(PROGRAM)
            .args(arguments)
            .arg("--state-dir")
            .arg(self.state())
            .output()
            .expect("the command starts")
    }
    /// The table that `get proxies` prints.
    pub fn table(&self) -> String {
        let output = self.ask(&["get", "proxies"]);
        String::from_utf8(output.stdout).expect("a text")
    }
    /// What `get proxies -o json` prints.
    pub fn proxies(&self) -> Vec<Value> {
        let output = self.ask(&["get", "proxies", "-o", "json"]);
        let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }
    pub fn proxy(&self, name: &str) -> Option<Value> {
        self.proxies()
            .into_iter()
            .find(|p| p["metadata"]["name"] == name)
    }
    /// Status, reason and message of a condition, as `Status/Reason: message`.
    pub fn condition(&self, name: &str, r#type: &str) -> String {
        let proxy = self.proxy(name).unwrap_or_default();
        let conditions = proxy["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions
            .iter()
            .find(|c| c["type"] == r#type)
            .map_or_else(String::new, |c| {
                let text = |field: &str| c[field].as_str().unwrap_or_default().to_owned();
                format!("{}/{}: {}", text("status"), text("reason"), text("message"))
            })
    }
    pub fn wait_condition(&self, name: &str, r#type: &str, wanted: &str) {
        wait_for(&format!("{name}: {type} {wanted}"), || {
            let seen = self.condition(name, r#type);
            if seen.starts_with(wanted) {
                Ok(())
            } else {
                Err(format!("{seen}\n{}", self.table()))
            }
        });
    }
    pub fn wait_serving(&self, names: &[&str]) {
        for name in names {
            self.wait_condition(name, "Serving", "True/");
        }
    }
    /// Waits until `get proxies` shows a line with this text.
    pub fn wait_told(&self, text: &str) {
        wait_for(text, || {
            let seen = self.table();
            if seen.contains(text) {
                Ok(())
            } else {
                Err(seen)
            }
        });
    }
    /// Waits until `get proxies` tells of no trouble.
    pub fn wait_well(&self) {
        wait_for("no trouble", || {
            let seen = self.table();
            if seen.starts_with("NAMESPACE") && !seen.contains("! ") {
                Ok(())
            } else {
                Err(seen)
            }
        });
    }

    /// Status code and body of a page of the engine.
    pub fn page(&self, path: &str) -> (u16, String) {
        let address = fs::read_to_string(self.state().join("admin")).expect("the admin address");
        get(address.trim(), path, None)
    }

    /// The living processes of this installation, by proxy.
    pub fn machines(&self) -> BTreeMap<String, Vec<i32>> {
        machines_of(&self.installation)
    }
    /// One process of each of these proxies.
    pub fn exactly_one_each(&self, names: &[&str]) -> BTreeMap<String, i32> {
        let machines = self.machines();
        let seen: Vec<&str> = machines.keys().map(String::as_str).collect();
        assert_eq!(seen, names, "{machines:?}");
        machines
            .into_iter()
            .map(|(name, pids)| {
                assert_eq!(pids.len(), 1, "{name}: {pids:?}");
                (name, pids[0])
            })
            .collect()
    }
    /// Waits until no process, no machine's directory, no record and no line in the table is
    /// left.
    pub fn wait_gone(&self) {
        wait_for("no proxy", || {
            same(&self.machines(), &BTreeMap::new())?;
            same(&self.machine_dirs(), &Vec::new())?;
            let mut files = self.state_files();
            files.retain(|file| file.starts_with("records/"));
            same(&files, &Vec::new())?;
            let table = self.table();
            if table.lines().count() == 1 {
                Ok(())
            } else {
                Err(table)
            }
        });
    }

    /// Goes through the proxy of this name, with its generated password, to `page`.
    pub fn through(&self, name: &str, page: &str) -> (u16, String) {
        self.try_through(name, page).expect("it answers")
    }

    /// The same where the proxy may not be there yet.
    pub fn try_through(&self, name: &str, page: &str) -> std::io::Result<(u16, String)> {
        let file = self
            .state()
            .join(format!("credentials/default/{name}.json"));
        let text = fs::read_to_string(file).expect("a generated password");
        let credential: Value = serde_json::from_str(&text).expect("JSON");
        let field = |name: &str| credential[name].as_str().expect("a text").to_owned();
        let basic = format!("{}:{}", field("user"), field("password"));
        let proxy = self.proxy(name).expect("it is shown");
        let endpoint = proxy["status"]["endpoint"]
            .as_str()
            .expect("an endpoint")
            .to_owned();
        try_get(&endpoint, page, Some(&basic))
    }

    /// The files of the state directory, by path in it.
    pub fn state_files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut open = vec![self.state()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    open.push(entry.path());
                } else {
                    let inner = entry.path();
                    let inner = inner.strip_prefix(self.state()).expect("it is within");
                    files.push(inner.display().to_string());
                }
            }
        }
        files.sort();
        files
    }
    /// The directories of the machines.
    pub fn machine_dirs(&self) -> Vec<PathBuf> {
        let dir = self.state().join("machines/here");
        let mut dirs: Vec<PathBuf> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .collect();
        dirs.sort();
        dirs
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        end_machines(&self.installation);
    }
}

/// A running site with Proxies `a`, `b` and `c` that serve.
pub fn three(topic: &str, first_port: u16) -> (Site, Running) {
    let site = Site::new(topic, first_port);
    for name in ["a", "b", "c"] {
        site.declare(name);
    }
    let engine = site.start();
    site.wait_serving(&["a", "b", "c"]);
    (site, engine)
}

/// How an engine refused to start.
#[derive(Debug)]
pub struct Refusal {
    pub code: Option<i32>,
    pub text: String,
}

/// A manifest with this specification.
pub fn manifest(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: egress-proxies.io/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}}}\n\
         spec: {{{spec}}}\n"
    )
}

/// The living processes of an installation, by proxy.
pub fn machines_of(installation: &str) -> BTreeMap<String, Vec<i32>> {
    let mut found: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if let Some(proxy) = marked(&entry.path(), installation) {
            found.entry(proxy).or_default().push(pid);
        }
    }
    found
}

fn marked(proc: &Path, installation: &str) -> Option<String> {
    let line = fs::read(proc.join("cmdline")).ok()?;
    let mut arguments = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let text = arguments.find(|a| a.starts_with("egress-proxies/v1 "))?;
    let mark: Value = serde_json::from_str(text.split_once(' ')?.1).ok()?;
    let name = mark["proxy"].as_str()?.split_once('/')?.1.to_owned();
    (mark["installation"] == installation).then_some(name)
}

/// Ends every process of an installation, each by its pid.
pub fn end_machines(installation: &str) {
    for pid in machines_of(installation).into_values().flatten() {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Kills the processes one of whose arguments begins like this.
pub fn end_processes(argument: &str) {
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let named = line
            .split(|byte| *byte == 0)
            .any(|given| given.starts_with(argument.as_bytes()));
        if let Some(pid) = pid.and_then(Pid::from_raw).filter(|_| named) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// One GET: status code and body. `basic` are the credentials for a proxy, whose target then
/// is a whole URL.
pub fn get(address: &str, target: &str, basic: Option<&str>) -> (u16, String) {
    try_get(address, target, basic).expect("an answer")
}

/// The same where nobody may answer yet.
pub fn try_get(address: &str, target: &str, basic: Option<&str>) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let host = target
        .strip_prefix("http://")
        .map_or(address, |rest| rest.split('/').next().unwrap_or_default());
    let basic = basic.map_or_else(String::new, |basic| {
        let basic = data_encoding::BASE64.encode(basic.as_bytes());
        format!("Proxy-Authorization: Basic {basic}\r\n")
    });
    write!(
        stream,
        "GET {target} HTTP/1.1\r\nHost: {host}\r\n{basic}Connection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let code = answer
        .split(' ')
        .nth(1)
        .and_then(|c| c.parse().ok())
        .ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((code, body.to_owned()))
}

/// The echo page as a process of its own, and its URL.
pub fn echo(site: &Site) -> (Running, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["echo", "--listen", "127.0.0.1:0"]);
    let echo = Running::spawn(&mut command, site.path("echo.log"));
    let url = wait_for("the echo page", || {
        let printed = echo.printed();
        printed
            .strip_suffix('\n')
            .map(str::to_owned)
            .ok_or(printed.clone())
    });
    (echo, url)
}

/// Whether it ended by this signal.
pub fn ended_by(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal.as_raw())
}
