//! The image and the units in it.

use crate::USER_DATA;
use crate::{ended, is_there, made, said};
use egress_core::proxy_config::ProxydConfig;
use egress_seed::GuestAgent;
use std::{fs, process::Command};

const NAMES: &[&str] = &[
    "egress-proxies-agent.service",
    "egress-proxies-first-boot.service",
    "egress-proxies-policy.service",
    "meta-data",
    "network-config",
    "policy.nft",
    "proxyd",
    "proxyd.json",
    "proxyd.service",
    "user-data",
    "vendor-data",
];

const UNITS: &[&str] = &[
    "egress-proxies-agent.service",
    "egress-proxies-first-boot.service",
    "egress-proxies-policy.service",
    "proxyd.service",
];

#[test]
fn blkid_finds_the_label_that_cloud_init_looks_for() {
    if !is_there("blkid", "util-linux") {
        return;
    }
    let made = made(GuestAgent::Package, None);
    let told = said("blkid", &["-p", "-o", "export", &made.path("seed.iso")]);
    assert!(told.contains("\nLABEL=cidata\n"), "{told}");
    assert!(told.contains("\nTYPE=iso9660\n"), "{told}");
    assert!(!told.contains("Joliet"), "{told}");
}

#[test]
fn b91_isoinfo_reads_rock_ridge_names_and_plain_ones_and_every_byte() {
    if !is_there("isoinfo", "genisoimage") {
        return;
    }
    let made = made(GuestAgent::Builtin, None);
    let image = made.path("seed.iso");
    let told = said("isoinfo", &["-R", "-f", "-i", &image]);
    let mut names: Vec<_> = told
        .lines()
        .map(|line| line.trim_start_matches('/'))
        .collect();
    names.sort_unstable();
    assert_eq!(names, NAMES, "{told}");
    let long = said("isoinfo", &["-R", "-l", "-i", &image]);
    assert_eq!(
        long.matches("-r--------   1    0    0").count(),
        NAMES.len(),
        "{long}"
    );
    let plain = said("isoinfo", &["-l", "-i", &image]);
    for name in [
        "USER_DATA.;1",
        "META_DATA.;1",
        "VENDOR_DATA.;1",
        "NETWORK_CONFIG.;1",
    ] {
        assert!(plain.contains(name), "{plain}");
    }
    let facts = said("isoinfo", &["-d", "-i", &image]);
    assert!(facts.contains("Volume id: cidata"), "{facts}");
    assert!(
        facts.contains("Rock Ridge signatures version 1 found"),
        "{facts}"
    );
    assert!(facts.contains("NO Joliet present"), "{facts}");
    let output = Command::new("isoinfo")
        .args(["-R", "-x", "/proxyd", "-i", &image])
        .output()
        .expect("isoinfo starts");
    assert_eq!(output.stdout, made.payload);
}

#[test]
fn xorriso_loads_the_image_without_complaint_and_unpacks_it() {
    if !is_there("xorriso", "xorriso") {
        return;
    }
    let made = made(GuestAgent::Builtin, None);
    let told = said("xorriso", &["-indev", &made.path("seed.iso"), "-toc"]);
    assert!(told.contains("'cidata'"), "{told}");
    for bad in ["WARNING", "SORRY", "FAILURE", "FATAL"] {
        assert!(!told.contains(bad), "{told}");
    }
    let unpacked = made.unpacked();
    assert_eq!(
        fs::read(unpacked.join("proxyd")).expect("there"),
        made.payload
    );
    assert_eq!(
        fs::read_to_string(unpacked.join("user-data")).expect("there"),
        USER_DATA
    );
    let config = fs::read(unpacked.join("proxyd.json")).expect("there");
    let config: ProxydConfig = serde_json::from_slice(&config).expect("a configuration");
    assert_eq!(config, made.config);
}

#[test]
fn systemd_reads_the_units_without_complaint() {
    if !(is_there("systemd-analyze", "systemd") && is_there("xorriso", "xorriso")) {
        return;
    }
    let made = made(GuestAgent::Builtin, None);
    let unpacked = made.unpacked();
    let mut arguments = vec!["verify".to_owned(), "--man=no".to_owned()];
    for name in UNITS {
        let unit = unpacked.join(name);
        // The programs and the account are the guest's.
        let text = fs::read_to_string(&unit).expect("there");
        let text = text
            .replace("/usr/local/bin/proxyd", "/bin/true")
            .replace("/usr/sbin/nft", "/bin/true")
            .replace("=proxyd\n", "=root\n");
        fs::write(&unit, text).expect("written");
        arguments.push(unit.display().to_string());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let told = said("systemd-analyze", &arguments);
    let ours: Vec<_> = told
        .lines()
        .filter(|line| UNITS.iter().any(|unit| line.contains(unit)))
        .collect();
    assert!(ours.is_empty(), "{told}");
}

/// The exposure that systemd sees, from 0 to 10; above 2.0 it is no longer small.
#[test]
fn systemd_finds_little_exposed_in_what_runs_all_the_time() {
    if !(is_there("systemd-analyze", "systemd") && is_there("xorriso", "xorriso")) {
        return;
    }
    let made = made(GuestAgent::Builtin, None);
    let unpacked = made.unpacked();
    for name in ["proxyd.service", "egress-proxies-agent.service"] {
        let unit = unpacked.join(name).display().to_string();
        let told = said("systemd-analyze", &["security", "--offline=true", &unit]);
        let exposure = told
            .rsplit_once("Overall exposure level for ")
            .and_then(|(_, rest)| rest.split_whitespace().nth(1))
            .and_then(|number| number.parse::<f32>().ok());
        assert!(exposure.is_some_and(|number| number < 2.0), "{told}");
    }
}

#[test]
fn nft_takes_the_rules() {
    if !(is_there("nft", "nftables") && is_there("xorriso", "xorriso")) {
        return;
    }
    let made = made(GuestAgent::Builtin, None);
    let rules = made.unpacked().join("policy.nft");
    // The account is the guest's.
    let text = fs::read_to_string(&rules).expect("there");
    fs::write(&rules, text.replace("skuid proxyd", "skuid 999")).expect("written");
    let (well, told) = ended("nft", &["--check", "--file", &rules.display().to_string()]);
    // Whoever runs this may not be allowed to ask the kernel.
    assert!(
        well || told.contains("Operation not permitted") || told.contains("must be root"),
        "{told}"
    );
}
