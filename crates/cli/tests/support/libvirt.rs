//! A real libvirt, as `cargo xtask ci guests` runs it, and what the product leaves on it.

use std::{
    env, fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

/// Emulated machines on a busy host take their time.
const PATIENCE: Duration = Duration::from_mins(5);

/// Waits as long as a virtual machine may take.
pub fn wait_long<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    super::wait(what, Duration::from_millis(200), PATIENCE, look)
}

/// Where libvirt is.
pub struct Ground {
    uri: String,
    /// The tiny guest, in the pool.
    pub tiny: String,
    /// Files with the full guest, as Debian has it and with all of ours in it.
    pub debian: PathBuf,
    pub baked: PathBuf,
    /// The name of the network namespace that all of this runs in.
    pub netns: String,
    /// Stands for the internet.
    outside: String,
    /// libvirt-up's own directory.
    dir: PathBuf,
    payload: PathBuf,
}

impl Ground {
    /// What the rung tells its tests. Elsewhere it says what would enable the test; where
    /// nothing may be left out, that is a failure.
    pub fn find() -> Option<Self> {
        let told = |name: &str| env::var(name).ok();
        let found = (|| {
            let netns = PathBuf::from(told("EGRESS_LIBVIRT_NETNS")?);
            Some(Self {
                uri: told("EGRESS_LIBVIRT_URI")?,
                tiny: told("EGRESS_LIBVIRT_BASE_IMAGE")?,
                debian: told("EGRESS_GUEST_DEBIAN")?.into(),
                baked: told("EGRESS_GUEST_BAKED")?.into(),
                netns: netns.file_name()?.to_str()?.to_owned(),
                outside: told("EGRESS_LIBVIRT_OUTSIDE")?,
                dir: told("EGRESS_LIBVIRT_DIR")?.into(),
                payload: told("EGRESS_PAYLOAD")?.into(),
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

    /// A provider of this name on it, with these fields more.
    pub fn block(&self, name: &str, base_image: &str, more: &str) -> String {
        format!(
            "{{name: {name}, kvm2: {{hosts: [{{uri: '{}'}}], baseImage: {base_image}, domainType: \
             qemu, reserve: {{storagePercent: 0, memoryMiB: 0}}{more}}}}}",
            self.uri
        )
    }

    /// Makes the folder that `--payload-dir` wants.
    pub fn payload_dir(&self, folder: &Path) -> String {
        fs::create_dir(folder).expect("a folder");
        symlink(&self.payload, folder.join("proxyd")).expect("a link");
        folder.display().to_string()
    }

    /// Copies an image into the pool, as the guide to images says.
    pub fn upload(&self, volume: &str, image: &Path) {
        let image = image.display().to_string();
        let create = ["vol-create-as", "default", volume, "--capacity", "3G"];
        self.virsh(&[&create[..], &["--format", "qcow2"]].concat());
        self.virsh(&["vol-upload", volume, &image, "--pool", "default"]);
        self.virsh(&["pool-refresh", "default"]);
    }

    /// What virsh prints; it must go well.
    pub fn virsh(&self, arguments: &[&str]) -> String {
        let output = Command::new("virsh")
            .args(["--quiet", "--connect", &self.uri])
            .args(arguments)
            .output()
            .expect("virsh starts");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The names of all domains.
    pub fn domains(&self) -> Vec<String> {
        let told = self.virsh(&["list", "--all", "--name"]);
        told.split_whitespace().map(str::to_owned).collect()
    }

    /// The names of all volumes.
    pub fn volumes(&self) -> Vec<String> {
        let told = self.virsh(&["vol-list", "default"]);
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        told.lines().filter_map(first).collect()
    }

    /// Domains, volumes, and the files of either.
    pub fn inventory(&self) -> Vec<String> {
        let mut all: Vec<String> = self.domains();
        all.extend(self.volumes());
        // Pool, definitions, firmware's variables, saved states, sockets.
        for folder in ["pool", "etc/qemu", "lib/qemu"] {
            all.extend(files(&self.dir.join(folder)));
        }
        all.sort();
        all
    }

    /// What is there beside what there was.
    pub fn left(&self, began: &[String]) -> Vec<String> {
        let mut inventory = self.inventory();
        inventory.retain(|line| !began.contains(line));
        inventory
    }

    /// What a machine of this name said on its console so far, in all its boots.
    pub fn console(&self, domain: &str) -> String {
        let log = format!("log/qemu/{domain}-console.log");
        let bytes = fs::read(self.dir.join(log)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// A page on the address that stands for the internet; it says who asks.
    pub fn page(&self) -> String {
        let listener =
            TcpListener::bind((&*self.outside, 0)).expect("the address is this namespace's");
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
        format!("http://{}:{port}/", self.outside)
    }
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path().display().to_string());
        }
    }
    found
}
