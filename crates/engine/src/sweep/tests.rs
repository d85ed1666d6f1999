mod guards;
mod properties;
mod suspects;

use super::*;
use egress_core::{
    Claim, ClusterId, Handle, Installation, MachineKey, SeedVolume, WriterId,
    machine::{ConfigHash, Retirement},
};
use jiff::Timestamp;
use proptest::prelude::*;

const PERIOD: Duration = Duration::from_mins(10);
const HOUR: Duration = Duration::from_hours(1);

fn now() -> Now {
    Now {
        since_start: 10 * HOUR,
        wall: Timestamp::from_second(2_000_000_000).unwrap(),
    }
}

fn ago(age: Duration) -> Timestamp {
    now().wall - age
}

fn us() -> Identity {
    let installation: Installation = "lab".parse().unwrap();
    Identity {
        installation,
        writer: Some(WriterId::new("w1")),
    }
}

fn proxy(n: usize) -> ProxyId {
    ProxyId::new("shop", &format!("p{n}")).unwrap()
}

fn uid(n: usize) -> MachineUid {
    format!("uid-{n}").parse().unwrap()
}

fn record(n: usize) -> Record {
    Record::new(uid(n), us().installation, proxy(n))
}

fn record_at(n: usize, slot: &str, standing: Standing) -> Record {
    let claim = Claim {
        provider: "pve".parse().unwrap(),
        cluster: ClusterId::new("cluster"),
        slot: Slot::new(slot),
        host: None,
        attempt: 1,
        standing,
        handles: Vec::new(),
        mac: None,
        seed: None,
        unsettled: false,
        retiring: None,
    };
    Record {
        claim: Some(claim),
        last_attempt: 1,
        ..record(n)
    }
}

fn machine(n: usize, slot: &str) -> ListedMachine {
    let mark = Mark {
        installation: us().installation,
        writer: us().writer,
        provider: "pve".parse().unwrap(),
        cluster: ClusterId::new("cluster"),
        slot: Slot::new(slot),
        uid: uid(n),
        proxy: proxy(n),
        attempt: 1,
        config: ConfigHash::of(b"config"),
        written: ago(HOUR),
    };
    ListedMachine {
        mark,
        host: None,
        seed: None,
        created_at: None,
    }
}

fn seed(name: &str, machine: &str) -> Leftover {
    Leftover {
        volume: SeedVolume {
            name: name.into(),
            location: "local".into(),
        },
        machine: machine.into(),
        created_at: Some(ago(HOUR)),
    }
}

fn known(records: &[Record]) -> Known {
    let mut known = Known::default();
    for record in records {
        known.insert_record(record);
    }
    known
}

/// Circumstances in which nothing holds anything back.
fn open_guards() -> Guards {
    Guards {
        mode: Mode::Collect,
        freeze: Freeze::Running,
        identity: us(),
        scope: Namespaces::All,
        read_live: Namespaces::All,
        synced: Synced::Yes,
        store: Health::Healthy,
        provider: Health::Healthy,
        cap: 10,
        period: PERIOD,
    }
}

fn only(namespaces: &[&str]) -> Namespaces {
    Namespaces::Only(namespaces.iter().map(|name| (*name).to_owned()).collect())
}

/// One sweep of one provider.
#[derive(Clone, Debug)]
struct Scene {
    listing: Listing,
    known: Known,
    guards: Guards,
    /// How long the same listing was seen before.
    watched: Option<Duration>,
}

impl Scene {
    /// One living Proxy at its slot, one orphan, one surplus machine and one leftover seed
    /// among enough machines, all of them collectable.
    fn full() -> Self {
        let living = (0..20).map(|n| machine(n, &format!("{}", 100 + n)));
        let records: Vec<Record> = (0..20)
            .map(|n| record_at(n, &format!("{}", 100 + n), Standing::Sealed))
            .collect();
        let machines = living
            .chain([machine(77, "177"), machine(3, "203")])
            .collect();
        Self {
            listing: Listing {
                machines,
                leftovers: vec![seed("seed-gone.iso", "proxy-gone")],
                copies: Vec::new(),
            },
            known: known(&records),
            guards: open_guards(),
            watched: Some(PERIOD),
        }
    }
    /// Only one orphan beside the living.
    fn orphan() -> Self {
        let mut scene = Self::full();
        scene.listing.leftovers.clear();
        scene
            .listing
            .machines
            .retain(|machine| machine.mark.slot.as_str() != "203");
        scene
    }
    /// Only the leftover beside the living.
    fn leftover() -> Self {
        let mut scene = Self::full();
        scene.listing.machines.truncate(20);
        scene
    }
    fn sweep(&self) -> SweepReport {
        let mut earlier = Sightings::default();
        if let Some(watched) = self.watched {
            let then = Now {
                since_start: now().since_start.saturating_sub(watched),
                ..now()
            };
            let report = sweep(
                &self.listing,
                &self.known,
                &self.guards,
                &Sightings::default(),
                then,
            );
            earlier.note(&report, then);
        }
        sweep(&self.listing, &self.known, &self.guards, &earlier, now())
    }
    fn orphan_mut(&mut self) -> &mut ListedMachine {
        self.listing
            .machines
            .iter_mut()
            .find(|m| m.mark.uid == uid(77))
            .unwrap()
    }
    fn classes(&self) -> Vec<SuspectClass> {
        self.sweep()
            .suspects
            .iter()
            .map(|suspect| suspect.class)
            .collect()
    }
}
