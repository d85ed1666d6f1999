//! A socket of another host, forwarded by one `ssh` for as many connections as there are.
//!
//! `ssh -L LOCAL:REMOTE` needs nothing on the other side but an account that may open
//! libvirt's socket, and makes each further connection a matter of milliseconds. It asks no
//! questions (`BatchMode`), ends when the host falls silent, and ends with this process.

use std::{
    ffi::OsString,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    process::{Child, Command},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// How long `ssh` may take until the forwarded socket is there.
const LOGIN: Duration = Duration::from_secs(20);
/// How often that is looked at.
const POLL: Duration = Duration::from_millis(20);
/// How much of what `ssh` complains is kept, in bytes.
const COMPLAINTS: u64 = 4096;

/// Where to.
pub(super) struct Target<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) host: &'a str,
    pub(super) port: Option<u16>,
    pub(super) socket: &'a Path,
}

/// The `ssh` of one host; started when it is needed, and again when it has ended.
#[derive(Debug)]
pub struct Tunnel {
    program: PathBuf,
    running: tokio::sync::Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    socket: PathBuf,
    complaints: JoinHandle<String>,
    /// Removed with the socket in it.
    _directory: tempfile::TempDir,
}

impl Tunnel {
    /// With this program for `ssh`.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            running: tokio::sync::Mutex::new(None),
        }
    }

    pub(super) async fn connect(&self, target: &Target<'_>) -> Result<UnixStream, String> {
        let mut running = self.running.lock().await;
        if let Some(known) = running.as_mut()
            && matches!(known.child.try_wait(), Ok(None))
        {
            let stream = UnixStream::connect(&known.socket).await;
            return stream.map_err(|e| format!("the forwarded socket: {e}"));
        }
        *running = None;
        let mut fresh = self.start(target).map_err(|e| {
            let program = self.program.display();
            format!("{program} cannot be started: {e}")
        })?;
        let end = Instant::now() + LOGIN;
        loop {
            if let Ok(stream) = UnixStream::connect(&fresh.socket).await {
                *running = Some(fresh);
                return Ok(stream);
            }
            if let Ok(Some(status)) = fresh.child.try_wait() {
                let told = timeout(Duration::from_secs(1), fresh.complaints).await;
                let told = told.ok().and_then(Result::ok).unwrap_or_default();
                let last = told.lines().rfind(|line| !line.trim().is_empty());
                return Err(format!("ssh ended ({status}): {}", last.unwrap_or("")));
            }
            if Instant::now() >= end {
                return Err("ssh made no connection in 20 s".to_owned());
            }
            sleep(POLL).await;
        }
    }

    fn start(&self, target: &Target<'_>) -> io::Result<Running> {
        let directory = tempfile::Builder::new()
            .prefix("egress-proxies-ssh-")
            .tempdir()?;
        let inside = directory.path().join("s");
        std::fs::DirBuilder::new().mode(0o700).create(&inside)?;
        let socket = inside.join("sock");
        let mut child = Command::new(&self.program)
            .args(arguments(target, &socket))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stderr = child.stderr.take();
        let complaints = tokio::spawn(async move {
            let mut told = Vec::new();
            if let Some(mut stderr) = stderr {
                let _ = (&mut stderr).take(COMPLAINTS).read_to_end(&mut told).await;
                // More than that is read so that ssh does not wait, and thrown away.
                let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
            }
            String::from_utf8_lossy(&told).into_owned()
        });
        Ok(Running {
            child,
            socket,
            complaints,
            _directory: directory,
        })
    }
}

fn arguments(target: &Target<'_>, local: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["-N".into(), "-T".into()];
    for option in [
        "BatchMode=yes",
        "ExitOnForwardFailure=yes",
        "StreamLocalBindUnlink=yes",
        "ControlMaster=no",
        "ControlPath=none",
        "ForwardAgent=no",
        "ForwardX11=no",
        "ConnectTimeout=10",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
    ] {
        arguments.extend(["-o".into(), option.into()]);
    }
    let mut forward = local.as_os_str().to_owned();
    forward.push(":");
    forward.push(target.socket);
    arguments.extend(["-L".into(), forward]);
    if let Some(port) = target.port {
        arguments.extend(["-p".into(), port.to_string().into()]);
    }
    if let Some(user) = target.user {
        arguments.extend(["-l".into(), user.into()]);
    }
    arguments.extend(["--".into(), target.host.into()]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_is_told_to_ask_nothing_and_to_forward_one_socket() {
        let target = Target {
            user: Some("egress"),
            host: "kvm-1",
            port: Some(2222),
            socket: Path::new("/run/libvirt/libvirt-sock"),
        };
        let told: Vec<String> = arguments(&target, Path::new("/tmp/x/sock"))
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect();
        let told = told.join(" ");
        assert!(told.contains("BatchMode=yes"), "{told}");
        let end = "-L /tmp/x/sock:/run/libvirt/libvirt-sock -p 2222 -l egress -- kvm-1";
        assert!(told.ends_with(end), "{told}");
    }
}
