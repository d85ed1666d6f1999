//! The commands beside `standalone`, what the admin page lets through, and quick starts that
//! were killed.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};
use support::{PROGRAM, Running, Site, wait_for};
use tempfile::TempDir;

fn said(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// The proxies whose configuration lies below a directory, sorted by pid.
fn processes_below(dir: &Path) -> Vec<u32> {
    let below = dir.display().to_string();
    let mut found: Vec<u32> = fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = said(&fs::read(entry.path().join("cmdline")).ok()?);
            let arguments: Vec<&str> = line.split('\0').collect();
            let ours = arguments
                .get(3)
                .is_some_and(|config| config.starts_with(&below));
            (arguments.get(1) == Some(&"proxyd") && ours).then_some(pid)
        })
        .collect();
    found.sort_unstable();
    found
}

/// A directory for temporary files; what still runs below it is ended with it.
struct Temporary(TempDir);

impl Temporary {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).expect("it is there").flatten();
        entries
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        for pid in processes_below(self.path()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

#[test]
fn wrong_usage_ends_with_2_and_every_help_has_exit_codes_and_examples() {
    for arguments in [
        &["standalone", "--manifests", "x"][..],
        &["get", "machines"],
        &["echo", "--log-level", "loud=loud"],
        &["nothing"],
        &[],
    ] {
        let output = Command::new(PROGRAM)
            .args(arguments)
            .output()
            .expect("the command");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let verbs = [
        "standalone",
        "proxyd",
        "echo",
        "check",
        "conformance",
        "get",
        "prune",
    ];
    for verb in verbs {
        let output = Command::new(PROGRAM)
            .args([verb, "--help"])
            .output()
            .expect("the command");
        assert_eq!(output.status.code(), Some(0), "{verb}");
        let text = said(&output.stdout);
        let example = format!("\n  egress-proxies {verb}");
        for part in ["Exit codes:\n  0  done\n  1  ", "Examples:\n", &example] {
            assert!(text.contains(part), "{verb}: {text}");
        }
    }
}

#[test]
fn several_kinds_in_one_block_and_a_slip_of_the_pen_are_told() {
    let site = Site::new("kinds", 25_000);
    let kvm2 = "{hosts: [{uri: 'qemu:///system'}], baseImage: a}";
    let blocks = format!("[{{name: b, local: {{}}, kvm2: {kvm2}}}, {{name: c, lcoal: {{}}}}]");
    fs::write(site.config(), format!("providers: {blocks}\n")).expect("it can be written");
    let output = Command::new(PROGRAM)
        .args(["check", "--config"])
        .arg(site.config())
        .output()
        .expect("the command");
    assert_eq!(output.status.code(), Some(2));
    let file = site.config().display().to_string();
    let told = said(&output.stderr).replace(&format!("{file}: "), "");
    assert_eq!(
        told,
        "providers[1].lcoal: {}: unknown field: did you mean `local`?\n\
         providers[0]: local, kvm2: says several kinds of provider: write one block for each, with a name \
         of its own\n\
         providers[1]: (missing): says no kind of provider: add `local: {}`, or a block `proxmox` or \
         `kvm2`\n"
    );
}

#[test]
fn what_cannot_be_read_or_used_is_named_and_nothing_is_started() {
    let site = Site::new("named", 25_100);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command
            .arg("standalone")
            .args(arguments)
            .current_dir(site.path(""));
        let output = command.output().expect("the command");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        said(&output.stderr)
    };
    let given = [
        "--config",
        "config.yaml",
        "--manifests",
        "manifests",
        "--state-dir",
    ];
    let with = |last: &str| run(&[&given[..], &[last]].concat());
    let text = run(&["--config", "nope.yaml"]);
    assert!(
        text.contains("nope.yaml: cannot be read (No such file"),
        "{text}"
    );
    let text = run(&["--config", "config.yaml"]);
    assert!(
        text.contains("manifests: (missing): no manifest directory is named"),
        "{text}"
    );
    let text = run(&[
        "--config",
        "config.yaml",
        "--manifests",
        "nope",
        "--state-dir",
        "state",
    ]);
    assert!(
        text.contains("--manifests: nope: cannot be read (No such file"),
        "{text}"
    );
    let text = with("config.yaml");
    assert!(text.contains("config.yaml"), "{text}");
    let text = with(".");
    assert!(
        text.contains("is not a state directory, it holds"),
        "{text}"
    );

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let text = fs::read_to_string(site.config()).expect("it is there");
    fs::write(
        site.config(),
        format!("{text}admin: {{listen: '{address}'}}\n"),
    )
    .expect("a write");
    let text = with("state");
    assert!(
        text.starts_with(&format!("admin.listen: {address}: cannot listen there")),
        "{text}"
    );
    // It was locked before the address was tried, and nothing was written down.
    assert!(!site.state().join("records").exists());
    assert!(site.machines().is_empty());
}

#[test]
fn get_and_prune_say_that_no_engine_runs_also_after_a_kill() {
    let site = Site::new("norun", 25_200);
    let say_so = || {
        for arguments in [&["get", "proxies"][..], &["prune"]] {
            let output = site.ask(arguments);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            let text = said(&output.stderr);
            assert!(
                text.starts_with("no engine runs on the state directory"),
                "{text}"
            );
        }
    };
    say_so();
    let mut engine = site.start();
    assert!(site.ask(&["get", "proxies"]).status.success());
    engine.stop(Signal::KILL);
    say_so();
}

/// Sends a request to the admin page as it stands; answers with the whole answer.
fn raw(site: &Site, request: &str) -> String {
    let address = fs::read_to_string(site.state().join("admin")).expect("an address");
    let mut stream = TcpStream::connect(address.trim()).expect("it listens");
    stream.write_all(request.as_bytes()).expect("a write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_admin_page_answers_to_loopback_names_and_changes_nothing_without_the_token() {
    let site = Site::new("admin", 25_300);
    site.declare("a");
    let engine = site.start();
    site.wait_serving(&["a"]);
    let get = |host: &str, path: &str| {
        raw(
            &site,
            &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
        )
    };
    assert!(get("127.0.0.1", "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get("localhost:1", "/readyz").starts_with("HTTP/1.1 200"));
    assert!(
        get("[::1]:80", "/metrics").contains("egress_proxies_engine_proxies{phase=\"Running\"} 1")
    );
    let metrics = get("127.0.0.1", "/metrics");
    for line in [
        concat!(
            "egress_proxies_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        ),
        "egress_proxies_provider_calls_total{provider=\"here\"",
        "egress_proxies_standalone_scans_total{result=\"complete\"}",
        "egress_proxies_standalone_waiting_for_prune 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    // A name that leads to loopback is how a web page would get here.
    for host in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""] {
        let answer = get(host, "/v1/proxies");
        assert!(answer.starts_with("HTTP/1.1 4"), "{host}: {answer}");
        assert!(!answer.contains("default"), "{host}: {answer}");
    }
    let file = site.state().join("admin-token");
    let token = fs::read_to_string(&file).expect("a token");
    let short = &token[..token.len() - 1];
    for word in [
        "",
        "Authorization: Bearer \r\n",
        &format!("Authorization: Bearer {short}\r\n"),
    ] {
        let request = format!(
            "POST /v1/prune HTTP/1.1\r\nHost: 127.0.0.1\r\n{word}Connection: close\r\n\r\n"
        );
        assert!(raw(&site, &request).starts_with("HTTP/1.1 401"), "{word}");
    }
    let mode = fs::metadata(file).expect("a token").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!engine.printed().contains(token.trim()));
}

#[test]
fn no_password_shows_up_in_logs_answers_or_what_a_machine_is_given() {
    let site = Site::new("hidden", 25_400);
    site.declare("a");
    let mut engine = site.start_with(&["--log-level", "trace", "--log-format", "json"]);
    site.wait_serving(&["a"]);
    let file = site.state().join("credentials/default/a.json");
    let text = fs::read_to_string(&file).expect("a password");
    let credential: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let password = credential["password"].as_str().expect("a text");
    let mode = fs::metadata(&file)
        .expect("a password")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let pid = site.exactly_one_each(&["a"])["a"];
    let mut places = vec![
        said(&fs::read(format!("/proc/{pid}/cmdline")).expect("arguments")),
        said(&fs::read(format!("/proc/{pid}/environ")).expect("an environment")),
        said(&site.ask(&["get", "proxies", "-o", "json"]).stdout),
        site.page("/metrics").1,
    ];
    let files = site.state_files();
    let open = files
        .iter()
        .filter(|path| !path.starts_with("credentials/"));
    places.extend(open.map(|path| said(&fs::read(site.state().join(path)).unwrap_or_default())));
    engine.stop(Signal::TERM);
    let log = engine.printed();
    assert!(log.lines().any(|line| line.starts_with('{')), "{log}");
    places.push(log);
    for place in places {
        assert!(!place.contains(password), "{place}");
    }
}

#[test]
fn check_says_of_each_provider_whether_it_can_make_machines() {
    let site = Site::new("check", 25_500);
    let run = |format: &str| {
        let output = Command::new(PROGRAM)
            .args(["check", "-o", format, "--config"])
            .arg(site.config())
            .arg("--state-dir")
            .arg(site.state())
            .output()
            .expect("the command");
        assert_eq!(output.status.code(), Some(0), "{}", said(&output.stderr));
        output.stdout
    };
    let text = said(&run("table"));
    assert!(
        text.starts_with("here (local, ")
            && text.contains("): Ready, ")
            && text.contains(" slots free\n"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_slice(&run("json")).expect("JSON");
    assert_eq!(
        (&json[0]["name"], &json[0]["reason"]),
        (&"here".into(), &"Ready".into())
    );
    assert!(!site.state().exists(), "it changes nothing");
}

fn conformance(site: &Site, temporary: &Temporary, provider: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["conformance", "--provider", provider, "--config"])
        .arg(site.config())
        .env("TMPDIR", temporary.path());
    command
}

#[test]
fn the_local_provider_passes_the_suite_and_nothing_is_left_behind() {
    let (site, temporary) = (Site::new("suite", 25_600), Temporary::new());
    let output = conformance(&site, &temporary, "here")
        .output()
        .expect("the command");
    let text = said(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.starts_with("RULE") && text.contains(" 0 failed"),
        "{text}"
    );
    assert_eq!(processes_below(temporary.path()), Vec::<u32>::new());
    assert_eq!(temporary.entries(), Vec::<String>::new());

    let wrong = conformance(&site, &temporary, "nowhere")
        .output()
        .expect("the command");
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(
        said(&wrong.stderr),
        "--provider: nowhere: no such provider is configured: use one of here\n"
    );
}

#[test]
fn the_local_provider_passes_the_extended_suite_on_a_bench_and_nothing_is_left_behind() {
    let (site, temporary) = (Site::new("bench", 25_900), Temporary::new());
    let output = conformance(&site, &temporary, "here")
        .args(["--tier", "extended"])
        .output()
        .expect("the command");
    let text = said(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{text}{}",
        said(&output.stderr)
    );
    assert!(!text.contains("needs a harness"), "{text}");
    let passed = text.lines().last().and_then(|line| line.split(' ').next());
    let passed: u32 = passed.and_then(|n| n.parse().ok()).expect("a number");
    assert!(passed >= 54, "{text}");
    assert!(text.contains(" passed, 0 failed, "), "{text}");
    assert_eq!(processes_below(temporary.path()), Vec::<u32>::new());
    assert_eq!(temporary.entries(), Vec::<String>::new());
    assert!(!site.state().exists());
}

#[test]
fn an_interrupted_suite_leaves_nothing_behind() {
    for (topic, tier, first_port) in [
        ("interrupt", "basic", 25_700),
        ("interrupt-bench", "extended", 26_000),
    ] {
        interrupt_suite(&Site::new(topic, first_port), tier);
    }
}

fn interrupt_suite(site: &Site, tier: &str) {
    let temporary = Temporary::new();
    let mut suite = Running::spawn(
        conformance(site, &temporary, "here").args(["--tier", tier]),
        site.path("suite.log"),
    );
    wait_for("a machine of the suite", || {
        assert!(suite.is_running(), "{}", suite.printed());
        let there = processes_below(temporary.path());
        if there.is_empty() {
            Err("none".to_owned())
        } else {
            Ok(())
        }
    });
    let status = suite.stop(Signal::INT);
    assert_eq!(status.code(), Some(1), "{}", suite.printed());
    let printed = suite.printed();
    assert!(
        printed.ends_with("interrupted; nothing is left behind\n"),
        "{printed}"
    );
    assert!(printed.contains(" 0 failed, "), "{printed}");
    assert_eq!(processes_below(temporary.path()), Vec::<u32>::new());
    assert_eq!(temporary.entries(), Vec::<String>::new());
}

#[test]
fn the_example_in_the_repository_is_sound_and_serves() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/standalone");
    let site = Site::new("example", 25_800);
    let output = Command::new(PROGRAM)
        .args(["check", "--config"])
        .arg(example.join("config.yaml"))
        .arg("--state-dir")
        .arg(site.state())
        .output()
        .expect("the command");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output.stderr));
    for entry in fs::read_dir(example.join("manifests"))
        .expect("it is there")
        .flatten()
    {
        let text = fs::read_to_string(entry.path()).expect("a text");
        // The fixed port may be taken on this host.
        let text = text.replace("    port: 3128 ", "    port: 25899 ");
        fs::write(site.manifests().join(entry.file_name()), text).expect("a write");
    }
    let _engine = site.start();
    site.wait_serving(&["one", "two"]);
    site.wait_well();
    site.exactly_one_each(&["one", "two"]);
}

/// A quick start that keeps its things below a directory.
fn quick_start(temporary: &Temporary, log: &str) -> Running {
    let mut command = Command::new(PROGRAM);
    command
        .arg("standalone")
        .env("TMPDIR", temporary.path())
        .env("XDG_RUNTIME_DIR", temporary.path());
    Running::spawn(&mut command, temporary.path().join(log))
}

/// User, password and address of its three proxies.
fn logins(quick: &mut Running) -> Vec<String> {
    wait_for("three lines", || {
        let text = quick.printed();
        assert!(quick.is_running(), "{text}");
        let lines = text.lines().filter(|line| line.contains("curl "));
        let words =
            lines.filter_map(|line| line.split_whitespace().find(|w| w.contains("egress:")));
        let logins: Vec<String> = words.map(str::to_owned).collect();
        if logins.len() == 3 {
            Ok(logins)
        } else {
            Err(text)
        }
    })
}

#[test]
fn a_killed_quick_start_is_taken_on_by_the_next_and_a_second_one_is_refused() {
    let temporary = Temporary::new();
    let mut first = quick_start(&temporary, "first.log");
    let known = logins(&mut first);
    let before = processes_below(temporary.path());
    assert_eq!(before.len(), 3);

    let mut second = quick_start(&temporary, "second.log");
    assert_eq!(second.ended().code(), Some(2), "{}", second.printed());
    assert!(
        second.printed().contains("another engine"),
        "{}",
        second.printed()
    );
    first.stop(Signal::KILL);
    assert_eq!(processes_below(temporary.path()), before);

    let mut third = quick_start(&temporary, "third.log");
    assert_eq!(logins(&mut third), known);
    assert_eq!(processes_below(temporary.path()), before);
    assert!(third.stop(Signal::TERM).success(), "{}", third.printed());
    assert_eq!(processes_below(temporary.path()), Vec::<u32>::new());
    let mut left = temporary.entries();
    left.sort();
    assert_eq!(left, ["first.log", "second.log", "third.log"]);
}
