//! A machine as libvirt describes it: values in, XML out. Nothing else is written here, so that
//! the whole of a machine can be read in one place.

use crate::config::{DomainType, Plug, SeedBus};
use std::fmt;
use uuid::Uuid;

/// The namespace of our element in a domain's metadata, and the prefix it is written with.
pub(crate) const NAMESPACE: &str = "https://egress-proxies.io/libvirt/1";
pub(crate) const PREFIX: &str = "egress";

/// The port that the guest's agent listens on.
const AGENT: &str = "org.qemu.guest_agent.0";

/// All that goes into a description.
#[derive(Clone, Debug)]
pub(super) struct DomainSpec<'a> {
    pub(super) domain_type: DomainType,
    pub(super) machine_type: &'a str,
    pub(super) name: &'a str,
    pub(super) uuid: Uuid,
    /// Whose machine it is, for people.
    pub(super) title: String,
    /// The mark line.
    pub(super) mark: String,
    pub(super) memory_mib: u32,
    pub(super) cpus: u32,
    /// Where the disk is on the host.
    pub(super) disk: &'a str,
    /// Where the seed is on the host.
    pub(super) seed: &'a str,
    pub(super) seed_bus: SeedBus,
    pub(super) plug: Plug<'a>,
    pub(super) mac: &'a str,
}

/// A text within XML.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&apos;")?,
                '\n' => f.write_str("&#10;")?,
                '\t' => f.write_str("&#9;")?,
                // XML 1.0 has no other characters below the blank.
                c if c < ' ' => f.write_str("?")?,
                c => fmt::Write::write_char(f, c)?,
            }
        }
        Ok(())
    }
}

/// The element that carries a mark.
pub(crate) fn mark_element(mark: &str) -> String {
    let mark = Escaped(mark);
    format!("<{PREFIX}:mark xmlns:{PREFIX}='{NAMESPACE}'>{mark}</{PREFIX}:mark>")
}

/// The description of a machine.
pub(super) fn render(spec: &DomainSpec<'_>) -> String {
    let cpu = match spec.domain_type {
        DomainType::Kvm => "\n  <cpu mode='host-model'/>",
        // QEMU's own default is the fastest one that it emulates.
        DomainType::Qemu => "",
    };
    let (controller, target, bus) = match spec.seed_bus {
        SeedBus::Scsi => (
            "\n    <controller type='scsi' index='0' model='virtio-scsi'/>",
            "sda",
            "scsi",
        ),
        SeedBus::Ide => ("", "hda", "ide"),
    };
    let (kind, source) = match spec.plug {
        Plug::Network { name, portgroup } => {
            let group = portgroup.map(|group| format!(" portgroup='{}'", Escaped(group)));
            let group = group.unwrap_or_default();
            let source = format!("<source network='{}'{group}/>", Escaped(name));
            ("network", source)
        }
        Plug::Bridge(bridge) => ("bridge", format!("<source bridge='{}'/>", Escaped(bridge))),
    };
    format!(
        "<domain type='{domain_type}'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <title>{title}</title>
  <description>Made by egress-proxies. Keep its metadata: without the mark there this machine is left alone and its Proxy waits.</description>
  <metadata>
    {mark}
  </metadata>
  <memory unit='MiB'>{memory_mib}</memory>
  <vcpu>{cpus}</vcpu>
  <os>
    <type arch='x86_64' machine='{machine}'>hvm</type>
    <boot dev='hd'/>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>{cpu}
  <clock offset='utc'/>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' discard='unmap'/>
      <source file='{disk}'/>
      <target dev='vda' bus='virtio'/>
    </disk>{controller}
    <disk type='file' device='cdrom'>
      <driver name='qemu' type='raw'/>
      <source file='{seed}' startupPolicy='optional'/>
      <target dev='{target}' bus='{bus}'/>
      <readonly/>
    </disk>
    <controller type='usb' model='none'/>
    <interface type='{kind}'>
      <mac address='{mac}'/>
      {source}
      <model type='virtio'/>
      <rom enabled='no'/>
    </interface>
    <channel type='unix'>
      <target type='virtio' name='{AGENT}'/>
    </channel>
    <serial type='pty'>
      <log file='/var/log/libvirt/qemu/{name}-console.log' append='off'/>
      <target port='0'/>
    </serial>
    <console type='pty'>
      <target type='serial' port='0'/>
    </console>
    <memballoon model='virtio'/>
    <rng model='virtio'>
      <backend model='random'>/dev/urandom</backend>
    </rng>
  </devices>
</domain>
",
        domain_type = spec.domain_type.as_str(),
        name = Escaped(spec.name),
        uuid = spec.uuid,
        title = Escaped(&spec.title),
        mark = mark_element(&spec.mark),
        memory_mib = spec.memory_mib,
        cpus = spec.cpus,
        machine = Escaped(spec.machine_type),
        disk = Escaped(spec.disk),
        seed = Escaped(spec.seed),
        mac = Escaped(spec.mac),
    )
}

/// The drive of the seed with nothing in it.
pub(super) fn empty_drive(target: &str, bus: &str) -> String {
    let (target, bus) = (Escaped(target), Escaped(bus));
    format!(
        "<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><target dev='{target}' bus='{bus}'/><readonly/></disk>"
    )
}

/// The description of a disk on the base image.
pub(super) fn overlay(name: &str, bytes: u64, base: &str, base_format: &str) -> String {
    let (name, base, format) = (Escaped(name), Escaped(base), Escaped(base_format));
    format!(
        "<volume><name>{name}</name><capacity unit='bytes'>{bytes}</capacity><target><format type='qcow2'/></target><backingStore><path>{base}</path><format type='{format}'/></backingStore></volume>"
    )
}

/// The description of a seed's volume.
pub(crate) fn seed_volume(name: &str, bytes: u64) -> String {
    let name = Escaped(name);
    format!(
        "<volume><name>{name}</name><capacity unit='bytes'>{bytes}</capacity><target><format type='raw'/></target></volume>"
    )
}

#[cfg(test)]
mod tests;
