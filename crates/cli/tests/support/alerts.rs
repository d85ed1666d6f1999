//! Alerts over what an operator shows: its page becomes the series of promtool's tests.

use super::{Running, get, wait_for};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
    process::Command,
};

const ALERTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../deploy/chart/files/alerts.yaml"
);

/// Samples of a page: `name{labels}` and value.
pub type Samples = BTreeMap<String, f64>;

/// Where the admin page of an operator is.
pub fn admin_page(operator: &Running) -> String {
    wait_for("the admin page", || {
        let printed = operator.printed();
        let at = printed.split_once("admin page http://");
        let address = at.and_then(|(_, rest)| rest.split_once("/\n"));
        address
            .map(|(address, _)| address.to_owned())
            .ok_or(printed.clone())
    })
}

/// Every sample of a page, buckets aside.
pub fn scrape(admin: &str) -> Samples {
    let (code, page) = get(admin, "/metrics", None);
    assert_eq!(code, 200);
    page.lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// Which alerts go off after two hours in which all goes on as from one scrape to the next,
/// which came a minute later.
pub fn alerts(one: &Samples, next: &Samples, expected: &[&str]) -> Result<(), String> {
    evaluated(one, next, "", expected)
}

/// This alert goes off after two hours that go on so, whatever the others do.
pub fn goes_off(alert: &str, one: &Samples, next: &Samples) {
    let only = format!(",alertname=\"{alert}\"");
    evaluated(one, next, &only, &[alert]).unwrap();
}

fn evaluated(one: &Samples, next: &Samples, only: &str, expected: &[&str]) -> Result<(), String> {
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
         'count by (alertname) (ALERTS{{alertstate=\"firing\"{only}}})'\n    eval_time: 2h\n    \
         exp_samples:\n{samples}"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("alerts.yaml");
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
