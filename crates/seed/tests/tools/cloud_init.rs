//! The four files that cloud-init looks for.

use crate::{USER_DATA, ended, is_there, made, said};
use egress_seed::GuestAgent;
use std::{fs, path::Path};

#[test]
fn cloud_init_finds_nothing_wrong_with_user_data() {
    if !(is_there("cloud-init", "cloud-init") && is_there("xorriso", "xorriso")) {
        return;
    }
    let made = made(GuestAgent::Package, None);
    let user_data = made.unpacked().join("user-data").display().to_string();
    let told = said("cloud-init", &["schema", "--config-file", &user_data]);
    assert!(told.contains("Valid"), "{told}");
    fs::write(&user_data, "#cloud-config\n{}\n").expect("written");
    said("cloud-init", &["schema", "--config-file", &user_data]);
    fs::write(&user_data, "#cloud-config\nruncmd: 7\n").expect("written");
    let (well, told) = ended("cloud-init", &["schema", "--config-file", &user_data]);
    assert!(!well, "a check that finds no fault proves nothing: {told}");
}

/// What cloud-init's own code makes of our files, as one line of JSON: the parts of user-data
/// and vendor-data, and the configuration its modules see in the end.
const CLOUD_INIT_READS: &str = r#"
import json, os, sys, tempfile
from cloudinit import helpers, user_data, util
from cloudinit.handlers import cloud_config
from cloudinit.sources import DataSourceNoCloud
seed = sys.argv[1]
found = util.pathprefix2dict(seed, required=["user-data", "meta-data"], optional=["vendor-data", "network-config"])
found = DataSourceNoCloud._merge_new_seed({"meta-data": {}}, found)
paths = helpers.Paths({"cloud_dir": tempfile.mkdtemp(dir=os.path.dirname(seed))})
told = {"meta": found["meta-data"], "network": found["network-config"]}
for name in ["user-data", "vendor-data"]:
    message = user_data.UserDataProcessor(paths).process(found[name])
    told[name] = [
        [part.get_content_type(), part.get_filename(), util.fully_decoded_payload(part)]
        for part in message.walk() if not part.is_multipart()
    ]
def text(value):
    return value.decode() if isinstance(value, bytes) else value
print(json.dumps(told, default=text))
"#;

#[test]
fn cloud_inits_own_code_takes_the_files_apart_as_meant() {
    if !(is_there("cloud-init", "cloud-init") && is_there("xorriso", "xorriso")) {
        return;
    }
    let made = made(GuestAgent::Package, Some("BC:24:11:EE:48:83"));
    let unpacked = made.unpacked().display().to_string();
    let told = said("/usr/bin/python3", &["-c", CLOUD_INIT_READS, &unpacked]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(
        told["meta"],
        serde_json::json!({"instance-id": "px-a-3", "local-hostname": "px-a"})
    );
    assert_eq!(
        told["network"],
        serde_json::json!({"version": 2, "ethernets": {"eth0": {
            "match": {"macaddress": "bc:24:11:ee:48:83"}, "dhcp4": true, "dhcp6": true,
            "dhcp-identifier": "mac", "ipv6-privacy": false,
        }}})
    );
    assert_eq!(told["user-data"][0][0], "text/cloud-config");
    assert_eq!(told["user-data"][0][2], USER_DATA);
    assert_eq!(told["user-data"].as_array().map(Vec::len), Some(1));
    let vendor = told["vendor-data"].as_array().expect("parts");
    assert_eq!(vendor.len(), 2);
    assert_eq!(vendor[0][0], "text/cloud-boothook");
    assert_eq!(vendor[1][0], "text/x-shellscript");
    for (part, begins) in vendor
        .iter()
        .zip(["#cloud-boothook\n#!/bin/sh\n", "#!/bin/sh\n"])
    {
        let script = part[2].as_str().expect("text");
        assert!(script.starts_with(begins), "{script}");
        let script = script.trim_start_matches("#cloud-boothook\n");
        let path = made.path("script");
        fs::write(&path, script).expect("written");
        said("sh", &["-n", &path]);
    }
}

#[test]
fn every_renderer_of_cloud_init_makes_dhcp_of_the_network_configuration() {
    if !(is_there("cloud-init", "cloud-init") && is_there("xorriso", "xorriso")) {
        return;
    }
    for mac in [None, Some("bc:24:11:ee:48:83")] {
        let made = made(GuestAgent::Package, mac);
        let from = made.unpacked().join("network-config").display().to_string();
        let render = |kind: &str, file: &str| {
            let to = made.path(kind);
            said(
                "cloud-init",
                &[
                    "devel",
                    "net-convert",
                    "-p",
                    &from,
                    "-k",
                    "yaml",
                    "-d",
                    &to,
                    "-D",
                    "debian",
                    "-O",
                    kind,
                ],
            );
            fs::read_to_string(Path::new(&to).join(file))
                .unwrap_or_else(|_| panic!("no {file}: {}", said("find", &[&to])))
        };
        let netplan = render("netplan", "etc/netplan/50-cloud-init.yaml");
        for line in [
            "dhcp-identifier: mac",
            "ipv6-privacy: false",
            "dhcp4: true",
            "dhcp6: true",
        ] {
            assert!(netplan.contains(line), "{netplan}");
        }
        assert!(netplan.contains(mac.unwrap_or("name: e*")), "{netplan}");
        let eni = render("eni", "etc/network/interfaces.d/50-cloud-init");
        assert!(eni.contains("iface eth0 inet dhcp"), "{eni}");
        let networkd = render("networkd", "etc/systemd/network/10-cloud-init-eth0.network");
        assert!(networkd.contains("DHCP=yes"), "{networkd}");
    }
}
