//! The alerts against the metrics of a running operator: what its page says becomes the series of
//! promtool's tests. That no alert sleeps through its case, and none cries for nothing.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use support::{PROGRAM, Running, cluster::Cluster, end_machines, get, sim::Sim, wait_for};
use tempfile::TempDir;

const ALERTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../deploy/chart/files/alerts.yaml"
);

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
        let admin = wait_for("the admin page", || {
            let printed = operator.printed();
            let at = printed.split_once("admin page http://");
            let address = at.and_then(|(_, rest)| rest.split_once("/\n"));
            address
                .map(|(address, _)| address.to_owned())
                .ok_or(printed.clone())
        });
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

    /// Every sample of its page, buckets aside: `name{labels}` and value.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let (code, page) = get(&self.admin, "/metrics", None);
        assert_eq!(code, 200);
        page.lines()
            .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"))
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                Some((series.to_owned(), value.parse().ok()?))
            })
            .collect()
    }

    /// Waits until a sample is such, and answers with all.
    fn wait_sample(&self, of: &str, well: impl Fn(f64) -> bool) -> BTreeMap<String, f64> {
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

/// Which alerts go off after two hours in which all goes on as from one scrape to the next,
/// which came a minute later.
fn alerts(
    dir: &Path,
    one: &BTreeMap<String, f64>,
    next: &BTreeMap<String, f64>,
    expected: &[&str],
) -> Result<(), String> {
    let mut series = String::new();
    for (name, value) in next {
        let labelled = match name.split_once('{') {
            Some((name, labels)) => format!("{name}{{pod=\"a\",{labels}"),
            None => format!("{name}{{pod=\"a\"}}"),
        };
        let counts = ["_total", "_count", "_sum"].iter().any(|end| {
            name.split('{')
                .next()
                .is_some_and(|name| name.ends_with(end))
        });
        let rise = if counts {
            value - one.get(name).copied().unwrap_or(0.0)
        } else {
            0.0
        };
        let _ = writeln!(
            series,
            "  - {{series: '{labelled}', values: '{value}+{rise}x130'}}"
        );
    }
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    let samples: String = expected.iter().fold(String::new(), |mut text, name| {
        let _ = writeln!(
            text,
            "    - {{labels: '{{alertname=\"{name}\"}}', value: 1}}"
        );
        text
    });
    let test = format!(
        "rule_files: ['{ALERTS}']\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  \
         input_series:\n{series}  promql_expr_test:\n  - expr: \
         'count by (alertname) (ALERTS{{alertstate=\"firing\"}})'\n    eval_time: 2h\n    \
         exp_samples:\n{samples}"
    );
    let path = dir.join("alerts.yaml");
    fs::write(&path, test).expect("written");
    let output = Command::new(promtool())
        .args(["test", "rules"])
        .arg(&path)
        .output()
        .expect("promtool starts");
    if output.status.success() {
        Ok(())
    } else {
        let said = [output.stdout, output.stderr].concat();
        Err(String::from_utf8_lossy(&said).into_owned())
    }
}

/// The one of the rung, else the one of the cache.
fn promtool() -> PathBuf {
    if let Some(path) = std::env::var_os("EGRESS_PROMTOOL") {
        return path.into();
    }
    let assets = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "xtask", "--", "kube-assets"])
        .output()
        .expect("cargo starts");
    let printed = String::from_utf8_lossy(&assets.stdout).into_owned();
    let found = printed.lines().find(|line| line.ends_with("/promtool"));
    found.expect("kube-assets finds promtool").into()
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
    alerts(place.files.path(), &one, &next, &[]).unwrap();

    place.add_to_config(&format!("- {}\n", place.dead));
    declare("ill", "dead");
    let total = |all: &BTreeMap<String, f64>| -> f64 {
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
    alerts(place.files.path(), &one, &next, &expected).unwrap();
    cluster.get(&["delete", "proxy", "well"]);
}
