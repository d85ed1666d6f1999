//! What a survey shows, subject by subject. Pure.

use super::{free_vmids, needed_privileges, reserved};
use crate::{
    client::{Kind, NodeName, StorageStatus},
    config::{CloudInitDrive, Config},
    provider::{
        grammar::{Nic, boot_disk, drives},
        names,
        survey::{Survey, TemplateSight},
    },
};
use egress_provider::{CheckFinding, CheckReason, Severity};

/// How far a node's clock may be from ours, in seconds.
const CLOCK_TOLERANCE: i64 = 30;

/// What a storage for seeds keeps free: some seeds of a few MiB each, on their way at once.
const SEED_ROOM: u64 = 64 << 20;

pub(super) fn fault(
    reason: CheckReason,
    found: impl Into<String>,
    remedy: impl Into<String>,
) -> CheckFinding {
    CheckFinding {
        reason,
        severity: Severity::Error,
        field: field_of(reason).map(str::to_owned),
        found: found.into(),
        remedy: remedy.into(),
    }
}

/// The field that a reason speaks of, unless something more exact is said.
const fn field_of(reason: CheckReason) -> Option<&'static str> {
    match reason {
        CheckReason::Unreachable => Some("urls"),
        CheckReason::CertificateInvalid => Some("caFile"),
        CheckReason::Unauthorized => Some("tokenFile"),
        CheckReason::TemplateInvalid => Some("template"),
        CheckReason::NetworkInvalid => Some("bridge"),
        CheckReason::PoolInvalid => Some("pool"),
        CheckReason::RangeInvalid => Some("vmidRange"),
        CheckReason::Ready
        | CheckReason::MissingPrivileges
        | CheckReason::StorageUnavailable
        | CheckReason::NodeInvalid
        | CheckReason::VersionUnsupported
        | CheckReason::DomainTypeInvalid
        | CheckReason::TagNotAllowed
        | CheckReason::VisibilityLimited
        | CheckReason::ClockSkewed
        | CheckReason::NoQuorum
        | CheckReason::ClusterChanged
        | CheckReason::LowCapacity
        | CheckReason::ConfigInvalid => None,
    }
}

/// What has been found so far, subject by subject.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<CheckFinding>);

impl Findings {
    /// What was found since there were so many is about this field.
    fn since(&mut self, count: usize, field: &str) {
        for finding in &mut self.0[count..] {
            finding.field = Some(field.to_owned());
        }
    }
    fn fault(&mut self, reason: CheckReason, found: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(fault(reason, found, remedy));
    }
    pub(super) fn warn(
        &mut self,
        reason: CheckReason,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let severity = Severity::Warning;
        self.0.push(CheckFinding {
            severity,
            ..fault(reason, found, remedy)
        });
    }

    pub(super) fn version(&mut self, survey: &Survey) {
        if !matches!(survey.version.major, 8 | 9) {
            self.fault(
                CheckReason::VersionUnsupported,
                format!("Proxmox VE {}", survey.version.text),
                "use version 8 or 9: version 7 resizes, names privileges and reports errors in other ways",
            );
        }
    }

    pub(super) fn cluster(&mut self, survey: &Survey) {
        // Where it is not known, the privilege that is missing is named with the others.
        if survey.snapshot.quorate == Ok(false) || survey.alone_without_quorum {
            self.fault(
                CheckReason::NoQuorum,
                "the cluster has no quorum",
                "bring the missing nodes back: nothing can be made or removed until then",
            );
        }
        for node in survey.snapshot.nodes.iter().filter(|node| !node.online) {
            self.warn(
                CheckReason::NodeInvalid,
                format!("node {} is offline", node.name),
                "bring it back, or remove it from the cluster",
            );
        }
        match &survey.clock {
            Some((node, skew)) if skew.abs() > CLOCK_TOLERANCE => self.warn(
                CheckReason::ClockSkewed,
                format!("the clock of node {node} is {skew} s from ours"),
                "let both follow the same time server: ages of tasks and seeds are compared",
            ),
            _ => {}
        }
        if !survey.may("/", "Sys.Audit") && survey.snapshot.nodes.len() == 1 {
            self.warn(
                CheckReason::VisibilityLimited,
                "without Sys.Audit on / memory and clock of the node are not looked at, and clones of others cannot be seen",
                "grant Sys.Audit on /, or do not share the VMID range and the token with another installation",
            );
        }
    }

    pub(super) fn privileges(&mut self, config: &Config, survey: &Survey) {
        for need in needed_privileges(config, survey) {
            let held = |privilege: &str| need.paths.iter().any(|path| survey.may(path, privilege));
            let missing: Vec<_> = need
                .privileges
                .iter()
                .filter(|choice| !choice.split('|').any(held))
                .map(|choice| choice.replace('|', " or "))
                .collect();
            if !missing.is_empty() {
                let path = need.paths.last().map_or("/", String::as_str);
                self.fault(
                    CheckReason::MissingPrivileges,
                    format!("the token lacks {} on {path}", missing.join(", ")),
                    format!("grant it there, to the user as well as to a token with privilege separation: it is needed {}", need.what_for),
                );
            }
        }
    }

    /// The cluster's list names storages only to who may audit them. One node is never looked up
    /// there.
    pub(super) fn unlisted(&mut self, config: &Config, survey: &Survey) {
        if survey.snapshot.nodes.len() < 2 {
            return;
        }
        for (field, storage, lost) in [
            (
                "storage",
                &config.storage,
                "which nodes have it and whether they share it: machines are made where a template is and nowhere else, also where that node lacks the storage",
            ),
            (
                "isoStorage",
                &config.iso_storage,
                "which nodes have it: every node is asked for seeds, and one that lacks the storage fails each listing",
            ),
        ] {
            let path = format!("/storage/{storage}");
            if survey.may(&path, "Datastore.Audit") {
                continue;
            }
            let before = self.0.len();
            self.warn(
                CheckReason::VisibilityLimited,
                format!("without Datastore.Audit on {path} it is not seen {lost}"),
                "grant it there, in the same role as the others: an entry on that path replaces what comes from above",
            );
            self.since(before, field);
        }
    }

    pub(super) fn templates(&mut self, config: &Config, survey: &Survey, node: Option<&NodeName>) {
        if survey.templates.is_empty() {
            let vmids: Vec<_> = config.template_vmids().iter().map(u32::to_string).collect();
            self.fault(
                CheckReason::TemplateInvalid,
                format!("no template {} is on any list", vmids.join(", ")),
                "name a template that exists, and grant the token VM.Audit on it",
            );
        }
        let several = config.template.is_none();
        for (index, template) in survey.templates.iter().enumerate() {
            let before = self.0.len();
            if node.is_some() && survey.templates.len() > 1 && node != Some(&template.node) {
                continue;
            }
            let known = survey
                .snapshot
                .nodes
                .iter()
                .find(|known| known.name == template.node);
            match known {
                None => self.fault(
                    CheckReason::NodeInvalid,
                    format!("the cluster has no node {}", template.node),
                    "write the node's name as the cluster knows it",
                ),
                Some(known) if !known.online && survey.templates.len() == 1 => self.fault(
                    CheckReason::NodeInvalid,
                    format!("node {}, where the template is, is offline", template.node),
                    "bring it back, or name a template on another node",
                ),
                Some(_) => {}
            }
            let at = format!("template {} on {}", template.vmid, template.node);
            match &template.config {
                Ok(_) => {
                    self.template(config, &at, template);
                    self.inherited(survey, &at, template);
                }
                // Named with the privileges.
                Err(failure) if matches!(failure.kind, Kind::Forbidden { .. }) => {}
                Err(failure) => self.fault(
                    CheckReason::TemplateInvalid,
                    format!("{at}: {}", failure.said),
                    "name a template that exists on that node",
                ),
            }
            let field = if several {
                format!("templates[{index}]")
            } else {
                "template".to_owned()
            };
            self.since(before, &field);
        }
    }

    fn template(&mut self, config: &Config, at: &str, template: &TemplateSight) {
        let Ok(read) = &template.config else { return };
        let mut refuse = |found: String, remedy: &str| {
            self.0.push(fault(
                CheckReason::TemplateInvalid,
                format!("{at} {found}"),
                remedy,
            ));
        };
        if !read.template {
            refuse(
                "is not a template".to_owned(),
                "turn it into one with `qm template`, or name another",
            );
        }
        let replaces = config.cloud_init_drive == CloudInitDrive::Replace;
        for (key, drive) in drives(&read.keys) {
            if drive.is_cloud_init() {
                if !replaces {
                    let remedy = "remove it with `qm set --delete`, or set `cloudInitDrive: replace`: two sources of user-data contradict each other";
                    refuse(
                        format!("has a cloud-init drive of Proxmox on {key}"),
                        remedy,
                    );
                }
            } else if key == config.seed_drive && drive.volume.is_some() {
                refuse(
                    format!("has a volume on {key}, which `seedDrive` names"),
                    "remove it, or name a free drive in `seedDrive`",
                );
            } else if drive.cdrom && drive.volume.is_some() {
                refuse(
                    format!("has a CD in {key}"),
                    "take it out: clones would keep it, and read their data from it",
                );
            }
        }
        if read.keys.contains_key("hookscript") {
            refuse(
                "has a hookscript".to_owned(),
                "remove it: clones would inherit it",
            );
        }
        if boot_disk(&read.keys, &config.seed_drive).is_none() {
            refuse(
                "has no disk to boot from".to_owned(),
                "name its disk in `boot: order=`",
            );
        }
        if read
            .keys
            .get("net0")
            .and_then(|text| Nic::parse(text))
            .is_none()
        {
            refuse("has no net0".to_owned(), "give it one network card, net0");
        }
        for key in read.keys.keys().filter(|key| {
            key.strip_prefix("net")
                .is_some_and(|n| n != "0" && n.parse::<u8>().is_ok())
        }) {
            self.warn(
                CheckReason::NetworkInvalid,
                format!("{at} has another network card, {key}"),
                "remove it unless machines need it: only net0 is configured",
            );
        }
        if let Some(lock) = &read.lock {
            self.warn(
                CheckReason::TemplateInvalid,
                format!("{at} is locked ({lock})"),
                "wait for it: no clone begins while it stands",
            );
        }
    }

    /// What clones or their places depend on and nobody may have meant.
    fn inherited(&mut self, survey: &Survey, at: &str, template: &TemplateSight) {
        let Ok(read) = &template.config else { return };
        let filtered: Vec<_> = read
            .keys
            .iter()
            .filter(|(key, value)| {
                key.starts_with("net") && Nic::parse(value).is_some_and(|nic| nic.is_filtered())
            })
            .map(|(key, _)| key.as_str())
            .collect();
        if !filtered.is_empty() {
            self.warn(
                CheckReason::NetworkInvalid,
                format!("{at} has firewall=1 on {}", filtered.join(", ")),
                "take it off, or see that the template's firewall rules, which clones inherit, let clients reach the proxy, and that no IP filter names the template's address",
            );
        }
        let listed = survey.snapshot.guests.get(&template.vmid);
        if listed.is_some_and(|guest| guest.ha) {
            self.warn(
                CheckReason::TemplateInvalid,
                format!("{at} is managed by HA"),
                "remove it from HA: a template never runs, and HA may move it to another node",
            );
        }
    }

    pub(super) fn storages(&mut self, config: &Config, survey: &Survey, node: Option<&NodeName>) {
        for sight in &survey.storages {
            if node.is_some_and(|node| *node != sight.node) {
                continue;
            }
            let images = sight.storage == config.storage;
            let (field, content) = if images {
                ("storage", "images")
            } else {
                ("isoStorage", "iso")
            };
            let at = format!("{field} {} on {}", sight.storage, sight.node);
            let before = self.0.len();
            match &sight.status {
                Ok(status) => self.storage(config, &at, status, content),
                Err(failure) if matches!(failure.kind, Kind::Forbidden { .. }) => {}
                Err(failure) => self.fault(
                    CheckReason::StorageUnavailable,
                    format!("{at}: {}", failure.said),
                    "name a storage that the node has",
                ),
            }
            self.since(before, field);
        }
    }

    fn storage(&mut self, config: &Config, at: &str, status: &StorageStatus, content: &str) {
        if !status.enabled || !status.active {
            let how = if status.enabled {
                "is not active"
            } else {
                "is disabled there"
            };
            self.fault(
                CheckReason::StorageUnavailable,
                format!("{at} {how}"),
                "see that its backend answers, and that it is enabled for the node",
            );
            return;
        }
        if !status.content.iter().any(|kind| kind == content) {
            self.fault(
                CheckReason::StorageUnavailable,
                format!("{at} takes no `{content}`"),
                format!("add `{content}` to its content types, or name another storage"),
            );
        }
        if content == "iso"
            && let Some(avail) = status.avail
            && avail < SEED_ROOM
        {
            self.fault(
                CheckReason::LowCapacity,
                format!("{at} has {} MiB free", avail >> 20),
                format!("free some: {} MiB are needed for seeds", SEED_ROOM >> 20),
            );
        }
        if content == "images"
            && let (Some(total), Some(avail)) = (status.total, status.avail)
            && avail < reserved(config, total)
        {
            self.fault(
                CheckReason::LowCapacity,
                format!("{at} has {} GiB free of {} GiB", avail >> 30, total >> 30),
                format!(
                    "free some: {} % stay reserved",
                    config.reserve.storage_percent
                ),
            );
        }
    }

    pub(super) fn network(&mut self, config: &Config, survey: &Survey, node: Option<&NodeName>) {
        for template in &survey.templates {
            let nic = template
                .config
                .as_ref()
                .ok()
                .and_then(|c| Nic::parse(c.keys.get("net0")?));
            let Some(nic) = nic else { continue };
            let nic = nic.moved(config.bridge.as_deref(), config.vlan_tag);
            let Some(name) = nic.bridge() else {
                self.fault(
                    CheckReason::NetworkInvalid,
                    format!("net0 of template {} is on no bridge", template.vmid),
                    "set `bridge`, or put the template's net0 on one",
                );
                continue;
            };
            for (on, shown) in &survey.bridges {
                if node.is_some_and(|node| node != on) {
                    continue;
                }
                let Ok(bridges) = shown else { continue };
                match bridges.iter().find(|bridge| bridge.iface == name) {
                    None => self.fault(
                        CheckReason::NetworkInvalid,
                        format!("node {on} has no bridge {name} that the token may use"),
                        "name a bridge of the node, and grant SDN.Use on it",
                    ),
                    Some(bridge) if bridge.kind == "vnet" && !survey.zones.contains_key(name) => {
                        self.warn(
                            CheckReason::VisibilityLimited,
                            format!("{name} on node {on} is a vnet whose SDN zone this token is not shown: whether it may use it is not looked at"),
                            format!("grant SDN.Audit on the vnet, or see that the token has SDN.Use on /sdn/zones/ZONE/{name}{}", nic.tag().map(|tag| format!("/{tag}")).unwrap_or_default()),
                        );
                    }
                    Some(bridge)
                        if nic.tag().is_some() && bridge.kind == "bridge" && !bridge.vlan_aware =>
                    {
                        self.warn(
                            CheckReason::NetworkInvalid,
                            format!("bridge {name} on node {on} is not VLAN-aware"),
                            "make it VLAN-aware, or see that the node makes a bridge for the VLAN",
                        );
                    }
                    Some(_) => {}
                }
            }
        }
    }

    pub(super) fn pool_and_range(&mut self, config: &Config, survey: &Survey) {
        if let Some(Err(failure)) = &survey.pool {
            let name = config.pool.as_deref().unwrap_or_default();
            // Without Pool.Audit a pool cannot be seen, and can be used.
            if !matches!(failure.kind, Kind::Forbidden { path: Some(_), .. }) {
                self.fault(
                    CheckReason::PoolInvalid,
                    format!("pool {name}: {}", failure.said),
                    "name a pool that exists",
                );
            }
        }
        if free_vmids(config, survey) == 0 {
            self.fault(
                CheckReason::RangeInvalid,
                format!(
                    "every VMID of {}-{} is in use",
                    config.vmid_range.from, config.vmid_range.to
                ),
                "widen `vmidRange`",
            );
        }
    }

    /// A reserve that no node can ever keep is a slip of the pen.
    pub(super) fn memory(&mut self, config: &Config, survey: &Survey) {
        let nodes = &survey.snapshot.nodes;
        let most = nodes.iter().map(|node| node.memory.map(|(total, _)| total));
        // Where one is not told, it may be large enough.
        let most = most.collect::<Option<Vec<u64>>>().unwrap_or_default();
        let Some(most) = most.into_iter().max().map(|bytes| bytes >> 20) else {
            return;
        };
        let reserve = config.reserve.memory_mib;
        if reserve >= most {
            let before = self.0.len();
            self.fault(
                CheckReason::ConfigInvalid,
                format!("{reserve} MiB stay reserved, and no node has more than {most} MiB"),
                format!("reserve less than {most} MiB: what is left is for machines"),
            );
            self.since(before, "reserve.memoryMiB");
        }
    }

    pub(super) fn tags(&mut self, survey: &Survey, own: &str) {
        let Ok(options) = &survey.options else { return };
        let restricted = options
            .user_allow
            .as_deref()
            .is_some_and(|allow| allow != "free");
        let Some(allowed) = options.allowed_tags.as_ref().filter(|_| restricted) else {
            return;
        };
        let missing: Vec<_> = [names::PRODUCT_TAG, own]
            .into_iter()
            .filter(|tag| !allowed.iter().any(|known| known == tag))
            .collect();
        if !missing.is_empty() {
            self.warn(
                CheckReason::TagNotAllowed,
                format!("the datacenter does not allow the tags {}", missing.join(", ")),
                "allow them under `user-tag-access`; machines are found by range and name without them",
            );
        }
    }

    pub(super) fn payload(&mut self, config: &Config, is_there: bool) {
        let agent = egress_seed::GuestAgent::from(config.guest_agent);
        if agent.needs_payload() && !is_there {
            let before = self.0.len();
            self.fault(
                CheckReason::ConfigInvalid,
                format!("`guestAgent: {agent}` needs the static proxyd, which is not there"),
                crate::provider::seed::NO_PAYLOAD,
            );
            self.since(before, "guestAgent");
        }
    }
}
