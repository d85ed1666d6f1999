//! When a missing manifest means deletion. Pure: scans and moments in, decisions out.

use egress_core::ProxyId;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The least time between the two scans that must both lack a Proxy.
pub const BETWEEN_SCANS: Duration = Duration::from_secs(1);

/// What is known to be missing, and since when.
#[derive(Debug, Default)]
pub struct Absence {
    missing: BTreeMap<ProxyId, Duration>,
    /// Were among too many at once: that others of them came back proves nothing of these.
    guarded: BTreeSet<ProxyId>,
    pruned: BTreeSet<ProxyId>,
}

/// What a scan means for those it lacks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Delete these now.
    pub delete: Vec<ProxyId>,
    /// These wait for a second scan.
    pub unconfirmed: Vec<ProxyId>,
    /// These wait for `prune`: too many are missing at once.
    pub guarded: Vec<ProxyId>,
}

impl Absence {
    /// Judges a complete scan. `known` are all Proxies that are not being deleted already; for
    /// `unrecorded` ones among the missing nothing was ever made, and nothing can be lost.
    pub fn judge(
        &mut self,
        known: &BTreeSet<ProxyId>,
        declared: &BTreeSet<ProxyId>,
        unrecorded: &BTreeSet<ProxyId>,
        now: Duration,
    ) -> Verdict {
        self.missing
            .retain(|id, _| known.contains(id) && !declared.contains(id));
        for ids in [&mut self.guarded, &mut self.pruned] {
            ids.retain(|id| known.contains(id) && !declared.contains(id));
        }
        let mut verdict = Verdict::default();
        for id in known.difference(declared) {
            let first = *self.missing.entry(id.clone()).or_insert(now);
            if now.saturating_sub(first) < BETWEEN_SCANS {
                verdict.unconfirmed.push(id.clone());
            } else {
                verdict.delete.push(id.clone());
            }
        }
        // More than half of them, or the last one: as likely an accident as a wish.
        let lost = self.missing.keys().filter(|id| !unrecorded.contains(id));
        let lost: Vec<ProxyId> = lost.cloned().collect();
        if lost.len() * 2 > known.len() - unrecorded.len() {
            self.guarded.extend(lost);
        }
        (verdict.guarded, verdict.delete) = verdict
            .delete
            .into_iter()
            .partition(|id| self.guarded.contains(id) && !self.pruned.contains(id));
        verdict
    }

    /// The user's word: those missing now may be deleted. Answers with their names.
    pub fn prune(&mut self) -> Vec<ProxyId> {
        self.pruned = self.missing.keys().cloned().collect();
        self.pruned.iter().cloned().collect()
    }

    /// Deletion began: no longer missing.
    pub fn forget(&mut self, id: &ProxyId) {
        self.missing.remove(id);
        self.guarded.remove(id);
        self.pruned.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<ProxyId> {
        names
            .iter()
            .map(|n| ProxyId::new("default", n).expect("legal"))
            .collect()
    }
    fn judge(
        absence: &mut Absence,
        known: &BTreeSet<ProxyId>,
        declared: &BTreeSet<ProxyId>,
        now: Duration,
    ) -> Verdict {
        absence.judge(known, declared, &BTreeSet::new(), now)
    }
    const fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn one_of_three_is_deleted_by_the_second_scan() {
        let mut absence = Absence::default();
        let known = ids(&["a", "b", "c"]);
        let first = judge(&mut absence, &known, &ids(&["a", "b"]), at(5));
        assert_eq!((first.delete.len(), first.unconfirmed.len()), (0, 1));
        let second = judge(&mut absence, &known, &ids(&["a", "b"]), at(6));
        assert_eq!(second.delete, ids(&["c"]).into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn two_scans_at_once_count_as_one() {
        let mut absence = Absence::default();
        let known = ids(&["a", "b", "c"]);
        judge(&mut absence, &known, &ids(&["a", "b"]), at(5));
        let again = judge(
            &mut absence,
            &known,
            &ids(&["a", "b"]),
            Duration::from_millis(5_900),
        );
        assert_eq!((again.delete.len(), again.unconfirmed.len()), (0, 1));
    }

    #[test]
    fn a_manifest_that_comes_back_begins_anew() {
        let mut absence = Absence::default();
        let known = ids(&["a", "b", "c"]);
        judge(&mut absence, &known, &ids(&["a", "b"]), at(5));
        judge(&mut absence, &known, &known, at(6));
        let later = judge(&mut absence, &known, &ids(&["a", "b"]), at(7));
        assert_eq!((later.delete.len(), later.unconfirmed.len()), (0, 1));
    }

    #[test]
    fn what_was_never_made_neither_waits_for_prune_nor_makes_others_wait() {
        let mut absence = Absence::default();
        let known = ids(&["a", "b", "c", "d", "e"]);
        let (declared, faulty) = (ids(&["a", "b"]), ids(&["c", "d", "e"]));
        absence.judge(&known, &declared, &faulty, at(5));
        let verdict = absence.judge(&known, &declared, &faulty, at(10));
        assert_eq!((verdict.delete.len(), verdict.guarded.len()), (3, 0));

        // Of two that were made both are missing, and one that was not.
        let known = ids(&["a", "b", "c"]);
        let mut absence = Absence::default();
        absence.judge(&known, &ids(&[]), &ids(&["c"]), at(5));
        let verdict = absence.judge(&known, &ids(&[]), &ids(&["c"]), at(10));
        assert_eq!((verdict.delete.len(), verdict.guarded.len()), (1, 2));
    }

    #[test]
    fn more_than_half_or_the_last_one_waits_for_prune() {
        for (known, declared, guarded) in [
            (ids(&["a"]), ids(&[]), 1),
            (ids(&["a", "b"]), ids(&["a"]), 0),
            (ids(&["a", "b", "c"]), ids(&["a"]), 2),
            (ids(&["a", "b", "c", "d"]), ids(&["a", "b"]), 0),
        ] {
            let mut absence = Absence::default();
            judge(&mut absence, &known, &declared, at(5));
            let verdict = judge(&mut absence, &known, &declared, at(10));
            assert_eq!(verdict.guarded.len(), guarded, "{known:?} {declared:?}");
            let pruned = absence.prune();
            let after = judge(&mut absence, &known, &declared, at(11));
            assert_eq!(after.delete, pruned, "{known:?} {declared:?}");
            assert_eq!(after.guarded, vec![], "{known:?} {declared:?}");
        }
    }

    #[test]
    fn what_was_among_too_many_waits_though_the_others_come_back() {
        let mut absence = Absence::default();
        let known = ids(&["a", "b", "c"]);
        judge(&mut absence, &known, &ids(&["c"]), at(1));
        assert_eq!(
            judge(&mut absence, &known, &ids(&["c"]), at(3))
                .guarded
                .len(),
            2
        );
        let one_is_back = judge(&mut absence, &known, &ids(&["b", "c"]), at(5));
        assert_eq!(one_is_back.delete, vec![]);
        assert_eq!(one_is_back.guarded, Vec::from_iter(ids(&["a"])));
        // Seen again and gone once more it is one of three.
        judge(&mut absence, &known, &known, at(6));
        judge(&mut absence, &known, &ids(&["b", "c"]), at(7));
        let later = judge(&mut absence, &known, &ids(&["b", "c"]), at(9));
        assert_eq!(later.delete, Vec::from_iter(ids(&["a"])));
    }

    #[test]
    fn prune_speaks_only_of_what_was_missing_then() {
        let mut absence = Absence::default();
        let known = ids(&["a", "b", "c"]);
        judge(&mut absence, &known, &ids(&["b", "c"]), at(1));
        absence.prune();
        judge(&mut absence, &known, &ids(&["c"]), at(2));
        let verdict = judge(&mut absence, &known, &ids(&["c"]), at(4));
        assert_eq!(verdict.delete, ids(&["a"]).into_iter().collect::<Vec<_>>());
        assert_eq!(verdict.guarded, ids(&["b"]).into_iter().collect::<Vec<_>>());
    }
}
