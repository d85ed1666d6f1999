//! Standalone mode on Proxmox VE: the whole product over the simulator, whose machines run the
//! real proxy from the seed they were given.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::json;
use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};
use support::{PROGRAM, Running, Site, echo, manifest, same, sim::Sim, wait_for};

fn declare_all(site: &Site, names: &[&str]) {
    for name in names {
        site.write(
            name,
            &manifest(name, "provider: here, probe: {interval: 5s}"),
        );
    }
}

#[test]
fn three_machines_serve_through_kills_of_the_engine_and_leave_nothing() {
    let site = Site::new("pve", 26_800);
    let sim = Sim::start(&site);
    sim.configure(&site);
    let began = sim.inventory();
    let names = ["a", "b", "c"];
    declare_all(&site, &names);
    let mut engine = site.start();
    for pause in [40, 170, 300, 90, 600] {
        thread::sleep(Duration::from_millis(pause));
        engine.stop(Signal::KILL);
        sim.assert_none_twice();
        engine = site.start();
    }
    site.wait_serving(&names);
    assert_eq!(sim.machines().len(), 3);
    let (_echo, page) = echo(&site);
    for name in names {
        let (status, text) = site.through(name, &page);
        assert_eq!(status, 200, "{text}");
        let endpoint = site.proxy(name).expect("shown")["status"]["endpoint"].clone();
        let endpoint = endpoint.as_str().expect("an endpoint");
        let own = endpoint.rsplit_once(':').expect("a port").0;
        assert!(text.contains(own), "{text} is not from {own}");
    }
    wait_for("every seed to be removed after the first proof", || {
        let seeds = |line: &String| line.contains(".iso");
        let left: Vec<String> = sim.left(&began).into_iter().filter(seeds).collect();
        same(&left, &Vec::new())
    });

    for name in names {
        site.undeclare(name);
    }
    let begin = Instant::now();
    while site.ask(&["prune"]).status.code() != Some(0) {
        assert!(begin.elapsed() < support::DEADLINE, "prune is refused");
    }
    for pause in [60, 250, 400] {
        thread::sleep(Duration::from_millis(pause));
        engine.stop(Signal::KILL);
        engine = site.start();
        site.ask(&["prune"]);
    }
    wait_for("nothing of ours to be left", || {
        same(&sim.left(&began), &Vec::new())
    });
    // A kill between the record and the answer leaves a clone that may still land: its record
    // stays until that is ruled out, and says so.
    for name in names {
        wait_for("a record to go, or to say what it waits for", || {
            let Some(proxy) = site.proxy(name) else {
                return Ok(());
            };
            let text = proxy.to_string();
            text.contains("CreateMayLand").then_some(()).ok_or(text)
        });
    }
}

fn on_its_configuration(site: &Site, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM)
        .args(arguments)
        .arg("--config")
        .arg(site.config())
        .output()
        .expect("the command starts");
    let told = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&told).into_owned(),
    )
}

#[test]
fn a_check_records_what_the_host_answers_and_saves_nothing_that_holds_the_token() {
    let site = Site::new("pve-record", 27_700);
    let sim = Sim::start_with(&site, "none");
    sim.configure(&site);
    let secret = fs::read_to_string(sim.fact("tokenFile")).expect("a token");
    let secret = secret.trim().rsplit_once('=').expect("a secret").1;
    let record = |dir: &str| {
        let dir = site.path(dir);
        let told = on_its_configuration(&site, &["check", "--record", &dir.to_string_lossy()]);
        (told, dir.join("here/exchanges.jsonl"))
    };

    let ((code, told), file) = record("recorded");
    assert_eq!(code, Some(0), "{told}");
    let lines = fs::read_to_string(&file).expect("it was saved");
    assert!(
        told.contains(&format!("{} exchanges", lines.lines().count())),
        "{told}"
    );
    for asked in ["/version", "/cluster/resources", "/qemu/9000/config"] {
        assert!(lines.contains(asked), "{asked} was not asked");
    }
    assert!(!lines.contains(secret) && !lines.contains("authorization"));

    let leak = format!("egress-proxies: conformance allowed\n{secret}");
    sim.control(&json!({"do": "edit-description", "vmid": 9000, "text": leak}));
    let ((code, told), file) = record("refused");
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("/qemu/9000/config holds the token in use: nothing was saved"),
        "{told}"
    );
    assert!(!told.contains(secret) && !file.exists());
}

#[test]
fn an_interrupted_suite_leaves_nothing_on_the_host() {
    let site = Site::new("pve-suite", 27_800);
    let sim = Sim::start_with(&site, "none");
    sim.configure(&site);
    let began = sim.inventory();
    let mut command = Command::new(PROGRAM);
    command.args(["conformance", "--provider", "here", "--config"]);
    let mut suite = Running::spawn(command.arg(site.config()), site.path("suite.log"));
    wait_for("a machine of the suite", || {
        assert!(suite.is_running(), "{}", suite.printed());
        let made = sim.machines();
        if made.is_empty() {
            Err("none".to_owned())
        } else {
            Ok(())
        }
    });
    let status = suite.stop(Signal::INT);
    assert_eq!(status.code(), Some(1), "{}", suite.printed());
    let printed = suite.printed();
    assert_eq!(
        printed.lines().last(),
        Some("interrupted; nothing is left behind")
    );
    assert_eq!(sim.left(&began), Vec::<String>::new());
}

#[test]
fn two_installations_on_one_host_with_one_range_and_one_token_leave_each_other_alone() {
    let one = Site::new("pve-one", 26_900);
    let sim = Sim::start(&one);
    let two = Site::new("pve-two", 26_950);
    let began = sim.inventory();
    for site in [&one, &two] {
        sim.configure(site);
        declare_all(site, &["a", "b"]);
    }
    let (mut first, _second) = (one.start(), two.start());
    one.wait_serving(&["a", "b"]);
    two.wait_serving(&["a", "b"]);
    assert_eq!(sim.machines().len(), 4);
    let of_two =
        [two.proxy("a"), two.proxy("b")].map(|p| p.expect("shown")["status"]["machine"].clone());

    for name in ["a", "b"] {
        one.undeclare(name);
    }
    let begin = Instant::now();
    while one.ask(&["prune"]).status.code() != Some(0) {
        assert!(begin.elapsed() < support::DEADLINE, "prune is refused");
    }
    wait_for("the machines of one to go", || {
        same(&sim.machines().len(), &2)
    });
    one.wait_gone();
    assert!(first.stop(Signal::TERM).success());
    two.wait_serving(&["a", "b"]);
    let still =
        [two.proxy("a"), two.proxy("b")].map(|p| p.expect("shown")["status"]["machine"].clone());
    assert_eq!(of_two, still);
    assert!(sim.left(&began).len() >= 2);
}

#[test]
fn machines_of_a_lost_state_directory_are_never_made_a_second_time() {
    let site = Site::new("pve-lost", 27_000);
    let sim = Sim::start(&site);
    sim.configure(&site);
    declare_all(&site, &["a", "b"]);
    let mut engine = site.start();
    site.wait_serving(&["a", "b"]);
    let before = sim.machines();
    engine.stop(Signal::KILL);
    fs::remove_dir_all(site.state()).expect("it can be removed");

    let refusal = site.refused(&[]);
    assert_eq!(refusal.code, Some(2), "{}", refusal.text);
    assert!(
        refusal.text.contains("2 machines of installation")
            && refusal.text.contains("made by another state directory")
            && refusal.text.contains("--take-over"),
        "{}",
        refusal.text
    );
    // What cannot be seen is not taken for nothing.
    sim.control(&json!({"do": "network", "state": "down"}));
    let refusal = site.refused(&["--take-over"]);
    assert_eq!(refusal.code, Some(2), "{}", refusal.text);
    assert!(
        refusal.text.contains("start again when it can"),
        "{}",
        refusal.text
    );
    sim.control(&json!({"do": "network", "state": "up"}));

    let _engine = site.start_with(&["--take-over"]);
    for name in ["a", "b"] {
        site.wait_condition(name, "Serving", "Unknown/CredentialLost");
    }
    assert_eq!(sim.machines(), before);
}
