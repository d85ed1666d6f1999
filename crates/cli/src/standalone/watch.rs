//! Wakes the keeper when a watched file changes. Watching is only for speed: everything is
//! looked at again every ten seconds, since some mounts tell of no change.

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::{path::Path, sync::Arc};
use tokio::sync::Notify;

/// A watch; it ends when dropped.
pub struct Watch {
    watcher: Option<RecommendedWatcher>,
    changed: Arc<Notify>,
}

impl Watch {
    /// Watches nothing yet.
    pub fn new() -> Self {
        let changed = Arc::new(Notify::new());
        let told = changed.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading a manifest is no change.
            if event.is_ok_and(|e| !e.kind.is_access()) {
                told.notify_one();
            }
        });
        if let Err(e) = &watcher {
            tracing::warn!("changes of files are not told ({e}): they are noticed within 10 s");
        }
        Self {
            watcher: watcher.ok(),
            changed,
        }
    }

    /// Watches the entries of a directory too. One that is not there is tried again by the
    /// next call.
    pub fn add(&mut self, dir: &Path) {
        if let Some(watcher) = &mut self.watcher {
            let _ = watcher.watch(dir, RecursiveMode::NonRecursive);
        }
    }

    /// Resolves after a change since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
