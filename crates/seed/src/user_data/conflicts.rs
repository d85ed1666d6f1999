//! What in a user's cloud-config would undo our part of the seed, key by key.

use super::kind;
use egress_core::finding::Finding;
use serde_json::{Map, Value};

/// The account that proxyd runs as.
const ACCOUNT: &str = "proxyd";

/// What our part writes in the machine; a folder ends with `/`.
const OUR_PATHS: &[&str] = &[
    "/etc/cloud/cloud-init.disabled",
    "/etc/egress-proxies/",
    "/etc/systemd/system/egress-proxies-agent.service",
    "/etc/systemd/system/egress-proxies-first-boot.service",
    "/etc/systemd/system/egress-proxies-policy.service",
    "/etc/systemd/system/proxyd.service",
    "/usr/local/bin/proxyd",
    "/var/lib/cloud/instance/manual-clean",
];

/// Keys that are refused whatever they hold: what they do, and what to do instead.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "cloud_config_modules",
        "decides which modules of cloud-init run",
        "set it in the image, or remove it",
    ),
    (
        "cloud_final_modules",
        "decides which modules of cloud-init run, ours among them",
        "set it in the image, or remove it",
    ),
    (
        "cloud_init_modules",
        "decides which modules of cloud-init run",
        "set it in the image, or remove it",
    ),
    (
        "network",
        "has no effect in user-data",
        "remove it; the seed has a network configuration of its own",
    ),
    (
        "vendor_data",
        "decides whether proxyd is installed at all",
        "remove it",
    ),
];

/// Every conflict, in the order of the keys.
pub(super) fn find(config: &Map<String, Value>, host_name: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, value) in config {
        match key.as_str() {
            "fqdn" | "hostname" => findings.extend(other_name(key, value, host_name)),
            "power_state" => findings.extend(stays_off(value)),
            "preserve_hostname" if is_true(value) => findings.push(Finding::new(
                key,
                text(value),
                "keeps the machine from taking its name",
                "remove it",
            )),
            "user" => findings.extend(our_account(key, value)),
            "users" => findings.extend(our_accounts(value)),
            "write_files" => findings.extend(our_files(value)),
            _ => {
                let refused = REFUSED.iter().find(|(refused, _, _)| refused == key);
                if let Some((key, problem, remedy)) = refused {
                    findings.push(Finding::new(*key, text(value), *problem, *remedy));
                }
            }
        }
    }
    findings
}

/// A host name that is not the machine's; of a qualified one the first label counts.
fn other_name(key: &str, value: &Value, host_name: &str) -> Option<Finding> {
    let label = value
        .as_str()
        .map(|name| name.split_once('.').map_or(name, |(label, _)| label));
    (label != Some(host_name)).then(|| {
        Finding::new(
            key,
            text(value),
            format!("the machine's name is `{host_name}`"),
            "remove it",
        )
    })
}

/// A machine that turns itself off would be a proxy that never answers. A reboot is fine.
fn stays_off(value: &Value) -> Option<Finding> {
    let mode = value.get("mode")?;
    matches!(mode.as_str(), Some("poweroff" | "halt")).then(|| {
        Finding::new(
            "power_state.mode",
            text(mode),
            "turns the machine off at the end of its first boot",
            "use `reboot`, or remove it",
        )
    })
}

/// `users` is a list of names or maps, or one text of names; older cloud-init takes a map too.
fn our_accounts(value: &Value) -> Vec<Finding> {
    match value {
        Value::Array(users) => users
            .iter()
            .enumerate()
            .filter_map(|(index, user)| our_account(&format!("users[{index}]"), user))
            .collect(),
        Value::Object(users) => users
            .keys()
            .filter(|name| *name == ACCOUNT)
            .map(|name| account_finding(format!("users.{name}"), name))
            .collect(),
        Value::String(names) => names
            .split(',')
            .map(str::trim)
            .filter(|name| *name == ACCOUNT)
            .map(|name| account_finding("users", name))
            .collect(),
        _ => Vec::new(),
    }
}

fn our_account(path: &str, value: &Value) -> Option<Finding> {
    let (path, name) = match value {
        Value::Object(user) => (format!("{path}.name"), user.get("name")?.as_str()?),
        Value::String(name) => (path.to_owned(), name.as_str()),
        _ => return None,
    };
    (name == ACCOUNT).then(|| account_finding(path, name))
}

fn account_finding(path: impl Into<String>, name: &str) -> Finding {
    Finding::new(
        path,
        name,
        "is the account that the proxy runs as",
        "choose another name",
    )
}

fn our_files(value: &Value) -> Vec<Finding> {
    let files = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut findings = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let Some(path) = file.get("path").and_then(Value::as_str) else {
            continue;
        };
        if is_ours(path) {
            findings.push(Finding::new(
                format!("write_files[{index}].path"),
                path,
                "is written by the seed itself",
                "remove it; a unit is changed by a drop-in, in proxyd.service.d/",
            ));
        }
    }
    findings
}

/// Whether a path is one of ours or within one.
fn is_ours(path: &str) -> bool {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    OUR_PATHS.iter().any(|ours| match ours.strip_suffix('/') {
        Some(folder) => path == folder || path.starts_with(ours),
        None => path == *ours,
    })
}

/// Whether cloud-init takes the value for true: YAML 1.1 has more words for it than we read.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() == Some(1.0),
        Value::String(word) => {
            matches!(
                word.to_ascii_lowercase().as_str(),
                "true" | "yes" | "on" | "y" | "1"
            )
        }
        _ => false,
    }
}

/// A scalar as itself, anything larger by its kind.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "an empty text".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => kind(value).to_owned(),
    }
}
