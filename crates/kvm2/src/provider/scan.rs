//! Every domain of every host and the mark it bears: what proves that a machine is nowhere.
//!
//! Callers that wait at the same time share the next scan: each gets one that began after it
//! asked, so that what it proves is not older than the question (G2).

use super::{
    Kvm2,
    call::Call,
    descriptions::mark_text,
    domain_xml::{NAMESPACE, PREFIX},
    hosts::Host,
    names,
};
use crate::client::{Domain, Failure, Kind, Metadata, Session};
use egress_core::{
    ClusterId, MachineKey, Mark, Slot,
    machine::{Sighting, Whose, whose},
};
use egress_provider::{Error, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;
use tokio::time::Instant;
use uuid::Uuid;

/// How many questions to one host are under way at once: libvirtd takes five of a client.
const AT_ONCE: usize = 4;

/// One domain.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The host's place in the configuration.
    pub(super) host: usize,
    pub(super) domain: Domain,
    /// The text that would hold its mark.
    pub(super) text: Option<String>,
}

/// One complete look at all hosts that answer.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) begun: Instant,
    pub(super) seen: Vec<Seen>,
    /// The hosts that did not answer, and why.
    pub(super) silent: Vec<(usize, String)>,
}

/// Where a key's machine is, beside the place that was looked at.
#[derive(Debug)]
pub(super) enum Elsewhere {
    Nowhere,
    Ours(usize, Uuid, Box<Mark>),
    NotOwned(usize, Uuid),
    /// Not to be said: these hosts do not answer.
    Silent(String),
}

impl Kvm2 {
    /// The cluster that a mark on a domain of this host must name to be valid: the host's own,
    /// or that of another host of ours, from which it was moved here.
    pub(super) fn cluster_for(&self, host: &Host, text: Option<&str>) -> ClusterId {
        let own = || {
            let id = host.id().map(|id| id.cluster.clone());
            id.unwrap_or_else(|| ClusterId::new(""))
        };
        let named = text.and_then(Mark::find).map(|mark| mark.cluster);
        let ours = named.filter(|cluster| {
            let mut ids = self.hosts.iter().filter_map(Host::id);
            ids.any(|id| id.cluster == *cluster)
        });
        ours.unwrap_or_else(own)
    }

    /// Whose a domain is, for one key. `recorded` is the slot of its claim.
    pub(super) fn whose(
        &self,
        key: &MachineKey,
        recorded: Option<&Slot>,
        host: &Host,
        domain: &Domain,
        text: Option<&str>,
    ) -> Whose {
        let slot = names::slot_of(domain.uuid);
        let cluster = self.cluster_for(host, text);
        let sighting = Sighting {
            slot: &slot,
            cluster: &cluster,
            name: Some(&domain.name),
            text,
            template: false,
        };
        whose(key, &self.identity, &self.name, recorded, &sighting)
    }

    /// What a scan shows of a key, beside the domain with this UUID on this host.
    pub(super) fn elsewhere(
        &self,
        scan: &Scan,
        key: &MachineKey,
        except: Option<(&Host, Uuid)>,
    ) -> Elsewhere {
        let mut doubtful = None;
        for seen in &scan.seen {
            let host = &self.hosts[seen.host];
            let is_it = except
                .is_some_and(|(place, uuid)| std::ptr::eq(place, host) && uuid == seen.domain.uuid);
            if is_it {
                continue;
            }
            match self.whose(key, None, host, &seen.domain, seen.text.as_deref()) {
                Whose::Ours(mark) => return Elsewhere::Ours(seen.host, seen.domain.uuid, mark),
                Whose::NotOwned => doubtful = Some((seen.host, seen.domain.uuid)),
                Whose::Foreign { .. } => {}
            }
        }
        if let Some((host, uuid)) = doubtful {
            return Elsewhere::NotOwned(host, uuid);
        }
        match scan.silent.as_slice() {
            [] => Elsewhere::Nowhere,
            silent => Elsewhere::Silent(self.told_silent(silent)),
        }
    }

    /// The same for a machine that nobody has seen yet. A host that is silent now cannot have it
    /// where it was looked at before in this process's life and had nothing of the key: so one
    /// dead host does not stop all others.
    pub(super) fn elsewhere_when_new(
        &self,
        scan: &Scan,
        key: &MachineKey,
        except: Option<(&Host, Uuid)>,
    ) -> Elsewhere {
        let found = self.elsewhere(scan, key, except);
        let mut silent = scan.silent.iter().map(|(host, _)| &self.hosts[*host]);
        if matches!(found, Elsewhere::Silent(_)) && silent.all(|host| host.had_nothing_of(key)) {
            return Elsewhere::Nowhere;
        }
        found
    }

    /// Hosts that do not answer, for people.
    pub(super) fn told_silent(&self, silent: &[(usize, String)]) -> String {
        let told = silent
            .iter()
            .map(|(host, why)| format!("{}: {why}", self.hosts[*host].told()));
        format!(
            "not every host answers: {}",
            told.collect::<Vec<_>>().join("; ")
        )
    }
}

impl Call<'_> {
    /// A scan that began after this call of it. Fails when no host answers at all.
    pub(super) async fn scan(&self) -> Result<Arc<Scan>> {
        let asked = Instant::now();
        let mut last = self.provider.last_scan.lock().await;
        if let Some(scan) = last.as_ref().filter(|scan| scan.begun >= asked) {
            return Ok(scan.clone());
        }
        let begun = Instant::now();
        let hosts = &self.provider.hosts;
        let looks = hosts.iter().map(|host| self.domains_of(host));
        let looks = futures_util::future::join_all(looks).await;
        let mut scan = Scan {
            begun,
            seen: Vec::new(),
            silent: Vec::new(),
        };
        let mut first: Option<Error> = None;
        for (host, look) in looks.into_iter().enumerate() {
            match look {
                Ok(domains) => {
                    let names = domains.iter().flat_map(|(domain, text)| {
                        let mark = text.as_deref().and_then(Mark::find);
                        let marked = mark.map(|mark| MachineKey::new(mark.uid).name().to_owned());
                        [Some(domain.name.clone()), marked]
                    });
                    hosts[host].looked_at(names.flatten().collect());
                    let seen = domains.into_iter();
                    scan.seen
                        .extend(seen.map(|(domain, text)| Seen { host, domain, text }));
                }
                Err(error) => {
                    scan.silent.push((host, error.said().to_owned()));
                    first.get_or_insert(error);
                }
            }
        }
        if scan.silent.len() == hosts.len()
            && let Some(error) = first
        {
            return Err(error);
        }
        let scan = Arc::new(scan);
        *last = Some(scan.clone());
        Ok(scan)
    }

    async fn domains_of(&self, host: &Host) -> Result<Vec<(Domain, Option<String>)>> {
        let session = self.kept(host).await?;
        let domains = session.domains().await.map_err(|f| self.failed(f))?;
        let texts = domains.into_iter().map(|domain| {
            let session = session.clone();
            async move {
                let text = mark_of(&session, &domain).await;
                text.map(|text| (domain, text))
            }
        });
        let read: Vec<_> = stream::iter(texts)
            .buffered(AT_ONCE)
            .try_collect()
            .await
            .map_err(|f| self.failed(f))?;
        let mut seen = Vec::new();
        for (domain, text) in read {
            match text {
                // It went between the two questions.
                Element::Gone => {}
                Element::None => seen.push((domain, None)),
                Element::Written(xml) => {
                    let text = mark_text(&xml).map_err(|why| self.unreadable(&why))?;
                    seen.push((domain, text));
                }
            }
        }
        Ok(seen)
    }
}

enum Element {
    Gone,
    None,
    Written(String),
}

async fn mark_of(session: &Session, domain: &Domain) -> Result<Element, Failure> {
    let which = Metadata::Element {
        namespace: NAMESPACE,
        prefix: PREFIX,
    };
    match session.metadata(domain, which).await {
        Ok(xml) => Ok(Element::Written(xml)),
        Err(failure) if failure.kind == Kind::NoMetadata => Ok(Element::None),
        Err(failure) if failure.kind == Kind::NoDomain => Ok(Element::Gone),
        Err(failure) => Err(failure),
    }
}
