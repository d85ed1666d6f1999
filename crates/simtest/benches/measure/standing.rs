//! Many machines on a simulator in a process of its own, and whoever keeps them.

use super::Kept;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{ChildStdout, Command, Stdio},
    thread,
};

/// The first line that a process prints.
pub fn first_line(output: ChildStdout) -> String {
    let mut lines = BufReader::new(output).lines();
    let line = lines.next().expect("a line").expect("it can be read");
    // What follows is read, too: nobody is to wait for a full pipe.
    thread::spawn(move || lines.for_each(drop));
    line
}

/// Starts a large simulator of 100 times the speed with these guests, and writes a configuration
/// for it.
pub fn simulator(program: &Path, guests: &str, dir: &Path, config: &Path) -> Kept {
    let mut sim = Command::new(program);
    sim.args(["sim", "proxmox", "--listen", "127.0.0.1:0"])
        .args(["--guests", guests, "--speed", "100"])
        .args([
            "--memory-gib",
            "65536",
            "--storage-gib",
            "1048576",
            "--state-dir",
        ])
        .arg(dir)
        .stdout(Stdio::piped());
    let mut sim = Kept(sim.spawn().expect("the simulator starts"));
    let facts = first_line(sim.0.stdout.take().expect("piped"));
    let facts: Value = serde_json::from_str(&facts).expect("its facts");
    write_config(&facts, config);
    sim
}

fn write_config(facts: &Value, to: &Path) {
    let text = |name: &str| match &facts[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let config = format!(
        "installation: bench\nadmin: {{listen: '127.0.0.1:0'}}\nproviders: [{{name: here, proxmox: {{urls: ['{}'], caFile: '{}', \
         tokenFile: '{}', template: {}, storage: {}, isoStorage: {}, vmidRange: {{from: 100000, \
         to: 199999}}, guestAgent: baked, allowLoopback: true, maxConcurrentClones: 50, reserve: \
         {{storagePercent: 0, memoryMiB: 0}}}}}}]\n",
        text("url"),
        text("caFile"),
        text("tokenFile"),
        text("template"),
        text("storage"),
        text("isoStorage"),
    );
    fs::write(to, config).expect("a file can be written");
}

/// So many Proxies, as small as they come.
pub fn manifests(count: u32) -> String {
    let manifest = |number| {
        format!(
            "apiVersion: egress-proxies.io/v1alpha1\nkind: Proxy\nmetadata: {{name: \
             proxy-{number}}}\nspec: {{provider: here, machine: {{cpus: 1, memoryMiB: 128, \
             diskGiB: 4}}}}\n"
        )
    };
    (0..count).map(manifest).collect::<Vec<_>>().join("---\n")
}

/// How many proxies are provisioned, as the admin page says.
pub fn provisioned(admin: &str) -> usize {
    figure_of(
        admin,
        "egress_proxies_engine_proxies{",
        r#"phase="Running""#,
    )
}

/// How many machines were proven and sealed since the start, as the admin page says.
pub fn sealed(admin: &str) -> usize {
    let calls = r#"operation="seal",class="ok""#;
    figure_of(admin, "egress_proxies_provider_calls_total{", calls)
}

fn figure_of(admin: &str, name: &str, labels: &str) -> usize {
    let mut stream = TcpStream::connect(admin).expect("the admin page listens");
    let ask = format!("GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text.lines()
        .find(|line| line.starts_with(name) && line.contains(labels))
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or(0)
}
