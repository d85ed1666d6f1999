//! Every request that the client can send fits the official schema of 9.2 and of 8.4.

use egress_proxmox::client::{
    Call, CloneVm, ConfigChange, NodeName, ResourceFilter, TaskFilter, Upid, Vmid,
    call::{Payload, Rendered},
};
use regex_lite::Regex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Which variant a call is. A new variant does not compile before it has a number here, and
/// a number without an example fails the test below.
fn number(call: &Call) -> usize {
    match call {
        Call::Version => 0,
        Call::ClusterOptions => 1,
        Call::ClusterStatus => 2,
        Call::ClusterResources(ResourceFilter::All) => 3,
        Call::ClusterResources(ResourceFilter::Guests) => 4,
        Call::NextId(_) => 5,
        Call::Permissions { .. } => 6,
        Call::Pool { .. } => 7,
        Call::Nodes => 8,
        Call::NodeTime(_) => 9,
        Call::Certificates(_) => 10,
        Call::Bridges(_) => 11,
        Call::StorageStatus { .. } => 12,
        Call::StorageContent { .. } => 13,
        Call::Tasks { .. } => 14,
        Call::TaskStatus(_) => 15,
        Call::TaskLog { .. } => 16,
        Call::VmConfig { .. } => 17,
        Call::VmStatus { .. } => 18,
        Call::AgentInterfaces { .. } => 19,
        Call::Clone(_) => 20,
        Call::UploadIso { .. } => 21,
        Call::SetConfig { .. } => 22,
        Call::Resize { .. } => 23,
        Call::Start { .. } => 24,
        Call::Stop { .. } => 25,
        Call::DeleteVm { .. } => 26,
        Call::DeleteVolume { .. } => 27,
        Call::Vnets => 28,
    }
}

const VARIANTS: usize = 29;

/// Every call, with all it can carry and with as little as it can.
fn examples() -> Vec<Call> {
    let node: NodeName = "pve1".parse().unwrap();
    let vmid = Vmid::new(100_042).unwrap();
    let upid: Upid = "UPID:pve1:00000ACD:00006AE8:679A423B:qmclone:112:svc@pve!tok:"
        .parse()
        .unwrap();
    let storage = "proxy-seeds".to_owned();
    let at = |slot: &str, value: &str| Some((slot.to_owned(), value.to_owned()));
    // Every field is named, so that a new one does not compile before it is here.
    let whole = ConfigChange {
        digest: Some("3ee66c6118917273cd1d40e69110cd8c52c5409e".to_owned()),
        drive: at("ide2", "proxy-seeds:iso/px-0a1b2c3d-a-1.iso,media=cdrom"),
        net0: Some("virtio=BC:24:11:AA:00:01,bridge=vmbr0,firewall=1,tag=4".to_owned()),
        tags: Some(vec!["proxy_operator".to_owned(), "px_0a1b2c3d".to_owned()]),
        description: Some("An egress proxy.\n\negress-proxies: {\"a\":1}".to_owned()),
        name: Some("egress-ns-a".to_owned()),
        cores: Some(2),
        sockets: Some(1),
        memory_mib: Some(1024),
        balloon_mib: Some(0),
        agent: Some("enabled=1".to_owned()),
        boot: Some("order=scsi0".to_owned()),
        onboot: Some(true),
        protection: Some(false),
        delete: vec!["unused0".to_owned(), "ide3".to_owned()],
    };
    let change = |change: ConfigChange| Call::SetConfig {
        node: node.clone(),
        vmid,
        change: Box::new(change),
    };
    let seal = |slot: &str| {
        change(ConfigChange {
            drive: at(slot, "none,media=cdrom"),
            ..ConfigChange::default()
        })
    };
    let clone = CloneVm {
        node: node.clone(),
        template: Vmid::new(9001).unwrap(),
        newid: vmid,
        name: "egress-ns-a".to_owned(),
        description: "An egress proxy.".to_owned(),
        storage: "local-lvm".to_owned(),
        pool: Some("egress".to_owned()),
        target: Some("pve2".parse().unwrap()),
    };
    vec![
        Call::Version,
        Call::ClusterOptions,
        Call::ClusterStatus,
        Call::ClusterResources(ResourceFilter::All),
        Call::ClusterResources(ResourceFilter::Guests),
        Call::NextId(vmid),
        Call::Permissions {
            path: "/sdn/zones/localnetwork/vmbr0/4".to_owned(),
        },
        Call::Pool {
            poolid: "parent/egress".to_owned(),
        },
        Call::Nodes,
        Call::NodeTime(node.clone()),
        Call::Certificates(node.clone()),
        Call::Bridges(node.clone()),
        Call::Vnets,
        Call::StorageStatus {
            node: node.clone(),
            storage: storage.clone(),
        },
        Call::StorageContent {
            node: node.clone(),
            storage: storage.clone(),
            content: Some("iso".to_owned()),
            vmid: None,
        },
        Call::StorageContent {
            node: node.clone(),
            storage: storage.clone(),
            content: Some("images".to_owned()),
            vmid: Some(vmid),
        },
        Call::Tasks {
            node: node.clone(),
            filter: TaskFilter::active().kind("qmclone").vmid(vmid),
        },
        Call::Tasks {
            node: node.clone(),
            filter: TaskFilter::archive().since(1_700_000_000).limit(0),
        },
        Call::TaskStatus(upid.clone()),
        Call::TaskLog { upid, limit: 0 },
        Call::VmConfig {
            node: node.clone(),
            vmid,
        },
        Call::VmStatus {
            node: node.clone(),
            vmid,
        },
        Call::AgentInterfaces {
            node: node.clone(),
            vmid,
        },
        Call::Clone(CloneVm {
            pool: None,
            target: None,
            ..clone.clone()
        }),
        Call::Clone(clone),
        Call::UploadIso {
            node: node.clone(),
            storage: storage.clone(),
            name: "px-0a1b2c3d-egress-ns-a-1.iso".parse().unwrap(),
            image: b"CD001".as_slice().into(),
        },
        change(whole),
        seal("ide0"),
        seal("sata5"),
        seal("scsi30"),
        Call::Resize {
            node: node.clone(),
            vmid,
            disk: "scsi0".to_owned(),
            bytes: 8 << 30,
        },
        Call::Resize {
            node: node.clone(),
            vmid,
            disk: "virtio15".to_owned(),
            bytes: 8_000_000_512,
        },
        Call::Start {
            node: node.clone(),
            vmid,
        },
        Call::Stop {
            node: node.clone(),
            vmid,
            overrule_shutdown: true,
        },
        Call::Stop {
            node: node.clone(),
            vmid,
            overrule_shutdown: false,
        },
        Call::DeleteVm {
            node: node.clone(),
            vmid,
        },
        Call::DeleteVolume {
            node: node.clone(),
            storage: storage.clone(),
            volid: "proxy-seeds:iso/px-1.iso".to_owned(),
            delay_s: Some(30),
        },
        Call::DeleteVolume {
            node,
            storage,
            volid: "local-lvm:vm-100042-disk-0".to_owned(),
            delay_s: None,
        },
    ]
}

/// Names and values of parameters.
type Given = Vec<(String, String)>;

/// The schema of one version: `METHOD /path` to its parameters.
struct Schema(BTreeMap<String, Map<String, Value>>);

fn schemas() -> [(&'static str, Schema); 2] {
    [
        ("9.2", include_str!("../data/schema-9.2.json")),
        ("8.4", include_str!("../data/schema-8.4.json")),
    ]
    .map(|(version, text)| (version, Schema(serde_json::from_str(text).unwrap())))
}

impl Schema {
    /// What the schema has against a request.
    fn faults(&self, request: &Rendered) -> Vec<String> {
        let Some((properties, mut given)) = self.find(request) else {
            return vec![format!("no {} {}", request.method, request.readable_path())];
        };
        given.extend(
            request
                .query
                .iter()
                .map(|f| (f.name.clone(), f.value.clone())),
        );
        match &request.payload {
            Payload::Empty => {}
            Payload::Form(fields) => {
                given.extend(fields.iter().map(|f| (f.name.clone(), f.value.clone())));
            }
            Payload::Iso { name, .. } => {
                given.push(("content".to_owned(), "iso".to_owned()));
                given.push(("filename".to_owned(), name.to_string()));
            }
        }
        let mut faults = Vec::new();
        for (name, value) in &given {
            match property(properties, name) {
                None => faults.push(format!("unknown parameter {name}")),
                Some(rule) => faults.extend(
                    check(rule, value)
                        .into_iter()
                        .map(|fault| format!("{name}={value}: {fault}")),
                ),
            }
        }
        for (name, rule) in properties {
            let needed = rule.get("optional").is_none() && !name.contains('[');
            if needed && !given.iter().any(|(given, _)| given == name) {
                faults.push(format!("{name} is missing"));
            }
        }
        let mut names: Vec<_> = given.iter().map(|(name, _)| name).collect();
        names.sort();
        let before = names.len();
        names.dedup();
        if names.len() != before {
            faults.push("a parameter is given twice".to_owned());
        }
        faults
    }

    /// The parameters of the method, and what the path itself gives.
    fn find(&self, request: &Rendered) -> Option<(&Map<String, Value>, Given)> {
        self.0.iter().find_map(|(key, properties)| {
            let (method, template) = key.split_once(' ')?;
            let parts: Vec<_> = template.split('/').skip(1).collect();
            if method != request.method.as_str() || parts.len() != request.path.len() {
                return None;
            }
            let mut given = Vec::new();
            for (part, segment) in parts.iter().zip(&request.path) {
                match part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
                    Some(name) => given.push((name.to_owned(), segment.clone())),
                    None if part == segment => {}
                    None => return None,
                }
            }
            Some((properties, given))
        })
    }
}

/// `scsi3` is found as `scsi[n]`.
fn property<'s>(properties: &'s Map<String, Value>, name: &str) -> Option<&'s Value> {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    properties
        .get(name)
        .or_else(|| (stem != name).then(|| properties.get(&format!("{stem}[n]")))?)
}

fn whole(pattern: &str, value: &str) -> bool {
    // The schema writes Perl's flag group, which means "no flags".
    let pattern = pattern.replace("(?^:", "(?:");
    Regex::new(&format!("^(?:{pattern})$"))
        .unwrap()
        .is_match(value)
}

fn check(rule: &Value, value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut must = |holds: bool, fault: String| {
        if !holds {
            faults.push(fault);
        }
    };
    let kind = rule["type"].as_str().unwrap_or("string");
    match kind {
        "boolean" => must(matches!(value, "0" | "1"), "not 0 or 1".to_owned()),
        "integer" | "number" => {
            let number: Option<f64> = value.parse().ok();
            let whole = value.parse::<i64>().is_ok();
            must(whole || kind == "number", "not an integer".to_owned());
            must(number.is_some(), "not a number".to_owned());
            for (key, sign) in [("minimum", 1.0), ("maximum", -1.0)] {
                if let (Some(bound), Some(number)) = (rule[key].as_f64(), number) {
                    must(
                        (number - bound) * sign >= 0.0,
                        format!("beyond {key} {bound}"),
                    );
                }
            }
        }
        "string" => {}
        other => must(false, format!("type {other} is not known to this test")),
    }
    if let Some(longest) = rule["maxLength"].as_u64() {
        must(
            value.chars().count() as u64 <= longest,
            format!("longer than {longest}"),
        );
    }
    if let Some(pattern) = rule["pattern"].as_str() {
        must(whole(pattern, value), format!("does not match {pattern}"));
    }
    if let Some(words) = rule["enum"].as_array() {
        must(
            words.iter().any(|w| w == value),
            "not in the enumeration".to_owned(),
        );
    }
    match &rule["format"] {
        Value::String(name) => must(fits(name, value), format!("not a {name}")),
        Value::Object(parts) => faults.extend(check_parts(parts, value)),
        _ => {}
    }
    faults
}

/// A value that is itself a list of keys and values, such as that of `net0`.
fn check_parts(parts: &Map<String, Value>, value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut given = Vec::new();
    for item in value.split(',') {
        let (key, value) = item.split_once('=').map_or_else(
            || {
                let default = parts
                    .iter()
                    .find(|(_, rule)| rule.get("default_key").is_some());
                (default.map_or("", |(key, _)| key.as_str()), item)
            },
            |(key, value)| (key, value),
        );
        let Some(mut rule) = parts.get(key) else {
            faults.push(format!("unknown key {key:?}"));
            continue;
        };
        let mut key = key;
        if let Some(alias) = rule["alias"].as_str() {
            // `virtio=MAC` gives two at once: the model, and its address.
            given.extend(rule["keyAlias"].as_str());
            key = alias;
            rule = &parts[alias];
        }
        given.push(key);
        faults.extend(
            check(rule, value)
                .into_iter()
                .map(|f| format!("{key}: {f}")),
        );
    }
    for (key, rule) in parts {
        let needed = rule.get("optional").is_none() && rule.get("alias").is_none();
        if needed && rule.get("default").is_none() && !given.contains(&key.as_str()) {
            faults.push(format!("key {key} is missing"));
        }
    }
    faults
}

/// The named formats that the client's calls meet; any other fails.
fn fits(format: &str, value: &str) -> bool {
    if let Some(item) = format.strip_suffix("-list") {
        return value.split([',', ';']).all(|part| fits(item, part));
    }
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
    match format {
        "pve-node" => whole(label, value),
        "dns-name" => whole(&format!(r"{label}(?:\.{label})*"), value),
        "pve-vmid" => whole("[1-9][0-9]{2,8}", value),
        "pve-storage-id" => whole("[a-zA-Z][a-zA-Z0-9_.-]*[a-zA-Z0-9]", value),
        "pve-poolid" => whole("[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+){0,2}", value),
        "pve-configid" => whole("[a-zA-Z][a-zA-Z0-9_-]+", value),
        "pve-tag" => whole("[a-z0-9_][a-z0-9_+.-]*", value),
        "pve-bridge-id" => whole("[-_.a-zA-Z0-9]+", value),
        "mac-addr" => whole("[0-9A-Fa-f][02468ACEace](?::[0-9A-Fa-f]{2}){5}", value),
        "pve-storage-content" => whole(
            "images|rootdir|vztmpl|iso|backup|snippets|none|import",
            value,
        ),
        "pve-volume-id-or-qm-path" => whole(
            "none|cdrom|/.+|[a-zA-Z][a-zA-Z0-9_.-]*[a-zA-Z0-9]:.+",
            value,
        ),
        "pve-qm-boot" => whole("order=[a-z]+[0-9]+(?:;[a-z]+[0-9]+)*", value),
        _ => false,
    }
}

#[test]
fn every_request_fits_the_schema_of_both_versions() {
    for (version, schema) in schemas() {
        for call in examples() {
            let faults = schema.faults(&call.render());
            assert!(faults.is_empty(), "{version}: {call:?}: {faults:#?}");
        }
    }
}

#[test]
fn every_request_has_an_example() {
    let mut seen = [false; VARIANTS];
    for call in examples() {
        seen[number(&call)] = true;
    }
    let missing: Vec<_> = (0..VARIANTS).filter(|n| !seen[*n]).collect();
    assert!(missing.is_empty(), "no example of number {missing:?}");
}

#[test]
fn the_schema_holds_no_method_that_the_client_does_not_use() {
    for (version, schema) in schemas() {
        for key in schema.0.keys() {
            let used = examples().iter().any(|call| {
                let rendered = call.render();
                let only = Schema(BTreeMap::from([(key.clone(), schema.0[key].clone())]));
                only.find(&rendered).is_some()
            });
            assert!(used, "{version}: {key}");
        }
    }
}

#[test]
fn a_request_that_does_not_fit_is_found_out() {
    let (_, schema) = schemas().into_iter().next().unwrap();
    let node: NodeName = "pve1".parse().unwrap();
    let vmid = Vmid::new(101).unwrap();
    let faults = |change: ConfigChange| {
        let call = Call::SetConfig {
            node: node.clone(),
            vmid,
            change: Box::new(change),
        };
        schema.faults(&call.render()).join("; ")
    };
    let net0 = |net0: &str| ConfigChange {
        net0: Some(net0.to_owned()),
        ..ConfigChange::default()
    };
    for (change, told) in [
        (net0("virtio=BC:24:11:AA:00:01,tag=5000"), "beyond maximum"),
        (net0("virtio=01:24:11:AA:00:01"), "not a mac-addr"),
        (net0("bridge=vmbr0"), "key model is missing"),
        (net0("virtio=BC:24:11:AA:00:01,colour=red"), "unknown key"),
        (net0("virtio=BC:24:11:AA:00:01,firewall=yes"), "not 0 or 1"),
        (
            ConfigChange {
                memory_mib: Some(8),
                ..ConfigChange::default()
            },
            "beyond minimum",
        ),
        (
            ConfigChange {
                drive: Some(("floppy0".to_owned(), "none".to_owned())),
                ..ConfigChange::default()
            },
            "unknown parameter",
        ),
        (
            ConfigChange {
                tags: Some(vec!["a!".to_owned()]),
                ..ConfigChange::default()
            },
            "not a pve-tag-list",
        ),
        (
            ConfigChange {
                description: Some("x".repeat(8193)),
                ..ConfigChange::default()
            },
            "longer than 8192",
        ),
        (
            ConfigChange {
                name: Some("a_b".to_owned()),
                ..ConfigChange::default()
            },
            "not a dns-name",
        ),
    ] {
        let found = faults(change);
        assert!(found.contains(told), "{found:?} does not tell {told:?}");
    }
    let resize = Call::Resize {
        node: node.clone(),
        vmid,
        disk: "scsi31".to_owned(),
        bytes: 1,
    };
    assert!(schema.faults(&resize.render())[0].contains("enumeration"));
    let volume = Call::DeleteVolume {
        node,
        storage: "s1".to_owned(),
        volid: "s1:x".to_owned(),
        delay_s: Some(31),
    };
    assert!(schema.faults(&volume.render())[0].contains("maximum"));
}
