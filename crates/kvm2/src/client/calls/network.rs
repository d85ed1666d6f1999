//! Networks and their leases.

use super::uuid;
use crate::client::{
    Failure, Session,
    procedure::Procedure,
    xdr::{Malformed, Reader, Writer},
};
use uuid::Uuid;

/// A network, as calls name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
}

/// An address that a network's DHCP server gave away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When it ends, in seconds since 1970; 0 for never.
    pub expiry: i64,
    /// The card it was given to.
    pub mac: Option<String>,
    /// The address.
    pub address: String,
}

impl Session {
    /// A network by its name.
    pub async fn network(&self, name: &str) -> Result<Network, Failure> {
        let procedure = Procedure::NetworkLookupByName;
        self.read(procedure, name, Writer::new().text(name), |answer| {
            Ok(Network {
                name: answer.text()?,
                uuid: uuid(answer)?,
            })
        })
        .await
    }

    /// Whether it is up.
    pub async fn network_is_active(&self, network: &Network) -> Result<bool, Failure> {
        let arguments = Writer::new()
            .text(&network.name)
            .fixed(network.uuid.as_bytes());
        let procedure = Procedure::NetworkIsActive;
        self.read(procedure, &network.name, arguments, |answer| {
            Ok(answer.i32()? != 0)
        })
        .await
    }

    /// What it gave to one card.
    pub async fn leases(&self, network: &Network, mac: &str) -> Result<Vec<Lease>, Failure> {
        const MOST_LEASES: usize = 65_536;
        let arguments = Writer::new()
            .text(&network.name)
            .fixed(network.uuid.as_bytes())
            .optional(Some(mac))
            .i32(1)
            .u32(0);
        let procedure = Procedure::NetworkGetDhcpLeases;
        self.read(procedure, &network.name, arguments, |answer| {
            answer.list(MOST_LEASES, lease)
        })
        .await
    }
}

fn lease(answer: &mut Reader<'_>) -> Result<Lease, Malformed> {
    let _interface = answer.text()?;
    let expiry = answer.i64()?;
    let _family = answer.i32()?;
    let mac = answer.optional()?;
    let _association = answer.optional()?;
    let address = answer.text()?;
    let _prefix = answer.u32()?;
    let _hostname = answer.optional()?;
    let _client = answer.optional()?;
    Ok(Lease {
        expiry,
        mac,
        address,
    })
}
