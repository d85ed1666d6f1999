//! Answers that depend on what is still to come, found by letting a copy of the world run on.

use super::World;
use std::time::Duration;

impl World {
    /// How a task will have ended within so many seconds, and how long that takes: a call
    /// that waits for its task. `None` when it still runs then.
    pub(super) fn foresee_end(&self, upid: &str, seconds: f64) -> (Option<String>, Duration) {
        let limit = self.now + self.pace.of(seconds);
        let usual = self.pace.of(self.pace.t.mutation);
        let mut ahead = self.clone();
        loop {
            if let Some(exit) = ahead.exit_of(upid) {
                let took = ahead.now.saturating_sub(self.now);
                return (Some(exit), took + usual);
            }
            match ahead.next_event() {
                Some(at) if at <= limit => ahead.advance(at),
                _ => return (None, limit.saturating_sub(self.now)),
            }
        }
    }

    /// When a machine's lock file will be free, at most so many seconds from now.
    pub(super) fn foresee_free(&self, node: &str, vmid: u32, seconds: f64) -> Option<Duration> {
        let limit = self.now + self.pace.of(seconds);
        let mut ahead = self.clone();
        while !ahead.machine_is_free(node, vmid) {
            let held = ahead.free_at(&Self::machine_lock(node, vmid));
            let next = ahead
                .next_event()
                .into_iter()
                .chain((held > ahead.now).then_some(held))
                .min();
            match next {
                Some(at) if at <= limit => ahead.advance(at),
                _ => return None,
            }
        }
        Some(ahead.now)
    }
}
