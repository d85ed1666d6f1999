//! Look: everything the plan needs to know, and nothing that changes anything.

use crate::{
    Credential, Credentials, Found, FoundText, Prober, ProviderLane, Providers,
    pass::PassError,
    store::{Store, StoreErrorKind, Stored},
};
use egress_core::{
    Claim, ErrorClass, MachineKey, ProviderName, Record, Standing,
    history::History,
    machine::{CloudConfig, MachineState, WantedMachine},
    proxy::{
        AuthSource, CredentialSight, Desired, Intent, Look, Observed, Presence, ProviderSight,
        Recorded, Serving, ServingFault, Trouble,
    },
    proxy_config::{Auth, ProxySettings},
    status,
};
use egress_provider::UserData;
use std::time::Duration;

/// How often another slot is asked for when someone else was first.
const OFFERS: usize = 8;

/// What a look found, with what the executor needs to carry a plan out.
pub(crate) struct Sight {
    pub(crate) seen: Observed,
    pub(crate) stored: Option<Stored>,
    pub(crate) lane: Option<std::sync::Arc<ProviderLane>>,
}

/// The parts of the engine that looking needs.
#[derive(Clone, Copy)]
pub(crate) struct Eyes<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) providers: &'a Providers,
    pub(crate) credentials: &'a dyn Credentials,
    pub(crate) prober: &'a dyn Prober,
}

/// The wanted machine with these verifiers and this cloud-config; a claim needs neither.
pub(crate) fn wanted(
    desired: &Desired,
    auth: Auth,
    user_data: Option<CloudConfig>,
) -> Option<WantedMachine> {
    let spec = desired.spec()?;
    Some(WantedMachine {
        proxy: desired.proxy.clone(),
        size: spec.size,
        settings: ProxySettings {
            port: spec.port,
            clients: spec.clients.clone(),
            auth,
        },
        config_hash: spec.config_hash.clone(),
        user_data,
    })
}

pub(crate) fn trouble(error: &egress_provider::Error) -> Trouble {
    Trouble {
        class: error.class(),
        text: error.chain(),
    }
}

/// Looks at one Proxy. Fails only when the store itself cannot be read.
pub(crate) async fn observe(
    eyes: Eyes<'_>,
    desired: &Desired,
    now: Duration,
    history: &mut History,
) -> Result<Sight, PassError> {
    let (recorded, stored) = match eyes.store.load(&desired.proxy).await {
        Ok(Some(stored)) => (Recorded::Held(stored.record.clone()), Some(stored)),
        Ok(None) => (Recorded::Nothing, None),
        Err(e) if e.kind == StoreErrorKind::Corrupt => (Recorded::Unreadable(e.chain()), None),
        Err(e) => match e.kind {
            StoreErrorKind::Settling(left) => (
                Recorded::Lost {
                    text: e.chain(),
                    left,
                },
                None,
            ),
            _ => return Err(PassError::Read(e)),
        },
    };
    history.note_record(recorded.record(), now);
    let going = matches!(desired.intent, Intent::Delete | Intent::Abandon);
    eyes.providers.note(None, recorded.record(), going);

    let provider = recorded
        .claim()
        .map(|c| &c.provider)
        .or_else(|| desired.spec().map(|s| &s.provider));
    let lane = provider.and_then(|name: &ProviderName| eyes.providers.get(name));
    let mut seen = Observed {
        now,
        recorded,
        provider: lane
            .as_ref()
            .map_or(ProviderSight::Unconfigured, |lane| sight(lane)),
        machine: Look::NotAsked,
        offer: Look::NotAsked,
        presence: Presence::Normal,
        serving: Serving::NotAsked,
        credential: CredentialSight::AtHand,
        user_data_missing: None,
        next: Look::NotAsked,
        history: History::default(),
    };
    let readable = !matches!(
        seen.recorded,
        Recorded::Unreadable(_) | Recorded::Lost { .. }
    ) && seen
        .recorded
        .record()
        .is_none_or(|r| r.installation == desired.installation);
    // Who is forgotten is not asked for: a hypervisor that is away keeps nobody.
    let asked = readable && desired.intent != Intent::Abandon;
    if asked && let Some(lane) = &lane {
        look(eyes, desired, lane, now, history, &mut seen).await;
    }
    if desired.intent == Intent::Delete && seen.recorded == Recorded::Nothing {
        seen.offer = lost(eyes.providers, desired, now, history).await;
    }
    seen.history = history.clone();
    Ok(Sight { seen, stored, lane })
}

/// Searches every provider for the machine of a Proxy whose record is not there: what was
/// never made is not found, and what lost its record is found by its mark.
async fn lost(
    providers: &Providers,
    desired: &Desired,
    now: Duration,
    history: &mut History,
) -> Look<Claim> {
    let key = MachineKey::new(desired.uid.clone()).of(&desired.proxy);
    for lane in providers.all() {
        match lane.listing().await {
            Ok(listing) => {
                let found = listing
                    .machines
                    .iter()
                    .filter(|machine| machine.mark.uid == desired.uid)
                    .max_by_key(|machine| machine.mark.attempt)
                    .cloned();
                if let Some(machine) = found {
                    history.note_looked();
                    return Look::Seen(Claim {
                        provider: machine.mark.provider,
                        cluster: machine.mark.cluster,
                        slot: machine.mark.slot,
                        host: machine.host,
                        attempt: machine.mark.attempt,
                        standing: Standing::Seen,
                        handles: Vec::new(),
                        mac: None,
                        seed: machine.seed,
                        unsettled: false,
                        retiring: None,
                    });
                }
            }
            Err(trouble) => {
                history.note_look_failed(trouble.clone(), &key, now);
                return Look::Failed(trouble);
            }
        }
    }
    Look::NotAsked
}

fn sight(lane: &ProviderLane) -> ProviderSight {
    let capabilities = lane.provider().capabilities();
    ProviderSight::Configured {
        kind: lane.provider().kind(),
        settle: capabilities.late_create.settle(),
        boot_timeout: capabilities.boot_timeout,
        seals: capabilities.user_data == UserData::NocloudIso,
    }
}

async fn look(
    eyes: Eyes<'_>,
    desired: &Desired,
    lane: &ProviderLane,
    now: Duration,
    history: &mut History,
    seen: &mut Observed,
) {
    let credential = match desired.spec().map(|s| &s.auth) {
        Some(source) => credential(eyes.credentials, desired, source, seen).await,
        None => None,
    };
    match seen.recorded.record().cloned() {
        Some(record) if record.claim.is_some() => {
            let key = MachineKey::new(record.machine_uid.clone()).of(&desired.proxy);
            look_at_machine(lane, desired, &key, &record, now, history, seen).await;
            let user_data = look_for_user_data(eyes.credentials, desired, seen).await;
            survey(eyes, desired, &key, credential.as_ref(), user_data, seen).await;
            ask(
                eyes.prober,
                desired,
                &key,
                credential.as_ref(),
                history,
                seen,
            )
            .await;
        }
        record => {
            look_for_user_data(eyes.credentials, desired, seen).await;
            let wanted_now = matches!(desired.intent, Intent::Run(_))
                && history.replace_at() <= now
                && seen.user_data_missing.is_none()
                && !matches!(seen.credential, CredentialSight::Missing(_));
            if wanted_now {
                seen.offer = offer(lane, desired, record.as_ref(), now, history, seen).await;
            }
        }
    }
}

async fn credential(
    credentials: &dyn Credentials,
    desired: &Desired,
    source: &AuthSource,
    seen: &mut Observed,
) -> Option<Credential> {
    match credentials.find(&desired.proxy, source).await {
        Ok(Found::NotNeeded) => None,
        Ok(Found::Known(credential)) => Some(credential),
        Ok(Found::Nothing) => {
            let runs = seen
                .recorded
                .claim()
                .is_some_and(|c| c.standing >= Standing::Seen);
            seen.credential = if runs {
                CredentialSight::Lost
            } else {
                CredentialSight::NotMade
            };
            None
        }
        Ok(Found::Missing(what)) => {
            seen.credential = CredentialSight::Missing(what);
            None
        }
        Err(trouble) => {
            seen.credential = CredentialSight::Missing(trouble.text);
            None
        }
    }
}

/// Asked only where a machine may be made, or made anew, in this pass or the next.
async fn look_for_user_data(
    credentials: &dyn Credentials,
    desired: &Desired,
    seen: &mut Observed,
) -> Option<CloudConfig> {
    let Intent::Run(spec) = &desired.intent else {
        return None;
    };
    let source = spec.user_data.as_ref()?;
    if !seen.is_unmade() && !seen.is_outdated(spec) {
        return None;
    }
    match credentials.cloud_config(&desired.proxy, source).await {
        Ok(FoundText::Here(text)) => return Some(text),
        Ok(FoundText::Missing(what)) => seen.user_data_missing = Some(what),
        Err(trouble) => seen.user_data_missing = Some(trouble.text),
    }
    None
}

/// Asks, where a machine runs that should be another one, whether that could be made.
async fn survey(
    eyes: Eyes<'_>,
    desired: &Desired,
    key: &MachineKey,
    credential: Option<&Credential>,
    user_data: Option<CloudConfig>,
    seen: &mut Observed,
) {
    let Intent::Run(spec) = &desired.intent else {
        return;
    };
    let Some(claim) = seen.recorded.claim() else {
        return;
    };
    let state = seen.machine.seen().map(|machine| &machine.state);
    let runs = matches!(state, Some(MachineState::Running(_)));
    let kept = seen.kept_for().is_some();
    if !runs || kept || claim.retiring.is_some() || !seen.is_outdated(spec) {
        return;
    }
    let Some(lane) = eyes.providers.get(&spec.provider) else {
        seen.next = Look::Failed(Trouble {
            class: ErrorClass::Permanent,
            text: format!(
                "spec.provider: {:?}: is not configured: add it to the configuration, or \
                 choose one that is",
                spec.provider.as_str()
            ),
        });
        return;
    };
    let auth = credential.map_or(Auth::None {}, Credential::auth);
    let Some(wanted) = wanted(desired, auth, user_data) else {
        return;
    };
    seen.next = match lane.provider().survey(key, claim, &wanted).await {
        Ok(()) => Look::Seen(()),
        Err(error) => Look::Failed(trouble(&error)),
    };
}

async fn look_at_machine(
    lane: &ProviderLane,
    desired: &Desired,
    key: &MachineKey,
    record: &Record,
    now: Duration,
    history: &mut History,
    seen: &mut Observed,
) {
    let Some(claim) = &record.claim else { return };
    if claim.standing == Standing::Unsent && !matches!(desired.intent, Intent::Run(_)) {
        return; // nothing was ever asked for
    }
    match lane.provider().get(key, claim).await {
        Ok(machine) => {
            history.note_looked();
            history.note_machine(record, &machine, now);
            let gone = matches!(machine.state, MachineState::Absent | MachineState::Foreign);
            let stays = matches!(desired.intent, Intent::Run(_)) && claim.retiring.is_none();
            if gone && stays && claim.standing >= Standing::Seen {
                seen.presence = lane.judge_presence().await;
            }
            seen.machine = Look::Seen(machine);
        }
        Err(e) => {
            let trouble = trouble(&e);
            history.note_look_failed(trouble.clone(), key, now);
            seen.machine = Look::Failed(trouble);
        }
    }
}

async fn ask(
    prober: &dyn Prober,
    desired: &Desired,
    key: &MachineKey,
    credential: Option<&Credential>,
    history: &mut History,
    seen: &mut Observed,
) {
    let Some(spec) = desired.spec() else { return };
    let askable = spec.auth == AuthSource::None || credential.is_some();
    let (Some(endpoint), true) = (status::endpoint(desired, seen), askable) else {
        return;
    };
    let fault = |fault, text| Serving::Failed {
        endpoint,
        fault,
        text,
    };
    seen.serving = match prober
        .identify(endpoint, credential, spec.probe_timeout)
        .await
    {
        Ok(answer) if answer.key == key.name() => Serving::Answered {
            endpoint,
            credential_generation: answer.credential_generation,
        },
        Ok(answer) => fault(
            ServingFault::WrongProxy,
            format!("answered as {:?}, not as {:?}", answer.key, key.name()),
        ),
        Err((kind, text)) => fault(kind, text),
    };
    history.note_serving(matches!(seen.serving, Serving::Answered { .. }));
}

async fn offer(
    lane: &ProviderLane,
    desired: &Desired,
    record: Option<&Record>,
    now: Duration,
    history: &mut History,
    seen: &Observed,
) -> Look<Claim> {
    let uid = record.map_or(&desired.uid, |r| &r.machine_uid);
    let key = MachineKey::new(uid.clone()).of(&desired.proxy);
    let Some(wanted) = wanted(desired, Auth::None {}, None) else {
        return Look::NotAsked;
    };
    let attempt = record.map_or(0, |r| r.last_attempt) + 1;
    let settle = match seen.provider {
        ProviderSight::Configured { settle, .. } => settle,
        ProviderSight::Unconfigured => Duration::ZERO,
    };
    for _ in 0..OFFERS {
        let mut taken = lane.taken_by_others(&desired.proxy);
        if let Some(record) = record {
            taken.extend(history.untouchable(record, settle, now));
        }
        match lane.provider().claim(&key, &wanted, attempt, &taken).await {
            Ok(claim) if lane.reserve(&claim.slot, &desired.proxy) => {
                history.note_looked();
                return Look::Seen(claim);
            }
            Ok(_) => {} // another Proxy took it between the question and now
            Err(e) => {
                let trouble = trouble(&e);
                history.note_look_failed(trouble.clone(), &key, now);
                return Look::Failed(trouble);
            }
        }
    }
    Look::NotAsked
}
