//! `standalone` without arguments: three proxies and a page to try them on.
//!
//! The curl lines hold passwords. They live as long as this command, on addresses of this
//! host, and are the one exception to "no secret is printed".

use super::{Site, reader::PATIENCE, running::Running, start};
use crate::{
    config::{Config, PayloadArguments},
    failure::Failure,
    stop_signal,
};
use egress_core::{
    ProxyId,
    proxy::AuthSource,
    status::{ConditionStatus, ConditionType},
};
use egress_engine::{Credentials, Found, Handle};
use secrecy::ExposeSecret;
use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::TcpListener;
use uuid::Uuid;

const NAMES: [&str; 3] = ["one", "two", "three"];
/// How long three processes may take to start before the user is told that they wait.
const STARTING: Duration = Duration::from_secs(30);

/// Each directory has an installation of its own: one quick start must not take the machines
/// of another for its own lost ones.
fn config_text(root: &Path) -> String {
    let place = Uuid::new_v5(&Uuid::NAMESPACE_URL, root.as_os_str().as_encoded_bytes());
    format!(
        "installation: quickstart-{}\nproviders: [{{name: here, local: {{listen: 127.0.0.1}}}}]\n",
        &place.simple().to_string()[..12]
    )
}

/// Runs until a signal, then removes everything it made.
pub async fn run() -> Result<(), Failure> {
    let root = private_dir()?;
    let manifests = root.join("manifests");
    let write = || {
        fs::create_dir_all(&manifests)?;
        for name in NAMES {
            fs::write(manifests.join(format!("{name}.yaml")), manifest(name))?;
        }
        Ok(())
    };
    write().map_err(|e: std::io::Error| {
        Failure::refused(format!(
            "{}: cannot be written ({e}): make room, or set TMPDIR",
            manifests.display()
        ))
    })?;
    let config = Config::read(&config_text(&root))
        .map_err(|findings| Failure::faults("quick start", &findings))?;
    let site = Site {
        config,
        manifests: manifests.clone(),
        state_dir: root.join("state"),
        take_over: false,
        payload: PayloadArguments::default(),
    };

    let echo = TcpListener::bind("127.0.0.1:0")
        .await
        .map_err(|e| Failure::failed(format!("the echo page cannot listen on 127.0.0.1: {e}")))?;
    let page = echo
        .local_addr()
        .map_err(|e| Failure::failed(format!("echo page: {e}")))?;
    let echo = tokio::spawn(egress_proxyd::echo::serve(echo, std::future::pending()));

    println!("Starting three proxies on this host...\n");
    let running = start(site)
        .await
        .map_err(|failure| told_of_the_first(failure, &root))?;
    // Before anyone is told that it runs, and may want to stop it.
    let stop = stop_signal();
    let (handle, credentials, state) = (
        running.handle.clone(),
        running.credentials.clone(),
        running.fixed.state_dir.clone(),
    );
    let shown = tokio::spawn(async move {
        for name in NAMES {
            show(&handle, credentials.as_ref(), name, page).await;
        }
        println!(
            "\nEach answers with the address that the page sees. They stop with Ctrl-C.\n\n\
             Meanwhile, from another terminal:\n  \
             {} get proxies --state-dir {}\n\n\
             Next: docs/guides/standalone.md, for proxies that stay.",
            own_name(),
            state.display()
        );
        let _ = std::io::stdout().flush();
    });
    let result = keep(running, &manifests, stop).await;
    shown.abort();
    echo.abort();
    result?;
    let _ = fs::remove_dir_all(&root);
    println!("\nThe three proxies are gone, and nothing is left behind.");
    Ok(())
}

/// One quick start at a time runs in a directory, and no flag gives it another one.
fn told_of_the_first(failure: Failure, root: &Path) -> Failure {
    if !failure.is_in_use() {
        return failure;
    }
    let lines = failure.into_lines();
    let first = lines.first().map_or("", |line| {
        line.split_once(": ").map_or(line.as_str(), |(who, _)| who)
    });
    Failure::refused(format!(
        "{first}: it is a quick start of yours that runs already: use its proxies (`{} get \
         proxies --state-dir {}`), or stop it with Ctrl-C where it runs, and start again",
        own_name(),
        root.join("state").display()
    ))
}

/// Runs until a signal, then takes the manifests away and waits until all is gone.
async fn keep(
    mut running: Running,
    manifests: &Path,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let config = running.config.clone();
    tokio::pin!(stop);
    loop {
        turn(&mut running, &config).await;
        tokio::select! {
            () = &mut stop => break,
            result = &mut running.engine => return running.end(Some(result)).await.map(|_| ()),
            () = tokio::time::sleep(super::RESCAN) => {}
            Some(answer) = running.prune.recv() => {
                let _ = answer.send(running.keeper.prune(&config).await);
            }
        }
    }
    println!("\nRemoving the three proxies...");
    for name in NAMES {
        let _ = fs::remove_file(manifests.join(format!("{name}.yaml")));
    }
    let removal = async {
        running.keeper.prune(&config).await;
        loop {
            let again = turn(&mut running, &config).await;
            if running.keeper.count() == 0 {
                return;
            }
            let wait = again.unwrap_or(Duration::from_millis(100));
            tokio::time::sleep(wait.min(Duration::from_millis(200))).await;
        }
    };
    let second = stop_signal();
    tokio::select! {
        () = removal => running.end(None).await.map(|_| ()),
        () = second => Err(Failure::failed(
            "stopped before the proxies were gone: run `egress-proxies standalone` again to remove them",
        )),
    }
}

/// Reads the manifests and tells the engine. Answers with when to do so again.
async fn turn(running: &mut Running, config: &Config) -> Option<Duration> {
    let scan = running.keeper.scan(PATIENCE).await;
    running.keeper.apply(&scan, config).await
}

/// How this program can be called from another terminal.
fn own_name() -> String {
    std::env::current_exe().map_or_else(
        |_| "egress-proxies".to_owned(),
        |path| path.display().to_string(),
    )
}

async fn show(
    handle: &Handle,
    credentials: &dyn Credentials,
    name: &str,
    page: std::net::SocketAddr,
) {
    let Ok(id) = ProxyId::new("default", name) else {
        return;
    };
    let mut changes = handle.changes();
    let mut told = false;
    loop {
        let view = handle.view(&id);
        let serving = view
            .as_ref()
            .and_then(|v| v.status.condition(ConditionType::Serving));
        if serving.is_some_and(|c| c.status == ConditionStatus::True) {
            break;
        }
        if tokio::time::timeout(STARTING, changes.changed())
            .await
            .is_err()
            && !told
        {
            told = true;
            let why = view
                .iter()
                .flat_map(|v| &v.status.conditions)
                .find(|c| c.status != ConditionStatus::True)
                .map_or_else(String::new, |c| format!(": {}: {}", c.reason, c.message));
            println!("  {name} is not serving yet{why}");
        }
    }
    let endpoint = handle.view(&id).and_then(|v| v.status.endpoint);
    let found = credentials.find(&id, &AuthSource::Generated).await;
    if let (Some(endpoint), Ok(Found::Known(credential))) = (endpoint, found) {
        println!(
            "  curl --noproxy '' --proxy http://{}:{}@{endpoint} http://{page}/",
            credential.user,
            credential.password.expose_secret()
        );
        let _ = std::io::stdout().flush();
    }
}

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: egress-proxies.io/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}}}\n\
         spec: {{provider: here, probe: {{interval: 5s}}}}\n"
    )
}

/// The same directory for every quick start of this user, so that one that was killed is
/// taken on by the next. In a directory that anyone may write to, it must be this user's.
fn private_dir() -> Result<PathBuf, Failure> {
    let user = rustix::process::geteuid().as_raw();
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|v| !v.is_empty())
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = base.join(format!("egress-proxies-quickstart-{user}"));
    let refused = |why: String| {
        Failure::refused(format!(
            "{}: {why}: remove it, or set TMPDIR to a directory of yours",
            dir.display()
        ))
    };
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(refused(format!("cannot be made ({e})")));
        }
        _ => {}
    }
    let metadata =
        fs::symlink_metadata(&dir).map_err(|e| refused(format!("cannot be read ({e})")))?;
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
        return Err(refused("is not a private directory of this user".into()));
    }
    Ok(dir)
}
