//! A socket of another host, forwarded by one `ssh` for as many connections as there are.
//!
//! `ssh -L LOCAL:REMOTE` needs nothing on the other side but an account that may open
//! libvirt's socket, and makes each further connection a matter of milliseconds. It asks no
//! questions (`BatchMode`), ends when the host falls silent, and ends with this process, also
//! when that is killed: a shell keeps it, and hears by a pipe when its owner is gone.

use crate::client::failure::Kind;
use std::{
    ffi::OsString,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    process::{Child, ChildStdin, Command},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// How long `ssh` may take until the forwarded socket is there.
const LOGIN: Duration = Duration::from_secs(20);
/// How long `ssh` may take to say why it ended a connection.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often either is looked at.
const POLL: Duration = Duration::from_millis(20);
/// How much of what `ssh` complains is kept, in bytes: the last words.
const COMPLAINTS: usize = 4096;

/// Runs `ssh`, ends it when the input closes, and removes the folder of its socket, which a
/// killed owner could not. The watcher goes first when `ssh` ends by itself: its number may be
/// another's by the time the input closes.
const KEEPER: &str = r#"
folder=$1
shift
exec 3<&0
"$@" 3<&- </dev/null &
ssh=$!
{ read -r _ <&3; kill "$ssh"; } 2>/dev/null &
watcher=$!
exec 3<&- </dev/null
wait "$ssh"
code=$?
kill "$watcher" 2>/dev/null
rm -f "$folder/s/sock"
rmdir "$folder/s" "$folder" 2>/dev/null
exit "$code"
"#;

/// What `ssh` could not do, and its words.
type Trouble = (Kind, String);

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
    /// Open as long as `ssh` is wanted.
    _input: Option<ChildStdin>,
    socket: PathBuf,
    complaints: Complaints,
    listening: JoinHandle<()>,
    /// Removed with the socket in it.
    _directory: tempfile::TempDir,
}

/// The last words of an `ssh`.
#[derive(Clone, Debug, Default)]
struct Complaints(Arc<Mutex<Vec<u8>>>);

impl Complaints {
    fn heard(&self, words: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(words);
        let surplus = kept.len().saturating_sub(COMPLAINTS);
        kept.drain(..surplus);
    }
    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }
}

impl Tunnel {
    /// With this program for `ssh`.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            running: tokio::sync::Mutex::new(None),
        }
    }

    pub(super) async fn connect(&self, target: &Target<'_>) -> Result<UnixStream, Trouble> {
        let not_sent = |said: String| (Kind::NotSent, said);
        let mut running = self.running.lock().await;
        if let Some(known) = running.as_mut()
            && matches!(known.child.try_wait(), Ok(None))
        {
            let stream = UnixStream::connect(&known.socket).await;
            return stream.map_err(|e| not_sent(format!("the forwarded socket: {e}")));
        }
        *running = None;
        let mut fresh = self.start(target).map_err(|e| {
            let program = self.program.display();
            not_sent(format!("{program} cannot be started: {e}"))
        })?;
        let end = Instant::now() + LOGIN;
        loop {
            if let Ok(stream) = UnixStream::connect(&fresh.socket).await {
                *running = Some(fresh);
                return Ok(stream);
            }
            if matches!(fresh.child.try_wait(), Ok(Some(_))) {
                // Its words are all there once they end.
                let _ended = timeout(Duration::from_secs(1), &mut fresh.listening).await;
                return Err(refusal(&fresh.complaints.text()));
            }
            if Instant::now() >= end {
                return Err(not_sent("ssh made no connection in 20 s".to_owned()));
            }
            sleep(POLL).await;
        }
    }

    /// What the running `ssh` said last, where it says anything soon.
    pub(super) async fn last_words(&self) -> Option<String> {
        let complaints = self.running.lock().await.as_ref()?.complaints.clone();
        let end = Instant::now() + LAST_WORDS;
        loop {
            let told = complaints.text();
            let last = told.lines().rev().find_map(plain);
            if last.is_some() || Instant::now() >= end {
                return last;
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
        let mut child = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(directory.path())
            .arg(&self.program)
            .args(arguments(target, &socket))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stderr = child.stderr.take();
        let complaints = Complaints::default();
        let heard = complaints.clone();
        let listening = tokio::spawn(async move {
            let mut words = [0; 1024];
            if let Some(mut stderr) = stderr {
                while let Ok(count @ 1..) = stderr.read(&mut words).await {
                    heard.heard(&words[..count]);
                }
            }
        });
        Ok(Running {
            _input: child.stdin.take(),
            child,
            socket,
            complaints,
            listening,
            _directory: directory,
        })
    }
}

/// A line with words in it.
fn plain(line: &str) -> Option<String> {
    let line = line.trim();
    let is_banner = line.starts_with('@') || line.is_empty();
    (!is_banner).then(|| line.to_owned())
}

/// What the last words of an `ssh` that made no connection mean: OpenSSH's, as `ssh.c`,
/// `sshconnect.c` and `sshconnect2.c` write them.
fn refusal(told: &str) -> Trouble {
    let find = |text: &str| told.lines().find(|line| line.contains(text));
    let line = |text: &str| find(text).and_then(plain).unwrap_or_default();
    if find("REMOTE HOST IDENTIFICATION HAS CHANGED").is_some() {
        let offending = line("Offending ");
        let said = format!(
            "the host shows another key than the one that is known: somebody may stand in between, or it was set up anew ({offending})"
        );
        return (Kind::HostKeyChanged, said);
    }
    if find("Host key verification failed").is_some() {
        return (
            Kind::HostKeyUnknown,
            "the key that the host shows is in no known_hosts file".to_owned(),
        );
    }
    if find("Permission denied").is_some() {
        let said = format!("ssh was not let in: {}", line("Permission denied"));
        return (Kind::LoginRefused, said);
    }
    let last = told.lines().rev().find_map(plain).unwrap_or_default();
    (Kind::NotSent, format!("ssh ended: {last}"))
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

    #[test]
    fn the_last_words_of_ssh_say_what_is_wrong() {
        // As OpenSSH 9.2 writes them.
        let changed = "@@@@@@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n@@@@@@@@@@@@\r\nIT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r\nOffending ED25519 key in /etc/ssh/known_hosts:3\r\nHost key for kvm-1 has changed and you have requested strict checking.\r\nHost key verification failed.\r\n";
        let unknown = "No ED25519 host key is known for kvm-1 and you have requested strict checking.\r\nHost key verification failed.\r\n";
        let denied = "egress@kvm-1: Permission denied (publickey).\r\n";
        let silent = "ssh: connect to host kvm-1 port 22: Connection refused\r\n\r\n";
        for (told, kind, word) in [
            (changed, Kind::HostKeyChanged, "known_hosts:3"),
            (unknown, Kind::HostKeyUnknown, "in no known_hosts"),
            (denied, Kind::LoginRefused, "(publickey)"),
            (silent, Kind::NotSent, "port 22: Connection refused"),
            ("", Kind::NotSent, "ssh ended"),
        ] {
            let (found, said) = refusal(told);
            assert_eq!(found, kind, "{told}");
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn only_the_last_words_are_kept() {
        let complaints = Complaints::default();
        for _ in 0..COMPLAINTS {
            complaints.heard(b"a word\n");
        }
        complaints.heard(b"the last one\n");
        assert_eq!(complaints.text().len(), COMPLAINTS);
        assert!(complaints.text().ends_with("the last one\n"));
    }
}
