//! The mutations, one method a call. Each is prepared first and sent by its own word, so that
//! the permit is asked in between and nothing else happens there:
//! `let start = client.start(..)?; permit.ask(..)?; start.send().await`.

use super::{
    call::Call,
    exchange::{Client, MUTATION_DEADLINE, Prepared, UPLOAD_DEADLINE},
    failure::Failure,
    ids::{NodeName, Vmid},
    params::{CloneVm, ConfigChange},
    upid::Upid,
    upload::IsoName,
};
use hyper::body::Bytes;

impl Client {
    /// A full clone. Repeating it to the same VMID harms nothing: the loser fails (rule 2).
    pub fn clone_vm(&self, clone: CloneVm) -> Result<Prepared<Upid>, Failure> {
        self.prepare(&Call::Clone(clone), MUTATION_DEADLINE)
    }
    /// An upload of an ISO image; the task in its answer copies it into place.
    pub fn upload_iso(
        &self,
        node: &NodeName,
        storage: &str,
        name: &IsoName,
        image: Bytes,
    ) -> Result<Prepared<Upid>, Failure> {
        let call = Call::UploadIso {
            node: node.clone(),
            storage: storage.to_owned(),
            name: name.clone(),
            image,
        };
        self.prepare(&call, UPLOAD_DEADLINE)
    }
    /// A config write, done when it is answered. Not atomic: an error on one key may leave
    /// others written (§7.1).
    pub fn set_config(
        &self,
        node: &NodeName,
        vmid: Vmid,
        change: ConfigChange,
    ) -> Result<Prepared<()>, Failure> {
        let call = Call::SetConfig {
            node: node.clone(),
            vmid,
            change: Box::new(change),
        };
        self.prepare(&call, MUTATION_DEADLINE)
    }
    /// A disk's whole new size, in bytes.
    pub fn resize(
        &self,
        node: &NodeName,
        vmid: Vmid,
        disk: &str,
        bytes: u64,
    ) -> Result<Prepared<Upid>, Failure> {
        let call = Call::Resize {
            node: node.clone(),
            vmid,
            disk: disk.to_owned(),
            bytes,
        };
        self.prepare(&call, MUTATION_DEADLINE)
    }
    /// A start.
    pub fn start(&self, node: &NodeName, vmid: Vmid) -> Result<Prepared<Upid>, Failure> {
        let node = node.clone();
        self.prepare(&Call::Start { node, vmid }, MUTATION_DEADLINE)
    }
    /// A hard stop, `overrule_shutdown` from PVE 8.2. A hung guest takes over a minute.
    pub fn stop(
        &self,
        node: &NodeName,
        vmid: Vmid,
        overrule_shutdown: bool,
    ) -> Result<Prepared<Upid>, Failure> {
        let call = Call::Stop {
            node: node.clone(),
            vmid,
            overrule_shutdown,
        };
        self.prepare(&call, MUTATION_DEADLINE)
    }
    /// The removal of a machine with the disks its config names. Takes no digest: only one
    /// may be outstanding for a VMID (rule 10).
    pub fn delete_vm(&self, node: &NodeName, vmid: Vmid) -> Result<Prepared<Upid>, Failure> {
        let node = node.clone();
        self.prepare(&Call::DeleteVm { node, vmid }, MUTATION_DEADLINE)
    }
    /// The removal of a volume; with `delay_s` of 1 to 30 it is mostly over when answered,
    /// and there is no task (F13).
    pub fn delete_volume(
        &self,
        node: &NodeName,
        storage: &str,
        volid: &str,
        delay_s: Option<u8>,
    ) -> Result<Prepared<Option<Upid>>, Failure> {
        let call = Call::DeleteVolume {
            node: node.clone(),
            storage: storage.to_owned(),
            volid: volid.to_owned(),
            delay_s,
        };
        self.prepare(&call, MUTATION_DEADLINE)
    }
}
