//! Machines with a process inside, from the upload of their seed to their end.

use crate::client::{Bench, LONG};
use egress_proxmox_sim::http::GuestKind;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use tokio::time::sleep;

const BOUNDARY: &str = "----a1b2c3d4e5f6";

/// A stand-in for the proxy: keeps its configuration and its process number beside itself, says
/// that it listens, and stays.
const PROGRAM: &str = "#!/bin/sh
cp \"$2\" \"$0.config\"
echo $$ > \"$0.pid\"
echo '{\"listen\":\"told\"}'
exec sleep 1000
";

fn program(folder: &Path) -> PathBuf {
    let path = folder.join("proxy");
    fs::write(&path, PROGRAM).expect("the program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("executable");
    path
}

/// A seed, if the tool for it is here.
fn seed(folder: &Path) -> Option<Vec<u8>> {
    let files = folder.join("files");
    fs::create_dir(&files).expect("a folder");
    let config = json!({"key": "px-a", "attempt": 1, "listen": "0.0.0.0:3128", "clients": ["127.0.0.0/8"], "auth": {"none": {}}});
    for (name, content) in [
        ("meta-data", "instance-id: \"px-a-1\"\n".to_owned()),
        ("user-data", "#cloud-config\n".to_owned()),
        ("proxyd.json", config.to_string()),
    ] {
        fs::write(files.join(name), content).expect("a file");
    }
    let image = folder.join("seed.iso");
    let made = Command::new("genisoimage")
        .args(["-quiet", "-rational-rock", "-volid", "cidata", "-output"])
        .args([&image, &files])
        .status();
    if made.is_err() {
        let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!ci, "genisoimage is missing: apt-get install genisoimage");
        eprintln!("NOT RUN: genisoimage is missing: apt-get install genisoimage");
        return None;
    }
    Some(fs::read(image).expect("the image"))
}

/// Asks until an answer fits.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    while began.elapsed() < LONG {
        if let Some(found) = ask().await {
            return found;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: not within {LONG:?}");
}

struct Api<'a>(&'a Bench);

impl Api<'_> {
    async fn call(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> (String, Value) {
        let mut head = format!(
            "{method} /api2/json/nodes/pve1{path} HTTP/1.1\nHost: pve1\n{}",
            self.0.authorization()
        );
        if matches!(method, "POST" | "PUT") {
            head = format!(
                "{head}\nContent-Type: {content_type}\nContent-Length: {}",
                body.len()
            );
        }
        let answer = self.0.ask(&head, body).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("HTTP/1.1 ")
            .to_owned();
        let data = serde_json::from_str::<Value>(body)
            .map(|mut body| body["data"].take())
            .unwrap_or_default();
        (status, data)
    }

    async fn send(&self, method: &str, path: &str, form: &str) -> Value {
        let (status, data) = self
            .call(
                method,
                path,
                "application/x-www-form-urlencoded",
                form.as_bytes(),
            )
            .await;
        assert_eq!(status, "200 OK", "{method} {path}");
        data
    }

    /// Sends what begins a task and waits for its end.
    async fn run(&self, method: &str, path: &str, form: &str) {
        let upid = self.send(method, path, form).await;
        self.finish(upid.as_str().expect("a UPID")).await;
    }

    async fn finish(&self, upid: &str) {
        let path = format!(
            "/tasks/{}/status",
            upid.replace(':', "%3A")
                .replace('@', "%40")
                .replace('!', "%21")
        );
        let exit = until(upid, async || {
            self.send("GET", &path, "").await["exitstatus"]
                .as_str()
                .map(str::to_owned)
        })
        .await;
        assert_eq!(exit, "OK", "{upid}");
    }

    async fn upload(&self, image: &[u8]) {
        let mut body = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n--{BOUNDARY}\r\n\
             Content-Disposition: form-data; name=\"filename\"; filename=\"seed.iso\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
        .into_bytes();
        body.extend_from_slice(image);
        body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let (status, upid) = self
            .call("POST", "/storage/proxy-seeds/upload", &kind, &body)
            .await;
        assert_eq!(status, "200 OK");
        self.finish(upid.as_str().expect("a UPID")).await;
    }

    async fn address(&self) -> Option<String> {
        let path = "/qemu/101/agent/network-get-interfaces";
        let (status, data) = self.call("GET", path, "", b"").await;
        if status != "200 OK" {
            assert!(status.contains("agent is not running"), "{status}");
            return None;
        }
        data["result"].as_array()?.iter().find_map(|interface| {
            let addresses = interface["ip-addresses"].as_array()?;
            let address = addresses
                .iter()
                .filter_map(|address| address["ip-address"].as_str());
            address
                .map(str::to_owned)
                .find(|address| address.starts_with("127.") && interface["name"] != "lo")
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_runs_what_its_seed_says_until_it_is_stopped_and_again_without_the_seed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = seed(folder.path()) else {
        return;
    };
    let program = program(folder.path());
    let (config, pid) = (
        program.with_extension("config"),
        program.with_extension("pid"),
    );
    let bench = Bench::with(GuestKind::Proxyd {
        program,
        arguments: Vec::new(),
    })
    .await;
    let api = Api(&bench);
    api.run("POST", "/qemu/9000/clone", "newid=101&full=1&name=px-a")
        .await;
    api.upload(&image).await;
    api.send(
        "PUT",
        "/qemu/101/config",
        "ide2=proxy-seeds%3Aiso%2Fseed.iso%2Cmedia%3Dcdrom",
    )
    .await;
    api.run("POST", "/qemu/101/status/start", "").await;

    let address = until("the address", async || api.address().await).await;
    assert_eq!(address, "127.64.0.101");
    let told: Value =
        serde_json::from_slice(&fs::read(&config).expect("what the process got")).expect("JSON");
    assert_eq!(told["listen"], "127.64.0.101:3128");
    assert_eq!(told["key"], "px-a");
    let first = fs::read_to_string(&pid)
        .expect("its number")
        .trim()
        .to_owned();
    let runs = |pid: &str| Path::new("/proc").join(pid).exists();
    assert!(runs(&first));
    let mode = fs::metadata(bench.folder().join("guests/101.json"))
        .expect("the file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    // A process that ends by itself comes back, as its unit has it.
    let ended = Command::new("kill")
        .args(["-9", &first])
        .status()
        .expect("kill");
    assert!(ended.success());
    let first = until("another process", async || {
        let now = fs::read_to_string(&pid).ok()?.trim().to_owned();
        (now != first && runs(&now)).then_some(now)
    })
    .await;

    // A paused machine's process stands still.
    let state = |pid: &str| {
        let stat =
            fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
    };
    for (event, stopped) in [("paused", true), ("started", false)] {
        bench
            .control(&json!({"do": "power", "vmid": 101, "event": event}).to_string())
            .await;
        until(event, async || {
            ((state(&first) == Some('T')) == stopped).then_some(())
        })
        .await;
    }

    api.run("POST", "/qemu/101/status/stop", "").await;
    until("the end of the process", async || {
        (!runs(&first)).then_some(())
    })
    .await;

    // The first boot has put everything on the disk.
    api.send("PUT", "/qemu/101/config", "ide2=none%2Cmedia%3Dcdrom")
        .await;
    api.run(
        "DELETE",
        "/storage/proxy-seeds/content/proxy-seeds%3Aiso%2Fseed.iso",
        "",
    )
    .await;
    api.run("POST", "/qemu/101/status/start", "").await;
    assert_eq!(
        until("the address", async || api.address().await).await,
        address
    );
    let second = fs::read_to_string(&pid)
        .expect("its number")
        .trim()
        .to_owned();
    assert!(second != first && runs(&second));

    bench.running.stop().await;
    until("the end of the process", async || {
        (!runs(&second)).then_some(())
    })
    .await;
}
