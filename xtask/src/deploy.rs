//! `cargo xtask deploy`: the chart, the plain YAML rendered from it, dashboard and alerts.
//!
//! Helm and promtool do the work; what they cannot know is checked here: that each figure an
//! expression names is one of docs/metrics.md, with its labels; that each alert has a test and a
//! section of the runbook; and that what is rendered for a few choices is what those choices are
//! for.

use crate::{Stop, kube::assets, run};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Command, Stdio},
};

const CHART: &str = "deploy/chart";
const ALERTS: &str = "deploy/chart/files/alerts.yaml";
const DASHBOARD: &str = "deploy/chart/files/dashboard.json";
const ALERT_TESTS: &str = "deploy/monitoring/alerts.test.yaml";
const RUNBOOK: &str = "docs/guides/operations.md";
const METRICS: &str = "docs/metrics.md";

/// The namespace of everything that is rendered.
const NAMESPACE: &str = "egress-proxies";

/// What is rendered into a file of its own, by the values set. Tokens and authorities come from
/// one Secret, which may be made later.
const MANIFESTS: &[(&str, &[&str])] = &[
    (
        "deploy/manifests/all-namespaces.yaml",
        &[
            "files[0].name=credentials",
            "files[0].secret=egress-proxies-credentials",
        ],
    ),
    (
        "deploy/manifests/one-namespace.yaml",
        &[
            "files[0].name=credentials",
            "files[0].secret=egress-proxies-credentials",
            "watchNamespace=team-a",
            "config.installation=team-a",
            "crds.install=false",
        ],
    ),
];

/// Values, what they must bring about, and what they must not.
struct Case {
    values: &'static [&'static str],
    has: &'static [&'static str],
    lacks: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        values: &[],
        has: &[
            "runAsNonRoot: true",
            "readOnlyRootFilesystem: true",
            "allowPrivilegeEscalation: false",
            "capabilities: {drop: [ALL]}",
            "seccompProfile: {type: RuntimeDefault}",
            "replicas: 2",
            "kind: PodDisruptionBudget",
            "kind: NetworkPolicy",
            "helm.sh/resource-policy: keep",
            "resourceNames: [kube-system]",
            "--provider-objects=true",
            "resourceNames: [egress-proxies]",
        ],
        lacks: &[
            "--namespace=",
            "kind: ServiceMonitor",
            "verbs: [\"*\"]",
            "hostPath",
        ],
    },
    Case {
        values: &["watchNamespace=team-a", "config.installation=team-a"],
        has: &[
            "--namespace=team-a",
            "installation: team-a",
            "--provider-objects=false",
            "namespace: team-a",
        ],
        lacks: &["kind: ClusterRole", "proxyproviders/status", "kube-system"],
    },
    Case {
        values: &[
            "watchNamespace=team-a",
            "config.installation=team-a",
            "providerObjects=true",
        ],
        has: &[
            "kind: ClusterRole",
            "proxyproviders/status",
            "--provider-objects=true",
        ],
        lacks: &["kube-system"],
    },
    Case {
        values: &[
            "replicas=1",
            "crds.install=false",
            "networkPolicy.create=false",
            "rbac.create=false",
            "serviceAccount.create=false",
            "serviceAccount.name=mine",
        ],
        has: &["serviceAccountName: mine"],
        lacks: &[
            "CustomResourceDefinition",
            "PodDisruptionBudget",
            "NetworkPolicy",
            "kind: Role",
            "kind: ServiceAccount",
        ],
    },
    Case {
        values: &[
            "serviceMonitor.create=true",
            "prometheusRule.create=true",
            "dashboard.create=true",
        ],
        has: &[
            "kind: ServiceMonitor",
            "kind: PrometheusRule",
            "alert: EgressProxiesNoLeader",
            "{{ $value }}",
            "egress-proxies.json: |",
        ],
        lacks: &[],
    },
    Case {
        values: &[
            "traces.otlp=http://collector.monitoring:4318",
            "extraEnv[0].name=OTEL_EXPORTER_OTLP_HEADERS",
            "extraEnv[0].valueFrom.secretKeyRef.name=collector",
            "extraEnv[0].valueFrom.secretKeyRef.key=headers",
            "watchNamespace=team-a",
            "config.installation=team-a",
        ],
        has: &[
            "--otlp=http://collector.monitoring:4318",
            "name: OTEL_EXPORTER_OTLP_HEADERS",
            "key: headers",
            "# The configuration's events are told on the Lease.",
        ],
        lacks: &[],
    },
    Case {
        values: &[
            "files[0].name=pv1",
            "files[0].secret=pv1-credentials",
            "config.providers[0].name=pv1",
            "config.providers[0].proxmox.vmidRange.from=1000000",
            "image.digest=sha256:0000000000000000000000000000000000000000000000000000000000000000",
        ],
        has: &[
            "mountPath: /etc/egress-proxies/files/pv1",
            "secretName: pv1-credentials",
            "from: 1000000",
            "image: \"egress-proxies@sha256:0",
        ],
        lacks: &["subPath", "1e+06"],
    },
];

/// Values that must be refused, and a word of why.
const REFUSED: &[(&[&str], &str)] = &[
    (&["watchNamespace=team-a"], "installation"),
    (&["traces.otlp=collector:4318"], "otlp"),
    (&["replicas=0"], "replicas"),
    (&["replica=2"], "replica"),
    (&["files[0].name=pv1"], "files"),
    (&["serviceAccount.create=false"], "serviceAccount.name"),
    (&["config.providers[0].name=PV_1"], "name"),
];

/// Checks everything, or writes what is rendered.
pub(crate) fn deploy(root: &Path, args: &[String]) -> Result<(), Stop> {
    let write = match args {
        [] => false,
        [flag] if flag == "--write" => true,
        _ => return Err(Stop::Usage("deploy takes `--write` or nothing".into())),
    };
    let helm = Helm {
        root,
        program: assets::helm(root)?,
    };
    let mut faults = Vec::new();
    for (path, values) in MANIFESTS {
        let wanted = manifest(&helm.template(values)?);
        let found = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        if found == wanted {
            println!("{path}: as rendered");
        } else if write {
            run::write(root, path, &wanted)?;
            println!("{path}: written");
        } else {
            faults.push(format!(
                "{path}: differs from what the chart renders: run `cargo xtask deploy --write`"
            ));
        }
    }
    if write {
        return Ok(());
    }
    helm.lint(&mut faults)?;
    for case in CASES {
        let rendered = helm.template(case.values)?;
        faults.extend(case.faults(&rendered));
    }
    for (values, word) in REFUSED {
        match helm.try_template(values)? {
            Ok(_) => faults.push(format!("{CHART}: takes {}", values.join(", "))),
            Err(why) if !why.contains(word) => {
                faults.push(format!("{CHART}: {}: {why}", values.join(", ")));
            }
            Err(_) => {}
        }
    }
    monitoring(root, &mut faults)?;
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!(
            "deploy: {} renderings, {} refusals, alerts and dashboard are well",
            CASES.len(),
            REFUSED.len()
        );
        Ok(())
    } else {
        Err(Stop::Failed)
    }
}

impl Case {
    fn faults(&self, rendered: &str) -> Vec<String> {
        let with = self.values.join(", ");
        let lacking = self.has.iter().filter(|text| !rendered.contains(**text));
        let having = self.lacks.iter().filter(|text| rendered.contains(**text));
        lacking
            .map(|text| format!("{CHART}: with [{with}] it lacks `{text}`"))
            .chain(having.map(|text| format!("{CHART}: with [{with}] it has `{text}`")))
            .collect()
    }
}

struct Helm<'a> {
    root: &'a Path,
    program: std::path::PathBuf,
}

impl Helm<'_> {
    fn command(&self, args: &[&str], values: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .current_dir(self.root)
            .stdin(Stdio::null());
        for value in values {
            command.args(["--set", value]);
        }
        command
    }

    fn lint(&self, faults: &mut Vec<String>) -> Result<(), Stop> {
        let output = self
            .command(&["lint", "--strict", "--quiet", CHART], &[])
            .output()?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            faults.push(String::from_utf8_lossy(&said).into_owned());
        }
        Ok(())
    }

    fn try_template(&self, values: &[&str]) -> Result<Result<String, String>, Stop> {
        let args = [
            "template",
            "egress-proxies",
            CHART,
            "--namespace",
            NAMESPACE,
        ];
        let output = self.command(&args, values).output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        })
    }

    fn template(&self, values: &[&str]) -> Result<String, Stop> {
        self.try_template(values)?
            .map_err(|why| Stop::Because(format!("helm template: {why}")))
    }
}

/// What people apply without Helm: the same, in a namespace that takes nothing but restricted
/// pods, and without what only Helm reads.
fn manifest(rendered: &str) -> String {
    let head = format!(
        "# Rendered from {CHART} by `cargo xtask deploy --write`; do not edit.\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  labels:\n    \
         pod-security.kubernetes.io/enforce: restricted\n"
    );
    let kept = rendered.lines().filter(|line| {
        let line = line.trim();
        !line.starts_with("# Source: ")
            && !line.starts_with("helm.sh/")
            && line != "app.kubernetes.io/managed-by: Helm"
    });
    let mut text = head;
    for line in kept.filter(|line| !line.trim().is_empty()) {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    // Where an annotation of Helm's was the only one.
    text.replace("metadata:\n  annotations:\n  name:", "metadata:\n  name:")
}

fn monitoring(root: &Path, faults: &mut Vec<String>) -> Result<(), Stop> {
    let promtool = assets::promtool(root)?;
    for args in [["check", "rules", ALERTS], ["test", "rules", ALERT_TESTS]] {
        let output = Command::new(&promtool)
            .args(args)
            .current_dir(root)
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            faults.push(format!(
                "promtool {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&said)
            ));
        }
    }
    let read = |path: &str| std::fs::read_to_string(root.join(path));
    let known = figures(&read(METRICS)?);
    for path in [ALERTS, DASHBOARD, ALERT_TESTS] {
        faults.extend(
            unknown_figures(&read(path)?, &known)
                .into_iter()
                .map(|f| format!("{path}: {f}")),
        );
    }
    let (alerts, tests, runbook) = (read(ALERTS)?, read(ALERT_TESTS)?, read(RUNBOOK)?);
    let names: Vec<&str> = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    for name in &names {
        if !tests.contains(&format!("alertname: {name}\n    exp_alerts:\n")) {
            faults.push(format!("{ALERTS}: {name} never goes off in {ALERT_TESTS}"));
        }
        if !runbook.lines().any(|line| line == format!("### {name}")) {
            faults.push(format!("{RUNBOOK}: has no section `### {name}`"));
        }
    }
    for section in runbook
        .lines()
        .filter_map(|line| line.strip_prefix("### Egress"))
    {
        let name = format!("Egress{section}");
        if !names.contains(&name.as_str()) {
            faults.push(format!("{RUNBOOK}: `### {name}` is about no alert"));
        }
    }
    Ok(())
}

/// The figures of the page and their labels.
fn figures(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    page.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `egress_proxies_")?.split('|');
            let name = format!("egress_proxies_{}", cells.next()?.trim().trim_matches('`'));
            let is_histogram = cells.next()?.trim() == "histogram";
            let mut labels: BTreeSet<String> = cells
                .next()?
                .split_whitespace()
                .map(|label| label.trim_matches('`').to_owned())
                .collect();
            let names = if is_histogram {
                labels.insert("le".into());
                ["_bucket", "_sum", "_count"]
                    .map(|end| format!("{name}{end}"))
                    .to_vec()
            } else {
                vec![name]
            };
            Some(names.into_iter().map(move |name| (name, labels.clone())))
        })
        .flatten()
        .collect()
}

/// What a text of expressions or series names and does not exist. A scrape adds `pod`.
fn unknown_figures(text: &str, known: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut faults = BTreeSet::new();
    for (at, _) in text.match_indices("egress_proxies_") {
        let rest = &text[at..];
        let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        let Some(labels) = known.get(name) else {
            faults.insert(format!("no figure is called {name}"));
            continue;
        };
        let Some(inner) = rest[name.len()..].strip_prefix('{') else {
            continue;
        };
        let inner = inner.split('}').next().unwrap_or_default();
        for matcher in inner.split(',') {
            let end = matcher.find(|c| !is_word(c)).unwrap_or(matcher.len());
            let label = &matcher[..end];
            if label != "pod" && !labels.contains(label) {
                faults.insert(format!("{name} has no label {label}"));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
| metric | type | labels | what it says |
|---|---|---|---|
| `egress_proxies_engine_proxies` | gauge | `phase` | Proxies by phase. |
| `egress_proxies_engine_pass_duration_seconds` | histogram |  | How long. |
";

    #[test]
    fn a_figure_or_a_label_that_does_not_exist_is_told() {
        let known = figures(PAGE);
        let of = |text: &str| Vec::from_iter(unknown_figures(text, &known));
        assert_eq!(
            of("sum(egress_proxies_engine_proxies{phase=~\"A|B\",pod=\"a\"}) > 0"),
            [""; 0]
        );
        assert_eq!(
            of("rate(egress_proxies_engine_pass_duration_seconds_bucket{le=\"1\"}[5m])"),
            [""; 0]
        );
        assert_eq!(
            of("egress_proxies_engine_proxy"),
            ["no figure is called egress_proxies_engine_proxy"]
        );
        assert_eq!(
            of("egress_proxies_engine_proxies{phrase=\"A\"}"),
            ["egress_proxies_engine_proxies has no label phrase"]
        );
    }

    #[test]
    fn plain_manifests_carry_nothing_of_helm() {
        let text = manifest(
            "---\n# Source: a\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n  name: a\n\nspec: {}\n",
        );
        assert!(
            text.ends_with("---\nmetadata:\n  name: a\nspec: {}\n"),
            "{text}"
        );
        assert!(!text.contains("helm"), "{text}");
    }
}
