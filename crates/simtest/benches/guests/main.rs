//! From the start of a virtual machine to the first answer through its proxy, over the bare boot
//! of the same image; with each source of the guest agent. A full Debian under emulation, on the
//! libvirt that `cargo xtask bench` starts. Machines are taken by turns, one at a time.

#[path = "../measure/mod.rs"]
mod measure;

mod machine;
mod outside;
mod overhead;

use machine::{Machine, Times};
use measure::{figure, head, median, number, row, text};
use std::{env, net::SocketAddr, path::PathBuf};

/// Where libvirt is, and what machines are made from.
struct Ground {
    uri: String,
    dir: PathBuf,
    /// Debian as it is.
    debian: PathBuf,
    /// The same with proxyd, agent and rules in it.
    baked: PathBuf,
    proxyd: Vec<u8>,
    /// A page and a mirror of Debian's packages, where machines take the internet to be.
    outside: SocketAddr,
}

impl Ground {
    fn find() -> Self {
        let told = |name: &str| {
            let told = env::var(name);
            told.unwrap_or_else(|_| panic!("{name} is not set: run this by `cargo xtask bench`"))
        };
        let dir = PathBuf::from(told("EGRESS_LIBVIRT_DIR"));
        let outside = told("EGRESS_LIBVIRT_OUTSIDE").parse().expect("an address");
        Self {
            uri: told("EGRESS_LIBVIRT_URI"),
            debian: dir.join("pool").join(told("EGRESS_LIBVIRT_BASE_IMAGE")),
            baked: told("BENCH_BAKED").into(),
            proxyd: std::fs::read(told("BENCH_PROXYD")).expect("the static proxyd"),
            outside: outside::serve(outside, told("BENCH_MIRROR").into()),
            dir,
        }
    }
}

/// What a machine boots with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A seed that says nothing: nothing of ours.
    Bare,
    Builtin,
    Package,
    Baked,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Bare, Self::Builtin, Self::Package, Self::Baked];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Builtin => "builtin",
            Self::Package => "package",
            Self::Baked => "baked",
        }
    }
}

fn main() {
    let ground = Ground::find();
    let rounds = number("--rounds", 3);
    let explained = text("--explain");
    let mut seen: Vec<(Kind, Times)> = Vec::new();
    let mut facts = None;
    for round in 0..rounds {
        // Whoever goes first in one round goes last in the next.
        let mut kinds = Kind::ALL;
        kinds.rotate_left(round as usize % Kind::ALL.len());
        for kind in kinds {
            eprintln!("{}, round {} of {rounds}", kind.as_str(), round + 1);
            let machine = Machine::start(&ground, kind, explained.as_deref());
            let times = machine.times();
            eprintln!("  {times:?}");
            if kind == Kind::Builtin && facts.is_none() || explained.is_some() {
                facts = machine.facts().or(facts);
            }
            seen.push((kind, times));
        }
    }
    let of = |kind: Kind, time: fn(&Times) -> f64| -> f64 {
        let times = seen.iter().filter(|(seen, _)| *seen == kind);
        median(&times.map(|(_, times)| time(times)).collect::<Vec<_>>())
    };
    println!(
        "Medians of {rounds} rounds by turns, seconds from the start of the domain. `bare` is the \
         same image with a seed that says nothing, up to its multi-user target. The mirror for \
         `package` holds the agent and what it needs, next door. CPU is what QEMU used until the \
         first 200: neighbours on the machine disturb it less.\n"
    );
    head(&[
        "guestAgent",
        "multi-user",
        "address known",
        "first 200",
        "over bare",
        "of package",
        "CPU until then",
        "over bare",
        "of package",
    ]);
    let bare = of(Kind::Bare, |t| t.multi_user);
    let package = of(Kind::Package, |t| t.served);
    let used = |kind| of(kind, |t| t.processor);
    for kind in Kind::ALL {
        let served = of(kind, |t| t.served);
        let compared = if kind == Kind::Bare { bare } else { served };
        row([
            kind.as_str().to_owned(),
            figure(of(kind, |t| t.multi_user)),
            figure(of(kind, |t| t.addressed)),
            figure(served),
            format!("**{}x**", figure(compared / bare)),
            figure(served / package),
            figure(used(kind)),
            format!("**{}x**", figure(used(kind) / used(Kind::Bare))),
            figure(used(kind) / used(Kind::Package)),
        ]);
    }

    println!("\nIn that machine, and around it.\n");
    head(&["what", "figure"]);
    let size = machine::seed(&ground, Kind::Builtin, None).len();
    row(["seed, MB".to_owned(), figure(size as f64 / 1e6)]);
    let facts = facts.expect("the rounds are one or more");
    row(["proxyd idle, RSS, MiB".to_owned(), figure(facts.proxy_mib)]);
    row(["agent idle, RSS, MiB".to_owned(), figure(facts.agent_mib)]);
    overhead::measure(&ground, number("--machines", 10));
}
