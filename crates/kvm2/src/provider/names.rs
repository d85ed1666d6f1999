//! The names we give: a domain's UUID, volumes by key and attempt, a fresh MAC.

use data_encoding::HEXLOWER;
use egress_core::{Installation, MachineKey, ProviderName, Slot};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The UUIDv5 namespace of domains. Fixed for ever: another value would look for each machine
/// in another place.
const DOMAINS: Uuid = Uuid::from_u128(0x3c0f_51d2_9b67_4e0e_8a54_6d1f_07c2_5b99);

/// How many places one attempt of a key has: the first one is free but for a person's domain
/// with that very UUID.
const PLACES: u32 = 64;

/// The places of an attempt, the first choice first: the same order each time.
pub(super) fn candidates(key: &MachineKey, attempt: u32) -> impl Iterator<Item = Uuid> {
    (0..PLACES).map(move |place| {
        let text = format!("{}/{attempt}/{place}", key.uid().as_str());
        Uuid::new_v5(&DOMAINS, text.as_bytes())
    })
}

/// The UUID that a slot is.
pub(crate) fn uuid_of(slot: &Slot) -> Option<Uuid> {
    let uuid: Uuid = slot.as_str().parse().ok()?;
    // Only one text of it is a slot.
    (uuid.to_string() == slot.as_str()).then_some(uuid)
}

/// The slot that a UUID is.
pub(super) fn slot_of(uuid: Uuid) -> Slot {
    Slot::new(uuid.to_string())
}

/// A MAC that no machine had before, so that no old lease speaks of it.
pub(super) fn fresh_mac() -> String {
    let random = Uuid::new_v4();
    let [a, b, c, d, ..] = random.into_bytes();
    // 52:54 is locally administered, and what people know QEMU by.
    format!("52:54:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// What the names of all volumes of one provider of one installation begin with.
pub(crate) fn volume_prefix(installation: &Installation, provider: &ProviderName) -> String {
    let text = format!("{installation}/{provider}");
    let digits = HEXLOWER.encode(&Sha256::digest(text)[..4]);
    format!("px-{digits}-")
}

/// What a volume of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VolumeKind {
    /// A machine's disk.
    Disk,
    /// A machine's seed.
    Seed,
}

impl VolumeKind {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Disk => ".qcow2",
            Self::Seed => ".iso",
        }
    }
}

/// The name of a volume of an attempt.
pub(crate) fn volume_name(prefix: &str, machine: &str, attempt: u32, kind: VolumeKind) -> String {
    format!("{prefix}{machine}-{attempt}{}", kind.suffix())
}

/// A volume of ours, as its name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnVolume<'a> {
    pub(super) machine: &'a str,
    pub(super) attempt: u32,
    pub(super) kind: VolumeKind,
}

/// Reads a volume's name; `None` for whatever is not ours to the last letter.
pub(super) fn own_volume<'a>(name: &'a str, prefix: &str) -> Option<OwnVolume<'a>> {
    let rest = name.strip_prefix(prefix)?;
    let kinds = [VolumeKind::Disk, VolumeKind::Seed];
    let (stem, kind) = kinds
        .into_iter()
        .find_map(|kind| Some((rest.strip_suffix(kind.suffix())?, kind)))?;
    let (machine, digits) = stem.rsplit_once('-')?;
    let attempt: u32 = digits.parse().ok()?;
    let canonical = attempt.to_string() == digits && is_machine_name(machine);
    canonical.then_some(OwnVolume {
        machine,
        attempt,
        kind,
    })
}

/// Whether a name is one that [`MachineKey`] makes: `proxy-` and 16 characters of base32.
fn is_machine_name(name: &str) -> bool {
    name.strip_prefix("proxy-").is_some_and(|rest| {
        rest.len() == 16
            && rest
                .bytes()
                .all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn key(uid: &str) -> MachineKey {
        MachineKey::new(uid.parse().unwrap())
    }

    #[test]
    fn an_attempt_has_the_same_places_each_time_and_no_other_attempt_has_them() {
        let places: Vec<_> = candidates(&key("a"), 1).collect();
        assert_eq!(places, candidates(&key("a"), 1).collect::<Vec<_>>());
        // Written down here: another value would lose every machine.
        assert_eq!(
            places[0].to_string(),
            "c83e0272-03fd-59d1-aa5d-c62cc1d0ef2c"
        );
        let all: BTreeSet<_> = [("a", 1), ("a", 2), ("b", 1)]
            .into_iter()
            .flat_map(|(uid, attempt)| candidates(&key(uid), attempt).collect::<Vec<_>>())
            .collect();
        assert_eq!(all.len(), 3 * PLACES as usize);
    }

    #[test]
    fn a_slot_reads_back_and_no_other_text_is_one() {
        let uuid = candidates(&key("a"), 1).next().unwrap();
        assert_eq!(uuid_of(&slot_of(uuid)), Some(uuid));
        let capitals = Slot::new(uuid.to_string().to_uppercase());
        assert_eq!(uuid_of(&capitals), None);
        assert_eq!(uuid_of(&Slot::new("100017")), None);
    }

    #[test]
    fn a_mac_is_locally_administered_and_another_one_each_time() {
        let (one, two) = (fresh_mac(), fresh_mac());
        assert_ne!(one, two);
        assert!(one.starts_with("52:54:") && one.len() == 17, "{one}");
    }

    #[test]
    fn volumes_are_named_by_installation_provider_machine_and_attempt_and_read_back() {
        let installation: Installation = "home-lab".parse().unwrap();
        let prefix = volume_prefix(&installation, &"kvm-a".parse().unwrap());
        let key = key("a");
        for kind in [VolumeKind::Disk, VolumeKind::Seed] {
            let name = volume_name(&prefix, key.name(), 12, kind);
            let read = own_volume(&name, &prefix).unwrap();
            let told = (read.machine, read.attempt, read.kind);
            assert_eq!(told, (key.name(), 12, kind));
            let other = volume_prefix(&installation, &"kvm-b".parse().unwrap());
            assert_eq!(own_volume(&name, &other), None);
        }
        let name = key.name();
        for stranger in [
            "debian-13.qcow2".to_owned(),
            format!("{prefix}notes.iso"),
            format!("{prefix}{name}-01.iso"),
            format!("{prefix}{name}-1.qcow2.bak"),
            format!("{prefix}{name}-1.img"),
            format!("{prefix}proxy-short-1.iso"),
            format!("x{prefix}{name}-1.iso"),
        ] {
            assert_eq!(own_volume(&stranger, &prefix), None, "{stranger}");
        }
    }
}
