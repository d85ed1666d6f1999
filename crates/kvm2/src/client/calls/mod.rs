//! The procedures with their types, and what they speak of.

mod domain;
mod host;
mod network;
mod storage;

pub use domain::{
    AddressSource, Domain, DomainState, Interface, Metadata, affect, define, device, shutdown,
    undefine, xml,
};
pub use host::Memory;
pub use network::{Lease, Network};
pub use storage::{MOST_DOWNLOADED, Pool, PoolRoom, Volume, VolumeSize};

use super::xdr::{Malformed, Reader};
use uuid::Uuid;

/// How many domains, volumes and the like one answer may hold, as libvirt limits them.
const MOST: usize = 16_384;

fn uuid(answer: &mut Reader<'_>) -> Result<Uuid, Malformed> {
    let bytes = answer.fixed(16)?;
    Uuid::from_slice(bytes).map_err(|_| Malformed {
        what: "a UUID of another length",
    })
}
