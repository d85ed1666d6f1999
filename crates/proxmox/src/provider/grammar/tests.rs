use super::*;

fn keys(pairs: &[(&str, &str)]) -> Keys {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn a_drive_tells_its_volume_and_size_whatever_was_normalised() {
    let seed = Drive::parse("isos:iso/px-1.iso,media=cdrom,size=44K");
    assert_eq!(seed.volume.as_deref(), Some("isos:iso/px-1.iso"));
    assert!(seed.cdrom && !seed.is_cloud_init());
    assert_eq!((seed.bytes, seed.storage()), (Some(45_056), Some("isos")));
    assert_eq!(
        Drive::parse("file=vmdata:9/d.raw,size=3G")
            .volume
            .as_deref(),
        Some("vmdata:9/d.raw")
    );
    let empty = Drive::parse("none,media=cdrom");
    assert!(empty.volume.is_none() && empty.cdrom);
}

#[test]
fn a_clone_takes_along_the_state_of_firmware_and_tpm() {
    let keys = keys(&[
        ("scsi0", "ceph:base-9-disk-0,size=2G"),
        ("efidisk0", "local-zfs:base-9-disk-1,size=1M"),
        ("tpmstate0", "local-lvm:base-9-disk-2,size=4M"),
        ("unused0", "old:vm-9-disk-3"),
        ("net0", "virtio=BC:24:11:EE:48:83,bridge=vmbr0"),
    ]);
    let storages: Vec<_> = cloned(&keys)
        .filter_map(|drive| drive.storage().map(str::to_owned))
        .collect();
    assert_eq!(storages, ["ceph", "local-zfs", "local-lvm"]);
}

#[test]
fn a_cloud_init_drive_is_known_by_its_volume_in_any_slot() {
    for volume in [
        "local-lvm:vm-9000-cloudinit,media=cdrom",
        "vmdata:9000/vm-9000-cloudinit.qcow2,media=cdrom",
        "vmdata:cloudinit",
        "local-zfs:vm-101-cloudinit,media=cdrom,size=4M",
    ] {
        assert!(Drive::parse(volume).is_cloud_init(), "{volume}");
    }
    for volume in [
        "isos:iso/cloudinit-seed.iso,media=cdrom",
        "s:vm-9-disk-0",
        "none",
        "s:iso/vm-x-cloudinit",
    ] {
        assert!(!Drive::parse(volume).is_cloud_init(), "{volume}");
    }
}

#[test]
fn sizes_are_powers_of_1024() {
    assert_eq!(bytes("3G"), Some(3 << 30));
    assert_eq!(bytes("3584M"), Some(3584 << 20));
    assert_eq!(bytes("3.5G"), Some(3584 << 20));
    assert_eq!(bytes("1T"), Some(1 << 40));
    assert_eq!(bytes("528"), Some(528));
    assert_eq!(bytes("big"), None);
}

#[test]
fn b89_the_boot_disk_is_the_first_disk_and_never_the_seed() {
    // F19: attaching the seed appended its drive to the order.
    let cloned = keys(&[
        ("boot", "order=scsi0;ide2"),
        ("scsi0", "local-lvm:vm-1-disk-1,size=3G"),
        ("efidisk0", "local-lvm:vm-1-disk-0,size=4M"),
        ("ide2", "proxy-seeds:iso/x.iso,media=cdrom,size=44K"),
    ]);
    assert_eq!(boot_disk(&cloned, "ide2").unwrap().0, "scsi0");
    let first = keys(&[
        ("boot", "order=ide2;net0;virtio0;scsi0"),
        ("ide2", "none,media=cdrom"),
        ("virtio0", "s:vm-1-disk-0,size=2G"),
        ("scsi0", "s:vm-1-disk-1,size=2G"),
    ]);
    assert_eq!(boot_disk(&first, "ide2").unwrap().0, "virtio0");
    let unordered = keys(&[
        ("sata0", "s:vm-1-disk-0,size=2G"),
        ("ide0", "s:vm-1-cloudinit,media=cdrom"),
    ]);
    assert_eq!(boot_disk(&unordered, "ide2").unwrap().0, "sata0");
    let two = keys(&[("sata0", "s:a"), ("sata1", "s:b")]);
    assert_eq!(boot_disk(&two, "ide2"), None);
    let old = keys(&[
        ("sata0", "s:a"),
        ("sata1", "s:b"),
        ("boot", "c"),
        ("bootdisk", "sata1"),
    ]);
    assert_eq!(boot_disk(&old, "ide2").unwrap().0, "sata1");
}

#[test]
fn b74_a_nic_keeps_its_mac_when_it_moves() {
    let nic = Nic::parse("virtio=BC:24:11:EE:48:83,bridge=vmbr0").unwrap();
    assert_eq!(
        nic.moved(None, Some(4)).to_string(),
        "virtio=BC:24:11:EE:48:83,bridge=vmbr0,tag=4"
    );
    assert_eq!(
        nic.moved(Some("vnet1"), None).to_string(),
        "virtio=BC:24:11:EE:48:83,bridge=vnet1"
    );
    let long =
        Nic::parse("model=e1000,macaddr=bc:24:11:00:00:01,bridge=vmbr1,firewall=1,tag=7").unwrap();
    assert_eq!(
        long.to_string(),
        "e1000=BC:24:11:00:00:01,bridge=vmbr1,firewall=1,tag=7"
    );
    assert_eq!(
        (long.mac(), long.bridge(), long.tag()),
        (Some("BC:24:11:00:00:01"), Some("vmbr1"), Some(7))
    );
    assert_eq!(Nic::parse("virtio,bridge=vmbr0").unwrap().mac(), None);
    assert_eq!(Nic::parse(""), None);
    // What nobody asked to change stays as it is.
    let nic =
        Nic::parse("virtio=BC:24:11:EE:48:83,bridge=vmbr0,mtu=1,queues=2,trunks=1;2-5").unwrap();
    assert_eq!(Nic::parse(&nic.moved(None, None).to_string()).unwrap(), nic);
}

#[test]
fn tags_are_joined_as_proxmox_ve_keeps_them() {
    let present = ["web".to_owned(), "proxy_operator".to_owned()];
    let all = with_tags(&present, &["px_1", "proxy_operator"]);
    assert_eq!(all, ["proxy_operator", "px_1", "web"]);
    assert_eq!(with_tags(&[], &["a"]), ["a"]);
}
