//! Events of Proxies, for `kubectl describe`. Best effort: an event that cannot be written is
//! dropped, for the status says the same.

use crate::{api::Write, lease::LeaseSettings};
use egress_api::v1alpha1::{API_VERSION, PROXY_KIND};
use egress_core::{
    ProxyId,
    events::{Event, EventKind},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{self, EventType, Recorder, Reporter},
};
use std::time::Duration;
use tokio::{sync::mpsc, time::Instant};

/// How many events may wait to be written.
const WAITING: usize = 1024;
/// The longest text of an event, in bytes (events.k8s.io/v1, `note`).
const MAX_NOTE: usize = 1024;
/// After so many events the recorder is exchanged: it keeps each for minutes, to count the same
/// ones, and looks through all of them for every new one.
const REMEMBERED: usize = 512;
/// An event that is not written by then is dropped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after a word on a dropped event the next one is said.
const QUIET: Duration = Duration::from_mins(1);

/// Takes events; a clone is the same one.
#[derive(Clone)]
pub struct News {
    sender: mpsc::Sender<(ObjectReference, events::Event)>,
}

impl News {
    /// Writes what is told as this reporter, until every clone is dropped.
    pub fn start(client: Client, instance: String) -> Self {
        let (sender, mut receiver) = mpsc::channel::<(ObjectReference, events::Event)>(WAITING);
        let reporter = Reporter {
            controller: "egress-proxies".into(),
            instance: Some(instance),
        };
        tokio::spawn(async move {
            let new = || Recorder::new(client.clone(), reporter.clone());
            let (mut recorder, mut remembered) = (new(), 0);
            let mut told: Option<Instant> = None;
            while let Some((about, event)) = receiver.recv().await {
                if remembered == REMEMBERED {
                    (recorder, remembered) = (new(), 0);
                }
                remembered += 1;
                let write = Write {
                    method: "POST",
                    resource: "events",
                    namespace: about.namespace.as_deref(),
                    name: about.name.as_deref().unwrap_or_default(),
                };
                let written = write.in_span(recorder.publish(&event, &about), |_| "refused");
                match tokio::time::timeout(PATIENCE, written).await {
                    Ok(Ok(())) => {}
                    // One line tells of many that fail alike.
                    Ok(Err(e)) if told.is_none_or(|at| at.elapsed() >= QUIET) => {
                        told = Some(Instant::now());
                        tracing::warn!("an event is dropped: {e}");
                    }
                    Ok(Err(e)) => tracing::debug!("an event is dropped: {e}"),
                    Err(_) => tracing::debug!("an event is dropped: no answer"),
                }
            }
        });
        Self { sender }
    }

    /// Tells events of the object of this UID.
    pub fn tell(&self, id: &ProxyId, uid: &str, news: impl IntoIterator<Item = Event>) {
        for event in news {
            let about = ObjectReference {
                api_version: Some(API_VERSION.into()),
                kind: Some(PROXY_KIND.into()),
                namespace: Some(id.namespace().into()),
                name: Some(id.name().into()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            };
            self.send(
                about,
                rendered(event.kind, event.reason.to_string(), event.message),
            );
        }
    }

    /// Tells of a configuration that was taken on, or could not be, on the Lease.
    pub fn tell_of_config(&self, lease: &LeaseSettings, troubles: &[String]) {
        let about = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".into()),
            kind: Some("Lease".into()),
            namespace: Some(lease.namespace.clone()),
            name: Some(lease.name.clone()),
            ..ObjectReference::default()
        };
        let event = if troubles.is_empty() {
            let said = "the changed configuration is in force".to_owned();
            rendered(EventKind::Normal, "ConfigReloaded".into(), said)
        } else {
            let said = troubles.join("; ");
            rendered(EventKind::Warning, "ConfigInvalid".into(), said)
        };
        self.send(about, event);
    }

    fn send(&self, about: ObjectReference, event: events::Event) {
        if self.sender.try_send((about, event)).is_err() {
            tracing::debug!("an event is dropped: too many wait");
        }
    }
}

fn rendered(kind: EventKind, reason: String, mut note: String) -> events::Event {
    if note.len() > MAX_NOTE {
        let end = note.floor_char_boundary(MAX_NOTE - '…'.len_utf8());
        note.truncate(end);
        note.push('…');
    }
    events::Event {
        type_: match kind {
            EventKind::Normal => EventType::Normal,
            EventKind::Warning => EventType::Warning,
        },
        action: reason.clone(),
        reason,
        note: Some(note),
        secondary: None,
    }
}
