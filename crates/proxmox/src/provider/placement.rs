//! On which node a new machine is made (rule 17). Pure: candidates in, a choice out.

/// A node that could take the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its name.
    pub(super) node: String,
    /// Whether it answers and takes part in the cluster.
    pub(super) online: bool,
    /// Memory and how much of it is used, in bytes; `None` without Sys.Audit.
    pub(super) memory: Option<Memory>,
    /// How many machines of our range it has, those being cloned included.
    pub(super) machines: usize,
}

/// A node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) used: u64,
}

/// Why no node can take the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoNode {
    /// No candidate is online: named for people.
    Offline(Vec<String>),
    /// All that are online are too full: named for people.
    Full(Vec<String>),
}

/// The node with the fewest machines of ours among those with enough memory; by name where
/// that is equal. `needed` is the new machine's memory and the reserve, in bytes.
pub(super) fn choose(candidates: &[Candidate], needed: u64) -> Result<&Candidate, NoNode> {
    let online: Vec<_> = candidates.iter().filter(|c| c.online).collect();
    if online.is_empty() {
        return Err(NoNode::Offline(names(candidates.iter())));
    }
    online
        .iter()
        .filter(|candidate| {
            candidate
                .memory
                .is_none_or(|memory| memory.total.saturating_sub(memory.used) >= needed)
        })
        .min_by(|a, b| (a.machines, &a.node).cmp(&(b.machines, &b.node)))
        .copied()
        .ok_or_else(|| NoNode::Full(names(online.iter().copied())))
}

fn names<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Vec<String> {
    candidates.map(|candidate| candidate.node.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn node(name: &str, machines: usize, free: Option<u64>) -> Candidate {
        Candidate {
            node: name.to_owned(),
            online: true,
            memory: free.map(|free| Memory {
                total: 64 * GIB,
                used: 64 * GIB - free,
            }),
            machines,
        }
    }

    fn chosen(candidates: &[Candidate], needed: u64) -> String {
        choose(candidates, needed).unwrap().node.clone()
    }

    #[test]
    fn the_node_with_the_fewest_of_ours_takes_the_next() {
        let nodes = [
            node("b", 2, Some(9 * GIB)),
            node("a", 2, Some(9 * GIB)),
            node("c", 1, Some(2 * GIB)),
        ];
        assert_eq!(chosen(&nodes, GIB), "c");
        assert_eq!(chosen(&nodes, 3 * GIB), "a");
        assert_eq!(chosen(&[node("b", 3, None), node("a", 4, None)], GIB), "b");
    }

    #[test]
    fn full_and_offline_nodes_are_told_apart() {
        let mut down = node("a", 0, Some(9 * GIB));
        down.online = false;
        assert_eq!(
            choose(&[down.clone()], GIB),
            Err(NoNode::Offline(vec!["a".into()]))
        );
        let full = node("b", 0, Some(GIB));
        assert_eq!(
            choose(&[down, full], 2 * GIB),
            Err(NoNode::Full(vec!["b".into()]))
        );
    }
}
