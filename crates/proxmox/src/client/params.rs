//! What the calls carry, as values.

use super::ids::{NodeName, Vmid};

/// Which resources a cluster list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceFilter {
    /// Nodes, storages, pools and guests.
    All,
    /// Guests: virtual machines and containers.
    Guests,
}

/// Where tasks are listed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskSource {
    /// Running ones.
    Active,
    /// Finished ones, newest first.
    Archive,
    /// Both.
    All,
}

/// Which tasks of a node are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFilter {
    /// Running, finished or both.
    pub source: TaskSource,
    /// Only of this type, such as `qmclone`.
    pub kind: Option<String>,
    /// Only those whose id is this VMID; for a clone that is the source.
    pub vmid: Option<Vmid>,
    /// Only those that began at or after this second since 1970.
    pub since: Option<i64>,
    /// The greatest number of entries; the API's default is 50, 0 is no limit.
    pub limit: Option<u32>,
}

impl TaskFilter {
    /// The running tasks.
    pub const fn active() -> Self {
        Self::of(TaskSource::Active)
    }
    /// The finished tasks.
    pub const fn archive() -> Self {
        Self::of(TaskSource::Archive)
    }
    const fn of(source: TaskSource) -> Self {
        Self {
            source,
            kind: None,
            vmid: None,
            since: None,
            limit: None,
        }
    }
    /// Only of this type.
    #[must_use]
    pub fn kind(mut self, kind: &str) -> Self {
        self.kind = Some(kind.to_owned());
        self
    }
    /// Only about this guest.
    #[must_use]
    pub const fn vmid(mut self, vmid: Vmid) -> Self {
        self.vmid = Some(vmid);
        self
    }
    /// Only those that began at or after this second since 1970.
    #[must_use]
    pub const fn since(mut self, second: i64) -> Self {
        self.since = Some(second);
        self
    }
    /// At most this many; 0 is no limit.
    #[must_use]
    pub const fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// A full clone of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneVm {
    /// The template's node.
    pub node: NodeName,
    /// The template.
    pub template: Vmid,
    /// The new machine's VMID.
    pub newid: Vmid,
    /// Its name, a DNS name.
    pub name: String,
    /// Its description; empty would inherit the template's.
    pub description: String,
    /// Where its disks go.
    pub storage: String,
    /// The pool it joins as the clone's last step.
    pub pool: Option<String>,
    /// The node it goes to, if not the template's.
    pub target: Option<NodeName>,
}

/// A change of a machine's config; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// Refuse when the config is no longer this one.
    pub digest: Option<String>,
    /// A drive slot such as `ide2`, and its new value such as `isos:iso/x.iso,media=cdrom`.
    pub drive: Option<(String, String)>,
    /// The first network card, with its MAC: without one PVE makes a new one (§7.2).
    pub net0: Option<String>,
    /// All tags.
    pub tags: Option<Vec<String>>,
    /// The description.
    pub description: Option<String>,
    /// The name.
    pub name: Option<String>,
    /// Cores of each socket.
    pub cores: Option<u32>,
    /// Sockets.
    pub sockets: Option<u32>,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
    /// The least memory in MiB of the balloon; 0 turns ballooning off.
    pub balloon_mib: Option<u64>,
    /// The agent setting, such as `enabled=1`.
    pub agent: Option<String>,
    /// The boot setting, such as `order=scsi0`.
    pub boot: Option<String>,
    /// Whether it starts with its node.
    pub onboot: Option<bool>,
    /// Whether it is protected from removal.
    pub protection: Option<bool>,
    /// Keys to remove.
    pub delete: Vec<String>,
}

impl ConfigChange {
    pub(super) fn fields(&self) -> Vec<Field> {
        let mut fields = Vec::new();
        let mut put = |key: &'static str, value: Option<String>| {
            fields.extend(value.map(|v| Field::new(key, v)));
        };
        put("digest", self.digest.clone());
        put("net0", self.net0.clone());
        put("tags", self.tags.as_ref().map(|tags| tags.join(";")));
        put("description", self.description.clone());
        put("name", self.name.clone());
        put("cores", self.cores.map(|n| n.to_string()));
        put("sockets", self.sockets.map(|n| n.to_string()));
        put("memory", self.memory_mib.map(|n| n.to_string()));
        put("balloon", self.balloon_mib.map(|n| n.to_string()));
        put("agent", self.agent.clone());
        put("boot", self.boot.clone());
        put("onboot", self.onboot.map(zero_or_one));
        put("protection", self.protection.map(zero_or_one));
        put(
            "delete",
            (!self.delete.is_empty()).then(|| self.delete.join(",")),
        );
        if let Some((slot, value)) = &self.drive {
            fields.push(Field::new(slot.clone(), value.clone()));
        }
        fields
    }
}

/// The API takes no other spelling of a boolean in a form (§1.2).
pub(super) fn zero_or_one(value: bool) -> String {
    String::from(if value { "1" } else { "0" })
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its value, not encoded.
    pub value: String,
}

impl Field {
    pub(super) fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}
