//! On which host a new machine is made. Pure: candidates in, a choice out.

/// A host that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its place in the configuration.
    pub(super) host: usize,
    /// What it has free for machines beyond the reserve, in bytes.
    pub(super) memory: u64,
    /// How many machines of ours it has.
    pub(super) machines: usize,
    /// Whether a domain of someone else has the new machine's name there.
    pub(super) has_namesake: bool,
}

/// The host with the fewest machines of ours among those with enough memory; where that is
/// equal the one with more memory, then as configured. One where the name is taken is the last
/// choice: nothing can be made there before someone has made room. `needed` is in bytes.
pub(super) fn choose(candidates: &[Candidate], needed: u64) -> Option<usize> {
    candidates
        .iter()
        .filter(|candidate| candidate.memory >= needed)
        .min_by_key(|candidate| {
            let more_first = std::cmp::Reverse(candidate.memory);
            let Candidate { machines, host, .. } = *candidate;
            (candidate.has_namesake, machines, more_first, host)
        })
        .map(|candidate| candidate.host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_with_the_fewest_of_ours_and_room_takes_the_next() {
        let host = |host, machines, memory| Candidate {
            host,
            memory,
            machines,
            has_namesake: false,
        };
        let hosts = [host(0, 2, 9), host(1, 1, 2), host(2, 2, 10)];
        assert_eq!(choose(&hosts, 1), Some(1));
        assert_eq!(choose(&hosts, 3), Some(2));
        assert_eq!(choose(&hosts, 11), None);
        assert_eq!(choose(&[host(0, 1, 5), host(1, 1, 5)], 5), Some(0));
        assert_eq!(choose(&[], 0), None);
        let mut taken = host(0, 0, 9);
        taken.has_namesake = true;
        assert_eq!(choose(&[taken.clone(), host(1, 5, 9)], 1), Some(1));
        assert_eq!(choose(&[taken], 1), Some(0));
    }
}
