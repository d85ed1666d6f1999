//! Standalone mode on libvirt: the whole product with real virtual machines, whose proxies and
//! agents come from their seeds.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use std::{
    env, fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::symlink,
    process::Command,
    thread,
    time::{Duration, Instant},
};
use support::{Site, manifest};

/// Emulated machines on a busy host take their time.
const PATIENCE: Duration = Duration::from_mins(4);

/// What `cargo xtask ci guests` tells.
struct Ground {
    uri: String,
    base_image: String,
    /// Stands for the internet.
    outside: String,
    payload: String,
}

impl Ground {
    fn find() -> Option<Self> {
        let told = |name: &str| env::var(name).ok();
        let found = (|| {
            Some(Self {
                uri: told("EGRESS_LIBVIRT_URI")?,
                base_image: told("EGRESS_LIBVIRT_BASE_IMAGE")?,
                outside: told("EGRESS_LIBVIRT_OUTSIDE")?,
                payload: told("EGRESS_PAYLOAD")?,
            })
        })();
        if found.is_none() {
            let why = "real guests: cargo xtask ci guests, as root";
            assert!(
                !env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
                "{why}"
            );
            // Not by `eprintln!`, which a passing test keeps to itself.
            writeln!(std::io::stderr(), "NOT RUN: {why}").expect("a stream");
        }
        found
    }

    fn virsh(&self, arguments: &[&str]) -> Vec<String> {
        let output = Command::new("virsh")
            .args(["--quiet", "--connect", &self.uri])
            .args(arguments)
            .output()
            .expect("virsh starts");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// The names of all domains.
    fn domains(&self) -> Vec<String> {
        self.virsh(&["list", "--all", "--name"])
    }

    /// The names of our volumes.
    fn volumes(&self) -> Vec<String> {
        let mut names = self.virsh(&["vol-list", "default"]);
        names.retain(|name| name.starts_with("px-"));
        names
    }
}

/// A page on the address that stands for the internet; it says who asks.
fn page(outside: &str) -> String {
    let listener = TcpListener::bind((outside, 0)).expect("the address is this namespace's");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let from = stream.peer_addr().expect("connected").ip();
            let mut request = [0; 2048];
            let _whole = stream.read(&mut request);
            let text = format!("from {from}\n");
            let length = text.len();
            let _gone = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
            );
        }
    });
    format!("http://{outside}:{port}/")
}

fn wait_long<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(begun.elapsed() < PATIENCE, "no {what}: {seen}"),
        }
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn three_virtual_machines_serve_through_kills_of_the_engine_and_leave_nothing() {
    let Some(ground) = Ground::find() else {
        return;
    };
    assert_eq!(ground.volumes(), Vec::<String>::new());
    let before = ground.domains();
    let site = Site::new("kvm2", 28_800);
    let text = format!(
        "installation: {}\nproviders: [{{name: here, kvm2: {{hosts: [{{uri: '{}'}}], baseImage: {}, \
         domainType: qemu, reserve: {{storagePercent: 0, memoryMiB: 0}}}}}}]\n",
        site.installation, ground.uri, ground.base_image
    );
    fs::write(site.config(), text).expect("written");
    let folder = site.path("payload");
    fs::create_dir(&folder).expect("a folder");
    symlink(&ground.payload, folder.join("proxyd")).expect("a link");
    let folder = folder.display().to_string();
    let arguments = ["--payload-dir", &folder];
    let names = ["a", "b", "c"];
    for name in names {
        let machine = "machine: {cpus: 1, memoryMiB: 128, diskGiB: 1}";
        site.write(name, &manifest(name, &format!("provider: here, {machine}")));
    }
    let mut engine = site.start_with(&arguments);
    // In the middle of volumes, definitions and starts.
    for pause in [60, 250, 700] {
        thread::sleep(Duration::from_millis(pause));
        engine.stop(Signal::KILL);
        assert!(ground.domains().len() <= before.len() + names.len());
        engine = site.start_with(&arguments);
    }
    let page = page(&ground.outside);
    for name in names {
        wait_long("proxy that serves", || {
            let told = site.condition(name, "Serving");
            if told.starts_with("True") {
                return Ok(());
            }
            Err(format!("{told}\n{}", site.table()))
        });
        let (status, text) = site.through(name, &page);
        assert_eq!(status, 200, "{text}");
        let proxy = site.proxy(name).expect("shown");
        let endpoint = proxy["status"]["endpoint"].as_str().expect("an endpoint");
        let own = endpoint.rsplit_once(':').expect("a port").0;
        assert!(text.contains(own), "{text} is not from {own}");
    }
    assert_eq!(ground.domains().len(), before.len() + names.len());
    wait_long("seal of every machine", || {
        let volumes = ground.volumes();
        if volumes.iter().any(|name| name.contains(".iso")) {
            return Err(format!("{volumes:?}"));
        }
        Ok(())
    });

    for name in names {
        site.undeclare(name);
    }
    wait_long("word that all may go", || {
        match site.ask(&["prune"]).status.code() {
            Some(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    thread::sleep(Duration::from_millis(300));
    engine.stop(Signal::KILL);
    let _engine = site.start_with(&arguments);
    site.ask(&["prune"]);
    wait_long("end of all of it", || {
        let left = (ground.domains(), ground.volumes());
        if left == (before.clone(), Vec::new()) {
            return Ok(());
        }
        Err(format!("{left:?}\n{}", site.table()))
    });
    wait_long("end of the records", || {
        let proxies = site.proxies();
        proxies
            .is_empty()
            .then_some(())
            .ok_or(format!("{proxies:?}"))
    });
}
