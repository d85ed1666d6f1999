//! A state directory that was lost is rebuilt from the marks of the machines that run.

use crate::{config::Config, failure::Failure};
use egress_core::{Claim, Mark, ProviderName, ProxyId, Record};
use egress_engine::store::{Store, StoreError, file::FileStore};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// How far back a lost incarnation number is searched for.
const INCARNATIONS: u64 = 100_000;

/// The marks that machines of this installation bear on its hypervisors, for a state directory
/// that remembers nothing: it cannot tell otherwise which machines there are already. Machines
/// that another state directory made are taken on when that is asked for, since their engine
/// may live on another host.
pub async fn remote_marks(
    config: &Config,
    store: &FileStore,
    state_dir: &Path,
    take_over: bool,
) -> Result<Vec<Mark>, Failure> {
    let holds = |tree: &str| {
        let dir = std::fs::read_dir(state_dir.join(tree));
        dir.is_ok_and(|mut entries| entries.next().is_some())
    };
    let remembers = holds("records") || holds("incarnations");
    let mut marks = Vec::new();
    let identity = store.identity();
    let unseen = |name: ProviderName, error: &egress_provider::Error| {
        Failure::refused(format!(
            "a state directory that is new has to see which machines of installation {} \
             provider {name} has already, and cannot: {}: start again when it can",
            identity.installation,
            error.chain()
        ))
    };
    if !remembers {
        for (name, proxmox) in config.proxmox(&identity) {
            marks.extend(proxmox.marks().await.map_err(|e| unseen(name, &e))?);
        }
        for (name, kvm2) in config.kvm2(&identity) {
            marks.extend(kvm2.marks().await.map_err(|e| unseen(name, &e))?);
        }
    }
    let own = store.identity().writer;
    let others = marks.iter().filter(|mark| mark.writer != own).count();
    if others > 0 && !take_over {
        let (machines, were) = if others == 1 {
            ("machine", "was")
        } else {
            ("machines", "were")
        };
        return Err(Failure::refused(format!(
            "{others} {machines} of installation {} {were} made by another state directory: use \
             that one, or a backup of it; start once with --take-over when it is lost and no engine \
             uses it any more; or give this deployment an installation of its own",
            store.identity().installation
        )));
    }
    Ok(marks)
}

/// Compares the store with the machines that run on this host and with these marks. A fresh store becomes the
/// writer that their marks name; any other one must be that writer already, or was taken
/// over. Machines whose record was lost get one; orphans do not. Answers with how many were
/// rebuilt.
pub async fn rebuild(
    store: &FileStore,
    providers: &[ProviderName],
    remote: Vec<Mark>,
) -> Result<usize, Failure> {
    let installation = store.identity().installation;
    let marks: Vec<Mark> = egress_local::marks_on_this_host()
        .map_err(|e| {
            Failure::refused(format!(
                "/proc cannot be read ({e}): mount it, then start again"
            ))
        })?
        .into_iter()
        .chain(remote)
        .filter(|mark| mark.installation == installation && providers.contains(&mark.provider))
        .collect();
    let writers: BTreeSet<_> = marks
        .iter()
        .filter_map(|mark| mark.writer.clone())
        .collect();
    if writers.len() > 1 {
        let names: Vec<&str> = writers.iter().map(egress_core::WriterId::as_str).collect();
        return Err(Failure::refused(format!(
            "machines of installation {installation} bear the marks of {} state \
             directories ({}): stop the others, or give each deployment an installation of its own",
            names.len(),
            names.join(", ")
        )));
    }
    if let Some(writer) = writers.first() {
        store
            .adopt_writer(writer)
            .map_err(|e| Failure::refused_by(&e))?;
    }
    let mut newest: BTreeMap<ProxyId, (u64, Mark)> = BTreeMap::new();
    for mark in marks {
        if !matches!(store.load(&mark.proxy).await, Ok(None)) {
            continue;
        }
        let Some(incarnation) = lost_incarnation(store, &mark).await? else {
            continue;
        };
        let later = newest
            .get(&mark.proxy)
            .is_none_or(|(n, known)| (*n, known.attempt) < (incarnation, mark.attempt));
        if later {
            newest.insert(mark.proxy.clone(), (incarnation, mark));
        }
    }
    let rebuilt = newest.len();
    for (incarnation, mark) in newest.into_values() {
        rebuild_one(store, incarnation, mark).await?;
    }
    Ok(rebuilt)
}

/// Which incarnation a machine without a record is of. `None`: its number was given up, so the
/// record was released and not lost, as of an abandoned machine; an orphan is never taken on.
async fn lost_incarnation(store: &FileStore, mark: &Mark) -> Result<Option<u64>, Failure> {
    let given_up = store.incarnation(&mark.proxy).await.map_err(refused)?;
    let installation = store.identity().installation;
    let found = mark
        .uid
        .incarnation(&installation, &mark.proxy, INCARNATIONS)
        .filter(|incarnation| *incarnation > given_up);
    if found.is_none() {
        tracing::warn!(
            proxy = %mark.proxy,
            slot = %mark.slot,
            "a machine runs that no Proxy accounts for; it is left alone"
        );
    }
    Ok(found)
}

fn refused(e: StoreError) -> Failure {
    Failure::refused_by(&e)
}

async fn rebuild_one(store: &FileStore, incarnation: u64, mark: Mark) -> Result<(), Failure> {
    // Before the record: a rebuild that is cut off here is finished by the next start.
    store
        .set_incarnation(&mark.proxy, incarnation - 1)
        .await
        .map_err(refused)?;
    let proxy = mark.proxy.clone();
    let installation = store.identity().installation;
    let mut record = Record::new(mark.uid.clone(), installation, proxy.clone());
    record.last_attempt = mark.attempt;
    record.claim = Some(Claim::found(mark));
    store.save(&proxy, &record, None).await.map_err(refused)?;
    tracing::warn!(%proxy, "the record was lost and is rebuilt from the machine's mark");
    Ok(())
}
