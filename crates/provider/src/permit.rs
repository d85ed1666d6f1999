//! The right to change something, and the proof that it is ours.
//!
//! Both are asked right before a mutating request is written, not when a call begins: a
//! process that was frozen in between must find them expired.

use crate::{Error, Operation, Result};
use egress_core::{ErrorClass, Mark, Slot};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// The right of one call to change something, until a moment on this process's monotonic
/// clock. It comes from the leader's lease (standalone: from the store's lock).
#[derive(Debug)]
pub struct Permit {
    attempt: u32,
    not_after: Instant,
    creates: bool,
    create_spent: AtomicBool,
    may_leave: AtomicBool,
}

impl Permit {
    /// A permit for one call of one attempt.
    pub const fn new(attempt: u32, not_after: Instant) -> Self {
        Self {
            attempt,
            not_after,
            creates: true,
            create_spent: AtomicBool::new(false),
            may_leave: AtomicBool::new(false),
        }
    }
    /// The same for a machine that was seen: it sends nothing that brings one into being.
    #[must_use]
    pub const fn for_what_is_there(mut self) -> Self {
        self.creates = false;
        self
    }
    /// The attempt it was given for.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }
    /// When it expires: a request that is not written by then must not be.
    pub const fn not_after(&self) -> Instant {
        self.not_after
    }
    /// Whether it has not expired yet.
    pub fn is_good(&self) -> bool {
        Instant::now() < self.not_after
    }
    /// Ask right before writing a mutating request. Expired: send nothing (T3), `Transient`.
    pub fn ask(&self, operation: Operation, target: &str) -> Result<()> {
        if Instant::now() < self.not_after {
            return Ok(());
        }
        Err(Error::new(
            ErrorClass::Transient,
            operation,
            target,
            "the permit expired before the request was sent",
        ))
    }
    /// Whether the request that brings the machine into being was asked for: only then may a call
    /// whose outcome is unknown still make one.
    pub fn may_make(&self) -> bool {
        self.create_spent.load(Ordering::Relaxed)
    }
    /// Whether a request was asked for that leaves something beside a machine when it lands late.
    pub fn may_leave(&self) -> bool {
        self.may_leave.load(Ordering::Relaxed)
    }
    /// Ask right before writing a request that makes something beside the machine, as a seed:
    /// as [`ask`](Self::ask), and remembered by [`may_leave`](Self::may_leave).
    pub fn ask_leaving(&self, operation: Operation, target: &str) -> Result<()> {
        self.ask(operation, target)?;
        self.may_leave.store(true, Ordering::Relaxed);
        Ok(())
    }
    /// Ask right before writing the request that brings a machine into being: as
    /// [`ask`](Self::ask), and only once for each permit. `Busy`: the look that led to this call
    /// showed something there, and the next one decides.
    pub fn ask_creating(&self, operation: Operation, target: &str) -> Result<()> {
        self.ask(operation, target)?;
        if !self.creates {
            let said = "what was seen there is gone: it is looked at again before it is made anew";
            return Err(Error::new(ErrorClass::Busy, operation, target, said));
        }
        if self.create_spent.swap(true, Ordering::Relaxed) {
            return Err(Error::new(
                ErrorClass::Internal,
                operation,
                target,
                "one permit may send only one creating request",
            ));
        }
        Ok(())
    }
}

/// How long a proof of ownership may be used.
pub const PROOF_LIFETIME: Duration = Duration::from_secs(2);

/// Proof that the machine at a slot was ours a moment ago. A destructive request consumes it.
#[derive(Debug)]
pub struct Proof {
    slot: Slot,
    attempt: u32,
    seen: Instant,
}

impl Proof {
    /// Taken from a mark that [`whose`](egress_core::machine::whose) called ours. `seen` is
    /// when the request that showed it was sent.
    pub fn new(mark: &Mark, seen: Instant) -> Self {
        Self {
            slot: mark.slot.clone(),
            attempt: mark.attempt,
            seen,
        }
    }
    /// The attempt that the mark names.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }
    /// Gives the proof up for one destructive request at its slot. Older than
    /// [`PROOF_LIFETIME`]: `Busy`, look again. Answers the moment after which the request must
    /// not be written, for one that waits for a connection first.
    pub fn spend(self, operation: Operation, slot: &Slot) -> Result<Instant> {
        if self.slot != *slot {
            return Err(Error::new(
                ErrorClass::Internal,
                operation,
                slot.as_str(),
                format!("the proof of ownership is for {}", self.slot),
            ));
        }
        if self.seen.elapsed() > PROOF_LIFETIME {
            return Err(Error::new(
                ErrorClass::Busy,
                operation,
                slot.as_str(),
                "the proof of ownership is older than 2 s",
            ));
        }
        Ok(self.seen + PROOF_LIFETIME)
    }
}
