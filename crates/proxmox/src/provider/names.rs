//! The names we give: the description with its mark, tags, seeds, and the choice of a VMID.

use crate::{client::Vmid, config::VmidRange};
use data_encoding::HEXLOWER;
use egress_core::{Installation, MachineKey, Mark, Slot};
use sha2::{Digest, Sha256};

/// The tag of every machine of the product, whatever its installation. Tags are case-folded,
/// so it has no capitals (F9).
pub(super) const PRODUCT_TAG: &str = "proxy_operator";

/// A line in the description of a machine whose seed was taken out: with a template that has
/// an empty CD drive itself, the drive alone could not tell.
const SEALED: &str = "egress-proxies: sealed";

/// Longer descriptions can be cloned and never be written again (pve-flow, F10).
pub(super) const LONGEST_DESCRIPTION: usize = 8192;

/// The first eight hex digits of SHA-256 of the installation's name.
fn installation_digits(installation: &Installation) -> String {
    HEXLOWER.encode(&Sha256::digest(installation.as_str())[..4])
}

/// The tag of this installation's machines.
pub(super) fn installation_tag(installation: &Installation) -> String {
    format!("px_{}", installation_digits(installation))
}

/// The description of a new machine: a sentence for people, and the mark.
pub(super) fn description(mark: &Mark) -> String {
    format!(
        "Egress proxy of {}, made by egress-proxies. Keep the next line: without it this \
         machine is left alone and its Proxy waits.\n\n{mark}",
        mark.proxy
    )
}

/// The same description, saying that the seed was taken out. `None` when it says so already
/// or would become too long.
pub(super) fn sealed_description(present: &str) -> Option<String> {
    if is_sealed(present) {
        return None;
    }
    let text = format!("{}\n\n{SEALED}", present.trim_end());
    (text.chars().count() <= LONGEST_DESCRIPTION).then_some(text)
}

/// Whether a description says that the seed was taken out.
pub(super) fn is_sealed(description: &str) -> bool {
    description.lines().any(|line| line.trim() == SEALED)
}

/// What the names of this installation's seeds begin with.
pub(super) fn seed_prefix(installation: &Installation) -> String {
    format!("px-{}-", installation_digits(installation))
}

/// The file name of an attempt's seed: a new one for each attempt, so that no upload ever
/// overwrites what another machine boots from (F12).
pub(crate) fn seed_file(installation: &Installation, key: &MachineKey, attempt: u32) -> String {
    format!("{}{}-{attempt}.iso", seed_prefix(installation), key.name())
}

/// The volume of a seed file, as Proxmox VE names it.
pub(super) fn iso_volume(storage: &str, file: &str) -> String {
    format!("{storage}:iso/{file}")
}

/// The machine that a seed of ours was made for, by the volume's name.
pub(super) fn machine_of_seed<'a>(volume: &'a str, prefix: &str) -> Option<&'a str> {
    let file = volume.rsplit(['/', ':']).next()?;
    let (machine, attempt) = file
        .strip_prefix(prefix)?
        .strip_suffix(".iso")?
        .rsplit_once('-')?;
    let whole = !attempt.is_empty() && attempt.bytes().all(|b| b.is_ascii_digit());
    (whole && is_machine_name(machine)).then_some(machine)
}

/// Whether a name is one that [`MachineKey`] makes: `proxy-` and 16 characters of base32.
pub(super) fn is_machine_name(name: &str) -> bool {
    name.strip_prefix("proxy-").is_some_and(|rest| {
        rest.len() == 16
            && rest
                .bytes()
                .all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b))
    })
}

/// The name that Proxmox VE shows for a machine whose name is not known (yet).
pub(super) fn is_placeholder(name: &str, vmid: Vmid) -> bool {
    name.strip_prefix("VM ")
        .is_some_and(|id| id == vmid.to_string())
}

/// The VMID that a slot is.
pub(super) fn vmid_of(slot: &Slot) -> Option<Vmid> {
    slot.as_str().parse().ok()
}

/// The slot that a VMID is.
pub(super) fn slot_of(vmid: Vmid) -> Slot {
    Slot::new(vmid.to_string())
}

/// Every VMID of a range, the key's own first choice first: the same order each time.
pub(super) fn candidates(range: VmidRange, key: &MachineKey) -> impl Iterator<Item = Vmid> + use<> {
    let count = range.count();
    let choice = key.spread(count);
    (0..count).filter_map(move |step| {
        let offset = u32::try_from((choice + step) % count).ok()?;
        Vmid::new(range.from.checked_add(offset)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use egress_core::{
        ClusterId, MachineUid,
        machine::{ConfigHash, MARK_PREFIX},
    };
    use std::collections::BTreeSet;

    fn key(uid: &str) -> MachineKey {
        MachineKey::new(uid.parse::<MachineUid>().unwrap())
    }

    fn mark() -> Mark {
        Mark {
            installation: "home-lab".parse().unwrap(),
            writer: None,
            provider: "pv1".parse().unwrap(),
            cluster: ClusterId::new("AA:BB"),
            slot: Slot::new("100042"),
            uid: "uid-1".parse().unwrap(),
            proxy: "default/a".parse().unwrap(),
            attempt: 3,
            config: ConfigHash::of(b"x"),
            written: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn the_mark_reads_back_from_the_description_sealed_or_not() {
        let text = description(&mark());
        assert_eq!(Mark::find(&text), Some(mark()));
        assert!(text.lines().last().unwrap().starts_with(MARK_PREFIX));
        assert!(!is_sealed(&text));
        let sealed = sealed_description(&format!("{text}\n \n")).unwrap();
        assert_eq!(Mark::find(&sealed), Some(mark()));
        assert!(is_sealed(&sealed));
        assert_eq!(sealed_description(&sealed), None);
    }

    #[test]
    fn the_longest_mark_can_be_written_and_a_full_description_is_left_alone() {
        let mut mark = mark();
        mark.proxy = format!(
            "{}/{}",
            "n".repeat(63),
            ["a".repeat(63).as_str(); 3].join(".")
        )
        .parse()
        .unwrap();
        assert!(description(&mark).chars().count() < LONGEST_DESCRIPTION / 4);
        assert_eq!(sealed_description(&"x".repeat(LONGEST_DESCRIPTION)), None);
    }

    #[test]
    fn a_seed_is_named_by_installation_machine_and_attempt_and_read_back() {
        let installation: Installation = "home-lab".parse().unwrap();
        let key = key("uid-1");
        let file = seed_file(&installation, &key, 12);
        let prefix = seed_prefix(&installation);
        assert!(
            file.starts_with("px-") && file.ends_with("-12.iso"),
            "{file}"
        );
        let volume = iso_volume("proxy-seeds", &file);
        assert_eq!(machine_of_seed(&volume, &prefix), Some(key.name()));
        let other = seed_prefix(&"another".parse().unwrap());
        assert_eq!(machine_of_seed(&volume, &other), None);
        for stranger in [
            "debian.iso",
            &format!("{prefix}notes.iso"),
            &format!("{prefix}proxy-a-1.iso"),
        ] {
            assert_eq!(
                machine_of_seed(&iso_volume("s", stranger), &prefix),
                None,
                "{stranger}"
            );
        }
    }

    #[test]
    fn candidates_are_the_same_for_the_same_key_and_cover_the_range_once() {
        let range = VmidRange { from: 100, to: 149 };
        let once: Vec<_> = candidates(range, &key("a")).collect();
        let again: Vec<_> = candidates(range, &key("a")).collect();
        assert_eq!(once, again);
        assert_eq!(once.iter().collect::<BTreeSet<_>>().len(), 50);
        assert!(once.iter().all(|vmid| range.contains(vmid.get())));
        assert_eq!(
            candidates(VmidRange { from: 2, to: 1 }, &key("a")).count(),
            0
        );
    }

    #[test]
    fn the_name_of_a_machine_that_is_not_known_yet_is_told_from_a_real_one() {
        let vmid = Vmid::new(161).unwrap();
        assert!(is_placeholder("VM 161", vmid));
        assert!(!is_placeholder("VM 162", vmid) && !is_placeholder("proxy-a", vmid));
        assert!(is_machine_name(key("a").name()));
        assert!(!is_machine_name("proxy-recon") && !is_machine_name("web"));
    }

    #[test]
    fn an_installation_has_one_tag_of_legal_characters() {
        let tag = installation_tag(&"home-lab".parse().unwrap());
        assert_eq!(tag.len(), 11);
        assert!(tag.starts_with("px_") && tag[3..].bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(tag, installation_tag(&"other".parse().unwrap()));
    }
}
