//! `cargo xtask image`: the operator's image as an OCI archive, built without a registry.
//!
//! buildah writes it: the one of the system, or Debian's, unpacked into the cache. An image from
//! scratch runs nothing while it is built, so no container is needed. Then the layer is unpacked
//! again and its programs are run with that as their root: there is nothing else there.
//!
//! The check of every change does the same with a program that is not optimized: what it shows is
//! that nothing is missing in an image that holds nothing else.

use crate::{Stop, payload, run};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const NAME: &str = "egress-proxies";
const DOCKERFILE: &str = "deploy/Dockerfile";
/// buildah, what it is linked to, and which images it may take.
const PACKAGES: [&str; 7] = [
    "buildah",
    "golang-github-containers-common",
    "golang-github-containers-image",
    "libassuan0",
    "libdevmapper1.02.1",
    "libgpgme11",
    "libsubid4",
];

/// Builds the image and runs what is in it; prints where it lies.
pub(crate) fn image(root: &Path) -> Result<(), Stop> {
    let programs = [
        payload::build_static(root, "egress-cli", NAME)?,
        payload::build(root)?,
    ];
    let archive = assemble(root, &programs, "image")?;
    println!(
        "{} {} bytes",
        archive.display(),
        fs::metadata(&archive)?.len()
    );
    Ok(())
}

/// The same with a program that takes less time to build, and leaves no image behind.
pub(crate) fn check(root: &Path) -> Result<(), Stop> {
    let programs = [static_and_slow(root)?, payload::build(root)?];
    let folder = "image-check";
    assemble(root, &programs, folder)?;
    let target = run::metadata(root)?.target_directory.into_std_path_buf();
    Ok(fs::remove_dir_all(target.join(folder))?)
}

/// The operator's program with no library needed, not optimized. Only its last step differs from
/// what tests build, so that it shares libraries with them.
fn static_and_slow(root: &Path) -> Result<PathBuf, Stop> {
    let path = run::built_as_told(
        run::cargo(root)
            .args(["rustc", "--quiet", "--package", "egress-cli"])
            .args(["--bin", NAME, run::MESSAGES])
            .args(["--", "-C", "target-feature=+crt-static"])
            .args(["-C", "strip=symbols"]),
        NAME,
    )?;
    payload::must_be_static(&path)?;
    Ok(path)
}

/// Makes the archive in this folder of the target folder, and runs what is in it; answers where
/// it lies.
fn assemble(root: &Path, programs: &[PathBuf; 2], folder: &str) -> Result<PathBuf, Stop> {
    let target = run::metadata(root)?.target_directory.into_std_path_buf();
    let here = target.join(folder);
    if here.exists() {
        fs::remove_dir_all(&here)?;
    }
    let context = here.join("context");
    fs::create_dir_all(&context)?;
    fs::copy(root.join(DOCKERFILE), context.join("Dockerfile"))?;
    for program in programs {
        let name = program.file_name().unwrap_or_default();
        fs::copy(program, context.join(name))?;
    }
    let version = version(&programs[0])?;
    let tag = format!("{NAME}:{version}");
    let archive = here.join(format!("{NAME}-{version}.oci.tar"));
    let buildah = Buildah::find(&here)?;
    must(buildah.command("bud").args(["--tag", &tag]).arg(&context))?;
    let destination = format!("oci-archive:{}:{tag}", archive.display());
    must(buildah.command("push").args([&tag, &destination]))?;
    run_from(&here, &archive, &version)?;
    fs::remove_dir_all(here.join("storage"))?;
    Ok(archive)
}

fn version(program: &Path) -> Result<String, Stop> {
    let said = run::text(Command::new(program).arg("--version"))?;
    said.split_whitespace()
        .last()
        .map(str::to_owned)
        .ok_or_else(|| Stop::Because(format!("{} says no version", program.display())))
}

struct Buildah {
    program: PathBuf,
    libraries: Option<PathBuf>,
    policy: Option<PathBuf>,
    storage: PathBuf,
}

impl Buildah {
    fn find(here: &Path) -> Result<Self, Stop> {
        let storage = here.join("storage");
        let own = Command::new("buildah")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if own.is_ok_and(|status| status.success()) {
            return Ok(Self {
                program: "buildah".into(),
                libraries: None,
                policy: None,
                storage,
            });
        }
        let unpacked = cache()?.join("buildah");
        if !unpacked.join("usr/bin/buildah").is_file() {
            fetch(&unpacked)?;
        }
        let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        Ok(Self {
            program: unpacked.join("usr/bin/buildah"),
            libraries: Some(unpacked.join(libraries)),
            policy: Some(unpacked.join("etc/containers/policy.json")),
            storage,
        })
    }

    /// A command with storage of its own, which needs no file system of a special kind.
    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(self.storage.join("root"))
            .arg("--runroot")
            .arg(self.storage.join("run"))
            .arg(verb);
        if verb == "bud" {
            command.args(["--isolation", "chroot", "--timestamp", "0"]);
        }
        if let Some(policy) = &self.policy {
            command.arg("--signature-policy").arg(policy);
        }
        command.stdin(Stdio::null());
        command
    }
}

fn cache() -> Result<PathBuf, Stop> {
    std::env::var_os("HOME")
        .map(|home| PathBuf::from(home).join(".cache/egress-proxies"))
        .ok_or_else(|| Stop::Because("HOME: (missing): names no folder for a cache: set it".into()))
}

/// Debian's packages, checked by apt, unpacked and not installed.
fn fetch(unpacked: &Path) -> Result<(), Stop> {
    let scratch = unpacked.with_extension("new");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let download = Command::new("apt-get")
        .args(["download", "-q"])
        .args(PACKAGES)
        .current_dir(&scratch)
        .stdout(Stdio::null())
        .status();
    if !download.is_ok_and(|status| status.success()) {
        return Err(Stop::Because(
            "buildah cannot be had here: install it, or run apt-get update on a Debian".into(),
        ));
    }
    let root = scratch.join("root");
    for entry in fs::read_dir(&scratch)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            must(Command::new("dpkg").arg("-x").arg(&path).arg(&root))?;
        }
    }
    if unpacked.exists() {
        fs::remove_dir_all(unpacked)?;
    }
    fs::rename(&root, unpacked)?;
    Ok(fs::remove_dir_all(&scratch)?)
}

/// Unpacks the image's one layer and runs its programs with that as root.
fn run_from(here: &Path, archive: &Path, version: &str) -> Result<(), Stop> {
    let unpacked = here.join("unpacked");
    let root = unpacked.join("root");
    fs::create_dir_all(&root)?;
    must(
        Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(&unpacked),
    )?;
    let blob = |digest: &str| unpacked.join("blobs").join(digest.replace(':', "/"));
    let read = |path: PathBuf| -> Result<serde_json::Value, Stop> {
        serde_json::from_slice(&fs::read(&path)?)
            .map_err(|e| Stop::Because(format!("{}: {e}", path.display())))
    };
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let index = read(unpacked.join("index.json"))?;
    let manifest = read(blob(&text(&index["manifests"][0]["digest"])))?;
    let config = read(blob(&text(&manifest["config"]["digest"])))?;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        must(
            Command::new("tar")
                .arg("-xf")
                .arg(blob(&text(&layer["digest"])))
                .arg("-C")
                .arg(&root),
        )?;
    }
    if config["config"]["User"] != "65532:65532"
        || config["config"]["Entrypoint"][0] != "/egress-proxies"
    {
        return Err(Stop::Because(format!(
            "the image has another start than it should: {}",
            config["config"]
        )));
    }
    let mut found: Vec<String> = fs::read_dir(&root)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, Stop>>()?;
    found.sort();
    if found != [NAME, "proxyd"] {
        return Err(Stop::Because(format!("the image holds {found:?}")));
    }
    let inside = |program: &str, argument: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--map-root-user", "chroot"])
            .arg(&root)
            .args([program, argument]);
        run::text(&mut command)
    };
    let said = inside("/egress-proxies", "--version")?;
    if said.trim() != format!("{NAME} {version}") {
        return Err(Stop::Because(format!("the image's program says {said:?}")));
    }
    let said = inside("/proxyd", "--version")?;
    if said.trim() != format!("proxyd {version}") {
        return Err(Stop::Because(format!("the image's proxyd says {said:?}")));
    }
    let crds = inside("/egress-proxies", "crds")?;
    if !crds.contains("kind: CustomResourceDefinition") {
        return Err(Stop::Because(
            "the image's program prints no definitions".into(),
        ));
    }
    Ok(fs::remove_dir_all(&unpacked)?)
}

fn must(command: &mut Command) -> Result<(), Stop> {
    if run::succeeds(command)? {
        Ok(())
    } else {
        Err(Stop::Because(format!("`{}` failed", run::line(command))))
    }
}
