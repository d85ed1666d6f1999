//! The full guest: Debian of this machine's release with systemd and cloud-init as they come, and
//! what its cloud images have of the network. Boots from the same small RAM disk as the tiny one.

use super::{
    disk,
    kernel::{self, Kernel},
    must, packages, tool, write,
};
use crate::Stop;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Programs it is made with, and the packages that bring them.
pub(super) const TOOLS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("mmdebstrap", "mmdebstrap"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("zstd", "zstd"),
    ("mkfs.vfat", "dosfstools"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mcopy", "mtools"),
    ("syslinux", "syslinux"),
    ("qemu-img", "qemu-utils"),
    ("systemctl", "systemd"),
];

/// What is installed beside the essential packages.
const PACKAGES: &[&str] = &[
    "cloud-init",
    "dbus",
    "iproute2",
    "kmod",
    "netplan.io",
    "nftables",
    "systemd-resolved",
    "systemd-sysv",
    "udev",
];

/// Unpacked beside it, for the RAM disk.
const BUSYBOX: &str = "busybox-static";

const LABEL: &str = "debian-root";
const ROOT_MIB: u64 = 1536;
const COMMAND_LINE: &str = "console=ttyS0 quiet systemd.show_status=1 panic=1 tsc=reliable no_timer_check \
                            mitigations=off random.trust_cpu=on root=LABEL=debian-root";

/// Modules beside those of the RAM disk.
const LATE: &[&str] = &[
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "isofs",
    "sr_mod",
    "virtio_scsi",
    "nf_tables",
    "nft_ct",
    "nft_fib_inet",
    "nft_reject_inet",
    "nf_conntrack",
];

/// Units that cost an emulated machine time and that no test looks at.
const MASKED: &[&str] = &[
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "proc-sys-fs-binfmt_misc.automount",
    "serial-getty@ttyS0.service",
    "systemd-binfmt.service",
    "systemd-networkd-wait-online.service",
    "systemd-timesyncd.service",
];

/// As `docs/guides/images.md` tells people to prepare theirs; no locale is generated, which takes
/// an emulated machine half a minute.
const CLOUD_CONFIG: &str = "datasource_list: [NoCloud]\nlocale: false\n";

/// Everything that decides what comes out, packages aside.
pub(super) fn recipe() -> String {
    format!(
        "{}{}{}",
        include_str!("debian.rs"),
        include_str!("disk.rs"),
        kernel::recipe()
    )
}

pub(super) fn packages() -> Result<Vec<String>, Stop> {
    let kernel = packages::leads_to("linux-image-cloud-amd64", "linux-image-")?;
    let others = PACKAGES.iter().map(|name| (*name).to_owned());
    Ok([kernel, BUSYBOX.to_owned()]
        .into_iter()
        .chain(others)
        .collect())
}

/// Makes the disk in an empty folder and returns its path.
pub(super) fn build(scratch: &Path, names: &[String]) -> Result<PathBuf, Stop> {
    eprintln!("Two minutes on two cores, once.");
    let root = scratch.join("root");
    must(
        tool("mmdebstrap")
            .args([
                "--mode=root",
                "--variant=minbase",
                "--format=directory",
                "--quiet",
            ])
            .arg(format!("--include={}", PACKAGES.join(",")))
            .args(["--aptopt=Acquire::Languages \"none\""])
            .args(["--dpkgopt=path-exclude=/usr/share/doc/*"])
            .args(["--dpkgopt=path-exclude=/usr/share/man/*"])
            .args(["--dpkgopt=path-exclude=/usr/share/locale/*"])
            .arg(release()?)
            .arg(&root),
    )?;
    let unpacked = scratch.join("unpacked");
    packages::unpack(&names[..2], &scratch.join("packages"), &unpacked)?;
    let kernel = Kernel::read(&unpacked)?;
    kernel.install(LATE, &root)?;
    furnish(&root)?;
    disk::build(&disk::Parts {
        scratch,
        kernel: &kernel.image(&unpacked),
        initrd: &kernel.initrd(scratch, &unpacked)?,
        command_line: COMMAND_LINE,
        root: &root,
        label: LABEL,
        root_mib: ROOT_MIB,
    })
}

/// The name of this machine's Debian.
fn release() -> Result<String, Stop> {
    codename(&fs::read_to_string("/etc/os-release")?).ok_or_else(|| {
        Stop::Because(
            "/etc/os-release names no release of Debian: the guest is made on Debian".into(),
        )
    })
}

fn codename(os_release: &str) -> Option<String> {
    let value = |name: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    (value("ID")? == "debian")
        .then(|| value("VERSION_CODENAME"))
        .flatten()
}

/// What a template has that packages do not bring.
fn furnish(root: &Path) -> Result<(), Stop> {
    write(&root.join("etc/fstab"), 0o644, "")?;
    write(&root.join("etc/hostname"), 0o644, "template\n")?;
    // Empty: each machine makes its own.
    write(&root.join("etc/machine-id"), 0o444, "")?;
    write(
        &root.join("etc/cloud/cloud.cfg.d/99-datasource.cfg"),
        0o644,
        CLOUD_CONFIG,
    )?;
    let resolv = root.join("etc/resolv.conf");
    if fs::symlink_metadata(&resolv).is_ok() {
        fs::remove_file(&resolv)?;
    }
    symlink("../run/systemd/resolve/stub-resolv.conf", resolv)?;
    for folder in ["var/cache/apt/archives", "var/lib/apt/lists"] {
        fs::remove_dir_all(root.join(folder))?;
        fs::create_dir_all(root.join(folder).join("partial"))?;
    }
    let systemctl = |verb: &str, units: &[&str]| {
        must(
            tool("systemctl")
                .arg("--quiet")
                .arg(format!("--root={}", root.display()))
                .arg(verb)
                .args(units),
        )
    };
    systemctl(
        "enable",
        &["systemd-networkd.service", "systemd-resolved.service"],
    )?;
    systemctl("mask", MASKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_debians_own_or_none() {
        let debian = "NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(codename(debian).as_deref(), Some("bookworm"));
        let ubuntu = "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n";
        assert_eq!(codename(ubuntu), None);
    }

    #[test]
    fn the_disk_is_found_by_the_label_that_it_has() {
        assert!(COMMAND_LINE.ends_with(&format!("root=LABEL={LABEL}")));
    }
}
