//! The engine while it runs: follows manifests, configuration and words of the user, and ends
//! what was begun.

use super::{
    Arguments, RESCAN, admin,
    credentials::StandaloneCredentials,
    host_lock::HostLock,
    keeper::{Keeper, Troubles},
    metrics::StandaloneMetrics,
    observed,
    reader::PATIENCE,
    reload::{ConfigFile, Fixed},
};
use crate::{config::Config, failure::Failure, wording::counted};
use egress_core::plan::Phase;
use egress_engine::{
    Handle,
    store::{StoreError, file::FileStore},
};
use egress_provider::layer::observed::CallMetrics;
use std::{
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{Arc, PoisonError},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinError, JoinHandle},
};

/// A running engine and everything beside it.
pub struct Running {
    pub(super) handle: Handle,
    pub(super) keeper: Keeper,
    pub(super) config: Config,
    pub(super) fixed: Fixed,
    pub(super) config_troubles: Troubles,
    pub(super) all_troubles: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    pub(super) engine: JoinHandle<Ended>,
    pub(super) stop_engine: oneshot::Sender<()>,
    pub(super) prune: mpsc::Receiver<admin::PruneRequest>,
    pub(super) helpers: Vec<JoinHandle<()>>,
    pub(super) store: FileStore,
    pub(super) _host_lock: HostLock,
    pub(super) credentials: Arc<StandaloneCredentials>,
    pub(super) admin: SocketAddr,
    pub(super) calls: CallMetrics,
    pub(super) figures: StandaloneMetrics,
}

/// How an engine ended: by itself only when its store was lost.
pub type Ended = Result<(), StoreError>;

impl Running {
    /// Follows manifests and configuration until `stop`; then ends the engine. Answers with
    /// how many proxies run on.
    pub async fn keep(
        mut self,
        mut file: ConfigFile,
        arguments: &Arguments,
        stop: impl Future<Output = ()>,
    ) -> Result<usize, Failure> {
        tokio::pin!(stop);
        let watch = self.keeper.watch().clone();
        let ended = loop {
            let scan = tokio::select! {
                () = &mut stop => break None,
                result = &mut self.engine => break Some(result),
                Some(answer) = self.prune.recv() => {
                    if self.answer(answer, stop.as_mut()).await {
                        continue;
                    }
                    break None;
                }
                (scan, ()) = async {
                    tokio::join!(self.keeper.scan(PATIENCE), file.look())
                } => scan,
            };
            if let Some(news) = file.news() {
                let troubles = self.reload(news, file.path(), arguments);
                file.set_troubles(troubles);
            }
            *self
                .config_troubles
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = file.troubles();
            let again = self.keeper.apply(&scan, &self.config).await;
            // An engine with nothing to write would not notice.
            if let Err(e) = self.store.check_lock() {
                break Some(Ok(Err(e)));
            }
            tokio::select! {
                () = &mut stop => break None,
                result = &mut self.engine => break Some(result),
                Some(answer) = self.prune.recv() => {
                    if !self.answer(answer, stop.as_mut()).await {
                        break None;
                    }
                }
                () = watch.changed() => {}
                () = tokio::time::sleep(again.unwrap_or(RESCAN)) => {}
            }
        };
        self.end(ended).await
    }

    /// Answers a request to prune; `false` when it is time to stop.
    async fn answer(
        &mut self,
        answer: admin::PruneRequest,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> bool {
        tokio::select! {
            () = stop => false,
            pruned = self.keeper.prune(&self.config) => {
                let _ = answer.send(pruned);
                true
            }
        }
    }

    /// Takes a changed configuration on; a broken one changes nothing. Answers with what is
    /// not in force.
    fn reload(
        &mut self,
        news: Result<Config, Failure>,
        file: &Path,
        arguments: &Arguments,
    ) -> Vec<String> {
        let config = match news {
            Ok(config) => config,
            Err(failure) => {
                self.figures.note_broken_reload();
                let lines = failure.into_lines();
                for line in &lines {
                    tracing::error!("{line}: the configuration before stays in force");
                }
                return lines;
            }
        };
        let waiting = self.fixed.not_in_force(&config, arguments);
        let providers = observed(
            &config,
            &self.store,
            &self.fixed.state_dir,
            &arguments.payload,
            &self.calls,
        );
        self.handle.parts().providers.replace(providers);
        self.config = config;
        self.handle.wake_all();
        self.figures.note_reload();
        let name = file.display();
        let lines: Vec<String> = waiting.iter().map(|w| format!("{name}: {w}")).collect();
        for line in &lines {
            tracing::warn!("{line}");
        }
        if lines.is_empty() {
            tracing::info!("the changed configuration is in force");
        } else {
            tracing::warn!("the changed configuration is in force, but for what needs a restart");
        }
        lines
    }

    /// Ends the engine, unless it ended by itself, and takes its page away. Answers with how
    /// many proxies run on.
    pub async fn end(self, ended: Option<Result<Ended, JoinError>>) -> Result<usize, Failure> {
        for helper in &self.helpers {
            helper.abort();
        }
        let result = if let Some(result) = ended {
            result
        } else {
            let _ = self.stop_engine.send(());
            self.engine.await
        };
        // Another engine may live in a directory that was replaced.
        if self.store.check_lock().is_ok() {
            admin::remove_token(&self.fixed.state_dir);
            let _ = self.store.remove_admin();
        }
        let views = self.handle.views();
        let run_on = views.iter().filter(|v| v.status.phase == Phase::Running);
        match result {
            Ok(Ok(())) => Ok(run_on.count()),
            Ok(Err(e)) => Err(Failure::failed(format!("stopped: {e}"))),
            Err(e) => Err(Failure::failed(format!("the engine ended: {e}"))),
        }
    }
}

/// What is said at the end, when so many proxies run on.
pub fn farewell(count: usize) -> String {
    let (keeps, them, manifests) = match count {
        0 => return "stopped; no proxy runs".to_owned(),
        1 => ("keeps", "it", "its manifest"),
        _ => ("keep", "them", "their manifests"),
    };
    format!(
        "stopped; {} {keeps} running. The next start takes {them} on; remove {manifests} while \
         the engine runs to delete {them}.",
        counted(count, "proxy", "proxies")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_agree_with_how_many_proxies_run_on() {
        assert_eq!(farewell(0), "stopped; no proxy runs");
        assert!(farewell(1).starts_with(
            "stopped; 1 proxy keeps running. The next start takes it on; remove its manifest "
        ));
        assert!(farewell(2).starts_with(
            "stopped; 2 proxies keep running. The next start takes them on; remove their manifests "
        ));
    }
}
