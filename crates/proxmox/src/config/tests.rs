use super::*;

const LEAST: &str = r#"{"urls":["https://192.0.2.8:8006"],"caFile":"/ca.pem","tokenFile":"/token",
    "template":9001,"storage":"local-lvm","isoStorage":"proxy-seeds",
    "vmidRange":{"from":100000,"to":199999},"guestAgent":"package"}"#;

fn texts(config: &Config) -> Vec<String> {
    config
        .validate("proxmox")
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn least() -> Config {
    serde_json::from_str(LEAST).unwrap()
}

#[test]
fn the_least_configuration_is_fine_and_has_these_defaults() {
    let config = least();
    assert_eq!(texts(&config), Vec::<String>::new());
    assert_eq!(config.seed_drive, "ide2");
    assert_eq!(config.cloud_init_drive, CloudInitDrive::Refuse);
    assert_eq!(config.max_concurrent_clones, 4);
    assert_eq!(config.reserve, Reserve::default());
    assert!(!config.allow_loopback);
    assert_eq!(config.vmid_range.count(), 100_000);
    assert_eq!(config.template_vmids(), [9001]);
}

#[test]
fn every_fault_is_told_at_once_with_the_path_of_its_field() {
    let config: Config = serde_json::from_str(
        r#"{"urls":["http://192.0.2.8:8006","https://a/ui","https://b:1","https://b:1"],
            "caFile":"","tokenFile":"","template":9001,
            "templates":[{"node":"pv1.home.lab","vmid":50},{"node":"n","vmid":150},{"node":"n","vmid":9002}],
            "storage":"x","isoStorage":"-y","vmidRange":{"from":200,"to":99},
            "bridge":"vmbr0.4","vlanTag":4095,"pool":"a/b/c/d","seedDrive":"virtio0",
            "reserve":{"storagePercent":91,"memoryMiB":0},
            "maxConcurrentClones":0,"controlUrl":"http://192.0.2.9/control"}"#,
    )
    .unwrap();
    let texts = texts(&config);
    let expected = [
        "proxmox.urls[0]: http://192.0.2.8:8006: the scheme must be https",
        "proxmox.urls[1]: https://a/ui: a path",
        "proxmox.urls[3]: https://b:1: listed twice",
        "proxmox.controlUrl: http://192.0.2.9/control: not on a loopback address",
        "proxmox.caFile: (missing): names no file",
        "proxmox.tokenFile: (missing): names no file",
        "proxmox.template: 9001: named next to `templates`",
        "proxmox.templates[0].node: pv1.home.lab: not a node name",
        "proxmox.templates[0].vmid: 50: not a VMID",
        "proxmox.templates[2].node: n: the node is listed twice",
        "proxmox.vmidRange.to: 99: not a VMID",
        "proxmox.vmidRange: 200-99: ends before it begins",
        "proxmox.storage: x: not a storage id",
        "proxmox.isoStorage: -y: not a storage id",
        "proxmox.bridge: vmbr0.4: not the name of a bridge: write the bridge without a VLAN",
        "proxmox.vlanTag: 4095: not a VLAN",
        "proxmox.pool: a/b/c/d: not a pool id",
        "proxmox.seedDrive: virtio0: not a drive that can hold a CD",
        "proxmox.reserve.storagePercent: 91: leaves no room",
        "proxmox.maxConcurrentClones: 0: no machine could ever be made",
    ];
    assert_eq!(texts.len(), expected.len(), "{texts:#?}");
    for (text, start) in texts.iter().zip(expected) {
        assert!(
            text.starts_with(start),
            "{text} does not start with {start}"
        );
    }
}

#[test]
fn a_template_within_the_range_and_seeds_among_disks_are_refused() {
    let mut config = least();
    config.vmid_range = VmidRange {
        from: 9000,
        to: 9100,
    };
    config.iso_storage = config.storage.clone();
    config.template = None;
    let texts = texts(&config);
    assert_eq!(texts.len(), 2, "{texts:#?}");
    assert!(texts[0].starts_with("proxmox.template: (missing): no template is named"));
    assert!(texts[1].starts_with("proxmox.isoStorage: local-lvm: the same as storage"));
    config.template = Some(9001);
    assert!(
        config.validate("p")[0]
            .problem
            .contains("lies within vmidRange")
    );
}

#[test]
fn a_key_that_is_not_known_and_a_key_without_a_default_are_refused() {
    for (instead, of) in [
        (r#""insecure":true,"guestAgent""#, r#""guestAgent""#),
        (r#""agent""#, r#""guestAgent""#),
        (r#""cloudInitDrive":"keep","guestAgent""#, r#""guestAgent""#),
    ] {
        let text = LEAST.replace(of, instead);
        assert!(serde_json::from_str::<Config>(&text).is_err(), "{text}");
    }
}

#[test]
fn seed_drives_are_those_of_buses_that_hold_a_cd() {
    for good in ["ide0", "ide3", "sata5", "scsi30"] {
        assert!(is_seed_drive(good), "{good}");
    }
    for bad in [
        "ide4", "sata6", "scsi31", "ide02", "ide", "virtio1", "ide2 ",
    ] {
        assert!(!is_seed_drive(bad), "{bad}");
    }
}
