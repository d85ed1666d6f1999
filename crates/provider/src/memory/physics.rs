//! How long things take.

use super::gate::RequestKind;
use std::time::Duration;

/// How long things take in a world. [`Physics::default`] is a brisk hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Physics {
    /// How long a clone runs.
    pub clone: Duration,
    /// How long an upload of a seed runs.
    pub upload: Duration,
    /// How long a start runs.
    pub start: Duration,
    /// How long a stop runs.
    pub stop: Duration,
    /// How long a destroy runs.
    pub destroy: Duration,
    /// From the end of a start until the agent reports addresses.
    pub boot_time: Duration,
    /// How long after it was sent a clone may begin whose answer was never delivered.
    pub birth_lag: Duration,
    /// How long the search by mark shows what was before. Reads at a slot are always strong.
    pub read_lag: Duration,
    /// The bound that the hypervisor promises for both lags; raised to their sum if below.
    pub settle: Duration,
    /// The hosts of the cluster; new machines come to the first one.
    pub hosts: Vec<String>,
}

impl Default for Physics {
    fn default() -> Self {
        Self {
            clone: Duration::from_secs(4),
            upload: Duration::from_secs(2),
            start: Duration::from_secs(1),
            stop: Duration::from_secs(1),
            destroy: Duration::from_secs(2),
            boot_time: Duration::from_secs(5),
            birth_lag: Duration::ZERO,
            read_lag: Duration::ZERO,
            settle: Duration::ZERO,
            hosts: vec!["host-1".to_owned(), "host-2".to_owned()],
        }
    }
}

impl Physics {
    /// Everything takes no time: each task has ended when the next request arrives.
    pub fn instant() -> Self {
        Self {
            clone: Duration::ZERO,
            upload: Duration::ZERO,
            start: Duration::ZERO,
            stop: Duration::ZERO,
            destroy: Duration::ZERO,
            boot_time: Duration::ZERO,
            ..Self::default()
        }
    }
    /// The name of a host, by its place.
    pub(super) fn host(&self, index: u8) -> &str {
        self.hosts.get(usize::from(index)).map_or("?", |host| host)
    }
    /// How long a task of this kind runs.
    pub const fn task_time(&self, kind: RequestKind) -> Duration {
        match kind {
            RequestKind::Clone => self.clone,
            RequestKind::Upload => self.upload,
            RequestKind::Start => self.start,
            RequestKind::Stop => self.stop,
            RequestKind::Destroy => self.destroy,
            RequestKind::Configure | RequestKind::Detach | RequestKind::DeleteSeed => {
                Duration::ZERO
            }
        }
    }
}
