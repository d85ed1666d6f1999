//! Follows the Proxies of the API server and keeps the cache up to date.

use crate::{
    api::{Failure, Proxies},
    cache::Cache,
    objects::Held,
};
use egress_api::v1alpha1::cluster::ProxyObject;
use egress_core::backoff::doubling;
use futures_util::StreamExt;
use kube::runtime::watcher::{self, Event};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// The first wait after a failure; doubles up to [`PATIENT`].
const EAGER: Duration = Duration::from_millis(200);
/// The longest wait from one try to the next.
const PATIENT: Duration = Duration::from_secs(10);
/// How long one watch lasts, in seconds: a connection that died silently is noticed by then.
const WATCH_SECS: u32 = 60;

/// See the module.
pub struct Watch {
    proxies: Proxies,
    namespace: Option<String>,
    cache: Arc<Cache>,
    /// How many complete listings were asked for, and the bell that says so.
    asked: watch::Sender<u64>,
    bell: Notify,
    /// The asked listing that was completed last.
    done: watch::Sender<u64>,
    trouble: Mutex<Option<String>>,
}

impl Watch {
    /// Will follow the Proxies of this namespace, or all.
    pub fn new(proxies: Proxies, namespace: Option<String>, cache: Arc<Cache>) -> Self {
        Self {
            proxies,
            namespace,
            cache,
            asked: watch::Sender::new(1),
            bell: Notify::new(),
            done: watch::Sender::new(0),
            trouble: Mutex::default(),
        }
    }

    /// What is wrong, while Proxies cannot be listed or watched.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone()
    }

    /// Resolves once everything was listed that was there when this was called: whatever any
    /// process wrote before is in the cache then.
    pub async fn refresh(&self) {
        let mut mine = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            mine = *asked;
        });
        self.bell.notify_one();
        // The sender lives as long as this does.
        let _ = self.done.subscribe().wait_for(|done| *done >= mine).await;
    }

    /// Follows for as long as it is polled.
    pub async fn follow_forever(&self) {
        let api = self.proxies.watched(self.namespace.as_deref());
        let config = watcher::Config::default().timeout(WATCH_SECS);
        let mut failures = 0;
        loop {
            let serves = *self.asked.borrow();
            let mut events = std::pin::pin!(watcher::watcher(api.clone(), config.clone()));
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = self.bell.notified() => break,
                };
                match event {
                    None => break,
                    Some(Ok(event)) => {
                        // `Init` says that a list is asked for, and nothing of its answer.
                        if !matches!(event, Event::Init) {
                            failures = 0;
                            self.set_trouble(None);
                        }
                        if matches!(event, Event::InitDone) {
                            self.take(event);
                            self.done.send_replace(serves);
                        } else {
                            self.take(event);
                        }
                    }
                    Some(Err(error)) => {
                        failures += 1;
                        if is_too_old(&error) {
                            break; // by itself it would ask from there on for ever
                        }
                        self.note(error);
                        tokio::select! {
                            () = tokio::time::sleep(doubling(EAGER, PATIENT, failures)) => {}
                            () = self.bell.notified() => {}
                        }
                        // By itself it would watch on and say nothing until something changes:
                        // a list tells that all is well again.
                        break;
                    }
                }
            }
        }
    }

    fn take(&self, event: Event<ProxyObject>) {
        match event {
            Event::Init => self.cache.begin(),
            Event::InitDone => self.cache.finish(),
            Event::Apply(object) | Event::InitApply(object) => match read(object) {
                Ok(held) => self.cache.put(held),
                Err(name) => tracing::warn!("{name} is passed over: it is no name of a Proxy"),
            },
            Event::Delete(object) => {
                if let Ok(held) = read(object) {
                    self.cache.remove(&held.id, &held.uid);
                }
            }
        }
    }

    fn note(&self, error: watcher::Error) {
        use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
        let (what, why) = match error {
            WatchError(status) => ("watch", Failure::from(kube::Error::Api(status))),
            InitialListFailed(e) => ("list", e.into()),
            WatchStartFailed(e) | WatchFailed(e) => ("watch", e.into()),
            other @ watcher::Error::NoResourceVersion => {
                ("watch", Failure::Refused(other.to_string()))
            }
        };
        let remedy = match why {
            Failure::Missing => {
                ": the definition of Proxies is missing: `egress-proxies crds | kubectl apply --server-side -f -`"
            }
            _ => "",
        };
        let text =
            format!("Proxies: cannot {what} them: {why}: nothing new is noticed meanwhile{remedy}");
        if self.trouble().is_none() {
            tracing::warn!("{text}");
        }
        self.set_trouble(Some(text));
    }

    fn set_trouble(&self, trouble: Option<String>) {
        let mut held = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() && trouble.is_none() {
            tracing::info!("the Proxies can be watched again");
        }
        *held = trouble;
    }
}

/// Whether the history is gone that a watch was to go on from: it is listed anew, and nothing is
/// wrong.
fn is_too_old(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status)
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

fn read(object: ProxyObject) -> Result<Held, String> {
    let name = object.metadata.name.clone().unwrap_or_default();
    Held::of(object).ok_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::{Gate, Server, Target, Verb, Verdict};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Refuses the next watch.
    struct NextWatch(AtomicBool);

    #[async_trait::async_trait]
    impl Gate for NextWatch {
        async fn judge(&self, target: &Target) -> Verdict {
            if target.verb == Verb::Watch && !self.0.swap(true, Ordering::Relaxed) {
                return Verdict::Refuse(500);
            }
            Verdict::Pass
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_refused_once_is_no_trouble_for_longer_though_nothing_changes() {
        let server = Server::new();
        server.create_proxy("shop", "a", &serde_json::json!({}));
        let cache = Arc::new(Cache::default());
        let watch = Arc::new(Watch::new(
            Proxies::new(server.client()),
            None,
            cache.clone(),
        ));
        let following = tokio::spawn({
            let watch = watch.clone();
            async move { watch.follow_forever().await }
        });
        watch.refresh().await;
        let gate = Arc::new(NextWatch(AtomicBool::new(false)));
        server.set_gate(Some(gate.clone()));
        server.end_watches();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(gate.0.load(Ordering::Relaxed), "it was refused");
        assert_eq!(watch.trouble(), None);
        assert_eq!(cache.count(), 1);
        following.abort();
    }
}
