//! Reads that all Proxies share (rule 15): the cluster's list, once a period, and what
//! machines of ours bear, read once for as long as it looks the same.

use super::{Proxmox, call::Call, names};
use crate::client::{
    Kind, Lock, NodeName, Resource, ResourceFilter, ResourceKind, Vmid, cluster_fingerprint,
};
use egress_core::{ClusterId, ErrorClass, MachineKey, Mark, Slot, machine::Whose};
use egress_provider::Result;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// How old a list may be that a call looks at without asking anew.
pub(super) const PERIOD: Duration = Duration::from_secs(10);

/// What a person can do where another cluster answers.
pub(super) const OTHER_CLUSTER: &str =
    "point `urls` back at the recorded cluster, or make a new provider block for this one";

/// A guest as the list shows it. Existence, node, lock and tags are live; name, status and
/// template are those of the last broadcast, up to 20 s old or another machine's (F8, §5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guest {
    pub(super) vmid: Vmid,
    pub(super) node: NodeName,
    pub(super) qemu: bool,
    pub(super) name: Option<String>,
    pub(super) status: Option<String>,
    pub(super) lock: Option<Lock>,
    pub(super) tags: Vec<String>,
    pub(super) template: bool,
    /// Whether high availability manages it.
    pub(super) ha: bool,
    /// Bytes of memory and of disk that it may have, as far as shown.
    pub(super) size: (u64, u64),
}

/// A node as the list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: NodeName,
    pub(super) online: bool,
    /// Bytes in all and in use; `None` without Sys.Audit.
    pub(super) memory: Option<(u64, u64)>,
    /// Logical processors: no machine has more.
    pub(super) cpus: Option<u64>,
}

/// How the last looks at the cluster ended.
#[derive(Debug, Default)]
pub(super) struct Last {
    seen: Option<Arc<Snapshot>>,
    /// When the last one failed, and how: whoever waited for it meanwhile failed with it.
    failed: Option<(Instant, ErrorClass, String)>,
}

/// One look at the whole cluster.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// When it began.
    pub(super) at: Instant,
    pub(super) cluster: ClusterId,
    pub(super) guests: BTreeMap<Vmid, Guest>,
    pub(super) nodes: Vec<Host>,
    /// Storages that all nodes share, by name.
    pub(super) shared_storages: BTreeSet<String>,
    /// Which storage is on which node.
    pub(super) storage_nodes: BTreeSet<(String, NodeName)>,
    /// Whether the cluster may write; `Err` says why that is not known.
    pub(super) quorate: std::result::Result<bool, String>,
}

impl Snapshot {
    pub(super) fn online(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.iter().filter(|n| n.online).map(|n| &n.name)
    }
    pub(super) fn node_is_online(&self, node: &NodeName) -> bool {
        self.nodes.iter().any(|n| n.name == *node && n.online)
    }
    /// Whether a node is one of the cluster's: one that left it for good took with it what lay
    /// on it.
    pub(super) fn has_node(&self, node: &NodeName) -> bool {
        self.nodes.iter().any(|n| n.name == *node)
    }
    /// Whether a node has a storage, as far as the list tells: one of which it shows nothing, as
    /// to a token without Datastore.Audit, may be on any.
    pub(super) fn has_storage(&self, node: &NodeName, storage: &str) -> bool {
        let rows = self.storage_nodes.iter();
        let mut rows = rows.filter(|(known, _)| known == storage).peekable();
        rows.peek().is_none() || rows.any(|(_, on)| on == node)
    }
    /// The nodes that answer and have a storage.
    pub(super) fn online_with<'a>(
        &'a self,
        storage: &'a str,
    ) -> impl Iterator<Item = &'a NodeName> {
        self.online().filter(|node| self.has_storage(node, storage))
    }
    fn of(at: Instant, resources: Vec<Resource>) -> Self {
        let mut guests = BTreeMap::new();
        let mut nodes = Vec::new();
        let mut shared_storages = BTreeSet::new();
        let mut storage_nodes = BTreeSet::new();
        for resource in resources {
            match (resource.kind, resource.vmid, resource.node) {
                (ResourceKind::Qemu | ResourceKind::Lxc, Some(vmid), Some(node)) => {
                    let name = resource
                        .name
                        .filter(|name| !names::is_placeholder(name, vmid));
                    guests.insert(
                        vmid,
                        Guest {
                            vmid,
                            node,
                            qemu: resource.kind == ResourceKind::Qemu,
                            name,
                            status: resource.status,
                            lock: resource.lock,
                            tags: resource.tags,
                            template: resource.template,
                            ha: resource.hastate.is_some_and(|state| state != "ignored"),
                            size: (resource.maxmem.unwrap_or(0), resource.maxdisk.unwrap_or(0)),
                        },
                    );
                }
                (ResourceKind::Node, _, Some(name)) => nodes.push(Host {
                    name,
                    online: resource.status.as_deref() == Some("online"),
                    memory: resource.maxmem.zip(resource.mem),
                    cpus: resource.maxcpu,
                }),
                (ResourceKind::Storage, _, Some(node)) => {
                    let Some(storage) = resource.storage else {
                        continue;
                    };
                    if resource.shared {
                        shared_storages.insert(storage.clone());
                    }
                    storage_nodes.insert((storage, node));
                }
                _ => {}
            }
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            at,
            cluster: ClusterId::new(""),
            guests,
            nodes,
            shared_storages,
            storage_nodes,
            quorate: Ok(true),
        }
    }
}

/// What a machine bore when its configuration was last read.
#[derive(Clone, Debug)]
pub(super) struct Sighted {
    pub(super) name: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) text: Option<String>,
    pub(super) template: bool,
    /// Its drives' volumes: the seeds among them are in use.
    pub(super) volumes: Vec<String>,
}

impl Sighted {
    /// Whether the list still shows the same machine, as far as it can tell. A name that is not
    /// there yet says nothing.
    pub(super) fn still_fits(&self, guest: &Guest) -> bool {
        let same_name = guest.name.is_none() || guest.name == self.name;
        let mut tags = guest.tags.clone();
        let mut known = self.tags.clone();
        tags.sort_unstable();
        known.sort_unstable();
        same_name && tags == known && guest.lock.is_none()
    }
    /// The mark it bears, valid or not.
    pub(super) fn mark(&self) -> Option<Mark> {
        self.text.as_deref().and_then(Mark::find)
    }
}

/// What the search for a key's mark found away from one slot.
#[derive(Clone, Debug)]
pub(super) enum Elsewhere {
    Nowhere,
    Ours(Vmid, Box<Mark>),
    /// Something that is neither ours nor foreign.
    NotOwned(Vmid),
}

impl Call<'_> {
    /// A look at the whole cluster that began at most `age` before this call. Callers that wait
    /// at the same time share one.
    pub(super) async fn snapshot(&self, age: Duration) -> Result<Arc<Snapshot>> {
        self.snapshot_after(age, None).await
    }

    /// The same, and one that shows every machine which this process made for a key: a search by
    /// its mark must not miss the youngest.
    pub(super) async fn snapshot_for(&self, key: &MachineKey) -> Result<Arc<Snapshot>> {
        let made = self.provider.hints().made_last(key);
        self.snapshot_after(PERIOD, made).await
    }

    async fn snapshot_after(
        &self,
        age: Duration,
        moment: Option<Instant>,
    ) -> Result<Arc<Snapshot>> {
        let called = Instant::now();
        let age = self.provider.pace.wait(age);
        let last = timeout_at(self.deadline(), self.provider.snapshot.lock()).await;
        let Ok(mut last) = last else {
            return Err(self.error(ErrorClass::Transient, "the list of machines takes too long"));
        };
        if let Some((_, class, said)) = last.failed.as_ref().filter(|(at, ..)| *at >= called) {
            return Err(self.error(*class, said.clone()));
        }
        let recent =
            |s: &&Arc<Snapshot>| s.at + age >= called && moment.is_none_or(|moment| s.at > moment);
        if let Some(snapshot) = last.seen.as_ref().filter(recent) {
            let snapshot = snapshot.clone();
            drop(last);
            self.is_home(&snapshot)?;
            return Ok(snapshot);
        }
        let snapshot = match self.take_snapshot().await {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => {
                last.failed = Some((Instant::now(), error.class(), error.said().to_owned()));
                return Err(error);
            }
        };
        last.seen = Some(snapshot.clone());
        drop(last);
        self.is_home(&snapshot)?;
        Ok(snapshot)
    }

    async fn take_snapshot(&self) -> Result<Snapshot> {
        let at = Instant::now();
        let client = self.reads();
        let resources = client
            .cluster_resources(ResourceFilter::All)
            .await
            .map_err(|failure| self.failed(failure))?;
        let mut snapshot = Snapshot::of(at, resources);
        let Some(node) = snapshot.online().next().cloned() else {
            return Err(self.error(ErrorClass::Transient, "no node is online"));
        };
        let certificates = client
            .certificates(&node)
            .await
            .map_err(|failure| self.failed(failure))?;
        let Some(fingerprint) = cluster_fingerprint(&certificates) else {
            let said = format!("node {node} does not tell the certificate of its cluster");
            return Err(self.error(ErrorClass::Transient, said));
        };
        snapshot.cluster = ClusterId::new(fingerprint);
        if snapshot.nodes.len() > 1 {
            snapshot.quorate = match client.cluster_status().await {
                Ok(status) => Ok(status.quorate),
                Err(failure) if matches!(failure.kind, Kind::Forbidden { .. }) => {
                    Err(format!("{}: the token needs Sys.Audit on /", failure.said))
                }
                Err(failure) => return Err(self.failed(failure)),
            };
        }
        Ok(snapshot)
    }

    /// Another cluster at the same address stops every effect (E4, rule 14).
    fn is_home(&self, snapshot: &Snapshot) -> Result<()> {
        let home = self.provider.home.get_or_init(|| snapshot.cluster.clone());
        self.same_cluster(home, snapshot)
    }

    /// The cluster of a claim is the one that answers.
    pub(super) fn same_cluster(&self, expected: &ClusterId, snapshot: &Snapshot) -> Result<()> {
        if snapshot.cluster == *expected {
            return Ok(());
        }
        let said = format!(
            "another cluster answers at `urls`: its certificate authority is {}, not {expected}: {OTHER_CLUSTER}",
            snapshot.cluster
        );
        Err(self.error(ErrorClass::NeedsOperator, said))
    }

    /// Nothing is made, removed or called absent without quorum.
    pub(super) fn has_quorum(&self, snapshot: &Snapshot) -> Result<()> {
        match &snapshot.quorate {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.error(
                ErrorClass::Transient,
                "the cluster has no quorum: nothing is made or removed until its nodes are back",
            )),
            Err(why) => Err(self.error(ErrorClass::Unauthorized, why.clone())),
        }
    }

    /// What the guests bear that could be ours, in this look. Machines that are being made hide
    /// what they bear and are left out; whatever else cannot be read is an error.
    pub(super) async fn candidates(
        &self,
        snapshot: &Snapshot,
        recorded: &BTreeSet<Vmid>,
    ) -> Result<BTreeMap<Vmid, Arc<Sighted>>> {
        let mut found = BTreeMap::new();
        self.provider.hints().forget_sightings(&snapshot.guests);
        for guest in snapshot.guests.values() {
            if !guest.qemu || !(recorded.contains(&guest.vmid) || self.could_be_ours(guest)) {
                continue;
            }
            let known = self.provider.hints().sighted(guest.vmid);
            if let Some(known) = known.filter(|known| known.still_fits(guest)) {
                found.insert(guest.vmid, known);
                continue;
            }
            if !snapshot.node_is_online(&guest.node) {
                let said = format!(
                    "machine {} is on node {}, which is offline",
                    guest.vmid, guest.node
                );
                return Err(self.error(ErrorClass::Transient, said));
            }
            match self.reads().vm_config(&guest.node, guest.vmid).await {
                Ok(config) => {
                    let sighted = self.provider.hints().sight(guest.vmid, &config);
                    found.insert(guest.vmid, sighted);
                }
                // Gone since the list, or moved: the next list shows it.
                Err(failure) if failure.kind == Kind::NotExistOnNode => {
                    let gone = self.reads().vmid_state(guest.vmid).await;
                    if gone.map_err(|f| self.failed(f))? == crate::client::VmidState::Taken {
                        let said = format!(
                            "machine {} moves to another node: it is looked for again",
                            guest.vmid
                        );
                        return Err(self.error(ErrorClass::Busy, said));
                    }
                }
                // A token that sees a part of the machines only cannot have made the others.
                Err(failure) if matches!(failure.kind, Kind::Forbidden { .. }) => {}
                Err(failure) => return Err(self.failed(failure)),
            }
        }
        Ok(found)
    }

    fn could_be_ours(&self, guest: &Guest) -> bool {
        let ours = || names::installation_tag(&self.provider.identity.installation);
        // In the order of what they cost: a listing asks for every guest of the cluster.
        self.provider.config.vmid_range.contains(guest.vmid.get())
            || guest.tags.iter().any(|tag| tag == names::PRODUCT_TAG)
            || guest.name.as_deref().is_some_and(names::is_machine_name)
            || (!guest.tags.is_empty() && guest.tags.contains(&ours()))
    }

    /// Looks for the key's mark at every slot but one.
    pub(super) async fn elsewhere(
        &self,
        key: &MachineKey,
        but: Option<Vmid>,
        snapshot: &Snapshot,
    ) -> Result<Elsewhere> {
        let mut not_owned = None;
        for (vmid, sighted) in self.candidates(snapshot, &BTreeSet::new()).await? {
            if but == Some(vmid) {
                continue;
            }
            let named = sighted.name.as_deref() == Some(key.name());
            let told = |text: &str| text.contains(key.uid().as_str());
            if !named && !sighted.text.as_deref().is_some_and(told) {
                continue;
            }
            let slot = names::slot_of(vmid);
            match self
                .provider
                .whose(key, None, &slot, &snapshot.cluster, &sighted)
            {
                Whose::Ours(mark) => return Ok(Elsewhere::Ours(vmid, mark)),
                Whose::NotOwned => not_owned = Some(vmid),
                Whose::Foreign { .. } => {}
            }
        }
        Ok(not_owned.map_or(Elsewhere::Nowhere, Elsewhere::NotOwned))
    }
}

impl Proxmox {
    /// Whose a machine is, for one key.
    pub(super) fn whose(
        &self,
        key: &MachineKey,
        recorded: Option<&Slot>,
        slot: &Slot,
        cluster: &ClusterId,
        sighted: &Sighted,
    ) -> Whose {
        let seen = egress_core::machine::Sighting {
            slot,
            cluster,
            name: sighted.name.as_deref(),
            text: sighted.text.as_deref(),
            template: sighted.template,
        };
        egress_core::machine::whose(key, &self.identity, &self.name, recorded, &seen)
    }
}
