//! What each field of the configuration is: its type, what holds where it is left out, and what
//! it means. The page fails to print when a field lacks its line, or a line its field.

/// One field.
pub struct Field {
    /// Where it stands, as in `providers[].local.listen`.
    pub path: &'static str,
    /// What may be written.
    pub r#type: &'static str,
    /// What holds where it is left out, if the value itself does not say it.
    pub default: Option<&'static str>,
    /// What it does.
    pub meaning: &'static str,
}

const fn field(path: &'static str, r#type: &'static str, meaning: &'static str) -> Field {
    Field {
        path,
        r#type,
        default: None,
        meaning,
    }
}

impl Field {
    const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }
}

/// Every field, sorted by path.
pub const FIELDS: [Field; 46] = [
    field(
        "admin.listen",
        "address:port",
        "where the admin page listens: on loopback, port 0 takes a free one; `get` and `prune` find it by themselves",
    ),
    field(
        "installation",
        "name: 1 to 63 of `a-z`, `0-9`, `-`",
        "the deployment. Every machine's mark bears it: machines of another one are never touched. Deployments that share a host or a cluster need different ones; changed, the old one's machines are nobody's",
    )
    .or("`standalone`"),
    field(
        "manifests",
        "path",
        "the directory with the manifests, relative to this file; `--manifests` goes first",
    )
    .or("required, here or as `--manifests`"),
    field(
        "providers[].kvm2.baseImage",
        "name of a volume",
        "the volume of the pool that every disk begins as, in the format qcow2 or raw. It is never written; a new image needs a new name, since running machines stand on the old one",
    ),
    field(
        "providers[].kvm2.bridge",
        "bridge of the hosts",
        "what machines join in place of a network of libvirt; not together with `network`",
    )
    .or("none"),
    field(
        "providers[].kvm2.caFile",
        "path",
        "for `qemu+tls`: the authority that signed the hosts' certificates, in PEM, relative to this file",
    )
    .or("none"),
    field(
        "providers[].kvm2.certFile",
        "path",
        "for `qemu+tls`: our certificate, in PEM; it is read again for each connection",
    )
    .or("none"),
    field(
        "providers[].kvm2.domainType",
        "`kvm` or `qemu`",
        "what runs the machines: the processor, or software many times slower. It is never guessed",
    ),
    field(
        "providers[].kvm2.guestAgent",
        "`builtin`, `package` or `baked`",
        "where the guest agent comes from: proxyd itself from the seed, the distribution's package at the first boot, or the image, see [the guide](guides/kvm2.md)",
    ),
    field(
        "providers[].kvm2.hosts[].uri",
        "URI of libvirt",
        "a host: `qemu:///system`, `qemu+unix:///system?socket=/path`, `qemu+tls://host/system` or `qemu+ssh://user@host/system`. Machines stay on the host they were made on. While one does not answer, new ones are made on the others, unless it was not seen since the start",
    ),
    field(
        "providers[].kvm2.keyFile",
        "path",
        "for `qemu+tls`: our certificate's key, in PEM",
    )
    .or("none"),
    field(
        "providers[].kvm2.machineType",
        "machine type of QEMU",
        "such as `q35`, `pc`, or one with a version",
    ),
    field(
        "providers[].kvm2.network",
        "network of libvirt",
        "what machines join",
    )
    .or("`default`, where no `bridge` is named"),
    field(
        "providers[].kvm2.pool",
        "storage pool",
        "where disks and seeds lie, on every host; its type is dir, fs or netfs",
    ),
    field(
        "providers[].kvm2.portgroup",
        "portgroup of the network",
        "as for a VLAN, where the network has one",
    )
    .or("none"),
    field(
        "providers[].kvm2.reserve.memoryMiB",
        "MiB",
        "memory of a host that stays free: no machine is made below it",
    ),
    field(
        "providers[].kvm2.reserve.storagePercent",
        "percent, 0 to 90",
        "part of the pool that stays free",
    ),
    field(
        "providers[].kvm2.seedBus",
        "`scsi` or `ide`",
        "where the seed's drive hangs; the guest's kernel needs its driver, and `ide` needs `machineType: pc`",
    ),
    field(
        "providers[].local.addresses",
        "list of IP addresses of this host",
        "source addresses of outgoing traffic: a new proxy takes one that the fewest use, and keeps it",
    )
    .or("the address that the default route leaves by"),
    field(
        "providers[].local.drainSeconds",
        "seconds, 0 to 3600",
        "how long a proxy that is stopped may finish what is open",
    ),
    field(
        "providers[].local.listen",
        "IP address of this host",
        "where all proxies listen",
    )
    .or("each on its own source address"),
    field(
        "providers[].local.portRange.from",
        "port, 1024 or higher",
        "the first port for proxies whose manifest names none; give `from` and `to` together",
    ),
    field(
        "providers[].local.portRange.to",
        "port",
        "the last one. A range that is too small leaves new proxies waiting (`Capacity`)",
    ),
    field(
        "providers[].name",
        "name: 1 to 63 of `a-z`, `0-9`, `-`",
        "what manifests say in `spec.provider`. Marks and records bear it: renamed, it is another provider",
    ),
    field(
        "providers[].proxmox.allowLoopback",
        "true or false",
        "takes 127.0.0.0/8 for a machine's own address: for the simulator only",
    ),
    field(
        "providers[].proxmox.bridge",
        "bridge or vnet of the node",
        "the network of the machine's card",
    )
    .or("as the template's card has it"),
    field(
        "providers[].proxmox.caFile",
        "path of a PEM file",
        "the authority that signed the certificates, relative to this file; on a node, /etc/pve/pve-root-ca.pem. Read again for each connection",
    ),
    field(
        "providers[].proxmox.cloudInitDrive",
        "`refuse` or `replace`",
        "what to do with a cloud-init drive of Proxmox in the template: refuse the template, or put the seed in its place in the clone",
    ),
    field(
        "providers[].proxmox.controlUrl",
        "URL on loopback",
        "the simulator's control URL: `conformance` uses it, and nothing else",
    )
    .or("none"),
    field(
        "providers[].proxmox.guestAgent",
        "`builtin`, `package` or `baked`",
        "where the guest agent comes from: proxyd itself, from the seed; the distribution's package, installed at the first boot, which needs a way to a mirror; or the template",
    ),
    field(
        "providers[].proxmox.isoStorage",
        "storage",
        "where seeds go: a storage for ISO images of its own, see [the guide](guides/proxmox.md)",
    ),
    field(
        "providers[].proxmox.maxConcurrentClones",
        "1 or more",
        "how many clones may run at once on one storage",
    ),
    field(
        "providers[].proxmox.pool",
        "resource pool",
        "a pool that the machines join",
    )
    .or("none"),
    field(
        "providers[].proxmox.reserve.memoryMiB",
        "MiB",
        "memory of a node that stays free for others",
    ),
    field(
        "providers[].proxmox.reserve.storagePercent",
        "percent, 0 to 90",
        "the part of the clones' storage that stays free for others",
    ),
    field(
        "providers[].proxmox.seedDrive",
        "`ideN`, `sataN` or `scsiN`",
        "the drive that holds the seed: one that the template leaves free",
    ),
    field(
        "providers[].proxmox.storage",
        "storage",
        "where the disks of machines go, as full clones",
    ),
    field(
        "providers[].proxmox.template",
        "VMID",
        "the template, where one serves all nodes",
    ),
    field(
        "providers[].proxmox.templates[].node",
        "node",
        "in place of `template` where nodes share no storage: a node, by its short name",
    )
    .or("required in each entry"),
    field(
        "providers[].proxmox.templates[].vmid",
        "VMID",
        "the template that lies on this node",
    )
    .or("required in each entry"),
    field(
        "providers[].proxmox.tokenFile",
        "path",
        "a file with one line, `user@realm!id=secret`, relative to this file. Read again for each request",
    ),
    field(
        "providers[].proxmox.urls",
        "list of `https://host:port`",
        "API servers of one cluster: the next one serves where one does not answer. The certificate must name the host as it is written",
    ),
    field(
        "providers[].proxmox.vlanTag",
        "1 to 4094",
        "the VLAN of the machine's card, on a VLAN-aware bridge",
    )
    .or("as the template's card has it"),
    field(
        "providers[].proxmox.vmidRange.from",
        "VMID",
        "the first VMID for machines: the range is this installation's alone, on every storage that it shares with others",
    ),
    field(
        "providers[].proxmox.vmidRange.to",
        "VMID",
        "the last one. A number rests for 15 min after its machine is gone: give a few more than machines",
    ),
    field(
        "stateDir",
        "path",
        "records and generated passwords, relative to this file; `--state-dir` goes first",
    )
    .or("`/var/lib/egress-proxies` for root, else `egress-proxies` in `$XDG_STATE_HOME` or `~/.local/state`"),
];
