//! proxyd beside the forward proxies that people run today, under the same load, by turns.

mod contender;
mod load;
#[path = "../measure/mod.rs"]
mod measure;
mod origin;

use contender::Contender;
use load::{Load, run};
use measure::{
    figure, head, median, memory, number, open_directory, processor_time, quantile, row,
};
use std::{collections::HashMap, net::SocketAddr, time::Duration};

/// Clients of each load.
const CLIENTS: [(Load, u32); 3] = [
    (Load::Requests, 64),
    (Load::Connects, 32),
    (Load::Stream, 8),
];
/// Tunnels that stay open while memory is looked at.
const QUIET: u32 = 500;

/// What is measured, and whether more is better.
const ROWS: [(&str, bool); 13] = [
    ("requests/s, kept connections", true),
    ("request p99, ms", false),
    ("proxy CPU a request, µs", false),
    ("load and origin CPU a request, µs", false),
    ("new CONNECT/s", true),
    ("CONNECT p99, ms", false),
    ("proxy CPU a CONNECT, µs", false),
    ("load and origin CPU a CONNECT, µs", false),
    ("tunnel MB/s", true),
    ("proxy CPU a GB, ms", false),
    ("load and origin CPU a GB, ms", false),
    ("RSS after the load, MiB", false),
    ("RSS added by 500 quiet tunnels, MiB", false),
];

/// Figures by row and contender, one a round.
type Figures = HashMap<(&'static str, &'static str), Vec<f64>>;

#[tokio::main(worker_threads = 2)]
async fn main() {
    let rounds = number("--rounds", 5);
    let time = Duration::from_millis(number("--milliseconds", 3000).into());
    let dir = open_directory();
    let origins = origin::start().await;
    let mut contenders = vec![Contender::proxyd(dir.path())];
    contenders.extend(Contender::tinyproxy(dir.path()));
    contenders.extend(Contender::squid(dir.path()));
    contenders.extend(Contender::haproxy(dir.path(), &origins));
    contenders.push(Contender::direct());

    let mut figures = Figures::new();
    for round in 0..rounds as usize {
        for (load, clients) in CLIENTS {
            for turn in 0..contenders.len() {
                let contender = &contenders[(turn + round) % contenders.len()];
                if load == Load::Requests || contender.tunnels {
                    eprintln!(
                        "round {} of {rounds}: {load:?}, {}",
                        round + 1,
                        contender.name
                    );
                    measure(&mut figures, contender, load, &origins, clients, time).await;
                }
            }
        }
    }
    for contender in &contenders {
        look_at_memory(&mut figures, contender, &origins).await;
    }
    print(&figures, &contenders, rounds, time);
}

async fn measure(
    figures: &mut Figures,
    contender: &Contender,
    load: Load,
    origins: &[SocketAddr],
    clients: u32,
    time: Duration,
) {
    let itself = std::process::id();
    let used = || (contender.pid().map(processor_time), processor_time(itself));
    let before = used();
    let sample = run(load, contender.route, origins, clients, time).await;
    let after = used();
    if let (failed @ 1.., why) = &sample.failures {
        eprintln!(
            "{}: {failed} failed, the last with: {why:?}",
            contender.name
        );
    }
    let by_proxy = after
        .0
        .zip(before.0)
        .map(|(after, before)| after.saturating_sub(before));
    let by_load = after.1.saturating_sub(before.1);
    let first = match load {
        Load::Requests => 0,
        Load::Connects => 4,
        Load::Stream => 8,
    };
    let mut keep = |row: usize, value: f64| {
        let cell = figures.entry((ROWS[first + row].0, contender.name));
        cell.or_default().push(value);
    };
    if load == Load::Stream {
        // A GB is 10^9 bytes; processor time in ms.
        let per_gb = |used: Duration| used.as_secs_f64() * 1e3 / (sample.done / 1e9);
        keep(0, sample.done / 1e6 / sample.seconds);
        if let Some(used) = by_proxy {
            keep(1, per_gb(used));
        }
        keep(2, per_gb(by_load));
    } else {
        let each = |used: Duration| used.as_secs_f64() * 1e6 / sample.done;
        keep(0, sample.done / sample.seconds);
        keep(1, quantile(&sample.times, 0.99));
        if let Some(used) = by_proxy {
            keep(2, each(used));
        }
        keep(3, each(by_load));
    }
}

async fn look_at_memory(figures: &mut Figures, contender: &Contender, origins: &[SocketAddr]) {
    let Some(pid) = contender.pid() else { return };
    let before = memory(pid, "VmRSS");
    figures.insert((ROWS[11].0, contender.name), vec![before]);
    if !contender.tunnels {
        return;
    }
    let open = load::quiet_tunnels(contender.route, origins, QUIET).await;
    let added = memory(pid, "VmRSS") - before;
    drop(open);
    figures.insert((ROWS[12].0, contender.name), vec![added]);
}

fn print(figures: &Figures, contenders: &[Contender], rounds: u32, time: Duration) {
    println!(
        "Medians of {rounds} rounds of {} ms each, taken by turns. In parentheses how many times \
         as good ours is: the median over the rounds. haproxy is a reverse proxy here, and `direct` \
         is no proxy at all: bounds.\n",
        time.as_millis()
    );
    let names = contenders.iter().map(|contender| contender.name);
    head(
        &["", "proxyd"]
            .into_iter()
            .chain(names.skip(1))
            .collect::<Vec<_>>(),
    );
    for (name, more_is_better) in ROWS {
        let ours = &figures[&(name, contenders[0].name)];
        let cells = contenders.iter().map(|contender| {
            let Some(theirs) = figures.get(&(name, contender.name)) else {
                return "–".to_owned();
            };
            let value = figure(median(theirs));
            if contender.name == contenders[0].name {
                return format!("**{value}**");
            }
            let rounds = ours.iter().zip(theirs);
            let ratios: Vec<f64> = rounds
                .map(|(ours, theirs)| {
                    if more_is_better {
                        ours / theirs
                    } else {
                        theirs / ours
                    }
                })
                .collect();
            format!("{value} ({}x)", figure(median(&ratios)))
        });
        row(std::iter::once(name.to_owned()).chain(cells));
    }
}
