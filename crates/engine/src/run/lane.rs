//! Whose turn it is among the Proxies of one provider.

use egress_core::ProxyId;
use std::collections::VecDeque;

/// Passes of one provider.
#[derive(Default)]
pub(super) struct Lane {
    /// Those whose tasks run: who holds one of few places, as a clone does, gives it up only when
    /// it is looked at.
    pub(super) moving: VecDeque<ProxyId>,
    pub(super) waiting: VecDeque<ProxyId>,
    /// Whose turn is next, while there are both.
    waiting_is_next: bool,
    pub(super) running: usize,
}

impl Lane {
    /// The next one, by turns of both kinds: neither starves the other.
    pub(super) fn next(&mut self) -> Option<ProxyId> {
        self.waiting_is_next = !self.waiting_is_next && !self.waiting.is_empty();
        let (first, second) = if self.waiting_is_next {
            (&mut self.waiting, &mut self.moving)
        } else {
            (&mut self.moving, &mut self.waiting)
        };
        first.pop_front().or_else(|| second.pop_front())
    }
}
