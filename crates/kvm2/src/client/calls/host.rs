//! The host itself.

use crate::client::{
    Failure, Session,
    procedure::Procedure,
    xdr::{Reader, Writer},
};

/// A host's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What is free or could be freed at once.
    pub available: u64,
}

impl Session {
    /// The hypervisor's version: 7002022 is 7.2.22.
    pub async fn hypervisor_version(&self) -> Result<u64, Failure> {
        self.read(Procedure::ConnectGetVersion, "", Writer::new(), |answer| {
            answer.u64()
        })
        .await
    }

    /// libvirt's version, in the same form.
    pub async fn libvirt_version(&self) -> Result<u64, Failure> {
        let procedure = Procedure::ConnectGetLibVersion;
        self.read(procedure, "", Writer::new(), |answer| answer.u64())
            .await
    }

    /// The host's name.
    pub async fn hostname(&self) -> Result<String, Failure> {
        let procedure = Procedure::ConnectGetHostname;
        self.read(procedure, "", Writer::new(), |answer| answer.text())
            .await
    }

    /// The host's UUID and what it runs, in XML.
    pub async fn capabilities(&self) -> Result<String, Failure> {
        let procedure = Procedure::ConnectGetCapabilities;
        self.read(procedure, "", Writer::new(), |answer| answer.text())
            .await
    }

    /// What domains of one architecture, machine and type can have, in XML. An error where it
    /// does not offer them.
    pub async fn domain_capabilities(
        &self,
        arch: &str,
        machine: &str,
        domain_type: &str,
    ) -> Result<String, Failure> {
        let arguments = Writer::new()
            .optional(None)
            .optional(Some(arch))
            .optional(Some(machine))
            .optional(Some(domain_type))
            .u32(0);
        let procedure = Procedure::ConnectGetDomainCapabilities;
        self.read(procedure, machine, arguments, |answer| answer.text())
            .await
    }

    /// Its memory.
    pub async fn memory(&self) -> Result<Memory, Failure> {
        const WHOLE_HOST: i32 = -1;
        let procedure = Procedure::NodeGetMemoryStats;
        let ask = |count: i32| Writer::new().i32(count).i32(WHOLE_HOST).u32(0);
        let stats = |answer: &mut Reader<'_>| {
            let stats = answer.list(16, |item| Ok((item.text()?, item.u64()?)))?;
            Ok((stats, answer.i32()?))
        };
        // It must be asked for as many as there are.
        let (_, count) = self.read(procedure, "", ask(0), stats).await?;
        let (stats, _) = self.read(procedure, "", ask(count), stats).await?;
        let kib = |name: &str| {
            let found = stats.iter().find(|(field, _)| field == name);
            found.map_or(0, |(_, value)| value.saturating_mul(1024))
        };
        Ok(Memory {
            total: kib("total"),
            available: kib("free")
                .saturating_add(kib("buffers"))
                .saturating_add(kib("cached")),
        })
    }
}
