use super::*;
use crate::provider::domain_xml::mark_element;

/// As libvirt 9.0 gave it of a running domain, shortened.
const RUNNING: &str = r"<domain type='qemu' id='3'>
  <name>proxy-abc</name>
  <uuid>11111111-1111-4111-8111-111111111111</uuid>
  <title>egress proxy default/a</title>
  <metadata>
    <other:thing xmlns:other='urn:x'>egress-proxies/v1 {}</other:thing>
    <egress:mark xmlns:egress='https://egress-proxies.io/libvirt/1'>a note
egress-proxies/v1 {&quot;a&quot;:1}</egress:mark>
  </metadata>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/pool/px-1.qcow2' index='2'/>
      <backingStore type='file' index='3'><format type='qcow2'/><source file='/pool/base.qcow2'/><backingStore/></backingStore>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='file' device='cdrom'>
      <target dev='sda' bus='scsi' tray='open'/>
      <readonly/>
    </disk>
    <interface type='network'>
      <mac address='52:54:00:00:00:01'/>
      <source network='default' bridge='virbr0'/>
    </interface>
  </devices>
</domain>";

#[test]
fn a_domain_is_read_as_far_as_it_matters() {
    let view = DomainView::read(RUNNING).unwrap();
    assert_eq!(view.name, "proxy-abc");
    assert_eq!(view.title.as_deref(), Some("egress proxy default/a"));
    let mark = "a note\negress-proxies/v1 {\"a\":1}";
    assert_eq!(view.mark.as_deref(), Some(mark));
    assert_eq!(view.macs, ["52:54:00:00:00:01"]);
    let drive = |device: &str, source: Option<&str>, target: &str, bus: &str| Drive {
        device: device.to_owned(),
        source: source.map(str::to_owned),
        target: target.to_owned(),
        bus: bus.to_owned(),
    };
    let disk = drive("disk", Some("/pool/px-1.qcow2"), "vda", "virtio");
    assert_eq!(view.drives, [disk, drive("cdrom", None, "sda", "scsi")]);
}

#[test]
fn a_domain_without_a_uuid_a_name_or_a_root_is_an_error() {
    for text in [
        "",
        "no XML",
        "<network/>",
        "<domain><name>a</name></domain>",
        "<domain><name>a</name><uuid>none</uuid></domain>",
        "<domain><uuid>11111111-1111-4111-8111-111111111111</uuid></domain>",
        // Entities are not expanded: a document that declares any does not read.
        "<!DOCTYPE domain [<!ENTITY a 'b'>]><domain><name>&a;</name></domain>",
    ] {
        assert!(DomainView::read(text).is_err(), "{text}");
    }
}

#[test]
fn a_mark_reads_back_from_its_element_whatever_stands_in_it() {
    for text in [
        "egress-proxies/v1 {\"a\":\"<&>'\\\"\"}",
        "two\nlines\tand é",
    ] {
        let element = mark_element(text);
        assert_eq!(mark_text(&element).unwrap().as_deref(), Some(text));
    }
    assert_eq!(mark_text("<mark/>").unwrap(), None);
    assert!(mark_text("<mark>").is_err());
}

#[test]
fn volumes_hosts_and_pools_are_read() {
    let volume = "<volume type='file'><name>a.qcow2</name><key>/pool/a.qcow2</key><capacity unit='bytes'>67108864</capacity><allocation unit='bytes'>196616</allocation><target><path>/pool/a.qcow2</path><format type='qcow2'/></target><backingStore><path>/pool/base.qcow2</path><format type='qcow2'/></backingStore></volume>";
    let expected = VolumeView {
        capacity: 64 << 20,
        path: "/pool/a.qcow2".to_owned(),
        format: Some("qcow2".to_owned()),
        backing: Some("/pool/base.qcow2".to_owned()),
    };
    assert_eq!(VolumeView::read(volume), Ok(expected));
    assert!(VolumeView::read("<volume><target/></volume>").is_err());
    let host = "<capabilities><host><uuid>6f1d2c3a-0000-4000-8000-00000000ab01</uuid></host></capabilities>";
    assert_eq!(
        host_uuid(host).unwrap().to_string(),
        "6f1d2c3a-0000-4000-8000-00000000ab01"
    );
    assert!(host_uuid("<capabilities><host/></capabilities>").is_err());
    assert_eq!(pool_type("<pool type='dir'/>").unwrap(), "dir");
}
