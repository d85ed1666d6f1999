//! Wakes the keeper when a watched file changes. Watching is only for speed: everything is
//! looked at again every ten seconds, since some mounts tell of no change.

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::{
    ffi::OsStr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Notify;

/// A watch; a clone is the same one. It ends when the last is dropped.
#[derive(Clone)]
pub struct Watch {
    watcher: Arc<Mutex<Option<RecommendedWatcher>>>,
    changed: Arc<Notify>,
}

impl Watch {
    /// Watches nothing yet.
    pub fn new() -> Self {
        Self::telling(Arc::default(), |_| true)
    }

    /// A watch of one file in another directory that wakes whoever waits for this one: what
    /// else is written there wakes nobody. Neither waits for the other's file system.
    pub fn beside(&self, file: &Path) -> Self {
        let file = file.file_name().map(OsStr::to_owned);
        Self::telling(self.changed.clone(), move |event| {
            event.paths.iter().any(|path| match path.file_name() {
                // A mounted ConfigMap changes by its link `..data` alone.
                Some(name) => {
                    Some(name) == file.as_deref() || name.as_encoded_bytes().starts_with(b"..")
                }
                None => true,
            })
        })
    }

    fn telling(
        changed: Arc<Notify>,
        concerns: impl Fn(&notify::Event) -> bool + Send + 'static,
    ) -> Self {
        let told = changed.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading a file is no change.
            if event.is_ok_and(|e| !e.kind.is_access() && concerns(&e)) {
                told.notify_one();
            }
        });
        if let Err(e) = &watcher {
            tracing::warn!("changes of files are not told ({e}): they are noticed within 10 s");
        }
        Self {
            watcher: Arc::new(Mutex::new(watcher.ok())),
            changed,
        }
    }

    /// Watches the entries of a directory too. One that is not there is tried again by the
    /// next call. It blocks for as long as the directory's file system does.
    pub fn add(&self, dir: &Path) {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &mut *watcher {
            let _ = watcher.watch(dir, RecursiveMode::NonRecursive);
        }
    }

    /// Resolves after a change since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;
    use std::{fs, time::Duration};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_watched_file_wakes_and_its_neighbours_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        fs::write(&file, "a").unwrap();
        let main = Watch::new();
        let beside = main.beside(&file);
        beside.add(dir.path());
        for n in 0..3 {
            fs::write(dir.path().join("engine.log"), format!("{n}")).unwrap();
        }
        let neighbour = timeout(Duration::from_millis(300), main.changed()).await;
        assert!(neighbour.is_err(), "woken by another file");
        for name in ["config.yaml", "..data"] {
            fs::write(dir.path().join(name), "b").unwrap();
            let woken = timeout(Duration::from_secs(10), main.changed()).await;
            assert!(woken.is_ok(), "not woken by {name}");
            // What the same write tells more than once.
            while timeout(Duration::from_millis(100), main.changed())
                .await
                .is_ok()
            {}
        }
    }
}
