//! The seed of an attempt, and the static proxyd that it carries.

use super::{Proxmox, call::Call, names, tasks};
use crate::{
    client::{IsoName, NodeName, TaskFilter, TaskState, Vmid},
    config,
};
use egress_core::{
    Claim, ErrorClass, MachineKey, SeedVolume,
    machine::WantedMachine,
    proxy_config::{DEFAULT_PORT, Limits, ProxydConfig},
};
use egress_provider::{Permit, Progress, Result};
use egress_seed::{GuestAgent, Seed};
use hyper::body::Bytes;
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Mutex,
    time::SystemTime,
};

/// What to do without a payload.
pub(super) const NO_PAYLOAD: &str = "build it with `cargo xtask payload`, name its folder with `--payload-dir`, or use a template with proxyd in it and `guestAgent: baked`";

/// The management page of proxyd takes a free port of its machine's loopback, as whatever else
/// the image runs has one; the journal names it.
const MANAGEMENT_PORT: u16 = 0;
/// How long the API may take to delete a volume before it makes a task of it, in seconds.
pub(super) const DELETE_WAIT: u8 = 5;

/// The static proxyd that seeds carry.
#[derive(Debug, Default)]
pub struct Payload {
    /// The program; `None` where none was found.
    pub path: Option<PathBuf>,
    read: Mutex<Option<(SystemTime, Bytes)>>,
}

impl Payload {
    /// The program at this path, or none.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            read: Mutex::default(),
        }
    }
    pub(super) fn is_there(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.is_file())
    }
    /// The program, read again when the file changed.
    fn bytes(&self) -> std::io::Result<Option<Bytes>> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let written = std::fs::metadata(path)?.modified()?;
        let mut read = super::held(&self.read);
        if let Some((_, bytes)) = read.as_ref().filter(|(at, _)| *at == written) {
            return Ok(Some(bytes.clone()));
        }
        let bytes = Bytes::from(std::fs::read(path)?);
        *read = Some((written, bytes.clone()));
        Ok(Some(bytes))
    }
}

impl Proxmox {
    /// Where an attempt's seed is to lie.
    pub(super) fn seed_volume(
        &self,
        key: &MachineKey,
        attempt: u32,
        node: &NodeName,
    ) -> SeedVolume {
        let file = names::seed_file(&self.identity.installation, key, attempt);
        SeedVolume {
            name: names::iso_volume(&self.config.iso_storage, &file),
            location: node.to_string(),
        }
    }

    /// The names of the seeds of some attempts of a key.
    pub(super) fn seed_names(&self, key: &MachineKey, attempts: &[u32]) -> Vec<String> {
        attempts
            .iter()
            .map(|attempt| {
                let file = names::seed_file(&self.identity.installation, key, *attempt);
                names::iso_volume(&self.config.iso_storage, &file)
            })
            .collect()
    }
}

impl From<config::GuestAgent> for GuestAgent {
    fn from(configured: config::GuestAgent) -> Self {
        match configured {
            config::GuestAgent::Builtin => Self::Builtin,
            config::GuestAgent::Package => Self::Package,
            config::GuestAgent::Baked => Self::Baked,
        }
    }
}

/// What became of an upload whose answer never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A copy runs, perhaps this one's.
    Running,
    Whole,
    No,
}

impl Call<'_> {
    /// The seed's bytes: the same for the same wish.
    pub(super) fn render_seed(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
    ) -> Result<Bytes> {
        let provider = self.provider;
        let proxyd = ProxydConfig {
            key: key.name().to_owned(),
            attempt: claim.attempt,
            // Both families: the kernel maps IPv4 clients, and proxyd maps them back.
            listen: SocketAddr::from((
                Ipv6Addr::UNSPECIFIED,
                wanted.settings.port.unwrap_or(DEFAULT_PORT),
            )),
            management: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, MANAGEMENT_PORT))),
            egress: None,
            clients: wanted.settings.clients.clone(),
            auth: wanted.settings.auth.clone(),
            limits: Limits::default(),
        };
        let guest_agent = GuestAgent::from(provider.config.guest_agent);
        let payload = if guest_agent.needs_payload() {
            let bytes = provider.payload.bytes().map_err(|error| {
                self.error(
                    ErrorClass::Permanent,
                    format!("the static proxyd cannot be read: {NO_PAYLOAD}"),
                )
                .caused_by(error)
            })?;
            let missing = || {
                self.error(
                    ErrorClass::Permanent,
                    format!("the static proxyd is missing: {NO_PAYLOAD}"),
                )
            };
            Some(bytes.ok_or_else(missing)?)
        } else {
            None
        };
        let seed = Seed {
            proxyd: &proxyd,
            mac: claim.mac.as_deref(),
            guest_agent,
            payload: payload.as_deref(),
            user_data: wanted.user_data.as_ref(),
        };
        seed.render().map(Bytes::from).map_err(|findings| {
            let told: Vec<_> = findings.iter().map(ToString::to_string).collect();
            self.error(ErrorClass::Permanent, told.join("; "))
        })
    }

    /// Sends the seed. The task in the answer copies it into place.
    pub(super) async fn upload(
        &self,
        node: &NodeName,
        claim: &Claim,
        key: &MachineKey,
        image: Bytes,
        permit: &Permit,
        vmid: Vmid,
    ) -> Result<egress_core::Handle> {
        let file = names::seed_file(&self.provider.identity.installation, key, claim.attempt);
        let name: IsoName = file.parse().map_err(|bad: crate::client::BadId| {
            self.error(ErrorClass::Internal, bad.to_string())
        })?;
        let storage = &self.provider.config.iso_storage;
        let bytes = image.len() as u64;
        let request = self.provider.client.upload_iso(node, storage, &name, image);
        let ask = || {
            // Until an answer says otherwise.
            self.provider.hints().upload_in_doubt(vmid, bytes);
            permit.ask_leaving(self.operation, &self.target)
        };
        let sent = self.send(permit, request, ask).await?;
        if !matches!(&sent, Err(failure) if failure.class == ErrorClass::OutcomeUnknown) {
            self.provider.hints().upload_settled(vmid);
        }
        let upid = sent.map_err(|failure| self.failed(failure))?;
        Ok(super::call::handle(tasks::UPLOAD, &upid))
    }

    /// Whether an upload whose answer never came has arrived: no copy runs, and the file has the
    /// size of what this process sent. A half-copied seed attaches and boots (pve-flow §3), so
    /// that anything less is sent again. The copy is a task of the node that took the request,
    /// which is whatever answers at the URL, and not of the one that the seed goes to.
    pub(super) async fn upload_arrived(
        &self,
        node: &NodeName,
        volume: &str,
        vmid: Vmid,
        snapshot: &super::shared::Snapshot,
    ) -> Result<Arrival> {
        for receiver in snapshot.online() {
            let filter = TaskFilter::active().kind("imgcopy");
            let copies = self
                .reads()
                .tasks(receiver, filter)
                .await
                .map_err(|failure| self.failed(failure))?;
            if copies.iter().any(|copy| copy.state == TaskState::Running) {
                return Ok(Arrival::Running);
            }
        }
        let known = self.provider.hints().doubtful_upload(vmid);
        let Some(bytes) = known else {
            return Ok(Arrival::No);
        };
        let storage = &self.provider.config.iso_storage;
        let volumes = self
            .reads()
            .storage_content(node, storage, Some("iso"), None)
            .await
            .map_err(|failure| self.failed(failure))?;
        let whole = volumes
            .iter()
            .any(|known| known.volid == volume && known.size == Some(bytes));
        Ok(if whole { Arrival::Whole } else { Arrival::No })
    }

    /// The seeds of a key, of any attempt, on one node's seed storage.
    pub(super) async fn seeds_of(&self, key: &MachineKey, node: &NodeName) -> Result<Vec<String>> {
        let provider = self.provider;
        let volumes = self
            .reads()
            .storage_content(node, &provider.config.iso_storage, Some("iso"), None)
            .await
            .map_err(|failure| self.failed(failure))?;
        let prefix = names::seed_prefix(&provider.identity.installation);
        Ok(volumes
            .into_iter()
            .map(|volume| volume.volid)
            .filter(|volid| names::machine_of_seed(volid, &prefix) == Some(key.name()))
            .collect())
    }

    /// Deletes every seed of a key on these nodes. A repeat is harmless: deleting what is not
    /// there succeeds (F13).
    pub(super) async fn delete_seeds(
        &self,
        key: &MachineKey,
        nodes: &[NodeName],
        vmid: Vmid,
        permit: &Permit,
    ) -> Result<Progress> {
        let storage = &self.provider.config.iso_storage;
        let mut running = Vec::new();
        for node in nodes {
            for volid in self.seeds_of(key, node).await? {
                let request =
                    self.provider
                        .client
                        .delete_volume(node, storage, &volid, Some(DELETE_WAIT));
                let upid = self
                    .send(permit, request, || Ok(()))
                    .await?
                    .map_err(|failure| self.failed(failure))?;
                running.extend(upid.map(|upid| super::call::handle(tasks::DELETE_SEED, &upid)));
                self.provider.hints().changed(vmid);
            }
        }
        if running.is_empty() {
            return Ok(Progress::Done);
        }
        Ok(self.in_progress(tasks::DELETE_SEED, running))
    }

    /// The nodes on which seeds of a machine may lie, those that answer.
    pub(super) fn seed_nodes(
        &self,
        claim: &Claim,
        machine: Option<&NodeName>,
        snapshot: &super::shared::Snapshot,
    ) -> Vec<NodeName> {
        let recorded = claim
            .seed
            .as_ref()
            .and_then(|seed| seed.location.parse().ok());
        let host = claim
            .host
            .as_ref()
            .and_then(|host| host.as_str().parse().ok());
        let mut nodes: Vec<NodeName> = Vec::new();
        for node in recorded.into_iter().chain(machine.cloned()).chain(host) {
            if !nodes.contains(&node) && snapshot.has_node(&node) {
                nodes.push(node);
            }
        }
        let storage = &self.provider.config.iso_storage;
        if snapshot.shared_storages.contains(storage) {
            // Any node that has it shows the same; one that is online.
            nodes.retain(|node| {
                snapshot.node_is_online(node) && snapshot.has_storage(node, storage)
            });
            nodes.extend(snapshot.online_with(storage).next().cloned());
            nodes.truncate(1);
            return nodes;
        }
        // A machine that moved took its seed along, wherever to.
        for (_, node) in snapshot
            .storage_nodes
            .iter()
            .filter(|(known, _)| known == storage)
        {
            if !nodes.contains(node) && snapshot.node_is_online(node) {
                nodes.push(node.clone());
            }
        }
        nodes
    }
}
