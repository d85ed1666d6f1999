//! Values for the tests of this crate: one Proxy in a world where all is well. A test says
//! what differs, by struct update.

use crate::{
    history::History,
    machine::{
        Addresses, Claim, ClusterId, ConfigHash, ErrorClass, Installation, MachineKey, MachineSize,
        MachineState, MachineUid, ObservedMachine, Proven, ProviderName, ProxyId, Record, Slot,
        Standing,
    },
    proxy::{
        AuthSource, CredentialSight, Desired, Intent, Look, Observed, Presence, ProviderSight,
        ProxySpec, Recorded, Serving, Trouble,
    },
};
use std::{net::SocketAddr, time::Duration};

pub(crate) const SETTLE: Duration = secs(900);
pub(crate) const BOOT: Duration = secs(600);
/// The `now` of [`observed`]: late enough that every timer may have begun earlier.
pub(crate) const NOW: Duration = secs(100_000);

pub(crate) const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Parses a name that the test writes.
pub(crate) fn name<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

pub(crate) fn uid() -> MachineUid {
    name("0c5c1b6e-6c5e-4b52-9d8a-0d5f2c1a7e11")
}

pub(crate) fn key() -> MachineKey {
    MachineKey::new(uid())
}

pub(crate) fn proxy() -> ProxyId {
    ProxyId::new("shop", "eu-1").unwrap()
}

pub(crate) fn installation() -> Installation {
    name("lab")
}

pub(crate) fn provider() -> ProviderName {
    name("pve")
}

/// The hash of the `n`th configuration that the user wants.
pub(crate) fn hash(n: u8) -> ConfigHash {
    ConfigHash::of(&[n])
}

pub(crate) fn spec() -> ProxySpec {
    ProxySpec {
        provider: provider(),
        size: MachineSize {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 4,
        },
        port: Some(3128),
        clients: Vec::new(),
        auth: AuthSource::Generated,
        user_data: None,
        probe_interval: secs(30),
        probe_timeout: secs(5),
        failure_threshold: 3,
        config_hash: hash(1),
    }
}

pub(crate) fn desired(intent: Intent) -> Desired {
    Desired {
        proxy: proxy(),
        uid: uid(),
        installation: installation(),
        generation: 1,
        intent,
    }
}

pub(crate) fn run() -> Desired {
    desired(Intent::Run(spec()))
}

pub(crate) fn gone() -> Desired {
    desired(Intent::Delete)
}

pub(crate) fn record() -> Record {
    Record::new(uid(), installation(), proxy())
}

pub(crate) fn claim(standing: Standing) -> Claim {
    Claim {
        provider: provider(),
        cluster: ClusterId::new("cluster-a"),
        slot: Slot::new("101"),
        host: None,
        attempt: 1,
        standing,
        handles: Vec::new(),
        mac: None,
        seed: None,
        unsettled: false,
        retiring: None,
    }
}

/// A record that holds this claim.
pub(crate) fn holding(claim: Claim) -> Record {
    record().with_claim(claim)
}

pub(crate) fn endpoint() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 7], 3128))
}

pub(crate) fn proof() -> Proven {
    Proven {
        address: endpoint(),
        egress: None,
        credential_generation: 1,
    }
}

/// A record that holds a claim that stands so, with its first proof.
pub(crate) fn proven(standing: Standing) -> Record {
    Record {
        proven: Some(proof()),
        ..holding(claim(standing))
    }
}

pub(crate) fn trouble(class: ErrorClass) -> Trouble {
    Trouble {
        class,
        text: "the server said no".into(),
    }
}

/// A look that shows this state, made from the first configuration.
pub(crate) fn showing(state: MachineState) -> Look<ObservedMachine> {
    let marked = !matches!(
        state,
        MachineState::Absent | MachineState::Foreign | MachineState::NotOwned { .. }
    );
    Look::Seen(ObservedMachine {
        config_hash: marked.then(|| hash(1)),
        attempt: marked.then_some(1),
        ..ObservedMachine::only(state)
    })
}

pub(crate) fn reporting() -> MachineState {
    let addresses = vec![endpoint().ip()];
    MachineState::Running(Addresses::Reported {
        addresses,
        port: None,
    })
}

pub(crate) fn in_progress() -> MachineState {
    MachineState::InProgress {
        step: "clone".into(),
    }
}

pub(crate) fn not_owned() -> MachineState {
    MachineState::NotOwned {
        restore: "egress-proxies/v1 {}".into(),
    }
}

pub(crate) fn unknown() -> MachineState {
    MachineState::Unknown {
        why: "the node does not answer".into(),
    }
}

pub(crate) const fn configured(seals: bool) -> ProviderSight {
    ProviderSight::Configured {
        kind: "proxmox",
        settle: SETTLE,
        boot_timeout: BOOT,
        seals,
    }
}

/// A world in which nothing was asked yet.
pub(crate) fn observed(recorded: Recorded) -> Observed {
    Observed {
        now: NOW,
        recorded,
        provider: configured(false),
        machine: Look::NotAsked,
        offer: Look::NotAsked,
        presence: Presence::Normal,
        serving: Serving::NotAsked,
        credential: CredentialSight::AtHand,
        user_data_missing: None,
        next: Look::NotAsked,
        history: History::default(),
    }
}

/// A world in which the machine of this record shows this state.
pub(crate) fn seeing(record: Record, state: MachineState) -> Observed {
    Observed {
        machine: showing(state),
        ..observed(Recorded::Held(record))
    }
}

pub(crate) fn answering() -> Serving {
    Serving::Answered {
        endpoint: endpoint(),
        credential_generation: 1,
    }
}
