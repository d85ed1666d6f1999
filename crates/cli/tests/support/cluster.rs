//! A real API server for tests, as `cargo xtask kube-up` runs it, with kubectl and helm.
//!
//! It ends when the input of the command closes, which is when the test program ends in any way.

use super::{PROGRAM, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    sync::{
        Mutex, Once, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Within this everything happens that is waited for: a look is a kubectl, and several tests
/// share one API server.
const PATIENCE: Duration = Duration::from_mins(3);
/// The time from one look to the next.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Looks until there is something; says what it waited for when there is not in time.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    wait(what, BETWEEN_LOOKS, PATIENCE, look)
}

/// The program that tests may stop, start and freeze.
pub const API_SERVER: &str = "kube-apiserver";

/// The chart that people install.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart");
/// The release, and so the service account and the role of an operator.
pub const ACCOUNT: &str = "egress-proxies";

/// Servers and how to order them about.
pub struct Cluster {
    control: Mutex<Control>,
    facts: Value,
    files: TempDir,
    defined: Once,
}

struct Control {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    facts: Value,
}

impl Control {
    /// The next line of facts.
    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("kube-up says on stderr why it has no facts")
    }

    fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("open until the end");
        writeln!(orders, "{order}").expect("kube-up listens");
        self.facts = self.read();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// What a command printed and whether it went well.
#[derive(Debug)]
pub struct Said {
    pub well: bool,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            well: output.status.success(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

impl Cluster {
    /// The server of this test program, which its tests share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A server of one's own.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same in a network namespace.
    pub fn start_in(netns: &str) -> Self {
        Self::start_with(&["--netns", netns])
    }

    fn start_with(more: &[&str]) -> Self {
        let mut command = if let Some(xtask) = std::env::var_os("EGRESS_KUBE_UP") {
            Command::new(xtask)
        } else {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "--package", "xtask", "--"]);
            cargo
        };
        command
            .args(["kube-up", "--control"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("kube-up starts");
        let mut control = Control {
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().expect("piped")),
            facts: Value::Null,
            child,
        };
        control.facts = control.read();
        Self {
            facts: control.facts.clone(),
            control: Mutex::new(control),
            files: tempfile::tempdir().expect("a directory"),
            defined: Once::new(),
        }
    }

    fn control(&self) -> std::sync::MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fact(&self, name: &str) -> &str {
        self.facts[name].as_str().expect("a text")
    }

    /// The kubeconfig of an admin.
    pub fn kubeconfig(&self) -> PathBuf {
        self.fact("kubeconfig").into()
    }

    /// Ends the API server as a crash would, and leaves it down.
    pub fn stop_api_server(&self) {
        self.control().order(&format!("stop {API_SERVER}"));
    }

    /// Starts the API server on its data and port, and waits until it is ready.
    pub fn start_api_server(&self) {
        self.control().order(&format!("start {API_SERVER}"));
    }

    /// Stops the API server in its tracks until the guard is dropped: connections stay open and
    /// nothing is answered.
    pub fn freeze_api_server(&self) -> Frozen {
        let pid = self.control().facts["pids"][API_SERVER].as_i64();
        Frozen::new(i32::try_from(pid.expect("it runs")).expect("a pid"))
    }

    /// The pids of its programs.
    pub fn pids(&self) -> Vec<i32> {
        let control = self.control();
        let pids = control.facts["pids"].as_object().expect("a map");
        pids.values()
            .map(|pid| i32::try_from(pid.as_i64().expect("a number")).expect("a pid"))
            .collect()
    }

    /// Where kubectl is.
    pub fn kubectl_program(&self) -> &str {
        self.fact("kubectl")
    }

    /// kubectl as the admin, with these arguments.
    pub fn kubectl(&self, arguments: &[&str]) -> Said {
        self.kubectl_as(&self.kubeconfig(), arguments)
    }

    pub fn kubectl_as(&self, kubeconfig: &Path, arguments: &[&str]) -> Said {
        let mut command = Command::new(self.fact("kubectl"));
        command.args(arguments).stdin(Stdio::null());
        Said::from(
            self.at_home(&mut command, kubeconfig)
                .output()
                .expect("kubectl starts"),
        )
    }

    /// What kubectl printed; it must go well.
    pub fn get(&self, arguments: &[&str]) -> String {
        let said = self.kubectl(arguments);
        assert!(said.well, "kubectl {arguments:?}: {}", said.err);
        said.out
    }

    /// The JSON that kubectl printed, or null when it did not go well.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let said = self.kubectl(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&said.out).unwrap_or_default()
    }

    /// kubectl with a text on its input, for `-f -`.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Said {
        let mut command = Command::new(self.fact("kubectl"));
        command.args(arguments).stdin(Stdio::piped());
        let mut child = self
            .at_home(&mut command, &self.kubeconfig())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut writer = child.stdin.take().expect("piped");
        let input = input.to_owned();
        let writing = thread::spawn(move || writer.write_all(input.as_bytes()));
        let output = child.wait_with_output().expect("an end");
        // kubectl may have ended before it read all.
        let _ = writing.join().expect("no panic");
        Said::from(output)
    }

    /// Applies manifests; it must go well.
    pub fn apply(&self, manifests: &str) {
        let said = self.kubectl_with(&["apply", "-f", "-"], manifests);
        assert!(said.well, "{}\n{manifests}", said.err);
    }

    /// The custom resource definitions, as the command prints them.
    pub fn install_definitions(&self) {
        self.defined.call_once(|| self.define());
    }

    fn define(&self) {
        let printed = Command::new(PROGRAM).arg("crds").output();
        let printed = Said::from(printed.expect("the command starts"));
        assert!(printed.well, "{}", printed.err);
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let said = self.kubectl_with(&apply, &printed.out);
        assert!(said.well, "{}", said.err);
        for name in ["proxies", "proxyproviders"] {
            let name = format!("crd/{name}.egress-proxies.io");
            self.get(&["wait", "--for=condition=Established", &name]);
        }
    }

    /// What the chart makes in this namespace of an operator with these values: account and
    /// roles. Answers the arguments that it gives to the operator.
    pub fn install_operator(&self, home: &str, values: &[&str]) -> Vec<String> {
        let render = |template: &str| {
            let mut arguments = vec!["template", ACCOUNT, CHART, "--namespace", home];
            arguments.extend([
                "--set",
                "config.installation=tested,lease.durationSeconds=5",
            ]);
            for value in values {
                arguments.extend(["--set", value]);
            }
            arguments.extend(["--show-only", template]);
            let said = self.helm(&arguments);
            assert!(said.well, "{}", said.err);
            said.out
        };
        let rights = ["templates/serviceaccount.yaml", "templates/rbac.yaml"].map(render);
        self.apply(&rights.join("\n---\n"));
        let order = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
        let said = self.kubectl_with(&order, &render("templates/deployment.yaml"));
        let deployment: Value = serde_json::from_str(&said.out).expect("a Deployment");
        arguments_of(&deployment)
    }

    /// helm as the admin.
    pub fn helm(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(self.fact("helm"));
        command.args(arguments).stdin(Stdio::null());
        Said::from(
            self.at_home(&mut command, &self.kubeconfig())
                .output()
                .expect("helm starts"),
        )
    }

    /// With nothing of the person who runs the tests.
    fn at_home<'a>(&self, command: &'a mut Command, kubeconfig: &Path) -> &'a mut Command {
        command
            .env("KUBECONFIG", kubeconfig)
            .env("HOME", self.files.path())
    }

    /// A namespace of one's own.
    pub fn namespace(&self, topic: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{topic}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.get(&["create", "namespace", &name]);
        name
    }

    /// A kubeconfig with a token of this service account, which must be there, and nothing else.
    pub fn service_account(&self, namespace: &str, name: &str) -> PathBuf {
        let token = self.files.path().join(format!("{namespace}-{name}.token"));
        let path = self
            .files
            .path()
            .join(format!("{namespace}-{name}.kubeconfig"));
        let minted = self.get(&["create", "token", "-n", namespace, name, "--duration=2h"]);
        fs::write(&token, minted.trim()).expect("written");
        let admin = fs::read_to_string(self.kubeconfig()).expect("a kubeconfig");
        let line = admin
            .lines()
            .find(|line| line.starts_with("clusters:"))
            .expect("its cluster");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: egress\n{line}\n\
             users: [{{name: sa, user: {{tokenFile: '{}'}}}}]\n\
             contexts: [{{name: egress, context: {{cluster: egress, user: sa, \
             namespace: {namespace}}}}}]\n",
            token.display()
        );
        fs::write(&path, text).expect("written");
        path
    }

    /// Waits until `kubectl get` with these arguments finds nothing.
    pub fn wait_absent(&self, arguments: &[&str]) {
        let arguments = [&["get", "-o", "name", "--ignore-not-found"], arguments].concat();
        wait_for(&format!("nothing from {arguments:?}"), || {
            let said = self.kubectl(&arguments);
            if said.well && said.out.is_empty() {
                Ok(())
            } else {
                Err(format!("{}{}", said.out, said.err))
            }
        });
    }
}

/// What a Deployment gives to the operator.
pub fn arguments_of(deployment: &Value) -> Vec<String> {
    let arguments = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    let arguments = arguments.as_array().expect("arguments");
    let text = |argument: &Value| argument.as_str().expect("a text").to_owned();
    arguments.iter().map(text).collect()
}

/// A process that stands still until this is dropped.
pub struct Frozen(Pid);

impl Frozen {
    pub fn new(pid: i32) -> Self {
        let pid = Pid::from_raw(pid).expect("a pid");
        kill_process(pid, Signal::STOP).expect("it runs");
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}
