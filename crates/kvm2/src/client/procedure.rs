//! Every procedure this client can call, by its number in libvirt's public protocol
//! (`remote_protocol.x` of 9.0; numbers are never reused).

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $number:literal $effect:ident),* $(,)?) => {
        /// A procedure of libvirt.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Procedure { $($(#[$doc])* $name),* }
        impl Procedure {
            /// Every procedure.
            pub const ALL: &[Self] = &[$(Self::$name),*];
            /// Its number.
            pub const fn number(self) -> u32 {
                match self { $(Self::$name => $number),* }
            }
            /// Whether it only looks, or changes something.
            pub const fn effect(self) -> Effect {
                match self { $(Self::$name => Effect::$effect),* }
            }
            /// Its name, for people and logs.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

/// Whether a procedure changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only looks.
    Reads,
    /// It changes something: sent once, on a connection of its own.
    Changes,
}

procedures! {
    /// Which ways to authenticate the server wants; always asked first.
    AuthList = 66 Reads,
    /// Asks the host's polkit whether this user may.
    AuthPolkit = 70 Reads,
    /// Opens a driver by its URI.
    ConnectOpen = 1 Reads,
    /// The hypervisor's version.
    ConnectGetVersion = 4 Reads,
    /// libvirt's version.
    ConnectGetLibVersion = 157 Reads,
    /// The host's name.
    ConnectGetHostname = 59 Reads,
    /// The host's UUID and what it can run, in XML.
    ConnectGetCapabilities = 7 Reads,
    /// What domains of one type and machine can have, in XML.
    ConnectGetDomainCapabilities = 342 Reads,
    /// What of the memory is free, and what could be.
    NodeGetMemoryStats = 228 Reads,
    /// Every domain.
    ConnectListAllDomains = 273 Reads,
    /// A domain by its UUID.
    DomainLookupByUuid = 24 Reads,
    /// A domain by its name.
    DomainLookupByName = 23 Reads,
    /// A domain's description.
    DomainGetXmlDesc = 14 Reads,
    /// Its power and why.
    DomainGetState = 212 Reads,
    /// Whether its memory lies on disk.
    DomainHasManagedSaveImage = 183 Reads,
    /// The job that works on it.
    DomainGetJobInfo = 163 Reads,
    /// Its title or an element of its metadata.
    DomainGetMetadata = 265 Reads,
    /// Its addresses, as its agent or the network's leases tell them.
    DomainInterfaceAddresses = 353 Reads,
    /// Sets title or metadata.
    DomainSetMetadata = 264 Changes,
    /// Defines a domain, or replaces the definition of the one with its name and UUID.
    DomainDefineXmlFlags = 350 Changes,
    /// Starts a domain.
    DomainCreateWithFlags = 196 Changes,
    /// Asks a domain to shut down.
    DomainShutdownFlags = 258 Changes,
    /// Ends a domain.
    DomainDestroyFlags = 234 Changes,
    /// Removes a domain's definition.
    DomainUndefineFlags = 231 Changes,
    /// Changes one device of a domain.
    DomainUpdateDeviceFlags = 174 Changes,
    /// Pauses a domain.
    DomainSuspend = 34 Changes,
    /// Writes a domain's memory to disk and ends it.
    DomainManagedSave = 182 Changes,
    /// Gives a domain that is off another name.
    DomainRename = 358 Changes,
    /// A storage pool by its name.
    StoragePoolLookupByName = 84 Reads,
    /// A pool's state and room.
    StoragePoolGetInfo = 87 Reads,
    /// A pool's description.
    StoragePoolGetXmlDesc = 88 Reads,
    /// Every volume of a pool.
    StoragePoolListAllVolumes = 282 Reads,
    /// Has a pool look at its directory anew: nothing there is changed.
    StoragePoolRefresh = 83 Reads,
    /// A volume by its name.
    StorageVolLookupByName = 95 Reads,
    /// A volume's size.
    StorageVolGetInfo = 98 Reads,
    /// A volume's description.
    StorageVolGetXmlDesc = 99 Reads,
    /// Makes a volume.
    StorageVolCreateXml = 93 Changes,
    /// Writes into a volume.
    StorageVolUpload = 208 Changes,
    /// Reads from a volume.
    StorageVolDownload = 209 Reads,
    /// Deletes a volume.
    StorageVolDelete = 94 Changes,
    /// A network by its name.
    NetworkLookupByName = 46 Reads,
    /// Whether a network is up.
    NetworkIsActive = 152 Reads,
    /// The leases that a network gave.
    NetworkGetDhcpLeases = 341 Reads,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_procedure_has_a_number_of_its_own() {
        let numbers: BTreeSet<_> = Procedure::ALL.iter().map(|p| p.number()).collect();
        assert_eq!(numbers.len(), Procedure::ALL.len());
    }
}
