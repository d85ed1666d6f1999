//! What is waited for, in the words that people read in the status.

use super::tasks::{CLONE, DELETE_SEED, DESTROY, RESIZE, START, STOP, UPLOAD};
use crate::client::Lock;

/// Of a task that runs; any other text is the wait's own and stays as it is.
pub(super) fn told(step: &str) -> &str {
    match step {
        CLONE => "the template is being cloned",
        UPLOAD => "its seed is being uploaded",
        RESIZE => "its disk is being grown",
        START => "it is being started",
        STOP => "it is being stopped, which takes over a minute where its guest hangs",
        DESTROY => "it is being destroyed",
        DELETE_SEED => "its seed is being deleted",
        own => own,
    }
}

/// Of a lock that someone else's work holds.
pub(super) fn lock(lock: &Lock) -> String {
    format!("it waits until the lock ({lock}) on it is lifted")
}

/// Of a state of QEMU that passes.
pub(super) fn power(word: &str) -> String {
    format!("it waits until QEMU has passed the state `{word}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_told_in_a_sentence() {
        for step in [CLONE, UPLOAD, RESIZE, START, STOP, DESTROY, DELETE_SEED] {
            assert!(told(step).contains(" is being "), "{step}");
        }
        assert_eq!(told("something else"), "something else");
        let waits = "it waits until the lock (backup) on it is lifted";
        assert_eq!(lock(&Lock::Backup), waits);
    }
}
