//! Mass disappearance (E5): when many machines of one provider are missing at once, the
//! provider's view is doubted before anything is made anew.

use egress_core::{MachineUid, proxy::Presence};
use egress_provider::{Provider, RecordedSlot};
use std::{collections::HashSet, time::Duration};
use tokio::time::Instant;

/// Listings that must agree before machines are made anew.
const AGREEING: usize = 3;
/// Over at least so long.
const SPAN: Duration = Duration::from_mins(1);
/// A listing younger than this answers for every key that asks.
const FRESH: Duration = Duration::from_secs(10);

/// How many machines may be missing before a provider's view is doubted.
pub fn tolerated(of: usize) -> usize {
    (of / 5).max(2)
}

/// One listing, as far as missing machines go.
#[derive(Clone, Copy, Debug)]
struct Counted {
    missing: usize,
    of: usize,
    /// Whether the listing was answered; one that failed misses everything.
    answered: bool,
}

/// How long after a listing another one may agree with it. In between nobody missed a machine
/// any more, or nobody looked.
const GOING: Duration = SPAN.saturating_mul(5);

/// Listings in a row that miss too many.
#[derive(Clone, Copy, Debug)]
struct Agreement {
    first: Instant,
    last: Instant,
    listings: usize,
}

/// One provider's recent listings, as far as missing machines go.
#[derive(Debug, Default)]
pub struct PresenceWatch {
    last: Option<(Instant, Counted)>,
    agreeing: Option<Agreement>,
}

impl PresenceWatch {
    /// Judges whether too many of `expected` are missing, by a listing of at most 10 s ago.
    /// A listing that fails proves nothing: what agreed before it no longer counts, and doubt
    /// is the answer.
    pub async fn judge(&mut self, provider: &dyn Provider, expected: &[RecordedSlot]) -> Presence {
        let fresh = self.last.filter(|(at, _)| at.elapsed() < FRESH);
        let counted = if let Some((_, counted)) = fresh {
            counted
        } else {
            let counted = count(provider, expected).await;
            self.note(Instant::now(), counted);
            counted
        };
        self.verdict(counted)
    }

    fn note(&mut self, now: Instant, counted: Counted) {
        self.last = Some((now, counted));
        self.agreeing = (counted.answered && counted.missing > tolerated(counted.of)).then(|| {
            let going = self.agreeing.filter(|a| now - a.last <= GOING);
            let before = going.map_or((now, 0), |a| (a.first, a.listings));
            Agreement {
                first: before.0,
                last: now,
                listings: before.1 + 1,
            }
        });
    }

    fn verdict(&self, counted: Counted) -> Presence {
        let agreed = self
            .agreeing
            .is_some_and(|a| a.listings >= AGREEING && a.last - a.first >= SPAN);
        let few = counted.answered && counted.missing <= tolerated(counted.of);
        if few || agreed {
            Presence::Normal
        } else {
            Presence::MassDisappearance {
                absent: u32::try_from(counted.missing).unwrap_or(u32::MAX),
                of: u32::try_from(counted.of).unwrap_or(u32::MAX),
            }
        }
    }
}

async fn count(provider: &dyn Provider, expected: &[RecordedSlot]) -> Counted {
    let of = expected.len();
    let Ok(listing) = provider.list(expected).await else {
        return Counted {
            missing: of,
            of,
            answered: false,
        };
    };
    let there: HashSet<&MachineUid> = listing.machines.iter().map(|m| &m.mark.uid).collect();
    let missing = expected
        .iter()
        .filter(|r| !there.contains(r.key.uid()))
        .count();
    Counted {
        missing,
        of,
        answered: true,
    }
}

#[cfg(test)]
mod tests;
