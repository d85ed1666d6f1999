//! `cargo xtask libvirt-up`: libvirt and QEMU in namespaces of their own, for tests and for people.
//!
//! Three processes, one inside the other. The one that people see holds a pipe, and the others
//! end when it closes, so that nothing outlives a test or a Ctrl-C. The second makes the network
//! namespace and the directory, and removes them. The third, [`inside`], has its own processes,
//! mounts and network: libvirt's compiled-in paths are the directory's there, and every process
//! ends with it. So several run at once, and the machine's own libvirt is not touched.

mod inside;

use crate::{
    Stop,
    guest::{self, lacking, must, tool},
};
use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

/// Programs it takes, and the packages that bring them.
const TOOLS: &[(&str, &str)] = &[
    ("libvirtd", "libvirt-daemon-system"),
    ("virtlogd", "libvirt-daemon-system"),
    ("virsh", "libvirt-clients"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    // Named, because the package above removes a newer one that it does not know.
    ("qemu-img", "qemu-utils"),
    ("dnsmasq", "dnsmasq-base"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
];

/// The same for the tests of the rung. No daemon of these is started as a service.
const RUNG_TOOLS: &[(&str, &str)] = &[
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("sshd", "openssh-server"),
    ("mkfs.ext4", "e2fsprogs"),
    ("genisoimage", "genisoimage"),
];

#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    name: Option<String>,
    dir: Option<PathBuf>,
    /// A guest by name, or a file.
    image: Option<String>,
    stage: Stage,
    command: Vec<String>,
}

/// Which of the three processes this is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    People,
    Control,
    Inside,
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
                "--name" => wish.name = Some(value()?),
                "--dir" => wish.dir = Some(value()?.into()),
                "--image" => wish.image = Some(value()?),
                "--control" => wish.stage = Stage::Control,
                "--inside" => wish.stage = Stage::Inside,
                "--" => {
                    wish.command = args.by_ref().cloned().collect();
                    if wish.command.is_empty() {
                        return Err(Stop::Usage("no command follows `--`".into()));
                    }
                }
                other => return Err(Stop::Usage(format!("unexpected argument `{other}`"))),
            }
        }
        if let Some(name) = &wish.name
            && !is_name(name)
        {
            return Err(Stop::Usage(format!(
                "--name: {name}: names a network namespace and a folder: use up to 40 of \
                 `a-z 0-9 -`"
            )));
        }
        Ok(wish)
    }
}

fn is_name(name: &str) -> bool {
    (1..=40).contains(&name.len())
        && !name.starts_with('-')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Runs libvirt until the end of the input or of the command, or until Ctrl-C.
pub(crate) fn libvirt_up(args: &[String]) -> Result<(), Stop> {
    let wish = Wish::parse(args)?;
    match wish.stage {
        Stage::People => for_people(args),
        Stage::Control => control(wish),
        Stage::Inside => inside::run(
            &wish.dir.unwrap_or_default(),
            Path::new(&wish.image.unwrap_or_default()),
            &wish.name.unwrap_or_default(),
            &wish.command,
        ),
    }
}

/// What keeps it from running here; `None` when nothing does.
pub(crate) fn obstacle() -> Option<String> {
    if !is_root() {
        return Some("libvirt in namespaces of its own takes root".into());
    }
    lacking(TOOLS)
}

/// What keeps the rung `guests` from running here: its tests also reach libvirt by ssh, fill a
/// file system, and make a disk of packages.
pub(crate) fn rung_obstacle() -> Option<String> {
    obstacle().or_else(|| lacking(RUNG_TOOLS))
}

/// A folder with the distribution's guest agent and what it needs, for a machine of a test that
/// installs it without a network; fetched where the cache lacks it.
pub(crate) fn agent_packages() -> Result<PathBuf, Stop> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let mut lines = release.lines();
    let name = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let shelf = guest::cache()?.join(format!("agent-packages-{}", name.unwrap_or("unknown")));
    if shelf.is_dir() {
        return Ok(shelf);
    }
    let scratch = shelf.with_extension(std::process::id().to_string());
    let fetched = guest::mirror(&scratch, "qemu-guest-agent");
    // Another run may have been quicker: its files are as good.
    if fetched.is_err() || fs::rename(&scratch, &shelf).is_err() {
        fs::remove_dir_all(&scratch)?;
    }
    fetched.map(|()| shelf)
}

/// Whether this process is the superuser's.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Starts the second process in a process group of its own, and waits.
fn for_people(args: &[String]) -> Result<(), Stop> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["libvirt-up", "--control"])
        .args(args)
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()?;
    // Held until the end: when it closes, the others end.
    let input = child.stdin.take();
    let status = child.wait()?;
    drop(input);
    well(status)
}

fn well(status: ExitStatus) -> Result<(), Stop> {
    if status.success() {
        Ok(())
    } else {
        Err(Stop::Failed)
    }
}

/// Makes namespace and directory, runs the third process in them, and removes them.
fn control(wish: Wish) -> Result<(), Stop> {
    if let Some(why) = obstacle() {
        return Err(Stop::Because(format!("libvirt-up cannot run here: {why}")));
    }
    let image = match wish.image.as_deref().unwrap_or("tiny") {
        file if file.contains('/') => PathBuf::from(file),
        name => match guest::named(name) {
            Some(known) => guest::image(known)?,
            None => {
                return Err(Stop::Usage(format!(
                    "--image: {name}: is no guest that can be made: name one, or a file with its \
                     folder"
                )));
            }
        },
    };
    let name = wish
        .name
        .unwrap_or_else(|| format!("egress-{}", std::process::id()));
    let ground = Ground::make(name, wish.dir)?;
    let netns = ground.netns();
    let status = Command::new("nsenter")
        .arg(format!("--net={}", netns.display()))
        .args([
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        // The first process of a namespace must collect the ended ones: a shell does.
        .args(["sh", "-c", "\"$@\"; exit $?", "sh"])
        .arg(std::env::current_exe()?)
        .args(["libvirt-up", "--inside", "--name", &ground.name])
        .arg("--dir")
        .arg(&ground.dir)
        .arg("--image")
        .arg(&image)
        .args(if wish.command.is_empty() {
            None
        } else {
            Some("--")
        })
        .args(&wish.command)
        .status()?;
    drop(ground);
    well(status)
}

/// The network namespace and the directory; both go with this.
struct Ground {
    name: String,
    dir: PathBuf,
}

impl Ground {
    fn make(name: String, dir: Option<PathBuf>) -> Result<Self, Stop> {
        let dir = match dir {
            Some(dir) => std::path::absolute(dir)?,
            None => std::env::temp_dir().join(format!("egress-libvirt-{name}")),
        };
        fs::create_dir_all(&dir)?;
        if fs::read_dir(&dir)?.next().is_some() {
            return Err(Stop::Because(format!(
                "--dir: {}: is not empty: name one that is, since all of it is removed at the end",
                dir.display()
            )));
        }
        must(tool("ip").args(["netns", "add", &name])).map_err(|_| {
            Stop::Because(format!(
                "--name: {name}: the network namespace cannot be made: choose another name, or \
                 remove it with `ip netns del {name}`"
            ))
        })?;
        let ground = Self { name, dir };
        must(tool("ip").args(["-n", &ground.name, "link", "set", "lo", "up"]))?;
        Ok(ground)
    }

    fn netns(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Err(Stop::Because(why)) = must(tool("ip").args(["netns", "del", &self.name])) {
            eprintln!("xtask: {why}");
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("xtask: {}: {error}: remove it by hand", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Wish, Stop> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Wish::parse(&args)
    }

    #[test]
    fn what_follows_two_dashes_is_the_command() {
        let wish = parsed(&[
            "--name", "blue", "--image", "tiny", "--", "virsh", "--name", "list",
        ])
        .expect("well");
        assert_eq!(
            wish,
            Wish {
                name: Some("blue".into()),
                image: Some("tiny".into()),
                command: vec!["virsh".into(), "--name".into(), "list".into()],
                ..Wish::default()
            }
        );
    }

    #[test]
    fn wrong_usage_is_told() {
        for wrong in [
            &["--name"][..],
            &["--name", "--dir"],
            &["--name", "a/b"],
            &["--name", "Blue"],
            &["blue"],
            &["--"],
        ] {
            assert!(matches!(parsed(wrong), Err(Stop::Usage(_))), "{wrong:?}");
        }
    }
}
