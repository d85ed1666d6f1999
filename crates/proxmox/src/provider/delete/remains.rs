//! Disks that outlive their machine: told until they are seen gone, and removed where the token
//! may.

use super::Deletion;
use crate::{
    client::{Kind, NodeName, Vmid, VmidState},
    provider::{call::Call, seed::DELETE_WAIT},
};
use egress_provider::{PROOF_LIFETIME, Result};
use std::collections::BTreeSet;
use tokio::time::Instant;

/// Which disks were left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Remains {
    /// These volumes.
    Volumes(BTreeSet<String>),
    /// Those of this pattern, perhaps: the storage could not be asked.
    Unseen(String),
}

impl Remains {
    /// What of it is still there, when the storage shows these volumes of its VMID.
    fn among(&self, shown: BTreeSet<String>) -> Option<Self> {
        let left: BTreeSet<String> = match self {
            Self::Volumes(known) => known.intersection(&shown).cloned().collect(),
            Self::Unseen(_) => shown,
        };
        (!left.is_empty()).then_some(Self::Volumes(left))
    }
    /// For people.
    pub(in crate::provider) fn told(&self) -> String {
        match self {
            Self::Volumes(volumes) => {
                let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
                volumes.join(", ")
            }
            Self::Unseen(pattern) => pattern.clone(),
        }
    }
}

impl Deletion<'_> {
    /// A destroy that ended with warnings may have left disks behind (pve-flow §4): removed one
    /// by one where the token may, and told by `check`. Never by asking Proxmox VE to free
    /// whatever bears the VMID: on shared storage that is another cluster's too.
    pub(super) async fn look_for_remains(&self, vmid: Vmid) -> Result<()> {
        let call = &self.call;
        let provider = call.provider;
        let storage = &provider.config.storage;
        let node = self
            .claim
            .host
            .as_ref()
            .and_then(|host| host.as_str().parse::<NodeName>().ok());
        let Some(node) = node else { return Ok(()) };
        if call.existence(vmid).await? != VmidState::Free {
            return Ok(());
        }
        let volumes = match call.disks_of(&node, vmid).await {
            Ok(volumes) => volumes,
            Err(failure) if matches!(failure.kind, Kind::Forbidden { .. }) => return Ok(()),
            // Its disks cannot be seen now; the machine is gone all the same.
            Err(failure) if failure.kind == Kind::StorageUnavailable => {
                tracing::warn!(%vmid, said = failure.said, "disks may have outlived a machine");
                let unseen = Remains::Unseen(format!("{storage}:vm-{vmid}-disk-*"));
                provider.hints().left_behind.insert((node, vmid), unseen);
                return Ok(());
            }
            Err(failure) => return Err(call.failed(failure)),
        };
        if volumes.is_empty() {
            return Ok(());
        }
        let held = call
            .reads()
            .permissions(&format!("/storage/{storage}"))
            .await
            .map_err(|failure| call.failed(failure))?;
        let may = held.has("Datastore.Allocate") && provider.config.vmid_range.contains(vmid.get());
        // Until they are seen gone, whatever becomes of the requests.
        let remains = Remains::Volumes(volumes.clone());
        let place = (node, vmid);
        provider.hints().left_behind.insert(place.clone(), remains);
        for volume in volumes {
            if may {
                self.remove_volume(&place.0, vmid, &volume).await?;
            } else {
                tracing::warn!(
                    volume,
                    "a disk outlived its machine, and the token may not remove it"
                );
            }
        }
        if may {
            call.look_again_for_remains(&place).await;
        }
        Ok(())
    }

    /// Removes one disk, unless someone has its VMID by now: theirs may have the same name.
    async fn remove_volume(&self, node: &NodeName, vmid: Vmid, volume: &str) -> Result<()> {
        let call = &self.call;
        let provider = call.provider;
        let storage = &provider.config.storage;
        let asked = Instant::now();
        if call.existence(vmid).await? != VmidState::Free {
            return Ok(());
        }
        let client = &provider.client;
        let request = client.delete_volume(node, storage, volume, Some(DELETE_WAIT));
        let ask = || Ok(asked + PROOF_LIFETIME);
        match call.send_proven(self.permit, request, ask).await? {
            Ok(task) => {
                let task = task.map(|task| task.to_string());
                tracing::warn!(volume, task, "a disk that outlived its machine is removed");
                Ok(())
            }
            // Tried again: the destroy's end is still recorded.
            Err(failure) if !failure.sent => Err(call.failed(failure)),
            Err(failure) => {
                tracing::warn!(
                    volume,
                    said = failure.said,
                    "a disk that outlived its machine is not removed"
                );
                Ok(())
            }
        }
    }
}

impl Call<'_> {
    async fn disks_of(
        &self,
        node: &NodeName,
        vmid: Vmid,
    ) -> std::result::Result<BTreeSet<String>, crate::client::Failure> {
        let storage = &self.provider.config.storage;
        let reads = self.reads();
        let shown = reads.storage_content(node, storage, Some("images"), Some(vmid));
        Ok(shown.await?.into_iter().map(|disk| disk.volid).collect())
    }

    /// Looks at everything that was left behind, and forgets what is gone.
    pub(in crate::provider) async fn look_for_all_remains(&self) {
        let places: Vec<_> = self.provider.hints().left_behind.keys().cloned().collect();
        for place in places {
            self.look_again_for_remains(&place).await;
        }
    }

    /// What cannot be looked at now stays as it was.
    async fn look_again_for_remains(&self, place: &(NodeName, Vmid)) {
        let Ok(shown) = self.disks_of(&place.0, place.1).await else {
            return;
        };
        // Whoever has the VMID now has disks of such names, too.
        if !matches!(self.existence(place.1).await, Ok(VmidState::Free)) {
            return;
        }
        let mut hints = self.provider.hints();
        let left = hints.left_behind.remove(place);
        if let Some(left) = left.and_then(|left| left.among(shown)) {
            hints.left_behind.insert(place.clone(), left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_was_left_behind_is_told_for_as_long_as_it_is_shown() {
        let known = Remains::Volumes(volumes(&["s:vm-7-disk-0", "s:vm-7-disk-1"]));
        let left = known.among(volumes(&["s:vm-7-disk-1", "s:vm-7-disk-2"]));
        assert_eq!(left.unwrap().told(), "s:vm-7-disk-1");
        assert_eq!(known.among(volumes(&[])), None);
        let unseen = Remains::Unseen("s:vm-7-disk-*".to_owned());
        assert_eq!(unseen.told(), "s:vm-7-disk-*");
        let left = unseen.among(volumes(&["s:vm-7-disk-0"]));
        assert_eq!(left.unwrap().told(), "s:vm-7-disk-0");
        assert_eq!(unseen.among(volumes(&[])), None);
    }
}
