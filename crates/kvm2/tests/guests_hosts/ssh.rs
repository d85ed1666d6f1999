//! `qemu+ssh`: an sshd of the test's own on loopback, with a key of its own, in front of a real
//! libvirtd.

use crate::support::{
    Ground, Machine, PATIENCE,
    host::{run, virsh},
    provider, soon,
};
use egress_core::ErrorClass;
use egress_kvm2::{
    Config,
    client::{Client, Dialer, HostUri, TlsFiles, Transport},
};
use egress_provider::{CheckReason, Provider};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::Instant;

/// Tells the test program that it is to be a client that somebody kills.
const VICTIM: &str = "EGRESS_TEST_SSH_VICTIM";

/// An sshd, and a client's files.
struct Sshd {
    dir: TempDir,
    port: u16,
    daemon: Option<Child>,
}

impl Sshd {
    /// Starts it, with its key among the client's known ones.
    async fn start() -> Self {
        // Free a moment ago, and asked for by nobody else in this network.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let dir = tempfile::tempdir().expect("a folder");
        let mut sshd = Self {
            dir,
            port,
            daemon: None,
        };
        // Where sshd keeps its unprivileged half; the package makes it when the service starts.
        fs::create_dir_all("/run/sshd").expect("a folder");
        for key in ["host", "user", "stranger"] {
            sshd.generate(key);
        }
        fs::copy(sshd.file("user.pub"), sshd.file("authorized")).expect("a copy");
        sshd.know("host");
        let file = |name: &str| sshd.file(name).display().to_string();
        let daemon = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nAllowStreamLocalForwarding yes\n\
             PermitRootLogin prohibit-password\n",
            file("host"),
            file("authorized"),
        );
        fs::write(sshd.file("sshd_config"), daemon).expect("written");
        sshd.configure("user");
        let own = sshd.ssh();
        let script = format!("#!/bin/sh\nexec ssh -F {} \"$@\"\n", file("ssh_config"));
        fs::write(&own, script).expect("written");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).expect("set");
        sshd.go().await;
        sshd
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What runs in the place of `ssh`: the same with a configuration of its own.
    fn ssh(&self) -> PathBuf {
        self.file("ssh")
    }

    fn generate(&self, key: &str) {
        let file = self.file(key);
        let _none = fs::remove_file(&file);
        run(Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", key, "-f"])
            .arg(file));
    }

    /// The client knows this key as the host's, and no other.
    fn know(&self, key: &str) {
        let public = fs::read_to_string(self.file(&format!("{key}.pub"))).expect("a key");
        let line = format!("[127.0.0.1]:{} {public}", self.port);
        fs::write(self.file("known"), line).expect("written");
    }

    /// The client logs in with this key.
    fn configure(&self, key: &str) {
        let client = format!(
            "Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  \
             GlobalKnownHostsFile none\n",
            self.file(key).display(),
            self.file("known").display(),
        );
        fs::write(self.file("ssh_config"), client).expect("written");
    }

    async fn go(&mut self) {
        let log = fs::File::create(self.file("log")).expect("a file");
        // Its own path, whole, is what it starts itself by again.
        let daemon = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(self.file("sshd_config"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sshd starts");
        self.daemon = Some(daemon);
        let end = soon();
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port))
            .await
            .is_err()
        {
            assert!(Instant::now() < end, "{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends its end of every connection.
    fn cut(&self) {
        let daemon = self.daemon.as_ref().map(Child::id).expect("it runs");
        let sessions = processes(|words| words[0].starts_with("sshd: root"));
        let own = sessions.into_iter().filter(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.contains(&format!("PPid:\t{daemon}\n"))
        });
        let own: Vec<_> = own.collect();
        assert!(!own.is_empty(), "nobody is connected");
        own.into_iter().for_each(kill);
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _gone = daemon.kill();
            let _ended = daemon.wait();
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// The URI of a libvirtd behind it.
    fn uri(&self, socket: &Path) -> String {
        format!(
            "qemu+ssh://root@127.0.0.1:{}/system?socket={}",
            self.port,
            socket.display()
        )
    }

    /// The processes of `ssh` with the client's configuration.
    fn clients(&self) -> Vec<i32> {
        processes(|words| {
            let config = self.file("ssh_config").display().to_string();
            words[0] == "ssh" && words.contains(&config)
        })
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("sshd: {}", self.log());
        }
        self.stop();
    }
}

/// The numbers of processes whose words are like this.
fn processes(is_it: impl Fn(&[String]) -> bool) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("processes");
    let found = all.flatten().filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let words = fs::read(process.path().join("cmdline")).ok()?;
        let words: Vec<String> = words
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        is_it(&words).then_some(pid)
    });
    found.collect()
}

fn kill(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a pid");
    let _gone = kill_process(pid, Signal::KILL);
}

async fn ended(pids: &[i32]) {
    let end = soon();
    let runs = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        test_kill_process(Pid::from_raw(*pid).expect("a pid")).is_ok()
            && !status.contains("State:\tZ")
    };
    while pids.iter().any(runs) {
        assert!(Instant::now() < end, "{pids:?} do not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn socket(ground: &Ground) -> PathBuf {
    let Transport::Unix(Some(socket)) = ground.uri.transport() else {
        panic!("libvirt-up tells a socket");
    };
    socket.clone()
}

/// Whether there is an ssh to try it with; where nothing may be missing, it must be there.
fn is_offered() -> bool {
    let offered = ["/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"]
        .iter()
        .all(|program| Path::new(program).exists());
    assert!(offered, "install openssh-server and openssh-client");
    offered
}

async fn config(ground: &Ground, uri: &str) -> Config {
    let mut config = ground.config().await;
    uri.clone_into(&mut config.hosts[0].uri);
    assert_eq!(config.validate("kvm2"), []);
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_made_by_ssh_and_a_broken_connection_comes_back_by_itself() {
    let Some(ground) = Ground::find().filter(|_| is_offered()) else {
        return;
    };
    let mut sshd = Sshd::start().await;
    let config = config(&ground, &sshd.uri(&socket(&ground))).await;
    let by_ssh = Arc::new(provider(config).with_ssh(&sshd.ssh()));
    let report = by_ssh.check().await.expect("a report");
    assert_eq!(report.findings, []);
    let mut machine = Machine::of(&by_ssh, "by-ssh").await;
    machine.up().await;
    let running = virsh(&ground.uri, &["list", "--name"]);
    assert!(running.contains(machine.key.name()), "{running}");
    // One for all connections.
    let [ssh] = sshd.clients()[..] else {
        panic!("{:?}", sshd.clients());
    };
    machine.get().await.expect("it is seen");

    // Our end is killed, then theirs, and then nobody is there for a while.
    kill(ssh);
    machine.state().await;
    sshd.cut();
    machine.state().await;
    let [ssh] = sshd.clients()[..] else {
        panic!("{:?}", sshd.clients());
    };
    sshd.cut();
    sshd.stop();
    ended(&[ssh]).await;
    let end = soon();
    loop {
        // The first question may have been on its way.
        let silent = machine.get().await.expect_err("nobody is there");
        assert_eq!(silent.class(), ErrorClass::Transient, "{silent}");
        if silent.said().contains("Connection refused") {
            break;
        }
        assert!(Instant::now() < end, "{silent}");
    }
    sshd.go().await;
    machine.state().await;
    machine.down().await;

    let last = sshd.clients();
    assert_eq!(last.len(), 1);
    drop(machine);
    drop(by_ssh);
    ended(&last).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_do_not_fit_and_a_closed_socket_are_named() {
    let Some(ground) = Ground::find().filter(|_| is_offered()) else {
        return;
    };
    let sshd = Sshd::start().await;
    let good = config(&ground, &sshd.uri(&socket(&ground))).await;
    let (invalid, unauthorized) = (CheckReason::CertificateInvalid, CheckReason::Unauthorized);
    let refused = async |config: &Config, class, reason, words: &[&str]| {
        let provider = provider(config.clone()).with_ssh(&sshd.ssh());
        let error = provider.list(&[]).await.expect_err("no connection");
        assert_eq!(error.class(), class, "{error}");
        let report = provider.check().await.expect("a report");
        let [finding] = report.findings.as_slice() else {
            panic!("{report:?}");
        };
        assert_eq!(finding.reason, reason, "{finding:?}");
        assert_eq!(finding.field.as_deref(), Some("hosts[0].uri"));
        let told = format!("{} {}", finding.found, finding.remedy);
        for word in words {
            assert!(told.contains(word), "{word:?} is not in {told}");
        }
    };
    provider(good.clone())
        .with_ssh(&sshd.ssh())
        .list(&[])
        .await
        .expect("a listing");

    sshd.know("stranger");
    let known = sshd.file("known").display().to_string();
    let words = ["another key", &format!("{known}:1"), "ssh-keygen -R"];
    refused(&good, ErrorClass::Permanent, invalid, &words).await;
    fs::write(sshd.file("known"), "").expect("written");
    let words = ["in no known_hosts", "log in once by hand"];
    refused(&good, ErrorClass::Permanent, invalid, &words).await;
    sshd.know("host");

    sshd.configure("stranger");
    let words = ["not let in", "publickey", "BatchMode=yes"];
    refused(&good, ErrorClass::Unauthorized, unauthorized, &words).await;
    sshd.configure("user");

    let nothing = config(&ground, &sshd.uri(Path::new("/run/no-such-socket"))).await;
    let words = ["open failed", "may open it"];
    refused(
        &nothing,
        ErrorClass::Transient,
        CheckReason::Unreachable,
        &words,
    )
    .await;
    let provider = provider(good).with_ssh(Path::new("/usr/bin/no-such-ssh"));
    let error = provider.list(&[]).await.expect_err("no connection");
    assert!(error.said().contains("no-such-ssh"), "{error}");
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
}

/// The test above runs this in a process of its own, and kills that.
#[tokio::test(flavor = "multi_thread")]
async fn ssh_ends_with_a_client_that_is_killed() {
    if let Ok(told) = env::var(VICTIM) {
        let (ssh, uri) = told.split_once(' ').expect("two words");
        let uri: HostUri = uri.parse().expect("a URI");
        let dialer = Dialer::new(uri, TlsFiles::default()).with_ssh(ssh.into());
        let client = Client::new(dialer);
        let session = client.open(PATIENCE).await.expect("libvirt answers");
        println!("\nOPEN");
        std::future::pending::<()>().await;
        drop(session);
    }
    let Some(ground) = Ground::find().filter(|_| is_offered()) else {
        return;
    };
    let sshd = Sshd::start().await;
    let told = format!("{} {}", sshd.ssh().display(), sshd.uri(&socket(&ground)));
    let mut victim = Command::new(env::current_exe().expect("this program"))
        .args([
            "--exact",
            "--nocapture",
            "ssh::ssh_ends_with_a_client_that_is_killed",
        ])
        .env(VICTIM, told)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let said = BufReader::new(victim.stdout.take().expect("a pipe"));
    let is_open = said
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "OPEN");
    assert!(is_open);
    let clients = sshd.clients();
    assert_eq!(clients.len(), 1);
    let words = fs::read_to_string(format!("/proc/{}/cmdline", clients[0])).expect("it runs");
    let forwarded = words.split('\0').skip_while(|word| *word != "-L").nth(1);
    let local = forwarded.and_then(|word| word.split(':').next());
    let folder = Path::new(local.expect("a socket")).ancestors().nth(2);
    let folder = folder.expect("below a folder").to_owned();
    assert!(folder.is_dir(), "{folder:?}");
    victim.kill().expect("it runs");
    victim.wait().expect("it ends");
    ended(&clients).await;
    let end = soon();
    while folder.exists() {
        assert!(Instant::now() < end, "{folder:?} stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
