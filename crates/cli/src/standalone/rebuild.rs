//! A state directory that was lost is rebuilt from the marks of the machines that run.

use crate::failure::Failure;
use egress_core::{Claim, Mark, ProviderName, Record, Standing};
use egress_engine::store::{Store, file::FileStore};
use std::collections::{BTreeMap, BTreeSet};

/// How far back a lost incarnation number is searched for.
const INCARNATIONS: u64 = 100_000;

/// Compares the store with the machines that run on this host. A fresh store becomes the
/// writer that their marks name; any other one must be that writer already, or was taken
/// over. Machines without a record get one. Answers with how many were rebuilt.
pub async fn rebuild(store: &FileStore, providers: &[ProviderName]) -> Result<usize, Failure> {
    let installation = store.identity().installation;
    let marks: Vec<Mark> = egress_local::marks_on_this_host()
        .map_err(|e| {
            Failure::refused(format!(
                "/proc cannot be read ({e}): mount it, then start again"
            ))
        })?
        .into_iter()
        .filter(|mark| mark.installation == installation && providers.contains(&mark.provider))
        .collect();
    let writers: BTreeSet<_> = marks
        .iter()
        .filter_map(|mark| mark.writer.clone())
        .collect();
    if writers.len() > 1 {
        let names: Vec<&str> = writers.iter().map(egress_core::WriterId::as_str).collect();
        return Err(Failure::refused(format!(
            "machines of installation {installation} on this host bear the marks of {} state \
             directories ({}): stop the others, or give each deployment an installation of its own",
            names.len(),
            names.join(", ")
        )));
    }
    if let Some(writer) = writers.first() {
        store
            .adopt_writer(writer)
            .map_err(|e| Failure::refused(e.to_string()))?;
    }
    let mut newest: BTreeMap<_, Mark> = BTreeMap::new();
    for mark in marks {
        let later = newest
            .get(&mark.proxy)
            .is_none_or(|known| known.attempt < mark.attempt);
        if later {
            newest.insert(mark.proxy.clone(), mark);
        }
    }
    let mut rebuilt = 0;
    for mark in newest.into_values() {
        rebuilt += usize::from(rebuild_one(store, mark).await?);
    }
    Ok(rebuilt)
}

async fn rebuild_one(store: &FileStore, mark: Mark) -> Result<bool, Failure> {
    let failed = |e: egress_engine::store::StoreError| Failure::refused(e.to_string());
    if !matches!(store.load(&mark.proxy).await, Ok(None)) {
        return Ok(false);
    }
    let installation = store.identity().installation;
    if let Some(incarnation) = mark
        .uid
        .incarnation(&installation, &mark.proxy, INCARNATIONS)
    {
        store
            .set_incarnation(&mark.proxy, incarnation - 1)
            .await
            .map_err(failed)?;
    }
    let mut record = Record::new(mark.uid, installation, mark.proxy.clone());
    record.last_attempt = mark.attempt;
    record.claim = Some(Claim {
        provider: mark.provider,
        cluster: mark.cluster,
        slot: mark.slot,
        host: None,
        attempt: mark.attempt,
        standing: Standing::Seen,
        handles: Vec::new(),
        mac: None,
        seed: None,
        unsettled: false,
        retiring: None,
    });
    store
        .save(&mark.proxy, &record, None)
        .await
        .map_err(failed)?;
    tracing::warn!(proxy = %mark.proxy, "the record was lost and is rebuilt from the machine's mark");
    Ok(true)
}
