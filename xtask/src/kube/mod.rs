//! `cargo xtask kube-up`: a real Kubernetes API server on loopback, for tests and for people.
//!
//! With `--control` it is told what to do by lines on its standard input and ends when that
//! closes, so nothing outlives a test that was killed. For people, the command starts itself that
//! way in a process group of its own: a Ctrl-C ends the command, and with it the input.

pub(crate) mod assets;
mod servers;

use crate::Stop;
use serde_json::json;
use servers::{Part, Servers};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// How often it looks whether its servers live.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    netns: Option<String>,
    dir: Option<PathBuf>,
    controlled: bool,
}

impl Wish {
    fn parse(args: &[String]) -> Result<Self, Stop> {
        let mut wish = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .filter(|value| !value.starts_with('-'))
                    .cloned()
                    .ok_or_else(|| Stop::Usage(format!("`{arg}` needs a value")))
            };
            match arg.as_str() {
                "--netns" => wish.netns = Some(value()?),
                "--dir" => wish.dir = Some(value()?.into()),
                "--control" => wish.controlled = true,
                other => return Err(Stop::Usage(format!("unexpected argument `{other}`"))),
            }
        }
        Ok(wish)
    }
}

/// Runs the servers until the end of the input, or until Ctrl-C.
pub(crate) fn kube_up(root: &Path, args: &[String]) -> Result<(), Stop> {
    let wish = Wish::parse(args)?;
    if !wish.controlled {
        return for_people(args, &wish);
    }
    let assets = assets::prepare(root)?;
    let dir = empty_dir(wish.dir)?;
    let lines = input();
    let mut servers = Servers::start(assets, dir, wish.netns)?;
    tell(&servers)?;
    loop {
        match lines.recv_timeout(BETWEEN_LOOKS) {
            Ok(line) => {
                obey(&mut servers, &line)?;
                tell(&servers)?;
            }
            Err(RecvTimeoutError::Timeout) => servers.look()?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Starts the command in control mode, says how to use the servers, and waits.
fn for_people(args: &[String], wish: &Wish) -> Result<(), Stop> {
    let mut servers = Command::new(std::env::current_exe()?)
        .args(["kube-up", "--control"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    // Held until the end: when it closes, the servers end.
    let input = servers.stdin.take();
    let output = servers.stdout.take().map(BufReader::new);
    if let Some(Ok(line)) = output.and_then(|output| output.lines().next()) {
        let facts: serde_json::Value =
            serde_json::from_str(&line).map_err(|source| Stop::Because(source.to_string()))?;
        print!("{}", told(&facts, wish.netns.as_deref()));
    }
    let status = servers.wait()?;
    drop(input);
    if status.success() {
        Ok(())
    } else {
        Err(Stop::Failed)
    }
}

/// What people are told when the servers are ready.
fn told(facts: &serde_json::Value, netns: Option<&str>) -> String {
    let text = |name: &str| facts[name].as_str().unwrap_or_default().to_owned();
    let within = netns.map_or_else(String::new, |name| {
        format!("\nThey listen in the network namespace {name}: ip netns exec {name} kubectl ...\n")
    });
    let mut clients = Vec::new();
    for client in ["kubectl", "helm"] {
        let dir = Path::new(&text(client)).parent().map(Path::to_owned);
        let dir = dir.unwrap_or_default().display().to_string();
        if !clients.contains(&dir) {
            clients.push(dir);
        }
    }
    format!(
        "kube-apiserver at {}, with etcd and the controllers for namespaces and garbage\n\
         collection; RBAC is on, and this kubeconfig is an admin's:\n\n  \
         export KUBECONFIG={}\n  export PATH={}:$PATH\n{within}\n\
         Ctrl-C stops them and removes {}.\n",
        text("server"),
        text("kubeconfig"),
        clients.join(":"),
        text("directory"),
    )
}

/// Prints on one line of JSON where everything is.
fn tell(servers: &Servers) -> Result<(), Stop> {
    let pids: serde_json::Map<String, serde_json::Value> = Part::ALL
        .into_iter()
        .filter_map(|part| Some((part.name().to_owned(), json!(servers.pid(part)?))))
        .collect();
    let facts = json!({
        "server": servers.url(),
        "kubeconfig": servers.kubeconfig(),
        "directory": servers.dir(),
        "kubectl": servers.assets().kubectl,
        "helm": servers.assets().helm,
        "pids": pids,
    });
    let mut out = std::io::stdout().lock();
    writeln!(out, "{facts}")?;
    Ok(out.flush()?)
}

/// Carries out `stop NAME` or `start NAME`.
fn obey(servers: &mut Servers, line: &str) -> Result<(), Stop> {
    let wrong = || {
        Stop::Usage(format!(
            "`{line}` on the input: it takes `stop` or `start`, and etcd, kube-apiserver or \
             kube-controller-manager"
        ))
    };
    let (order, name) = line.trim().split_once(' ').ok_or_else(wrong)?;
    let part = Part::ALL
        .into_iter()
        .find(|part| part.name() == name)
        .ok_or_else(wrong)?;
    match order {
        "stop" => servers.kill(part),
        "start" => servers.restart(part),
        _ => Err(wrong()),
    }
}

/// The lines of the standard input; the channel closes with it.
fn input() -> Receiver<String> {
    let (send, lines) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if send.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// The named directory, which must be empty or absent, or a new one.
fn empty_dir(named: Option<PathBuf>) -> Result<PathBuf, Stop> {
    let dir = match named {
        Some(dir) => std::path::absolute(dir)?,
        None => std::env::temp_dir().join(format!("egress-kube-{}", std::process::id())),
    };
    fs::create_dir_all(&dir)?;
    if fs::read_dir(&dir)?.next().is_some() {
        return Err(Stop::Because(format!(
            "--dir: {}: is not empty: name one that is, since all of it is removed at the end",
            dir.display()
        )));
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Wish, Stop> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Wish::parse(&args)
    }

    #[test]
    fn the_command_line_is_read() {
        let wish = parsed(&["--netns", "blue", "--dir", "d"]).expect("well");
        assert_eq!(
            wish,
            Wish {
                netns: Some("blue".into()),
                dir: Some("d".into()),
                controlled: false
            }
        );
        for wrong in [&["--netns"][..], &["--dir", "--control"], &["blue"]] {
            assert!(matches!(parsed(wrong), Err(Stop::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_directory_with_something_in_it_is_refused() {
        let xtask = crate::root().join("xtask");
        let refused = empty_dir(Some(xtask));
        assert!(matches!(refused, Err(Stop::Because(why)) if why.contains("is not empty")));
    }

    #[test]
    fn people_are_told_the_line_to_paste_and_the_namespace_to_enter() {
        let facts = json!({"server": "https://127.0.0.1:1", "kubeconfig": "/t/kubeconfig",
            "directory": "/t", "kubectl": "/c/kubectl", "helm": "/c/helm"});
        let text = told(&facts, None);
        assert!(
            text.contains("  export KUBECONFIG=/t/kubeconfig\n"),
            "{text}"
        );
        assert!(text.contains("  export PATH=/c:$PATH\n"), "{text}");
        assert!(!text.contains("netns"), "{text}");
        assert!(told(&facts, Some("blue")).contains("ip netns exec blue kubectl"));
    }
}
