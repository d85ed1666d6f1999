//! Descriptions as they were looked at once, beside this file. After a change that is meant,
//! write them anew with `UPDATE_SNAPSHOTS=1`, and read the difference.

use super::*;
use crate::provider::descriptions::DomainView;

const UUID: Uuid = Uuid::from_u128(0x1111_1111_1111_4111_8111_1111_1111_1111);

fn spec() -> DomainSpec<'static> {
    DomainSpec {
        domain_type: DomainType::Kvm,
        machine_type: "q35",
        name: "proxy-abcdefghijklmnop",
        uuid: UUID,
        title: "egress proxy default/a".to_owned(),
        mark: "egress-proxies/v1 {\"installation\":\"lab\"}".to_owned(),
        memory_mib: 512,
        cpus: 1,
        disk: "/var/lib/libvirt/images/px-1-proxy-abcdefghijklmnop-1.qcow2",
        seed: "/var/lib/libvirt/images/px-1-proxy-abcdefghijklmnop-1.iso",
        seed_bus: SeedBus::Scsi,
        plug: Plug::Network {
            name: "default",
            portgroup: None,
        },
        mac: "52:54:12:34:56:78",
    }
}

fn assert_snapshot(name: &str, xml: &str) {
    let path = format!(
        "{}/src/provider/domain_xml/snapshots/{name}.xml",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, xml).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(xml, expected, "{path}");
}

#[test]
fn a_machine_on_a_network_of_libvirt() {
    assert_snapshot("network", &render(&spec()));
}

#[test]
fn a_machine_on_a_bridge_with_an_ide_drive_under_emulation() {
    let spec = DomainSpec {
        domain_type: DomainType::Qemu,
        machine_type: "pc",
        seed_bus: SeedBus::Ide,
        plug: Plug::Bridge("br0"),
        ..spec()
    };
    assert_snapshot("bridge", &render(&spec));
}

#[test]
fn what_people_wrote_cannot_break_out_of_its_place() {
    let evil = "a'/><b>\"&\u{1}";
    let spec = DomainSpec {
        title: evil.to_owned(),
        mark: evil.to_owned(),
        disk: evil,
        seed: evil,
        machine_type: evil,
        plug: Plug::Network {
            name: evil,
            portgroup: Some(evil),
        },
        ..spec()
    };
    let view = DomainView::read(&render(&spec)).unwrap();
    let read = "a'/><b>\"&?";
    assert_eq!(view.mark.as_deref(), Some(read));
    assert_eq!(view.title.as_deref(), Some(read));
    assert_eq!(view.drives.len(), 2);
    assert!(
        view.drives
            .iter()
            .all(|d| d.source.as_deref() == Some(read))
    );
    for volume in [overlay(evil, 1, evil, evil), seed_volume(evil, 1)] {
        roxmltree::Document::parse(&volume).unwrap();
    }
    roxmltree::Document::parse(&empty_drive(evil, evil)).unwrap();
}

#[test]
fn a_description_reads_back() {
    let view = DomainView::read(&render(&spec())).unwrap();
    assert_eq!(view.uuid, UUID);
    assert_eq!(view.macs, ["52:54:12:34:56:78"]);
    assert_eq!(view.drives[1].target, "sda");
    assert_eq!(view.mark.as_deref(), Some(spec().mark.as_str()));
}
