//! A running simulator of Proxmox VE, whose machines run the real proxy.

use super::{PROGRAM, Running, Site, end_processes, wait_for};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// How much faster than a host the simulator's tasks and boots are.
const SPEED: &str = "20";

/// How many VMIDs each simulator's machines may have.
pub const VMIDS: u32 = 1000;
/// How many simulators this program has started.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// A running simulator.
pub struct Sim {
    process: Option<Running>,
    facts: Value,
    guests: String,
    /// The first VMID of its machines. A guest's address follows from its VMID, so simulators of
    /// tests that run side by side share none.
    pub first_vmid: u32,
}

/// A simulator that is killed leaves its guests running, as a host's machines outlive its API.
/// After a test they would hold addresses that another simulator gives out.
impl Drop for Sim {
    fn drop(&mut self) {
        drop(self.process.take());
        end_processes(&self.guests);
    }
}

impl Sim {
    pub fn start(site: &Site) -> Self {
        Self::start_with(site, "proxyd")
    }

    /// A simulator with this kind of guests.
    pub fn start_with(site: &Site, guests: &str) -> Self {
        Self::start_in(&site.path("sim"), guests, SPEED)
    }

    /// A simulator that keeps its files in this directory.
    pub fn start_in(dir: &Path, guests: &str, speed: &str) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["sim", "proxmox", "--listen", "127.0.0.1:0"]);
        command.args(["--guests", guests, "--speed", speed, "--state-dir"]);
        command.arg(dir);
        let mut process = Running::spawn(&mut command, dir.with_extension("log"));
        let facts = wait_for("the simulator's facts", || {
            assert!(process.is_running(), "it ended: {}", process.printed());
            let printed = process.printed();
            let line = printed.lines().next().filter(|_| printed.contains('\n'));
            line.and_then(|line| serde_json::from_str(line).ok())
                .ok_or(printed)
        });
        Self {
            process: Some(process),
            facts,
            guests: format!("{}/guests/", dir.display()),
            first_vmid: 10_000 + VMIDS * STARTED.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub fn fact(&self, name: &str) -> String {
        match &self.facts[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// Points an installation's provider at it.
    pub fn configure(&self, site: &Site) {
        let block = self.block("here", &self.fact("tokenFile"));
        let text = format!(
            "installation: {}\nproviders: [{block}]\n",
            site.installation
        );
        fs::write(site.config(), text).expect("the configuration can be written");
    }

    /// The block of a provider on it, with the token in this file.
    pub fn block(&self, name: &str, token_file: &str) -> String {
        format!(
            "{{name: {name}, proxmox: {{urls: ['{}'], caFile: '{}', \
             tokenFile: '{token_file}', template: {}, storage: {}, isoStorage: {}, \
             vmidRange: {{from: {}, to: {}}}, guestAgent: baked, allowLoopback: true}}}}",
            self.fact("url"),
            self.fact("caFile"),
            self.fact("template"),
            self.fact("storage"),
            self.fact("isoStorage"),
            self.first_vmid,
            self.first_vmid + VMIDS - 1,
        )
    }

    /// Does something beside the API.
    pub fn control(&self, order: &Value) -> Value {
        let url = self.fact("controlUrl");
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let body = order.to_string();
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(
            stream,
            "POST / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("written");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{text}");
        serde_json::from_str(body).expect("JSON")
    }

    /// Everything on it but what it began with.
    pub fn left(&self, began: &[String]) -> Vec<String> {
        let mut inventory = self.inventory();
        inventory.retain(|line| !began.contains(line));
        inventory
    }

    pub fn inventory(&self) -> Vec<String> {
        let lines = self.control(&json!({"do": "inventory"}));
        let line = |line: &Value| line.as_str().expect("a line").to_owned();
        lines.as_array().expect("lines").iter().map(line).collect()
    }

    /// The names of the product's machines, each once for each machine.
    pub fn machines(&self) -> Vec<String> {
        let inventory = self.inventory();
        let mut names: Vec<String> = inventory
            .iter()
            .filter(|line| line.starts_with("machine "))
            .filter_map(|line| {
                line.split_whitespace()
                    .find(|word| word.starts_with("proxy-"))
            })
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    }

    pub fn assert_none_twice(&self) {
        let machines = self.machines();
        let mut once = machines.clone();
        once.dedup();
        assert_eq!(machines, once);
    }
}
