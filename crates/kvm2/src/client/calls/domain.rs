//! Domains.

use super::{MOST, uuid};
use crate::client::{
    Failure, Session,
    procedure::Procedure,
    xdr::{Malformed, Reader, Writer},
};
use tokio::time::Instant;
use uuid::Uuid;

/// A domain, as calls name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its number while it runs, else -1.
    pub id: i32,
}

/// A domain's power, as `virDomainState` and the reasons beside it number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainState {
    /// The state.
    pub state: i32,
    /// Why, in numbers of that state.
    pub reason: i32,
}

/// What of a domain's metadata is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata<'a> {
    /// Its title.
    Title,
    /// The element of a namespace.
    Element {
        /// The namespace's URI.
        namespace: &'a str,
        /// The prefix it is written with.
        prefix: &'a str,
    },
}

/// Who tells a domain's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// The leases of its networks.
    Lease,
    /// Its agent.
    Agent,
}

/// One network card of a guest and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the guest.
    pub name: String,
    /// Its MAC.
    pub mac: Option<String>,
    /// Its addresses, as texts.
    pub addresses: Vec<String>,
}

/// Whether a change concerns the running domain, its definition, or both.
pub mod affect {
    /// The running domain.
    pub const LIVE: u32 = 1;
    /// Its definition.
    pub const CONFIG: u32 = 2;
}

/// Which description of a domain is meant.
pub mod xml {
    /// Of the domain as it is now: running if it runs.
    pub const NOW: u32 = 0;
    /// Of the next start.
    pub const INACTIVE: u32 = 2;
}

/// How a definition is taken.
pub mod define {
    /// Checked against the schema.
    pub const VALIDATE: u32 = 1;
}

/// How a device is changed.
pub mod device {
    /// Also when the guest holds on to it.
    pub const FORCE: u32 = 4;
}

/// Who is asked to shut down.
pub mod shutdown {
    /// The guest's agent.
    pub const BY_AGENT: u32 = 2;
}

/// What goes with a domain's definition.
pub mod undefine {
    /// Its memory on disk.
    pub const MANAGED_SAVE: u32 = 1;
    /// What libvirt knows of its snapshots.
    pub const SNAPSHOTS_METADATA: u32 = 2;
    /// Its NVRAM.
    pub const NVRAM: u32 = 4;
    /// What libvirt knows of its checkpoints.
    pub const CHECKPOINTS_METADATA: u32 = 16;
    /// The state of its TPM; since libvirt 8.9.
    pub const TPM: u32 = 32;
}

impl Domain {
    fn arguments(&self) -> Writer {
        Writer::new()
            .text(&self.name)
            .fixed(self.uuid.as_bytes())
            .i32(self.id)
    }
    fn read(answer: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            name: answer.text()?,
            uuid: uuid(answer)?,
            id: answer.i32()?,
        })
    }
}

impl Metadata<'_> {
    const fn number(self) -> i32 {
        match self {
            Self::Title => 1,
            Self::Element { .. } => 2,
        }
    }
    const fn namespace(&self) -> Option<&str> {
        match self {
            Self::Title => None,
            Self::Element { namespace, .. } => Some(namespace),
        }
    }
    const fn prefix(&self) -> Option<&str> {
        match self {
            Self::Title => None,
            Self::Element { prefix, .. } => Some(prefix),
        }
    }
}

impl Session {
    /// Every domain, running or not.
    pub async fn domains(&self) -> Result<Vec<Domain>, Failure> {
        let procedure = Procedure::ConnectListAllDomains;
        let arguments = Writer::new().i32(1).u32(0);
        self.read(procedure, "", arguments, |answer| {
            answer.list(MOST, Domain::read)
        })
        .await
    }

    /// A domain by its UUID.
    pub async fn domain(&self, uuid: Uuid) -> Result<Domain, Failure> {
        let procedure = Procedure::DomainLookupByUuid;
        let arguments = Writer::new().fixed(uuid.as_bytes());
        self.read(procedure, &uuid.to_string(), arguments, Domain::read)
            .await
    }

    /// A domain by its name.
    pub async fn domain_by_name(&self, name: &str) -> Result<Domain, Failure> {
        let procedure = Procedure::DomainLookupByName;
        self.read(procedure, name, Writer::new().text(name), Domain::read)
            .await
    }

    /// Its description; `flags` of [`xml`].
    pub async fn domain_xml(&self, domain: &Domain, flags: u32) -> Result<String, Failure> {
        let procedure = Procedure::DomainGetXmlDesc;
        let arguments = domain.arguments().u32(flags);
        self.read(procedure, &domain.name, arguments, |answer| answer.text())
            .await
    }

    /// Its power.
    pub async fn domain_state(&self, domain: &Domain) -> Result<DomainState, Failure> {
        let procedure = Procedure::DomainGetState;
        let arguments = domain.arguments().u32(0);
        self.read(procedure, &domain.name, arguments, |answer| {
            Ok(DomainState {
                state: answer.i32()?,
                reason: answer.i32()?,
            })
        })
        .await
    }

    /// Whether its memory lies on disk.
    pub async fn has_managed_save(&self, domain: &Domain) -> Result<bool, Failure> {
        let procedure = Procedure::DomainHasManagedSaveImage;
        let arguments = domain.arguments().u32(0);
        self.read(procedure, &domain.name, arguments, |answer| {
            Ok(answer.i32()? != 0)
        })
        .await
    }

    /// Whether a job works on a running domain: a backup, a migration, a dump.
    pub async fn has_job(&self, domain: &Domain) -> Result<bool, Failure> {
        const BOUNDED: i32 = 1;
        const UNBOUNDED: i32 = 2;
        let procedure = Procedure::DomainGetJobInfo;
        self.read(procedure, &domain.name, domain.arguments(), |answer| {
            Ok([BOUNDED, UNBOUNDED].contains(&answer.i32()?))
        })
        .await
    }

    /// A part of its metadata, as it is now.
    pub async fn metadata(&self, domain: &Domain, which: Metadata<'_>) -> Result<String, Failure> {
        let procedure = Procedure::DomainGetMetadata;
        let arguments = domain
            .arguments()
            .i32(which.number())
            .optional(which.namespace())
            .u32(0);
        self.read(procedure, &domain.name, arguments, |answer| answer.text())
            .await
    }

    /// The guest's cards and addresses.
    pub async fn interfaces(
        &self,
        domain: &Domain,
        source: AddressSource,
    ) -> Result<Vec<Interface>, Failure> {
        const MOST_INTERFACES: usize = 2048;
        let source = match source {
            AddressSource::Lease => 0,
            AddressSource::Agent => 1,
        };
        let procedure = Procedure::DomainInterfaceAddresses;
        let arguments = domain.arguments().u32(source).u32(0);
        self.read(procedure, &domain.name, arguments, |answer| {
            answer.list(MOST_INTERFACES, |item| {
                Ok(Interface {
                    name: item.text()?,
                    mac: item.optional()?,
                    addresses: item.list(MOST_INTERFACES, |address| {
                        let _family = address.i32()?;
                        let text = address.text()?;
                        let _prefix = address.u32()?;
                        Ok(text)
                    })?,
                })
            })
        })
        .await
    }

    /// Sets or, with `None`, removes a part of its metadata. `flags` of [`affect`]. After
    /// `last` it is not sent, as below.
    pub async fn set_metadata(
        &self,
        domain: &Domain,
        which: Metadata<'_>,
        text: Option<&str>,
        flags: u32,
        last: Instant,
    ) -> Result<(), Failure> {
        let procedure = Procedure::DomainSetMetadata;
        let arguments = domain
            .arguments()
            .i32(which.number())
            .optional(text)
            .optional(which.prefix())
            .optional(which.namespace())
            .u32(flags);
        self.change(procedure, &domain.name, arguments, last, |_| Ok(()))
            .await
    }

    /// Defines a domain. One with the same name and UUID gets this definition in the place of
    /// its own; with one of the two it is an error. `flags` of [`define`].
    pub async fn define(
        &self,
        name: &str,
        xml: &str,
        flags: u32,
        last: Instant,
    ) -> Result<Domain, Failure> {
        let procedure = Procedure::DomainDefineXmlFlags;
        let arguments = Writer::new().text(xml).u32(flags);
        self.change(procedure, name, arguments, last, Domain::read)
            .await
    }

    /// Starts it.
    pub async fn start(&self, domain: &Domain, last: Instant) -> Result<(), Failure> {
        self.power(Procedure::DomainCreateWithFlags, domain, 0, last)
            .await
    }

    /// Asks it to shut down; `flags` of [`shutdown`].
    pub async fn shut_down(
        &self,
        domain: &Domain,
        flags: u32,
        last: Instant,
    ) -> Result<(), Failure> {
        self.power(Procedure::DomainShutdownFlags, domain, flags, last)
            .await
    }

    /// Ends it.
    pub async fn destroy(&self, domain: &Domain, last: Instant) -> Result<(), Failure> {
        self.power(Procedure::DomainDestroyFlags, domain, 0, last)
            .await
    }

    /// Removes its definition; `flags` of [`undefine`].
    pub async fn undefine(
        &self,
        domain: &Domain,
        flags: u32,
        last: Instant,
    ) -> Result<(), Failure> {
        self.power(Procedure::DomainUndefineFlags, domain, flags, last)
            .await
    }

    /// Changes one device; `flags` of [`affect`] and [`device`].
    pub async fn update_device(
        &self,
        domain: &Domain,
        xml: &str,
        flags: u32,
        last: Instant,
    ) -> Result<(), Failure> {
        let procedure = Procedure::DomainUpdateDeviceFlags;
        let arguments = domain.arguments().text(xml).u32(flags);
        self.change(procedure, &domain.name, arguments, last, |_| Ok(()))
            .await
    }

    async fn power(
        &self,
        procedure: Procedure,
        domain: &Domain,
        flags: u32,
        last: Instant,
    ) -> Result<(), Failure> {
        let arguments = domain.arguments().u32(flags);
        self.change(procedure, &domain.name, arguments, last, |_| Ok(()))
            .await
    }
}

/// What people do to domains, for the test bench.
#[cfg(feature = "conformance")]
impl Session {
    /// Pauses it.
    pub async fn pause(&self, domain: &Domain, last: Instant) -> Result<(), Failure> {
        let procedure = Procedure::DomainSuspend;
        self.change(
            procedure,
            &domain.name,
            domain.arguments(),
            last,
            |_| Ok(()),
        )
        .await
    }
    /// Writes its memory to disk and ends it.
    pub async fn hibernate(&self, domain: &Domain, last: Instant) -> Result<(), Failure> {
        self.power(Procedure::DomainManagedSave, domain, 0, last)
            .await
    }
    /// Gives it another name; it must be off.
    pub async fn rename(&self, domain: &Domain, name: &str, last: Instant) -> Result<(), Failure> {
        let procedure = Procedure::DomainRename;
        let arguments = domain.arguments().optional(Some(name)).u32(0);
        self.change(procedure, &domain.name, arguments, last, |_| Ok(()))
            .await
    }
}
