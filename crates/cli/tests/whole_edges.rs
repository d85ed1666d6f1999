//! Standalone mode at its edges: orphans, damaged and copied state, and whatever else can lie
//! in a manifest directory.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    os::unix::fs::symlink,
    process::Command,
    time::{Duration, Instant},
};
use support::{Site, echo, get, manifest, same, three, wait_for};

const HERE: &str = "provider: here";

/// Lets the engine scan for longer than a deletion takes: each `prune` makes it scan, and is
/// refused with a line that holds `why`. Nothing may have gone meanwhile.
fn assert_deletions_suspended(site: &Site, why: &str) {
    let before = site.machines();
    let end = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < end {
        let output = site.ask(&["prune"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
        assert_eq!(site.machines(), before);
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn wait_forgotten(site: &Site, name: &str) {
    wait_for(&format!("{name} to be forgotten"), || {
        same(&site.proxy(name).is_some(), &false)
    });
}

/// Asks for the machine to be left behind, and waits until the engine knows.
fn annotate_abandon(site: &Site, name: &str) {
    let annotated =
        format!("{{name: {name}, annotations: {{egress-proxies.io/abandon: \"true\"}}}}");
    site.write(
        name,
        &manifest(name, HERE).replace(&format!("{{name: {name}}}"), &annotated),
    );
    wait_for("the annotation to be read", || {
        // Every request makes it scan.
        let output = site.ask(&["prune"]);
        same(&output.status.code(), &Some(0))
    });
}

#[test]
fn a_machine_whose_abandoned_manifest_goes_while_no_engine_runs_is_left_alone() {
    let (site, mut engine) = three("abandon-late", 26_700);
    let before = site.exactly_one_each(&["a", "b", "c"]);
    annotate_abandon(&site, "b");
    engine.stop(Signal::KILL);
    site.undeclare("b");
    let _engine = site.start();
    wait_forgotten(&site, "b");
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);
    assert!(!site.state().join("abandon/default/b").exists());
}

#[test]
fn an_abandoned_machine_is_left_alone_also_by_the_next_engine() {
    let (site, mut engine) = three("abandon", 23_000);
    let before = site.exactly_one_each(&["a", "b", "c"]);
    annotate_abandon(&site, "b");
    site.undeclare("b");
    wait_forgotten(&site, "b");
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);

    assert!(engine.stop(Signal::TERM).success());
    let _engine = site.start();
    site.wait_serving(&["a", "c"]);
    assert_eq!(site.proxies().len(), 2, "an orphan is never taken on");
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);

    // Its name can be declared anew, as another machine beside the orphan.
    site.declare("b");
    site.wait_serving(&["b"]);
    let both = &site.machines()["b"];
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both.contains(&before["b"]), "{both:?}");
}

#[test]
fn a_lost_incarnation_number_is_found_again_so_that_no_uid_comes_back() {
    let (site, mut engine) = three("number", 23_100);
    site.undeclare("a");
    wait_forgotten(&site, "a");
    site.declare("a");
    site.wait_serving(&["a"]);
    let before = site.exactly_one_each(&["a", "b", "c"]);
    engine.stop(Signal::KILL);
    fs::remove_dir_all(site.state()).expect("it can be removed");
    let _engine = site.start();
    site.wait_condition("a", "Serving", "Unknown/CredentialLost");
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);
    let number = fs::read_to_string(site.state().join("incarnations/default/a"));
    assert_eq!(number.expect("a number").trim(), "1");
}

#[test]
fn a_lost_password_is_known_again_from_a_backup_or_by_a_new_machine() {
    let (site, mut engine) = three("backup", 23_200);
    let before = site.exactly_one_each(&["a", "b", "c"]);
    let file = site.state().join("credentials/default/b.json");
    let backup = fs::read(&file).expect("a password");
    engine.stop(Signal::KILL);
    fs::remove_dir_all(site.state()).expect("it can be removed");
    let _engine = site.start();
    site.wait_condition("b", "Serving", "Unknown/CredentialLost");
    fs::create_dir_all(file.parent().expect("above it")).expect("a directory");
    fs::write(&file, backup).expect("it can be written");
    site.wait_serving(&["b"]);

    site.undeclare("a");
    wait_forgotten(&site, "a");
    site.declare("a");
    site.wait_serving(&["a"]);
    let after = site.exactly_one_each(&["a", "b", "c"]);
    assert_ne!(after["a"], before["a"]);
    assert_eq!((after["b"], after["c"]), (before["b"], before["c"]));
}

#[test]
fn a_name_that_comes_back_is_a_new_machine_with_a_new_password() {
    let (site, _engine) = three("anew", 23_300);
    let told = || {
        let machine = site.proxy("b").expect("it is shown")["status"]["machine"]["name"].clone();
        let file = site.state().join("credentials/default/b.json");
        (machine, fs::read_to_string(file).expect("a password"))
    };
    let (old_machine, old_password) = told();
    site.undeclare("b");
    // As soon as the process is asked to end: it is still being deleted then.
    wait_for("the old process to end", || {
        same(&site.machines().contains_key("b"), &false)
    });
    site.declare("b");
    site.wait_serving(&["b"]);
    let (machine, password) = told();
    assert_ne!(machine, old_machine);
    assert_ne!(password, old_password);
}

#[test]
fn a_damaged_record_stops_its_own_proxy_alone_and_is_found_again_from_the_mark() {
    let (site, mut engine) = three("damaged", 23_500);
    let before = site.exactly_one_each(&["a", "b", "c"]);
    engine.stop(Signal::KILL);
    let record = site.state().join("records/default/a.json");
    fs::write(&record, "{\"schema\":1,").expect("it can be written");
    let mut engine = site.start();
    site.wait_serving(&["b", "c"]);
    site.wait_condition("a", "Accepted", "False/RecordUnreadable");
    assert!(site.condition("a", "Accepted").contains("a.json"));
    let kept = fs::read_to_string(&record).expect("it is there");
    assert_eq!(kept, "{\"schema\":1,", "it is never overwritten");
    engine.stop(Signal::TERM);
    fs::remove_file(&record).expect("it is there");
    let _engine = site.start();
    site.wait_serving(&["a", "b", "c"]);
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);
}

#[test]
fn a_killed_proxy_is_started_again_at_its_place_with_its_password() {
    let site = Site::new("killed", 23_600);
    let (_page, url) = echo(&site);
    site.write(
        "a",
        &manifest("a", "provider: here, probe: {interval: 1s, timeout: 1s}"),
    );
    let _engine = site.start();
    site.wait_serving(&["a"]);
    let endpoint = site.proxy("a").expect("it is shown")["status"]["endpoint"].clone();
    let old = site.exactly_one_each(&["a"])["a"];
    kill_process(Pid::from_raw(old).expect("a pid"), Signal::KILL).expect("it is ours");
    wait_for("another process", || match site.machines().get("a") {
        Some(pids) if pids.len() == 1 && pids[0] != old => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    // The process is there before the pass that started it has told so: what was shown of the
    // old one may still be.
    wait_for("the same place", || {
        let seen = site.proxy("a").expect("it is shown")["status"]["endpoint"].clone();
        same(&seen, &endpoint)
    });
    site.wait_serving(&["a"]);
    assert_eq!(site.through("a", &url).0, 200);
}

#[test]
fn a_login_of_the_users_own_comes_from_a_secret_and_a_missing_one_is_named() {
    let site = Site::new("secret", 23_700);
    let (_page, url) = echo(&site);
    let spec = "provider: here, proxy: {auth: {secretRef: {name: login}}}";
    site.write("a", &manifest("a", spec));
    let _engine = site.start();
    site.wait_condition(
        "a",
        "Provisioned",
        "False/SecretMissing: Secret default/login is not among the manifests",
    );
    let secret = |password: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: login}}\n\
             stringData: {{username: me{password}}}\n"
        )
    };
    site.write("login", &secret(""));
    site.wait_condition(
        "a",
        "Provisioned",
        "False/SecretMissing: Secret default/login: ",
    );
    assert!(site.machines().is_empty());
    site.write("login", &secret(", password: long-enough"));
    site.wait_serving(&["a"]);
    let endpoint = site.proxy("a").expect("it is shown")["status"]["endpoint"].clone();
    let endpoint = endpoint.as_str().expect("an endpoint");
    assert_eq!(get(endpoint, &url, Some("me:long-enough")).0, 200);
    assert_eq!(get(endpoint, &url, Some("me:guessed")).0, 407);
    assert_eq!(get(endpoint, &url, None).0, 407);
    let files = site.state_files();
    assert!(
        !files.iter().any(|path| path.starts_with("credentials")),
        "{files:?}"
    );

    // A change of it is given to the same machine; so often it would be a crash loop.
    let machine = || site.proxy("a").expect("it is shown")["status"]["machine"].clone();
    let made = machine();
    for round in 0..3 {
        let password = format!("another-{round}");
        site.write("login", &secret(&format!(", password: {password}")));
        wait_for("the new password", || {
            let there = std::net::TcpStream::connect(endpoint);
            there.map_err(|e| e.to_string())?;
            same(
                &get(endpoint, &url, Some(&format!("me:{password}"))).0,
                &200,
            )
        });
        site.wait_serving(&["a"]);
        site.exactly_one_each(&["a"]);
    }
    assert_eq!(get(endpoint, &url, Some("me:long-enough")).0, 407);
    assert_eq!(machine(), made);
}

#[test]
fn a_secret_stays_known_while_the_manifest_directory_is_away() {
    let site = Site::new("awaysecret", 26_100);
    let (_page, url) = echo(&site);
    let login = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: login}\n\
                 stringData: {username: me, password: long-enough}\n";
    let spec = "provider: here, probe: {interval: 1s, timeout: 1s}, \
                proxy: {auth: {secretRef: {name: login}}}";
    site.write("a", &(manifest("a", spec) + login));
    let _engine = site.start();
    site.wait_serving(&["a"]);
    let away = site.path("away");
    fs::rename(site.manifests(), &away).expect("a rename");
    site.wait_told("cannot be read");
    // Longer than one probe: the password is still at hand.
    let probes = || {
        let page = site.page("/metrics").1;
        let passes = page.lines().find_map(|line| {
            line.strip_prefix("egress_proxies_engine_passes_total{result=\"ok\"} ")
        });
        passes.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = probes();
    wait_for("two more passes", || {
        let now = probes();
        if now >= before + 2 {
            Ok(())
        } else {
            Err(now.to_string())
        }
    });
    assert!(
        site.condition("a", "Serving").starts_with("True/"),
        "{}",
        site.table()
    );
    fs::rename(&away, site.manifests()).expect("a rename");
    site.wait_well();
    let endpoint = site.proxy("a").expect("it is shown")["status"]["endpoint"].clone();
    let endpoint = endpoint.as_str().expect("an endpoint");
    assert_eq!(get(endpoint, &url, Some("me:long-enough")).0, 200);
}

#[test]
fn a_proxy_without_credentials_serves_the_listed_networks_only() {
    let site = Site::new("clients", 23_800);
    let (_page, url) = echo(&site);
    let spec = |network: &str| {
        format!("provider: here, proxy: {{auth: {{none: {{}}}}, clients: [{network}]}}")
    };
    site.write("open", &manifest("open", &spec("127.0.0.0/8")));
    let _engine = site.start();
    site.wait_serving(&["open"]);
    site.write("world", &manifest("world", &spec("0.0.0.0/0")));
    let endpoint = site.proxy("open").expect("it is shown")["status"]["endpoint"].clone();
    assert_eq!(
        get(endpoint.as_str().expect("an endpoint"), &url, None).0,
        200
    );
    site.wait_condition(
        "world",
        "Accepted",
        "False/Invalid: spec.proxy.clients: 0.0.0.0/0",
    );
    site.exactly_one_each(&["open"]);
}

#[test]
fn a_link_that_leads_nowhere_is_no_removed_manifest() {
    let (site, _engine) = three("dangling", 23_900);
    site.undeclare("b");
    symlink("not/there.yaml", site.manifests().join("b.yaml")).expect("a link");
    site.wait_told("b.yaml cannot be read");
    assert_deletions_suspended(&site, "b.yaml cannot be read");
    site.declare("b");
    site.wait_well();
    site.wait_serving(&["a", "b", "c"]);
}

#[test]
fn a_pipe_among_the_manifests_is_named_and_never_waited_for() {
    let (site, _engine) = three("fifo", 24_000);
    let pipe = site.manifests().join("pipe.yaml");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    site.undeclare("b");
    site.wait_told("pipe.yaml is no file");
    assert_deletions_suspended(&site, "pipe.yaml is no file");
    fs::remove_file(&pipe).expect("it is there");
    wait_forgotten(&site, "b");
}

#[test]
fn links_as_kubernetes_mounts_them_are_followed_through_an_exchange() {
    let site = Site::new("configmap", 24_100);
    let version = |name: &str, spec: &str| {
        let dir = site.manifests().join(name);
        fs::create_dir(&dir).expect("a directory");
        fs::write(dir.join("a.yaml"), manifest("a", spec)).expect("it can be written");
    };
    version("..2026_01", HERE);
    version("..2026_02", "provider: here, probe: {interval: 90m}"); // too long: that shows
    let data = site.manifests().join("..data");
    symlink("..2026_01", &data).expect("a link");
    symlink("..data/a.yaml", site.manifests().join("a.yaml")).expect("a link");
    let _engine = site.start();
    site.wait_serving(&["a"]);
    let pids = site.exactly_one_each(&["a"]);
    let next = site.manifests().join("..data_tmp");
    symlink("..2026_02", &next).expect("a link");
    fs::rename(next, data).expect("a rename");
    site.wait_condition("a", "Accepted", "False/Invalid: spec.probe.interval: 90m");
    assert_eq!(site.exactly_one_each(&["a"]), pids);
}

#[test]
fn a_file_written_twice_within_one_tick_of_the_clock_is_read_again() {
    let site = Site::new("tick", 24_200);
    let file = site.manifests().join("a.yaml");
    let with = |interval: &str| {
        manifest(
            "a",
            &format!("provider: here, probe: {{interval: {interval}}}"),
        )
    };
    let _engine = site.start();
    fs::write(&file, with("70m")).expect("it can be written");
    site.wait_condition("a", "Accepted", "False/Invalid: spec.probe.interval: 70m");
    // Same length, same file, and the same time on it.
    let time = fs::metadata(&file)
        .expect("it is there")
        .modified()
        .expect("a time");
    fs::write(&file, with("80m")).expect("it can be written");
    let written = fs::File::options()
        .write(true)
        .open(&file)
        .expect("it is there");
    written.set_modified(time).expect("it is ours");
    site.wait_condition("a", "Accepted", "False/Invalid: spec.probe.interval: 80m");
}

#[test]
fn bad_manifests_at_the_first_start_are_told_at_once_and_start_nothing() {
    let site = Site::new("firststart", 24_900);
    site.write(
        "a",
        &manifest("a", "provider: here, machine: {cpus: 0}, paws: true"),
    );
    site.write("b", &manifest("b", "provider: nowhere"));
    site.declare("c");
    // Faults of the form hide none of what follows from the meaning.
    let prob = "prob: {interval: 5s}";
    site.write("d", &manifest("d", &format!("provider: elsewhere, {prob}")));
    let user_data = "userData: {configMapRef: {name: m, key: k}}";
    site.write(
        "e",
        &manifest("e", &format!("provider: here, {prob}, {user_data}")),
    );
    let refusal = site.refused(&[]);
    assert_eq!(refusal.code, Some(2), "{refusal:?}");
    for told in [
        "spec.machine.cpus: 0: ",
        "spec.paws",
        "default/b: spec.provider: nowhere: no provider of this name is configured: use one of here",
        "spec.prob: {interval}: unknown field",
        "default/d: spec.provider: elsewhere: no provider of this name is configured",
        "default/e: spec.userData: {configMapRef}: is not supported by a provider of kind local",
    ] {
        assert!(refusal.text.contains(told), "{told}: {refusal:?}");
    }
    assert!(site.machines().is_empty());

    // So it is with faults of the configuration.
    let good = fs::read_to_string(site.config()).expect("it is there");
    let bad = good.replace("name: here, local: {", "name: Not Good, local: {drain: 1, ");
    assert_ne!(bad, good);
    fs::write(site.config(), bad + "admin: {listen: '0.0.0.0:1'}\n").expect("a write");
    let refusal = site.refused(&[]);
    assert_eq!(refusal.code, Some(2), "{refusal:?}");
    for told in [
        "providers[0].name: Not Good: ",
        "providers[0].local.drain: 1: unknown field",
        "admin.listen: 0.0.0.0:1: is not a loopback address",
        "a.yaml: document 1 (line 1): spec.machine.cpus: 0: ",
    ] {
        assert!(refusal.text.contains(told), "{told}: {refusal:?}");
    }
    fs::write(site.config(), good).expect("a write");

    for name in ["a", "b", "d", "e"] {
        site.declare(name);
    }
    let _engine = site.start();
    site.wait_serving(&["a", "b", "c", "d", "e"]);
}

// B14, B200: a record moved away hides no machine from its deletion.
#[test]
fn a_proxy_whose_record_was_moved_away_is_deleted_with_its_machine() {
    let (site, mut engine) = three("movedaway", 24_800);
    engine.stop(Signal::KILL);
    let record = site.state().join("records/default/a.json");
    fs::write(&record, "{\"schema\":1,").expect("it can be written");
    let _engine = site.start();
    site.wait_condition("a", "Accepted", "False/RecordUnreadable");
    fs::rename(&record, site.path("a.json.bad")).expect("a rename");
    site.undeclare("a");
    wait_forgotten(&site, "a");
    site.exactly_one_each(&["b", "c"]);
}

#[test]
fn a_bad_manifest_that_was_never_good_is_shown_and_makes_nothing() {
    let site = Site::new("nevergood", 24_300);
    let _engine = site.start();
    site.write("a", &manifest("a", "provider: nowhere, machine: {cpus: 0}"));
    site.wait_condition("a", "Accepted", "False/Invalid: spec.machine.cpus: 0");
    site.write("a", &manifest("a", "provider: nowhere"));
    site.wait_condition("a", "Accepted", "False/ProviderUnconfigured");
    assert!(site.machines().is_empty());
    site.declare("a");
    site.wait_serving(&["a"]);
}

#[test]
fn a_name_that_two_files_declare_is_refused_in_both_and_the_running_one_is_held() {
    let (site, _engine) = three("twice", 24_400);
    let pids = site.exactly_one_each(&["a", "b", "c"]);
    site.write(
        "copy",
        &manifest("a", "provider: here, proxy: {port: 24499}"),
    );
    site.wait_condition(
        "a",
        "Accepted",
        "False/Invalid: metadata.name: default/a: is also declared in",
    );
    site.wait_told(
        "! a.yaml: document 1 (line 1): metadata.name: default/a: is also declared in copy.yaml",
    );
    site.wait_told(
        "! copy.yaml: document 1 (line 1): metadata.name: default/a: is also declared in a.yaml",
    );
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), pids);
    site.undeclare("copy");
    site.wait_condition("a", "Accepted", "True/");
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), pids);
}

#[test]
fn a_changed_configuration_is_taken_on_and_a_broken_one_changes_nothing() {
    let (site, engine) = three("reload", 24_500);
    let pids = site.exactly_one_each(&["a", "b", "c"]);
    let good = fs::read_to_string(site.config()).expect("it is there");
    // In one step: a file that is half written counts as a broken one.
    let reconfigure = |text: &str| {
        let unfinished = site.path("unfinished");
        fs::write(&unfinished, text).expect("a write");
        fs::rename(unfinished, site.config()).expect("a rename");
    };
    reconfigure("providers: [{name: here, local: {drain: 1}}]\n");
    site.wait_told("providers[0].local.drain: 1: unknown field");
    let (code, body) = site.page("/readyz");
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("providers[0].local.drain"), "{body}");
    let broken = "egress_proxies_standalone_reloads_total{result=\"broken\"} 1";
    let metrics = site.page("/metrics").1;
    assert!(metrics.contains(broken), "{metrics}");
    site.write("d", &manifest("d", "provider: there"));
    site.wait_condition("d", "Accepted", "False/ProviderUnconfigured");
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), pids);

    let more = "{name: there, local: {listen: 127.0.0.1, portRange: {from: 24590, to: 24599}}}";
    reconfigure(&good.replace("}}]", &format!("}}}}, {more}]")));
    site.wait_serving(&["d"]);
    site.wait_well();
    let after = site.exactly_one_each(&["a", "b", "c", "d"]);
    assert!(
        pids.iter().all(|(name, pid)| after[name] == *pid),
        "{after:?}"
    );

    // A provider that is taken out keeps its machines, and gets them back with its block.
    reconfigure(&good);
    site.wait_condition("d", "Accepted", "False/ProviderUnconfigured");
    assert_eq!(site.exactly_one_each(&["a", "b", "c", "d"]), after);

    // What only a restart takes on is told until then, whatever else changes meanwhile.
    let other = good.replace(&site.installation, "another-name");
    let told = format!(
        "installation: another-name: changed while the engine runs, and {} stays in force: \
         restart the engine to take it on",
        site.installation
    );
    reconfigure(&other);
    site.wait_told(&told);
    reconfigure(&format!("{other}admin: {{listen: '127.0.0.1:0'}}\n"));
    let taken_on = "egress_proxies_standalone_reloads_total{result=\"ok\"} 4";
    wait_for("the last change", || {
        let metrics = site.page("/metrics").1;
        if metrics.contains(taken_on) {
            Ok(())
        } else {
            Err(metrics)
        }
    });
    let (code, body) = site.page("/readyz");
    assert_eq!(code, 503);
    assert!(body.contains(&told), "{body}");
    assert!(engine.printed().contains(&told), "{}", engine.printed());
    reconfigure(&good);
    site.wait_well();
}
