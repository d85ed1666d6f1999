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

/// One provider's recent listings, as far as missing machines go.
#[derive(Debug, Default)]
pub struct PresenceWatch {
    last: Option<(Instant, usize, usize)>,
    agreeing: Vec<Instant>,
}

impl PresenceWatch {
    /// Judges whether too many of `expected` are missing, by a listing of at most 10 s ago.
    /// A listing that fails proves nothing: the answer stays as doubtful as it was, and doubt
    /// is the answer when there was none.
    pub async fn judge(&mut self, provider: &dyn Provider, expected: &[RecordedSlot]) -> Presence {
        let now = Instant::now();
        let fresh = self.last.filter(|(at, ..)| now.duration_since(*at) < FRESH);
        let (missing, of) = if let Some((_, missing, of)) = fresh {
            (missing, of)
        } else {
            let Ok(listing) = provider.list(expected).await else {
                self.agreeing.clear();
                let of = u32::try_from(expected.len()).unwrap_or(u32::MAX);
                return Presence::MassDisappearance { absent: of, of };
            };
            let there: HashSet<&MachineUid> =
                listing.machines.iter().map(|m| &m.mark.uid).collect();
            let missing = expected
                .iter()
                .filter(|r| !there.contains(r.key.uid()))
                .count();
            self.note(now, missing, expected.len());
            (missing, expected.len())
        };
        self.verdict(missing, of)
    }

    fn note(&mut self, now: Instant, missing: usize, of: usize) {
        if missing <= tolerated(of) {
            self.agreeing.clear();
        } else {
            // Keep the first and the newest ones: the span counts from the first.
            self.agreeing.push(now);
        }
        self.last = Some((now, missing, of));
    }

    fn verdict(&self, missing: usize, of: usize) -> Presence {
        let agreed = self.agreeing.len() >= AGREEING
            && self
                .agreeing
                .first()
                .zip(self.agreeing.last())
                .is_some_and(|(a, b)| *b - *a >= SPAN);
        if missing <= tolerated(of) || agreed {
            Presence::Normal
        } else {
            Presence::MassDisappearance {
                absent: u32::try_from(missing).unwrap_or(u32::MAX),
                of: u32::try_from(of).unwrap_or(u32::MAX),
            }
        }
    }
}
