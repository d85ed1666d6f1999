//! A namespace of the cluster with an operator that looks after it: its rights, its configuration
//! and the hypervisor below it.

use super::{
    PROGRAM, Running,
    cluster::{ACCOUNT, Cluster, Frozen, arguments_of, wait_for},
    end_machines, get,
    libvirt::Ground,
    machines_of, same,
    sim::Sim,
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// The loopback address that traffic of local proxies leaves from.
const EGRESS: &str = super::EGRESS;

/// What the proxies of a field run on.
pub enum Below {
    /// A simulator of Proxmox VE, and what it held at the beginning.
    Simulator(Box<Sim>, Vec<String>),
    /// Processes of this host.
    Host,
    /// A libvirt, and what it held at the beginning.
    Libvirt(Box<Ground>, Vec<String>),
}

/// What an operator looks after.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The namespace that it lives in.
    Own,
    /// The same, and its providers are shown as objects.
    OwnAndProviders,
    /// All namespaces; it lives in one of its own.
    Every,
}

/// See the module.
pub struct Field<'a> {
    pub cluster: &'a Cluster,
    /// Where its Proxies are.
    pub namespace: String,
    pub installation: String,
    pub below: Below,
    ends: Ends,
    scope: Scope,
    /// Where its operator's account and lease are.
    pub home: String,
    /// As the chart gives them to an operator.
    arguments: Vec<String>,
    dir: TempDir,
    pub kubeconfig: PathBuf,
}

impl<'a> Field<'a> {
    /// A field over a simulator whose tasks are this many times as fast as a host's.
    pub fn on_a_simulator(cluster: &'a Cluster, topic: &str, speed: &str) -> Self {
        Self::over_a_simulator(cluster, topic, speed, Scope::Own)
    }

    /// The same, for an operator of this scope.
    pub fn over_a_simulator(cluster: &'a Cluster, topic: &str, speed: &str, scope: Scope) -> Self {
        let dir = directory();
        let sim = Sim::start_in(&dir.path().join("sim"), "proxyd", speed);
        let began = sim.inventory();
        let block = sim.block("here", &dir.path().join("token").to_string_lossy());
        fs::copy(sim.fact("tokenFile"), dir.path().join("token")).expect("copied");
        let field = Self::of(
            cluster,
            topic,
            dir,
            scope,
            Below::Simulator(Box::new(sim), began),
        );
        field.configure(&block);
        field
    }

    /// A field whose proxies are processes of this host, on a hundred ports from this one on.
    pub fn on_this_host(cluster: &'a Cluster, topic: &str, first_port: u16) -> Self {
        Self::over_this_host(cluster, topic, first_port, Scope::Own)
    }

    /// The same, for an operator of this scope.
    pub fn over_this_host(
        cluster: &'a Cluster,
        topic: &str,
        first_port: u16,
        scope: Scope,
    ) -> Self {
        let field = Self::of(cluster, topic, directory(), scope, Below::Host);
        field.configure_host(first_port);
        field
    }

    fn configure_host(&self, first_port: u16) {
        self.configure(&format!(
            "{{name: here, local: {{addresses: [{EGRESS}], listen: 127.0.0.1, \
             portRange: {{from: {first_port}, to: {}}}, drainSeconds: 0}}}}",
            first_port + 99
        ));
    }

    /// A field whose proxies are tiny virtual machines.
    pub fn on_libvirt(cluster: &'a Cluster, topic: &str, ground: Ground) -> Self {
        let began = ground.inventory();
        let block = ground.block("here", &ground.tiny, "");
        let dir = directory();
        let payload = ground.payload_dir(&dir.path().join("payload"));
        let below = Below::Libvirt(Box::new(ground), began);
        let mut field = Self::of(cluster, topic, dir, Scope::Own, below);
        field.arguments.push(format!("--payload-dir={payload}"));
        field.configure(&block);
        field
    }

    fn of(cluster: &'a Cluster, topic: &str, dir: TempDir, scope: Scope, below: Below) -> Self {
        cluster.install_definitions();
        let namespace = cluster.namespace(topic);
        let home = match scope {
            Scope::Own | Scope::OwnAndProviders => namespace.clone(),
            Scope::Every => cluster.namespace("home"),
        };
        let arguments = install(cluster, &home, &namespace, scope);
        let installation = format!("{namespace}-{}", std::process::id());
        Self {
            ends: Ends(installation.clone()),
            installation,
            kubeconfig: cluster.service_account(&home, ACCOUNT),
            cluster,
            namespace,
            below,
            scope,
            home,
            arguments,
            dir,
        }
    }

    /// A field of this host whose operator is a release of this chart, definitions included; the
    /// cluster is its alone.
    pub fn released(cluster: &'a Cluster, topic: &str, first_port: u16, chart: &Path) -> Self {
        let namespace = cluster.namespace(topic);
        let installation = format!("{namespace}-{}", std::process::id());
        let values = format!(
            "watchNamespace={namespace},config.installation=tested,lease.durationSeconds=5"
        );
        let install = [
            "install",
            ACCOUNT,
            &chart.to_string_lossy(),
            "--set",
            &values,
        ];
        let said = cluster.helm(&[&install[..], &["-n", &namespace]].concat());
        assert!(said.well, "{}", said.err);
        cluster.get(&["wait", "--for=condition=Established", "crd", "--all"]);
        let field = Self {
            ends: Ends(installation.clone()),
            installation,
            kubeconfig: cluster.service_account(&namespace, ACCOUNT),
            cluster,
            arguments: released_arguments(cluster, &namespace),
            home: namespace.clone(),
            namespace,
            below: Below::Host,
            scope: Scope::Own,
            dir: directory(),
        };
        field.configure_host(first_port);
        field
    }

    /// helm on this release.
    pub fn helm(&self, arguments: &[&str]) {
        let said = self
            .cluster
            .helm(&[arguments, &["-n", &self.namespace]].concat());
        assert!(said.well, "helm {arguments:?}: {}", said.err);
    }

    /// Takes on what a new revision of the release says of its operator.
    pub fn take_revision(&mut self) {
        self.arguments = released_arguments(self.cluster, &self.namespace);
    }

    /// The same directory, hypervisor and namespace, in another cluster.
    pub fn moved(self, cluster: &Cluster) -> Field<'_> {
        cluster.install_definitions();
        cluster.get(&["create", "namespace", &self.namespace]);
        let arguments = install(cluster, &self.home, &self.namespace, self.scope);
        Field {
            cluster,
            kubeconfig: cluster.service_account(&self.home, ACCOUNT),
            namespace: self.namespace,
            installation: self.installation,
            ends: self.ends,
            below: self.below,
            scope: self.scope,
            home: self.home,
            arguments,
            dir: self.dir,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn config(&self) -> PathBuf {
        self.path("config.yaml")
    }

    /// Writes a configuration with this provider, in one step.
    pub fn configure(&self, provider: &str) {
        self.write_config(&format!(
            "installation: {}\nstateDir: state\nproviders: [{provider}]\n",
            self.installation
        ));
    }

    pub fn write_config(&self, text: &str) {
        let unfinished = self.path(".config");
        fs::write(&unfinished, text).expect("written");
        fs::rename(unfinished, self.config()).expect("a rename");
    }

    pub fn sim(&self) -> &Sim {
        match &self.below {
            Below::Simulator(sim, _) => sim,
            _ => panic!("this field has no simulator"),
        }
    }

    /// The command of an operator as the chart runs it, on our configuration.
    pub fn operator(&self, kubeconfig: &Path) -> Command {
        let ours = ["--config=", "--log-format="];
        let kept = |argument: &&String| !ours.iter().any(|ours| argument.starts_with(ours));
        let mut command = Command::new(PROGRAM);
        command
            .args(self.arguments.iter().filter(kept))
            .arg("--config")
            .arg(self.config())
            .env("KUBECONFIG", kubeconfig);
        command
    }

    /// Starts an operator and waits until it leads.
    pub fn start(&self) -> Running {
        let operator = self.replica("operator");
        wait_for("an operator that leads", || {
            let printed = operator.printed();
            if printed.contains("this process leads") {
                Ok(())
            } else {
                Err(printed)
            }
        });
        operator
    }

    /// Starts an operator that may have to follow another.
    pub fn replica(&self, name: &str) -> Running {
        let log = self.path(&format!("{name}.log"));
        Running::spawn(&mut self.operator(&self.kubeconfig), log)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster
            .get(&[arguments, &["--namespace", &self.namespace]].concat())
    }

    /// Applies Proxies of these names.
    pub fn declare(&self, names: &[&str]) {
        let all: Vec<String> = names.iter().map(|name| self.manifest(name, "")).collect();
        self.cluster.apply(&all.join("---\n"));
    }

    /// A manifest whose spec has these fields more.
    pub fn manifest(&self, name: &str, more: &str) -> String {
        let more = if more.is_empty() {
            String::new()
        } else {
            format!(", {more}")
        };
        format!(
            "{{apiVersion: egress-proxies.io/v1alpha1, kind: Proxy, \
             metadata: {{name: {name}, namespace: {}}}, \
             spec: {{provider: here, probe: {{interval: 5s}}{more}}}}}\n",
            self.namespace
        )
    }

    /// Asks for the deletion of these Proxies, and waits for nothing.
    pub fn delete(&self, names: &[&str]) {
        self.kubectl(&[&["delete", "proxy", "--wait=false"], names].concat());
    }

    pub fn proxies(&self) -> Vec<Value> {
        let list = self
            .cluster
            .json(&["get", "proxies", "--namespace", &self.namespace]);
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub fn proxy(&self, name: &str) -> Value {
        self.cluster
            .json(&["get", "proxy", name, "--namespace", &self.namespace])
    }

    /// Status, reason and message of a condition, as `Status/Reason: message`.
    pub fn condition(&self, name: &str, r#type: &str) -> String {
        condition_of(&self.proxy(name), r#type)
    }

    pub fn wait_condition(&self, name: &str, r#type: &str, wanted: &str) {
        wait_for(&format!("{name}: {type} {wanted}"), || {
            let seen = self.condition(name, r#type);
            if seen.starts_with(wanted) {
                Ok(())
            } else {
                Err(self.described(name))
            }
        });
    }

    /// Waits until `kubectl describe` of a Proxy has this text.
    pub fn wait_told(&self, name: &str, text: &str) {
        wait_for(&format!("{name}: {text}"), || {
            let told = self.described(name);
            if told.contains(text) {
                Ok(())
            } else {
                Err(told)
            }
        });
    }

    /// Waits until these Proxies serve, with one machine each.
    pub fn wait_serving(&self, names: &[&str]) {
        for name in names {
            self.wait_condition(name, "Serving", "True/");
        }
        assert_eq!(self.machines(), self.machine_names(names));
    }

    /// What `kubectl describe` tells of a Proxy.
    pub fn described(&self, name: &str) -> String {
        let arguments = ["describe", "proxy", name, "--namespace", &self.namespace];
        let said = self.cluster.kubectl(&arguments);
        format!("{}{}", said.out, said.err)
    }

    fn machine_names(&self, names: &[&str]) -> Vec<String> {
        let mut wanted: Vec<String> = names
            .iter()
            .map(|name| match &self.below {
                Below::Simulator(..) | Below::Libvirt(..) => {
                    let machine = &self.proxy(name)["status"]["machine"]["name"];
                    machine.as_str().unwrap_or_default().to_owned()
                }
                Below::Host => (*name).to_owned(),
            })
            .collect();
        wanted.sort();
        wanted
    }

    /// The machines there are, each as often as it is there.
    pub fn machines(&self) -> Vec<String> {
        match &self.below {
            Below::Simulator(sim, _) => sim.machines(),
            Below::Libvirt(ground, _) => ground.domains(),
            Below::Host => machines_of(&self.installation)
                .into_iter()
                .flat_map(|(name, pids)| vec![name; pids.len()])
                .collect(),
        }
    }

    /// No name among the machines stands for two.
    pub fn assert_none_twice(&self) {
        let machines = self.machines();
        let mut once = machines.clone();
        once.dedup();
        assert_eq!(machines, once);
    }

    /// Waits until the hypervisor holds what it held at the beginning: no machine, disk or seed.
    pub fn wait_nothing_left(&self) {
        wait_for("nothing of ours to be left", || match &self.below {
            Below::Simulator(sim, began) => same(&sim.left(began), &Vec::new()),
            Below::Libvirt(ground, began) => same(&ground.left(began), &Vec::new()),
            Below::Host => same(&self.machines(), &Vec::new()),
        });
    }

    /// Waits until there is no Proxy and nothing left below.
    pub fn wait_gone(&self) {
        self.cluster
            .wait_absent(&["proxies", "--namespace", &self.namespace]);
        self.wait_nothing_left();
    }

    /// Waits until there is no machine and no disk, and each Proxy that is still there, with its
    /// seed, waits only for a request to create that may land late: who was cut off while
    /// creating asks again, and after a second request only the settle time tells that nothing
    /// more comes.
    pub fn wait_gone_or_settling(&self) {
        let Below::Simulator(sim, began) = &self.below else {
            return self.wait_gone();
        };
        wait_for("every Proxy to be gone, or to settle", || {
            let listed = ["get", "proxies", "--namespace", &self.namespace];
            let all = self.cluster.json(&listed);
            let items = all["items"].as_array().cloned().unwrap_or_default();
            let settles = |proxy: &Value| {
                let conditions = proxy["status"]["conditions"].as_array();
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|c| c["type"] == "Provisioned" && c["reason"] == "CreateMayLand")
            };
            if let Some(other) = items.iter().find(|proxy| !settles(proxy)) {
                return Err(other["status"].to_string());
            }
            let left = sim.left(began);
            let seeds = left
                .iter()
                .filter(|line| line.contains("-seeds:iso/"))
                .count();
            if seeds == left.len() && seeds <= items.len() {
                Ok(())
            } else {
                Err(left.join(", "))
            }
        });
    }

    /// Goes through a Proxy with its generated password to a page.
    pub fn through(&self, name: &str, page: &str) -> (u16, String) {
        let secret = self.cluster.json(&[
            "get",
            "secret",
            &format!("{name}-credentials"),
            "--namespace",
            &self.namespace,
        ]);
        let field = |field: &str| {
            let text = secret["data"][field].as_str().expect("a field");
            let bytes = data_encoding::BASE64.decode(text.as_bytes());
            String::from_utf8(bytes.expect("base64")).expect("a text")
        };
        let basic = format!("{}:{}", field("username"), field("password"));
        let proxy = self.proxy(name);
        let endpoint = proxy["status"]["endpoint"].as_str().expect("an endpoint");
        get(endpoint, page, Some(&basic))
    }
}

fn released_arguments(cluster: &Cluster, namespace: &str) -> Vec<String> {
    arguments_of(&cluster.json(&["get", "deployment", ACCOUNT, "-n", namespace]))
}

/// What the chart makes of an operator of this scope; the arguments it gives to it.
fn install(cluster: &Cluster, home: &str, namespace: &str, scope: Scope) -> Vec<String> {
    let watched = format!("watchNamespace={namespace}");
    match scope {
        Scope::Own => cluster.install_operator(home, &[&watched]),
        Scope::OwnAndProviders => {
            cluster.install_operator(home, &[&watched, "providerObjects=true"])
        }
        Scope::Every => cluster.install_operator(home, &[]),
    }
}

/// Ends the machines of this host when it is dropped.
struct Ends(String);

impl Drop for Ends {
    fn drop(&mut self) {
        end_machines(&self.0);
    }
}

/// A process that stands still until this is dropped.
pub fn freeze(process: &Running) -> Frozen {
    Frozen::new(process.pid())
}

/// Status, reason and message of a condition, as `Status/Reason: message`.
pub fn condition_of(proxy: &Value, r#type: &str) -> String {
    let conditions = proxy["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|c| c["type"] == r#type));
    found.map_or_else(String::new, |c| {
        let text = |field: &str| c[field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}: {}", text("status"), text("reason"), text("message"))
    })
}

fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("cluster-")
        .tempdir()
        .expect("a directory")
}
