//! How a case, or a step of it, ends.

use super::Refusal;
use crate::{Error, Result};
use egress_core::ErrorClass;
use std::fmt;

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The provider broke the rule, or the bench stumbled.
    Failed(String),
    /// The case could not be run here.
    NotRun(String),
}

/// What a case, or a step of it, comes to.
pub type Verdict<T = ()> = std::result::Result<T, Miss>;

impl From<Refusal> for Miss {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotOffered(_) => Self::NotRun(refusal.to_string()),
            Refusal::Stumbled(_) => Self::Failed(refusal.to_string()),
        }
    }
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Failed(format!(
            "{} where no error was due: {}",
            error.class(),
            error.chain()
        ))
    }
}

/// Fails the case with a sentence unless the condition holds.
macro_rules! require {
    ($holds:expr, $($sentence:tt)+) => {
        if !$holds {
            return Err($crate::conformance::verdict::Miss::Failed(format!($($sentence)+)));
        }
    };
}
pub(super) use require;

/// Whether the same call may be made again by itself.
pub(super) fn may_repeat(error: &Error) -> bool {
    matches!(
        error.class(),
        ErrorClass::Busy | ErrorClass::Transient | ErrorClass::OutcomeUnknown
    )
}

/// The error of a call that must fail.
pub(super) fn refused<T: fmt::Debug>(what: &str, result: Result<T>) -> Verdict<Error> {
    match result {
        Err(error) => Ok(error),
        Ok(answer) => Err(Miss::Failed(format!(
            "{what} answered {answer:?} instead of an error"
        ))),
    }
}

/// The error of a call that must fail with one of these classes.
pub(super) fn refused_as<T: fmt::Debug>(
    what: &str,
    result: Result<T>,
    classes: &[ErrorClass],
) -> Verdict<Error> {
    let error = refused(what, result)?;
    require!(
        classes.contains(&error.class()),
        "{what} was refused as {}, not as one of {classes:?}: {}",
        error.class(),
        error.chain()
    );
    Ok(error)
}

/// Polls a call at most so many times; `None` when it has not ended by then.
pub(super) async fn poll_at_most<F: Future + Unpin>(
    call: &mut F,
    polls: usize,
) -> Option<F::Output> {
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        match std::pin::Pin::new(&mut *call).poll(cx) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => std::task::Poll::Pending,
        }
    })
    .await
}
