//! The configured hosts: who each is, and the connection that reads share.
//!
//! A host is known by the UUID in its capabilities. It is read on every new connection: another
//! one at the same address is another host, on which nothing of ours is made or removed (E4).

use super::descriptions::host_uuid;
use crate::client::{Client, Failure, Session};
use egress_core::{ClusterId, Host as HostName, MachineKey};
use std::{
    collections::BTreeSet,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// How many guests of one host are asked at once: libvirtd has twenty workers, and a deaf agent
/// holds one for 5 s.
const AGENTS_AT_ONCE: usize = 3;

/// Who a host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostId {
    /// Its UUID: slots are unique within it.
    pub(super) cluster: ClusterId,
    /// Its name, for people.
    pub(super) name: HostName,
}

/// Why a host cannot be spoken to.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    Failed(Failure),
    /// Another host answers than before.
    Changed(String),
    /// It does not say who it is.
    Nameless(String),
}

pub(super) struct Host {
    pub(super) client: Client,
    id: OnceLock<HostId>,
    kept: tokio::sync::Mutex<Option<Session>>,
    /// Whose machines it had at the last complete look, by name; `None` before the first.
    had: Mutex<Option<BTreeSet<String>>>,
    pub(super) agents: tokio::sync::Semaphore,
}

impl Host {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            id: OnceLock::new(),
            kept: tokio::sync::Mutex::default(),
            had: Mutex::default(),
            agents: tokio::sync::Semaphore::new(AGENTS_AT_ONCE),
        }
    }

    /// Who it is, once it has answered.
    pub(super) fn id(&self) -> Option<&HostId> {
        self.id.get()
    }

    /// What a complete look at it showed.
    pub(super) fn looked_at(&self, names: BTreeSet<String>) {
        *self.had.lock().unwrap_or_else(PoisonError::into_inner) = Some(names);
    }

    /// A machine of this key is about to be there.
    pub(super) fn gets(&self, key: &MachineKey) {
        let mut had = self.had.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(had) = had.as_mut() {
            had.insert(key.name().to_owned());
        }
    }

    /// Whether it was looked at whole in this process's life, and had nothing of this key. Only
    /// this process makes machines since.
    pub(super) fn had_nothing_of(&self, key: &MachineKey) -> bool {
        let had = self.had.lock().unwrap_or_else(PoisonError::into_inner);
        had.as_ref().is_some_and(|had| !had.contains(key.name()))
    }

    /// Its name for people: as it says, else its URI.
    pub(super) fn told(&self) -> &str {
        self.id()
            .map_or(self.client.uri().as_str(), |id| id.name.as_str())
    }

    /// A connection of its own, for a call that changes something.
    pub(super) async fn fresh(&self, within: Duration) -> Result<Session, Trouble> {
        let session = self.client.open(within).await.map_err(Trouble::Failed)?;
        self.identify(&session).await?;
        Ok(session)
    }

    /// The connection that reads share, opened anew when the last one ended.
    pub(super) async fn kept(&self, within: Duration) -> Result<Session, Trouble> {
        let Ok(mut kept) = timeout_at(Instant::now() + within, self.kept.lock()).await else {
            let asked = format!("connecting to {}", self.client.uri());
            let failure = Failure::not_sent(asked, "opening a connection takes too long");
            return Err(Trouble::Failed(failure));
        };
        if let Some(session) = kept.as_ref().filter(|known| known.is_open()) {
            return Ok(session.clone());
        }
        *kept = None;
        let session = self.fresh(within).await?;
        *kept = Some(session.clone());
        Ok(session)
    }

    async fn identify(&self, session: &Session) -> Result<(), Trouble> {
        let capabilities = session.capabilities().await.map_err(Trouble::Failed)?;
        let uuid = host_uuid(&capabilities).map_err(|why| Trouble::Nameless(why.to_string()))?;
        let name = session.hostname().await.map_err(Trouble::Failed)?;
        let cluster = ClusterId::new(uuid.to_string());
        let name = HostName::new(name);
        let known = self.id.get_or_init(|| HostId {
            cluster: cluster.clone(),
            name,
        });
        if known.cluster == cluster {
            return Ok(());
        }
        Err(Trouble::Changed(format!(
            "the host at {} was {} and now says that it is {cluster}: point the configuration at the right host, or, where it is the same one, give it a lasting identity with `host_uuid` in libvirtd.conf",
            self.client.uri(),
            known.cluster
        )))
    }
}
