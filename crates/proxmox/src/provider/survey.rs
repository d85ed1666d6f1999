//! Everything that making a machine depends on, read in one go and shared for a while. `check`
//! tells what it shows, and `create` refuses on the same findings (C4).

use super::{call::Call, shared::Snapshot};
use crate::client::{
    Bridge, ClusterOptions, Failure, Kind, NodeName, Pool, Privileges, StorageStatus, Version,
    VmConfig, Vmid,
};
use futures_util::future::try_join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// How old a survey may be that `create` builds on.
const LIFETIME: Duration = Duration::from_secs(20);

/// What a read showed: a value, or a refusal that is itself a finding.
pub(super) type Shown<T> = Result<T, Failure>;

/// A template, as its node shows it.
#[derive(Clone, Debug)]
pub(super) struct TemplateSight {
    pub(super) node: NodeName,
    pub(super) vmid: Vmid,
    pub(super) config: Shown<VmConfig>,
}

/// A storage, as one node shows it.
#[derive(Clone, Debug)]
pub(super) struct StorageSight {
    pub(super) node: NodeName,
    pub(super) storage: String,
    pub(super) status: Shown<StorageStatus>,
}

/// One survey.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) at: Instant,
    pub(super) version: Version,
    pub(super) snapshot: Arc<Snapshot>,
    /// The cluster has one node and says that it lacks quorum; looked at by `check` alone.
    pub(super) alone_without_quorum: bool,
    /// What the token may do, by path.
    pub(super) privileges: BTreeMap<String, Privileges>,
    pub(super) templates: Vec<TemplateSight>,
    pub(super) storages: Vec<StorageSight>,
    /// The bridges of each node that a machine may come to.
    pub(super) bridges: BTreeMap<NodeName, Shown<Vec<Bridge>>>,
    /// The zones of vnets, as far as they are told; asked for where a machine is to be on one.
    pub(super) zones: BTreeMap<String, String>,
    pub(super) pool: Option<Shown<Pool>>,
    pub(super) options: Shown<ClusterOptions>,
    /// How far a node's clock is from ours, in seconds; `None` where it may not be read.
    pub(super) clock: Option<(NodeName, i64)>,
}

/// Why there is no survey.
pub(super) enum NoSurvey {
    /// Nothing could be asked.
    Failed(Failure),
    /// The list of the cluster could not be had.
    Error(egress_provider::Error),
}

impl Survey {
    /// The configuration of the template on a node, or of the only one.
    pub(super) fn template_on(&self, node: &NodeName) -> Option<&TemplateSight> {
        let own = self.templates.iter().find(|t| t.node == *node);
        own.or_else(|| (self.templates.len() == 1).then(|| &self.templates[0]))
    }
    pub(super) fn storage_on(&self, node: &NodeName, storage: &str) -> Option<&StorageStatus> {
        self.storages
            .iter()
            .find(|s| s.node == *node && s.storage == storage)
            .and_then(|s| s.status.as_ref().ok())
    }
    pub(super) fn may(&self, path: &str, privilege: &str) -> bool {
        self.privileges
            .get(path)
            .is_some_and(|held| held.has(privilege))
    }
}

impl Call<'_> {
    /// A survey that is fresh, or at most [`LIFETIME`] old.
    pub(super) async fn survey(&self, fresh: bool) -> Result<Arc<Survey>, NoSurvey> {
        let called = Instant::now();
        let last = timeout_at(self.deadline(), self.provider.survey.lock()).await;
        let Ok(mut last) = last else {
            let said = "reading the cluster's state takes too long";
            return Err(NoSurvey::Error(
                self.error(egress_core::ErrorClass::Transient, said),
            ));
        };
        let age = if fresh {
            Duration::ZERO
        } else {
            self.provider.pace.wait(LIFETIME)
        };
        if let Some(survey) = last.as_ref().filter(|survey| survey.at + age >= called) {
            return Ok(survey.clone());
        }
        let survey = Arc::new(self.take_survey(fresh).await?);
        *last = Some(survey.clone());
        Ok(survey)
    }

    async fn take_survey(&self, fresh: bool) -> Result<Survey, NoSurvey> {
        let at = Instant::now();
        let client = self.reads();
        let config = &self.provider.config;
        let version = client.version().await.map_err(NoSurvey::Failed)?;
        let age = if fresh {
            Duration::ZERO
        } else {
            super::shared::PERIOD
        };
        let snapshot = self.snapshot(age).await.map_err(NoSurvey::Error)?;

        // The list of a single node says nothing of it, and its own answer costs a request.
        let alone = fresh && snapshot.nodes.len() == 1;
        let status = if alone {
            shown(client.cluster_status().await)?.ok()
        } else {
            None
        };
        let alone_without_quorum = status.is_some_and(|status| !status.quorate);

        let places = self.provider.template_places(&snapshot);
        let mut templates = Vec::new();
        for (node, vmid) in &places {
            let shown = shown(client.vm_config(node, *vmid).await)?;
            templates.push(TemplateSight {
                node: node.clone(),
                vmid: *vmid,
                config: shown,
            });
        }
        let mut nodes: BTreeSet<NodeName> = places.iter().map(|(node, _)| node.clone()).collect();
        // The same nodes that `claim` chooses from. Where none of them will do, the template's own
        // shows why.
        if self.provider.spreads(&snapshot, &templates) {
            let others = snapshot.online();
            let fit = others.filter(|node| self.provider.has_storages(node, &snapshot));
            let fit: BTreeSet<NodeName> = fit.cloned().collect();
            nodes = if fit.is_empty() { nodes } else { fit };
        }
        if nodes.is_empty() {
            nodes.extend(snapshot.online().next().cloned());
        }
        nodes.retain(|node| snapshot.node_is_online(node));
        let mut storages = Vec::new();
        let mut bridges = BTreeMap::new();
        for node in &nodes {
            for storage in [&config.storage, &config.iso_storage] {
                let status = shown(client.storage_status(node, storage).await)?;
                storages.push(StorageSight {
                    node: node.clone(),
                    storage: storage.clone(),
                    status,
                });
            }
            bridges.insert(node.clone(), shown(client.network(node).await)?);
        }
        let pool = match &config.pool {
            Some(pool) => Some(shown(client.pool(pool).await)?),
            None => None,
        };
        let options = shown(client.cluster_options().await)?;
        let clock = match nodes.iter().next() {
            Some(node) => shown(client.node_time(node).await)?.ok().map(|time| {
                (
                    node.clone(),
                    i64::try_from(time.seconds).unwrap_or(0) - now_in_seconds(),
                )
            }),
            None => None,
        };
        let mut survey = Survey {
            at,
            version,
            snapshot,
            alone_without_quorum,
            privileges: BTreeMap::new(),
            templates,
            storages,
            bridges,
            zones: BTreeMap::new(),
            pool,
            options,
            clock,
        };
        if super::check::uses_vnet(config, &survey) {
            // Shown or not, nothing else depends on it.
            let vnets = shown(client.vnets().await)?.unwrap_or_default();
            let zones = vnets.into_iter().filter_map(|v| Some((v.vnet, v.zone?)));
            survey.zones = zones.collect();
        }
        let needed = super::check::needed_privileges(config, &survey);
        let paths: BTreeSet<String> = needed.into_iter().flat_map(|need| need.paths).collect();
        let held = paths.into_iter().map(|path| async {
            let held = client.permissions(&path).await;
            held.map(|held| (path, held)).map_err(NoSurvey::Failed)
        });
        survey.privileges = try_join_all(held).await?.into_iter().collect();
        Ok(survey)
    }
}

fn now_in_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A refusal that says something about what was asked for is kept; trouble on the way to it
/// ends the survey.
fn shown<T>(answer: Result<T, Failure>) -> Result<Shown<T>, NoSurvey> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(failure) => match failure.kind {
            Kind::Forbidden { .. }
            | Kind::NotExistOnNode
            | Kind::PoolMissing
            | Kind::StorageMissing
            | Kind::StorageUnavailable
            | Kind::StorageUnfit
            | Kind::NodeUnknown
            | Kind::NodeUnreachable
            | Kind::ParameterInvalid { .. } => Ok(Err(failure)),
            _ => Err(NoSurvey::Failed(failure)),
        },
    }
}
