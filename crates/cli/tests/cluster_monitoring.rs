//! The alerts against the metrics of a running operator: what its page says becomes the series of
//! promtool's tests. That no alert sleeps through its case, and none cries for nothing.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::json;
use std::{fs, net::TcpListener, path::PathBuf, process::Command};
use support::{
    PROGRAM, Running,
    alerts::{Samples, admin_page, alerts, goes_off, scrape},
    cluster::{self, Cluster},
    end_machines,
    field::Field,
    relay::{Fault, Relay},
    sim::Sim,
    wait_for,
};
use tempfile::TempDir;

/// An operator of the whole server, with a provider on this host.
struct Place {
    files: TempDir,
    installation: String,
    _sim: Sim,
    dead: String,
    operator: Running,
    admin: String,
}

impl Place {
    fn new(cluster: &Cluster, first_port: u16) -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let installation = format!("alerts-{}", std::process::id());
        let sim = Sim::start_in(&files.path().join("sim"), "none", "20");
        // Its authority and token are good; nobody listens at this address.
        let block = sim.block("dead", &sim.fact("tokenFile"));
        let dead = block.replace(&sim.fact("url"), "https://127.0.0.1:1");
        let config = files.path().join("config.yaml");
        let state = files.path().join("state");
        let text = format!(
            "installation: {installation}\nadmin: {{listen: '127.0.0.1:0'}}\nstateDir: {}\n\
             providers:\n- {{name: here, local: {{listen: 127.0.0.1, addresses: [127.0.0.1], \
             portRange: {{from: {first_port}, to: {}}}}}}}\n",
            state.display(),
            first_port + 9
        );
        fs::write(&config, text).expect("written");
        let mut command = Command::new(PROGRAM);
        command
            .args(["operator", "--lease-name", &installation, "--config"])
            .arg(&config)
            .env("KUBECONFIG", cluster.kubeconfig());
        let operator = Running::spawn(&mut command, files.path().join("operator.log"));
        let admin = admin_page(&operator);
        Self {
            files,
            installation,
            _sim: sim,
            dead,
            operator,
            admin,
        }
    }

    fn config(&self) -> PathBuf {
        self.files.path().join("config.yaml")
    }

    fn add_to_config(&self, text: &str) {
        let config = fs::read_to_string(self.config()).expect("written before");
        let new = self.files.path().join("new.yaml");
        fs::write(&new, config + text).expect("written");
        fs::rename(new, self.config()).expect("renamed");
    }

    fn scrape(&self) -> Samples {
        scrape(&self.admin)
    }

    /// Waits until a sample is such, and answers with all.
    fn wait_sample(&self, of: &str, well: impl Fn(f64) -> bool) -> Samples {
        wait_for(of, || {
            let all = self.scrape();
            let value = all.get(of).copied();
            if value.is_some_and(&well) {
                Ok(all)
            } else {
                Err(format!("{value:?}; {}", self.operator.printed()))
            }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        end_machines(&self.installation);
    }
}

#[test]
fn alerts_are_silent_while_all_is_well_and_go_off_on_what_an_operator_really_shows() {
    let cluster = Cluster::shared();
    let crds = Command::new(PROGRAM)
        .arg("crds")
        .output()
        .expect("it starts");
    cluster.apply(&String::from_utf8_lossy(&crds.stdout));
    cluster.get(&["wait", "--for=condition=Established", "crd", "--all"]);
    let declare = |name: &str, provider: &str| {
        cluster.apply(&format!(
            "{{apiVersion: egress-proxies.io/v1alpha1, kind: Proxy, metadata: {{name: {name}}}, \
             spec: {{provider: {provider}, probe: {{interval: 1s, \
             timeout: 1s}}}}}}"
        ));
    };
    let place = Place::new(cluster, 24_700);
    declare("well", "here");
    let running = "egress_proxies_engine_proxies{phase=\"Running\"}";
    let one = place.wait_sample(running, |count| count > 0.0);
    let passes = "egress_proxies_engine_passes_total{result=\"ok\"}";
    let next = place.wait_sample(passes, |count| count > one[passes]);
    alerts(&one, &next, &[]).unwrap();

    place.add_to_config(&format!("- {}\n", place.dead));
    declare("ill", "dead");
    let total = |all: &Samples| -> f64 {
        let of_dead = all.iter().filter(|(name, _)| {
            name.starts_with("egress_proxies_provider_calls_total{provider=\"dead\"")
                && name.contains("class=\"Transient\"")
        });
        of_dead.map(|(_, value)| value).sum()
    };
    let failed = |what: &str, more_than: f64| {
        wait_for(what, || {
            let all = place.scrape();
            if total(&all) > more_than {
                Ok(all)
            } else {
                Err(place.operator.printed())
            }
        })
    };
    let one = failed("a call that fails", 0.0);
    place.add_to_config("not: [\n");
    place.wait_sample("egress_proxies_operator_config_broken", |broken| {
        broken > 0.0
    });
    let next = failed("another one", total(&one));
    let expected = [
        "EgressProxiesConfigBroken",
        "EgressProxiesNotRunning",
        "EgressProxiesProviderFailing",
    ];
    alerts(&one, &next, &expected).unwrap();
    cluster.get(&["delete", "proxy", "well"]);
}

/// An operator of a field and its page.
struct Watched {
    operator: Running,
    admin: String,
}

impl Watched {
    fn start(field: &Field<'_>, name: &str) -> Self {
        let operator = field.replica(name);
        let admin = admin_page(&operator);
        Self { operator, admin }
    }

    /// Waits until a sum of samples is such; answers with all samples.
    fn wait(&self, name: &str, parts: &[&str], well: impl Fn(f64) -> bool) -> Samples {
        cluster::wait_for(&format!("{name} {parts:?}"), || {
            let all = scrape(&self.admin);
            let sum = sum(&all, name, parts);
            if well(sum) {
                Ok(all)
            } else {
                Err(format!("{sum}; {}", self.operator.printed()))
            }
        })
    }

    /// Two scrapes between which a counter rises.
    fn rising(&self, name: &str, parts: &[&str]) -> (Samples, Samples) {
        let one = self.wait(name, parts, |sum| sum > 0.0);
        let before = sum(&one, name, parts);
        let next = self.wait(name, parts, |sum| sum > before);
        (one, next)
    }
}

/// The sum of the samples of this name that have these labels.
fn sum(all: &Samples, name: &str, parts: &[&str]) -> f64 {
    let of = all.iter().filter(|(series, _)| {
        series.split('{').next() == Some(name) && parts.iter().all(|part| series.contains(part))
    });
    of.map(|(_, value)| value).sum()
}

const PROXIES: &str = "egress_proxies_engine_proxies";
const CALLS: &str = "egress_proxies_provider_calls_total";

#[test]
fn each_trouble_that_can_be_had_makes_its_alert_go_off() {
    // The operator of the other test looks after all that there is on the shared one.
    let cluster = Cluster::start();
    let relay = Relay::before(&cluster);
    let mut field = Field::on_a_simulator(&cluster, "watched", "20");
    field.kubeconfig = relay.kubeconfig(&field.kubeconfig);
    let sim = field.sim();
    let token = field.path("token");
    let token = token.to_string_lossy();
    // It takes connections and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("https://{}", mute.local_addr().expect("it listens"));
    let dead = sim.block("dead", &token).replace(&sim.fact("url"), &url);
    field.configure(&format!("{}, {dead}", sim.block("here", &token)));

    // One machine is left behind, before the sweeps of the operator that follows.
    let mut first = Watched::start(&field, "first");
    field.declare(&["left", "kept"]);
    field.wait_serving(&["left", "kept"]);
    field.kubectl(&[
        "annotate",
        "proxy",
        "left",
        "egress-proxies.io/abandon=true",
    ]);
    field.kubectl(&["delete", "proxy", "left", "--timeout=120s"]);
    first.operator.stop(Signal::TERM);
    goes_off(
        "EgressProxiesOperatorAbsent",
        &Samples::new(),
        &Samples::new(),
    );

    let watched = Watched::start(&field, "second");
    let many: Vec<String> = (0..120).map(|n| format!("many-{n}")).collect();
    let manifests: Vec<String> = many
        .iter()
        .map(|name| {
            field
                .manifest(name, "")
                .replace("provider: here", "provider: dead")
        })
        .collect();
    cluster.apply(&manifests.join("---\n"));
    let all = watched.wait("egress_proxies_engine_queued", &[], |queued| queued > 100.0);
    goes_off("EgressProxiesBehind", &all, &all);

    let record = "metadata: {annotations: {egress-proxies.io/record: nonsense}, name: spoiled";
    let spoiled = field.manifest("spoiled", "");
    cluster.apply(&spoiled.replace("metadata: {name: spoiled", record));
    let all = watched.wait(PROXIES, &["phase=\"Failed\""], |failed| failed > 0.0);
    goes_off("EgressProxiesFailed", &all, &all);

    let id = field.proxy("kept")["status"]["providerID"].clone();
    let vmid = id
        .as_str()
        .and_then(|id| id.rsplit('/').next()?.parse().ok());
    let vmid: u32 = vmid.expect("a VMID");
    sim.control(&json!({"do": "protect", "vmid": vmid}));
    field.delete(&["kept"]);
    let all = watched.wait(PROXIES, &["phase=\"Deleting\""], |deleting| deleting > 0.0);
    goes_off("EgressProxiesDeletionStuck", &all, &all);

    // Before anything else is done to the hypervisor: a sweep that fails comes again ten minutes
    // later.
    let listed = ["provider=\"dead\"", "operation=\"list\""];
    let one = watched.wait(CALLS, &listed, |listings| listings > 0.0);
    let mut next = one.clone();
    for (series, value) in &mut next {
        // A sweep comes every ten minutes; this one an hour is as many as the alert asks for.
        if listed.iter().all(|part| series.contains(part)) && *value > 0.0 {
            *value += 1.0;
        }
    }
    goes_off("EgressProxiesProviderNotListed", &one, &next);
    let orphans = ["provider=\"here\"", "class=\"orphan\""];
    let all = watched.wait("egress_proxies_sweep_suspects", &orphans, |found| {
        found > 0.0
    });
    goes_off("EgressProxiesUnaccounted", &all, &all);

    // Nobody knows what this is an answer to.
    sim.control(&json!({
        "do": "answer-with", "status": 200, "path": "/cluster/resources",
        "contentType": "application/json", "body": "{\"data\": 7}",
    }));
    field.declare(&["odd"]);
    let (one, next) = watched.rising(CALLS, &["class=\"Internal\""]);
    goes_off("EgressProxiesInternalFault", &one, &next);
    sim.control(&json!({"do": "heal"}));

    let refuse = |status: bool| {
        relay.set_rule(move |method, target| {
            let patched = method == "PATCH" && target.contains("/proxies/");
            (patched && target.contains("/status?") == status).then_some(Fault::Refused(500))
        });
    };
    refuse(false);
    field.declare(&["unrecorded"]);
    let passes = "egress_proxies_engine_passes_total";
    let (one, next) = watched.rising(passes, &["result=\"store_error\""]);
    goes_off("EgressProxiesRecordsFailing", &one, &next);
    refuse(true);
    field.declare(&["untold"]);
    let statuses = "egress_proxies_operator_status_writes_total";
    let (one, next) = watched.rising(statuses, &["result=\"error\""]);
    goes_off("EgressProxiesStatusFailing", &one, &next);
    relay.set_rule(|_, _| None);

    // A replica that may not touch the lease does not lead, says so, and leads once it may.
    let mut watched = watched;
    assert!(watched.operator.stop(Signal::TERM).success());
    let lease = ["role", "egress-proxies-lease"];
    let rules = cluster.json(&["get", lease[0], lease[1], "-n", &field.namespace])["rules"].clone();
    let grant = |rules: &serde_json::Value| {
        let patch = json!([{"op": "replace", "path": "/rules", "value": rules}]).to_string();
        field.kubectl(&["patch", lease[0], lease[1], "--type=json", "-p", &patch]);
    };
    grant(&json!([]));
    let refused = Watched::start(&field, "third");
    cluster::wait_for("a word on the lease", || {
        let (_, page) = support::get(&refused.admin, "/readyz", None);
        if page.contains("cannot get resource") && page.contains("leases") {
            Ok(())
        } else {
            Err(page)
        }
    });
    let all = scrape(&refused.admin);
    goes_off("EgressProxiesNoLeader", &all, &all);
    grant(&rules);
    let leads = |leading: f64| leading > 0.0;
    refused.wait("egress_proxies_operator_leading", &[], leads);

    sim.control(&json!({"do": "unprotect", "vmid": vmid}));
    field.kubectl(&["delete", "proxy", "--all", "--wait=false"]);
    cluster.wait_absent(&["proxies", "--namespace", &field.namespace]);
    assert_eq!(field.machines().len(), 1, "the one that was left behind");
}
