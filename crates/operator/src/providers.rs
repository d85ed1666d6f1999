//! ProxyProvider objects: one for each configured provider, saying what it last said of itself.
//! They are written, never read for a decision.

#[cfg(test)]
mod tests;

use crate::{
    api::{FIELD_MANAGER, Failure, Write, in_time},
    cache::Cache,
    objects::Memory,
};
use egress_api::v1alpha1::{
    Condition,
    cluster::{
        MAX_PROVIDER_FINDINGS, ProviderCounts, ProviderFinding, ProviderSeverity, ProxyProvider,
        ProxyProviderStatus, condition,
    },
};
use egress_core::Installation;
use egress_engine::{
    Handle, checker,
    sweep::{Suspect, SuspectClass},
    sweeper,
};
use egress_provider::{CheckReason, Report, Severity};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Whose operator keeps an object: several may work in one cluster, each with its own providers.
const INSTALLATION_LABEL: &str = "egress-proxies.io/installation";

/// From one comparison of what is known with what the objects say to the next.
const PERIOD: Duration = Duration::from_secs(5);

/// What a provider last said of itself. A clone is the same.
#[derive(Clone, Default)]
pub struct Mirrored {
    said: Arc<Mutex<BTreeMap<String, Said>>>,
}

#[derive(Clone, Default)]
struct Said {
    check: Option<Check>,
    listing: Option<ListingSeen>,
}

#[derive(Clone)]
struct Check {
    version: Option<String>,
    free_slots: Option<u64>,
    reason: CheckReason,
    message: String,
    findings: Vec<ProviderFinding>,
}

#[derive(Clone)]
struct ListingSeen {
    machines: usize,
    unaccounted: usize,
    /// What belongs to no Proxy, as far as it is told.
    suspects: Vec<ProviderFinding>,
    at: String,
}

impl Mirrored {
    fn said(&self) -> MutexGuard<'_, BTreeMap<String, Said>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what checks say.
    pub fn reports(&self) -> checker::Told {
        let this = self.clone();
        Arc::new(move |lane, result| {
            let name = lane.provider().name().to_string();
            this.said().entry(name).or_default().check = Some(check(result));
        })
    }

    /// Takes what sweeps find.
    pub fn listings(&self) -> sweeper::Told {
        let this = self.clone();
        Arc::new(move |name, listing, report| {
            let seen = ListingSeen {
                machines: listing.machines.len(),
                unaccounted: report.suspects.len(),
                suspects: report
                    .suspects
                    .iter()
                    .take(MAX_PROVIDER_FINDINGS)
                    .map(suspect)
                    .collect(),
                at: jiff::Timestamp::now()
                    .strftime("%Y-%m-%dT%H:%M:%SZ")
                    .to_string(),
            };
            this.said().entry(name.to_string()).or_default().listing = Some(seen);
        })
    }
}

fn check(result: &egress_provider::Result<Report>) -> Check {
    match result {
        Ok(report) => {
            let reason = report.reason();
            let first = report
                .findings
                .iter()
                .find(|f| f.severity == Severity::Error);
            Check {
                version: report.version.clone(),
                free_slots: report.free_slots,
                reason,
                message: first.map_or_else(
                    || "machines can be made".to_owned(),
                    |f| format!("{}: {}", f.found, f.remedy),
                ),
                findings: report.findings.iter().map(finding).collect(),
            }
        }
        Err(e) => Check {
            version: None,
            free_slots: None,
            reason: CheckReason::Unreachable,
            message: e.chain(),
            findings: Vec::new(),
        },
    }
}

fn finding(found: &egress_provider::CheckFinding) -> ProviderFinding {
    ProviderFinding {
        severity: match found.severity {
            Severity::Error => ProviderSeverity::Error,
            Severity::Warning => ProviderSeverity::Warning,
        },
        reason: found.reason.to_string(),
        found: found.found.clone(),
        remedy: found.remedy.clone(),
    }
}

/// A suspect as a finding. The same for as long as it is one: what holds it back is in the log.
fn suspect(found: &Suspect) -> ProviderFinding {
    let remedy = match found.class {
        SuspectClass::Orphan => {
            "no Proxy has it, and nothing collects it: remove it on the hypervisor, or restore \
             its Proxy from a backup"
        }
        SuspectClass::Surplus => {
            "its Proxy has another machine: look at both, and remove this one on the hypervisor"
        }
        SuspectClass::Leftover => "no machine uses this seed: remove it from its storage",
    };
    ProviderFinding {
        severity: ProviderSeverity::Warning,
        reason: found.class.to_string(),
        found: format!("{} {}", found.class, found.thing),
        remedy: remedy.to_owned(),
    }
}

fn is_suspect(finding: &ProviderFinding) -> bool {
    let mut classes = SuspectClass::ALL.iter();
    classes.any(|class| class.as_str() == finding.reason)
}

/// Keeps the objects of this installation as what is known, for as long as it is polled.
pub async fn mirror_forever(
    client: Client,
    installation: Installation,
    handle: Handle,
    cache: Arc<Cache>,
    mirrored: Mirrored,
) {
    let api: Api<ProxyProvider> = Api::all(client);
    let mut objects = None;
    let mut told = None;
    loop {
        let result = match &mut objects {
            None => match list(&api, &installation).await {
                Ok(all) => {
                    objects = Some(all);
                    continue;
                }
                Err(failure) => Err(failure),
            },
            Some(objects) => {
                write_all(&api, &installation, &handle, &cache, &mirrored, objects).await
            }
        };
        if let Err(failure) = result {
            let text = failure.to_string();
            if told.as_ref() != Some(&text) {
                tracing::warn!("the ProxyProvider objects cannot be kept: {text}");
            }
            told = Some(text);
            objects = None; // whatever they are now
        } else {
            told = None;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// The objects there are.
#[derive(Default)]
struct Objects {
    ours: BTreeMap<String, Option<ProxyProviderStatus>>,
    /// Names that other installations use.
    others: BTreeSet<String>,
}

async fn list(api: &Api<ProxyProvider>, installation: &Installation) -> Result<Objects, Failure> {
    let mut objects = Objects::default();
    for object in in_time(api.list(&ListParams::default())).await?.items {
        let metadata = object.metadata;
        let (Some(name), labels) = (metadata.name, metadata.labels) else {
            continue;
        };
        let owner = labels.and_then(|mut labels| labels.remove(INSTALLATION_LABEL));
        if owner.is_none_or(|owner| owner == installation.as_str()) {
            objects.ours.insert(name, object.status);
        } else {
            objects.others.insert(name);
        }
    }
    Ok(objects)
}

async fn write_all(
    api: &Api<ProxyProvider>,
    installation: &Installation,
    handle: &Handle,
    cache: &Cache,
    mirrored: &Mirrored,
    objects: &mut Objects,
) -> Result<(), Failure> {
    let Objects {
        ours: objects,
        others,
    } = objects;
    let used = used(cache);
    let lanes = handle.parts().providers.all();
    let configured: BTreeMap<String, &'static str> = lanes
        .iter()
        .map(|lane| (lane.provider().name().to_string(), lane.provider().kind()))
        .collect();
    let names: BTreeSet<String> = configured.keys().chain(objects.keys()).cloned().collect();
    for name in names {
        if others.contains(&name) {
            continue; // two of one name: whoever came first is shown
        }
        let proxies = used.get(&name).copied().unwrap_or(0);
        let kind = configured.get(&name).copied();
        let exists = objects.contains_key(&name);
        if kind.is_none() && proxies == 0 {
            remove(api, &name).await?;
            objects.remove(&name);
            continue;
        }
        let before = objects.get(&name).cloned().flatten();
        let said = mirrored.said().get(&name).cloned().unwrap_or_default();
        let Some(status) = status(kind, proxies, said, before.as_ref()) else {
            continue; // not checked yet
        };
        if exists && before.as_ref() == Some(&status) {
            continue;
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let mut object = ProxyProvider::new(&name);
        let label = (INSTALLATION_LABEL.to_owned(), installation.to_string());
        object.metadata.labels = Some(BTreeMap::from([label]));
        if !exists {
            let patch = Patch::Apply(&object);
            let made = api.patch(&name, &params, &patch);
            write("PATCH", "proxyproviders", &name)
                .in_time(made)
                .await?;
        }
        object.status = Some(status.clone());
        let patch = Patch::Apply(&object);
        let told = api.patch_status(&name, &params, &patch);
        write("PATCH", "proxyproviders/status", &name)
            .in_time(told)
            .await?;
        objects.insert(name, Some(status));
    }
    Ok(())
}

const fn write<'a>(method: &'static str, resource: &'static str, name: &'a str) -> Write<'a> {
    Write {
        method,
        resource,
        namespace: None,
        name,
    }
}

async fn remove(api: &Api<ProxyProvider>, name: &str) -> Result<(), Failure> {
    // Only the object that was looked at, and only one that nobody else made of use.
    let Some(found) = in_time(api.get_opt(name)).await? else {
        return Ok(());
    };
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.metadata.uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let removed = api.delete(name, &params);
    match write("DELETE", "proxyproviders", name)
        .in_time(removed)
        .await
    {
        Ok(_) | Err(Failure::Missing) => Ok(()),
        Err(other) => Err(other),
    }
}

/// How many Proxies hold a place at each provider.
fn used(cache: &Cache) -> BTreeMap<String, usize> {
    let mut used = BTreeMap::new();
    for held in cache.all() {
        if let Memory::Record(stored) = &held.memory
            && let Some(claim) = &stored.record.claim
        {
            *used.entry(claim.provider.to_string()).or_default() += 1;
        }
    }
    used
}

/// What the object of a provider says; `None` while nothing is known.
fn status(
    kind: Option<&'static str>,
    proxies: usize,
    said: Said,
    before: Option<&ProxyProviderStatus>,
) -> Option<ProxyProviderStatus> {
    let check = match kind {
        Some(_) => said.check?,
        None => Check {
            version: None,
            free_slots: None,
            reason: CheckReason::ConfigInvalid,
            message: format!(
                "it is not configured any more, and {proxies} Proxies have machines on it: add \
                 it to the configuration again, or delete or abandon them"
            ),
            findings: Vec::new(),
        },
    };
    let ready = check.reason == CheckReason::Ready;
    let fresh = Condition {
        r#type: "Ready".into(),
        status: if ready { "True" } else { "False" }.into(),
        reason: check.reason.to_string(),
        message: check.message,
        last_transition_time: String::new(),
        observed_generation: None,
    };
    let earlier = before.map_or(&[][..], |b| &b.conditions);
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let free_slots = check.free_slots;
    let mut listing = said.listing;
    let suspects = match &mut listing {
        Some(listing) => std::mem::take(&mut listing.suspects),
        // What the leader before listed stands until this one did, here and below.
        None => before.map_or_else(Vec::new, |b| {
            let all = b.findings.iter().filter(|f| is_suspect(f));
            all.cloned().collect()
        }),
    };
    let known = before.and_then(|b| b.counts.as_ref());
    let counts = ProviderCounts {
        proxies: count(proxies),
        machines: listing
            .as_ref()
            .map(|l| count(l.machines))
            .or_else(|| known.and_then(|k| k.machines)),
        unaccounted: listing
            .as_ref()
            .map(|l| count(l.unaccounted))
            .or_else(|| known.and_then(|k| k.unaccounted)),
        free_slots: free_slots.map(|free| i64::try_from(free).unwrap_or(i64::MAX)),
    };
    let status = ProxyProviderStatus {
        kind: kind
            .map(ToOwned::to_owned)
            .or_else(|| before.and_then(|b| b.kind.clone())),
        version: check.version,
        conditions: vec![condition(fresh, earlier, jiff::Timestamp::now())],
        findings: Vec::new(),
        counts: Some(counts),
        last_complete_listing: listing
            .map(|l| l.at)
            .or_else(|| before.and_then(|b| b.last_complete_listing.clone())),
    };
    Some(status.with_findings(check.findings.into_iter().chain(suspects)))
}
