//! What is on a provider and belongs to no Proxy: orphans, surplus machines, leftovers.
//!
//! [`sweep`] judges one complete listing and answers with every suspect and, for each, all
//! guards that hold it back. It is pure and collects nothing. A suspect may be collected
//! only when no guard is left; nothing that is found here is ever adopted.
//!
//! Order matters to the caller: take the listing first and [`Known`] after it, so that a
//! Proxy made in between is known; then [`sweep`], then [`Sightings::note`]. A listing that
//! failed is no listing: leave the sightings as they are.

use egress_core::{Identity, MachineUid, Mark, ProviderName, ProxyId, Record, Slot, Standing};
use egress_provider::{Leftover, ListedMachine, Listing};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

#[cfg(test)]
mod tests;

/// What is younger than this is never collected: its record may be on its way.
pub const MIN_AGE: Duration = Duration::from_mins(15);
/// Fewer suspects than this at once are never too many.
pub const SHARE_FLOOR: usize = 3;
/// From one in so many of a provider's machines on, suspects are too many at once: then our
/// own knowledge is the likelier fault.
pub const SHARE: usize = 5;

/// What a suspect is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SuspectClass {
    /// A machine whose UID belongs to no Proxy.
    Orphan,
    /// A second machine of a living Proxy, away from its recorded slot.
    Surplus,
    /// A seed that no machine and no Proxy uses.
    Leftover,
}

impl SuspectClass {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::Orphan, Self::Surplus, Self::Leftover];
    /// The class as it stands in metrics and events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Surplus => "Surplus",
            Self::Leftover => "Leftover",
        }
    }
}

impl fmt::Display for SuspectClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! guards {
    ($($name:ident: $sentence:literal),* $(,)?) => {
        /// Why a suspect is left alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Guard { $(#[doc = concat!("Held back: ", $sentence, ".")] $name),* }
        impl Guard {
            /// Every guard.
            pub const ALL: &[Self] = &[$(Self::$name),*];
            /// The guard as it stands in metrics and events.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
            /// The same for people.
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence),* }
            }
        }
    };
}

guards! {
    NotSwitchedOn: "collecting is not switched on",
    DryRun: "this is a dry run",
    Frozen: "everything is frozen",
    OtherInstallation: "its mark is of another installation",
    OtherWriter: "its mark was written from another state directory",
    NamespaceOutOfScope: "its Proxy would be in a namespace that is not ours to look after",
    NamespaceNotReadLive: "the Proxies of its namespace were not read directly, all of them",
    StoreNotSynced: "not all records were read yet",
    StoreUnhealthy: "a record cannot be read, or the store cannot be reached",
    ProviderUnhealthy: "the provider is not ready, or its machines disappeared in numbers",
    NoProxyExists: "there is no Proxy at all, so ours may be the wrong list",
    TooYoung: "it is younger than 15 minutes",
    SeenOnce: "it was not yet seen in two complete listings a full period apart",
    OverShare: "too many are suspect at once, so our own knowledge may be wrong",
    OverCapPerSweep: "this sweep collects no more than its cap",
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What may be done with suspects at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are reported only.
    #[default]
    Report,
    /// They are reported as if they were collected.
    DryRun,
    /// They may be collected.
    Collect,
}

/// Whether all changes are stopped by a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// Changes may be made.
    Running,
    /// None may.
    Frozen,
}

/// Whether every record was read since the process began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// All were.
    Yes,
    /// Not yet.
    No,
}

/// Whether something can be relied on now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers and has nothing to complain of.
    Healthy,
    /// It does not.
    Unhealthy,
}

/// A set of namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All there are.
    All,
    /// These.
    Only(BTreeSet<String>),
}

impl Namespaces {
    fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(namespace),
        }
    }
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Only(_), Self::All) => false,
            (Self::Only(ours), Self::Only(theirs)) => theirs.is_subset(ours),
        }
    }
}

/// The circumstances of one sweep of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guards {
    /// What may be done at all.
    pub mode: Mode,
    /// Whether a person stopped all changes.
    pub freeze: Freeze,
    /// Who we are.
    pub identity: Identity,
    /// The namespaces whose Proxies are ours to look after.
    pub scope: Namespaces,
    /// The namespaces whose Proxies were all read from their source for this sweep, without
    /// a selector and not from a cache.
    pub read_live: Namespaces,
    /// Whether every record was read.
    pub synced: Synced,
    /// Whether the store answers and every record in it can be read.
    pub store: Health,
    /// Whether the provider's check is ready and nothing speaks against its listing.
    pub provider: Health,
    /// How many may be collected in one sweep.
    pub cap: usize,
    /// The time from one sweep to the next.
    pub period: Duration,
}

/// Where a living Proxy's machine is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing is promised: the next claim asks the provider and finds what bears its mark.
    Unclaimed,
    /// An attempt is on its way.
    Open,
    /// It was seen at this place and nothing is on its way.
    At { provider: ProviderName, slot: Slot },
}

/// Every Proxy there is, as the records and the wanted ones tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    places: BTreeMap<MachineUid, Place>,
    /// Names of the machines of living Proxies, and of their recorded seeds.
    names: BTreeSet<String>,
    seeds: BTreeSet<String>,
    unreadable: BTreeSet<ProxyId>,
}

impl Known {
    /// A Proxy with a record.
    pub fn insert_record(&mut self, record: &Record) {
        let place = match &record.claim {
            None => Place::Unclaimed,
            Some(claim) => {
                self.seeds
                    .extend(claim.seed.iter().map(|seed| seed.name.clone()));
                let open = claim.standing < Standing::Seen
                    || claim.unsettled
                    || claim.retiring.is_some()
                    || !claim.handles.is_empty();
                if open {
                    Place::Open
                } else {
                    Place::At {
                        provider: claim.provider.clone(),
                        slot: claim.slot.clone(),
                    }
                }
            }
        };
        self.insert(&record.machine_uid, place);
    }
    /// A Proxy that is wanted and has no record yet, by the UID its machine would have.
    pub fn insert_wanted(&mut self, uid: &MachineUid) {
        if !self.places.contains_key(uid) {
            self.insert(uid, Place::Unclaimed);
        }
    }
    /// A Proxy whose record cannot be read: no machine that bears its name is a suspect.
    pub fn insert_unreadable(&mut self, proxy: ProxyId) {
        self.unreadable.insert(proxy);
    }

    fn insert(&mut self, uid: &MachineUid, place: Place) {
        let key = egress_core::MachineKey::new(uid.clone());
        self.names.insert(key.name().to_owned());
        self.places.insert(uid.clone(), place);
    }

    fn judge_machine(&self, machine: &ListedMachine) -> Option<SuspectClass> {
        let mark = &machine.mark;
        if self.unreadable.contains(&mark.proxy) {
            return None;
        }
        match self.places.get(&mark.uid) {
            None => Some(SuspectClass::Orphan),
            Some(Place::Unclaimed | Place::Open) => None,
            Some(Place::At { provider, slot }) => {
                let there = *provider == mark.provider && *slot == mark.slot;
                (!there).then_some(SuspectClass::Surplus)
            }
        }
    }

    fn uses(&self, leftover: &Leftover) -> bool {
        self.names.contains(&leftover.machine) || self.seeds.contains(&leftover.volume.name)
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A machine, by its mark.
    Machine(Box<ListedMachine>),
    /// A seed.
    Seed(Leftover),
}

/// Where it is, and whose it was.
impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(machine) => {
                let mark = &machine.mark;
                write!(f, "at {} {}", mark.provider, mark.slot)?;
                if let Some(host) = &machine.host {
                    write!(f, " on {host}")?;
                }
                write!(f, ", made as attempt {} of {}", mark.attempt, mark.proxy)
            }
            Self::Seed(leftover) => {
                let volume = &leftover.volume;
                write!(f, "{} in {}", volume.name, volume.location)?;
                write!(f, ", made for {}", leftover.machine)
            }
        }
    }
}

/// What tells one suspect from another over several listings. A machine that changes its
/// class begins its wait anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SuspectKey {
    class: SuspectClass,
    /// Provider and slot, or the seed's storage.
    place: (String, String),
    /// The machine's UID, or the seed's name.
    name: String,
    attempt: u32,
}

impl SuspectKey {
    fn of_machine(class: SuspectClass, mark: &Mark) -> Self {
        Self {
            class,
            place: (mark.provider.to_string(), mark.slot.to_string()),
            name: mark.uid.to_string(),
            attempt: mark.attempt,
        }
    }
    fn of_seed(leftover: &Leftover) -> Self {
        Self {
            class: SuspectClass::Leftover,
            place: (String::new(), leftover.volume.location.clone()),
            name: leftover.volume.name.clone(),
            attempt: 0,
        }
    }
}

/// Something that belongs to no Proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// What it is.
    pub class: SuspectClass,
    /// What was found.
    pub thing: Thing,
    /// All that hold it back, in the order of [`Guard::ALL`].
    pub held_by: Vec<Guard>,
}

impl Suspect {
    /// Whether nothing holds it back.
    pub fn is_collectable(&self) -> bool {
        self.held_by.is_empty()
    }
    /// What tells it from other suspects.
    pub fn key(&self) -> SuspectKey {
        match &self.thing {
            Thing::Machine(machine) => SuspectKey::of_machine(self.class, &machine.mark),
            Thing::Seed(leftover) => SuspectKey::of_seed(leftover),
        }
    }
}

/// For a log line: what, where, whose it was, and what holds it back.
impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.class, self.thing)?;
        for (index, guard) in self.held_by.iter().enumerate() {
            let word = if index == 0 { "; left alone: " } else { "; " };
            write!(f, "{word}{}", guard.sentence())?;
        }
        Ok(())
    }
}

/// Every suspect of one listing, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// The suspects.
    pub suspects: Vec<Suspect>,
}

impl SweepReport {
    /// How many there are of a class.
    pub fn count(&self, class: SuspectClass) -> usize {
        self.suspects
            .iter()
            .filter(|suspect| suspect.class == class)
            .count()
    }
    /// Those that nothing holds back.
    pub fn collectable(&self) -> impl Iterator<Item = &Suspect> {
        self.suspects
            .iter()
            .filter(|suspect| suspect.is_collectable())
    }
}

/// The moment of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// On the process's monotonic clock.
    pub since_start: Duration,
    /// By the wall clock, to be compared with what machines say of their age.
    pub wall: jiff::Timestamp,
}

/// What earlier complete listings of one provider showed, remembered in the process. A
/// restart forgets it, and every wait begins anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    first: BTreeMap<SuspectKey, Duration>,
}

impl Sightings {
    /// Remembers the suspects of a complete listing, and forgets who is none any more.
    pub fn note(&mut self, report: &SweepReport, now: Now) {
        let earlier = std::mem::take(&mut self.first);
        self.first = report
            .suspects
            .iter()
            .map(Suspect::key)
            .map(|key| {
                let first = earlier.get(&key).copied().unwrap_or(now.since_start);
                (key, first)
            })
            .collect();
    }

    /// How long ago it was first seen, if it was in every complete listing since.
    fn watched(&self, key: &SuspectKey, now: Now) -> Option<Duration> {
        self.first
            .get(key)
            .map(|first| now.since_start.saturating_sub(*first))
    }
}

/// Judges one complete listing.
pub fn sweep(
    listing: &Listing,
    known: &Known,
    guards: &Guards,
    earlier: &Sightings,
    now: Now,
) -> SweepReport {
    let mut suspects = find(listing, known);
    let common = common_guards(known, guards, suspects.len(), listing.machines.len());
    let mut collected = 0;
    for suspect in &mut suspects {
        let mut held_by = common.clone();
        held_by.extend(match &suspect.thing {
            Thing::Machine(machine) => mark_guards(&machine.mark, guards),
            Thing::Seed(_) => seed_guards(guards),
        });
        let watched = earlier.watched(&suspect.key(), now);
        if age(&suspect.thing, watched, now) < MIN_AGE {
            held_by.push(Guard::TooYoung);
        }
        if watched.is_none_or(|watched| watched < guards.period) {
            held_by.push(Guard::SeenOnce);
        }
        if held_by.is_empty() {
            // Only who would be collected counts: others must not block the way for ever.
            if collected >= guards.cap {
                held_by.push(Guard::OverCapPerSweep);
            } else {
                collected += 1;
            }
        }
        held_by.sort_unstable();
        suspect.held_by = held_by;
    }
    SweepReport { suspects }
}

fn find(listing: &Listing, known: &Known) -> Vec<Suspect> {
    let machines = listing.machines.iter().filter_map(|machine| {
        let class = known.judge_machine(machine)?;
        let thing = Thing::Machine(Box::new(machine.clone()));
        Some(Suspect {
            class,
            thing,
            held_by: Vec::new(),
        })
    });
    let names: BTreeSet<String> = listing
        .machines
        .iter()
        .map(|machine| {
            egress_core::MachineKey::new(machine.mark.uid.clone())
                .name()
                .to_owned()
        })
        .collect();
    let attached: BTreeSet<&str> = listing
        .machines
        .iter()
        .filter_map(|machine| machine.seed.as_ref())
        .map(|seed| seed.name.as_str())
        .collect();
    // A seed made for a listed machine goes with that machine, suspect or not.
    let used = |leftover: &Leftover| {
        known.uses(leftover)
            || names.contains(&leftover.machine)
            || attached.contains(leftover.volume.name.as_str())
    };
    let seeds = listing
        .leftovers
        .iter()
        .filter(|leftover| !used(leftover))
        .map(|leftover| {
            let thing = Thing::Seed(leftover.clone());
            Suspect {
                class: SuspectClass::Leftover,
                thing,
                held_by: Vec::new(),
            }
        });
    let mut suspects: Vec<Suspect> = machines.chain(seeds).collect();
    suspects.sort_by_cached_key(Suspect::key);
    suspects
}

/// The guards that hold for every suspect of this sweep.
fn common_guards(known: &Known, guards: &Guards, suspects: usize, machines: usize) -> Vec<Guard> {
    let mode = match guards.mode {
        Mode::Report => Some(Guard::NotSwitchedOn),
        Mode::DryRun => Some(Guard::DryRun),
        Mode::Collect => None,
    };
    let store = guards.store == Health::Unhealthy || !known.unreadable.is_empty();
    let rest = [
        (guards.freeze == Freeze::Frozen, Guard::Frozen),
        (guards.synced == Synced::No, Guard::StoreNotSynced),
        (store, Guard::StoreUnhealthy),
        (
            guards.provider == Health::Unhealthy,
            Guard::ProviderUnhealthy,
        ),
        (known.places.is_empty(), Guard::NoProxyExists),
        (
            suspects >= SHARE_FLOOR && suspects * SHARE >= machines,
            Guard::OverShare,
        ),
    ];
    mode.into_iter()
        .chain(rest.into_iter().filter_map(|(holds, g)| holds.then_some(g)))
        .collect()
}

fn mark_guards(mark: &Mark, guards: &Guards) -> Vec<Guard> {
    let namespace = mark.proxy.namespace();
    let installation = mark.installation != guards.identity.installation;
    [
        (installation, Guard::OtherInstallation),
        (
            !installation && mark.writer != guards.identity.writer,
            Guard::OtherWriter,
        ),
        (
            !guards.scope.contains(namespace),
            Guard::NamespaceOutOfScope,
        ),
        (
            !guards.read_live.contains(namespace),
            Guard::NamespaceNotReadLive,
        ),
    ]
    .into_iter()
    .filter_map(|(holds, guard)| holds.then_some(guard))
    .collect()
}

/// A seed does not say whose namespace it is of: it may be of any.
fn seed_guards(guards: &Guards) -> Vec<Guard> {
    let out_of_scope = guards.scope != Namespaces::All;
    let not_read = !guards.read_live.covers(&guards.scope);
    [
        (out_of_scope, Guard::NamespaceOutOfScope),
        (not_read, Guard::NamespaceNotReadLive),
    ]
    .into_iter()
    .filter_map(|(holds, guard)| holds.then_some(guard))
    .collect()
}

/// The age of a thing by what it says itself; of one that says nothing, since we first saw
/// it. One from the future has no age.
fn age(thing: &Thing, watched: Option<Duration>, now: Now) -> Duration {
    let stated = match thing {
        Thing::Machine(machine) => Some(machine.created_at.unwrap_or(machine.mark.written)),
        Thing::Seed(leftover) => leftover.created_at,
    };
    match stated {
        Some(made) => now
            .wall
            .duration_since(made)
            .try_into()
            .unwrap_or(Duration::ZERO),
        None => watched.unwrap_or(Duration::ZERO),
    }
}
