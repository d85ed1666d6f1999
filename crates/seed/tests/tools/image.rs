//! The image and the units in it.

use crate::USER_DATA;
use crate::{is_there, made, said};
use egress_core::proxy_config::ProxydConfig;
use egress_seed::GuestAgent;
use std::{fs, process::Command};

const NAMES: &[&str] = &[
    "egress-proxies-first-boot.service",
    "meta-data",
    "network-config",
    "proxyd",
    "proxyd.json",
    "proxyd.service",
    "user-data",
    "vendor-data",
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
    let made = made(GuestAgent::Package, None);
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
    let made = made(GuestAgent::Package, None);
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
    let made = made(GuestAgent::Package, None);
    let unpacked = made.unpacked();
    let unit = unpacked.join("proxyd.service");
    // The programs and the account are the guest's.
    let text = fs::read_to_string(&unit).expect("there");
    let text = text
        .replace("/usr/local/bin/proxyd", "/bin/true")
        .replace("=proxyd\n", "=root\n");
    fs::write(&unit, text).expect("written");
    let first_boot = unpacked.join("egress-proxies-first-boot.service");
    let paths = [unit.display().to_string(), first_boot.display().to_string()];
    let told = said(
        "systemd-analyze",
        &["verify", "--man=no", &paths[0], &paths[1]],
    );
    let ours: Vec<_> = told
        .lines()
        .filter(|line| line.contains("proxyd.service") || line.contains("first-boot"))
        .collect();
    assert!(ours.is_empty(), "{told}");
}
