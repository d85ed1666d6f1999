//! The tiny guest: Debian's cloud kernel, busybox and nft, with the scripts of `hack/guest/tiny`.

use super::{
    disk,
    kernel::{self, Kernel, install_busybox},
    packages, write,
};
use crate::Stop;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Programs it is made with, and the packages that bring them.
pub(super) const TOOLS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("zstd", "zstd"),
    ("mkfs.vfat", "dosfstools"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mcopy", "mtools"),
    ("syslinux", "syslinux"),
    ("qemu-img", "qemu-utils"),
];

/// busybox, and nft with all that it is linked to.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "libbsd0",
    "libc6",
    "libedit2",
    "libgmp10",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnftables1",
    "libnftnl11",
    "libtinfo6",
    "libxtables12",
    "nftables",
];

/// Drivers for everything else: network, agent's port, the seed's drive, our rules.
const LATE: &[&str] = &[
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "isofs",
    "sr_mod",
    "nf_tables",
    "nft_ct",
    "nft_fib_inet",
    "nft_reject_inet",
    "nf_conntrack",
];

/// Scripts: where each goes, its mode, its text.
const SCRIPTS: &[(&str, u32, &str)] = &[
    (
        "etc/inittab",
        0o644,
        include_str!("../../../hack/guest/tiny/inittab"),
    ),
    (
        "etc/init.d/rcS",
        0o755,
        include_str!("../../../hack/guest/tiny/rcS.sh"),
    ),
    (
        "usr/lib/tiny/seed",
        0o755,
        include_str!("../../../hack/guest/tiny/seed.sh"),
    ),
    (
        "usr/lib/tiny/udhcpc",
        0o755,
        include_str!("../../../hack/guest/tiny/udhcpc.sh"),
    ),
    (
        "usr/lib/tiny/run-unit",
        0o755,
        include_str!("../../../hack/guest/tiny/run-unit.sh"),
    ),
    (
        "usr/sbin/systemctl",
        0o755,
        include_str!("../../../hack/guest/tiny/systemctl.sh"),
    ),
    (
        "usr/sbin/blkid",
        0o755,
        include_str!("../../../hack/guest/tiny/blkid.sh"),
    ),
    (
        "usr/sbin/useradd",
        0o755,
        include_str!("../../../hack/guest/tiny/useradd.sh"),
    ),
    ("etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\n"),
    ("etc/group", 0o644, "root:x:0:\n"),
    (
        "etc/nsswitch.conf",
        0o644,
        "passwd: files\ngroup: files\nhosts: files dns\n",
    ),
    ("etc/hosts", 0o644, "127.0.0.1 localhost\n::1 localhost\n"),
];

const COMMAND_LINE: &str = "console=ttyS0 quiet panic=1 tsc=reliable no_timer_check \
                            mitigations=off random.trust_cpu=on net.ifnames=0 root=LABEL=tiny-root";
const LABEL: &str = "tiny-root";
const ROOT_MIB: u64 = 64;

/// Everything that decides what comes out, packages aside.
pub(super) fn recipe() -> String {
    let mut recipe = format!(
        "{}{}{}",
        include_str!("tiny.rs"),
        include_str!("disk.rs"),
        kernel::recipe()
    );
    for (_, _, text) in SCRIPTS {
        recipe.push_str(text);
    }
    recipe
}

pub(super) fn packages() -> Result<Vec<String>, Stop> {
    let kernel = packages::leads_to("linux-image-cloud-amd64", "linux-image-")?;
    let others = PACKAGES.iter().map(|name| (*name).to_owned());
    Ok(std::iter::once(kernel).chain(others).collect())
}

/// Makes the disk in an empty folder and returns its path.
pub(super) fn build(scratch: &Path, names: &[String]) -> Result<PathBuf, Stop> {
    let unpacked = scratch.join("unpacked");
    packages::unpack(names, &scratch.join("packages"), &unpacked)?;
    let kernel = Kernel::read(&unpacked)?;

    let root = scratch.join("root");
    for folder in [
        "bin",
        "sbin",
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "root",
        "etc/cloud",
        "usr/sbin",
        "usr/bin",
        "usr/local/bin",
        "var/lib/cloud",
        "var/log",
        "lib64",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    install_busybox(&unpacked, &root)?;
    for (path, mode, text) in SCRIPTS {
        write(&root.join(path), *mode, text)?;
    }
    install_nft(&unpacked, &root)?;
    kernel.install(LATE, &root)?;

    let initrd = kernel.initrd(scratch, &unpacked)?;
    disk::build(&disk::Parts {
        scratch,
        kernel: &kernel.image(&unpacked),
        initrd: &initrd,
        command_line: COMMAND_LINE,
        root: &root,
        label: LABEL,
        root_mib: ROOT_MIB,
    })
}

/// nft, and the libraries of all packages but those of glibc that it has no use for.
fn install_nft(unpacked: &Path, root: &Path) -> Result<(), Stop> {
    fs::copy(unpacked.join("usr/sbin/nft"), root.join("usr/sbin/nft"))?;
    let folder = "lib/x86_64-linux-gnu";
    fs::create_dir_all(root.join(folder))?;
    let wanted = [
        "libbsd.so",
        "libc.so",
        "libedit.so",
        "libgmp.so",
        "libjansson.so",
        "libm.so",
        "libmd.so",
        "libmnl.so",
        "libnftables.so",
        "libnftnl.so",
        "libtinfo.so",
        "libxtables.so",
    ];
    for from in [unpacked.join(folder), unpacked.join("usr").join(folder)] {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if wanted.iter().any(|wanted| name.starts_with(wanted)) {
                // Links become files: one name of each is asked for.
                fs::copy(entry.path(), root.join(folder).join(&name))?;
            }
        }
    }
    let loader = "lib64/ld-linux-x86-64.so.2";
    fs::copy(
        unpacked.join(folder).join("ld-linux-x86-64.so.2"),
        root.join(loader),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_of_the_folder_is_part_of_the_guest() {
        let folder = crate::root().join("hack/guest/tiny");
        let recipe = recipe();
        for entry in fs::read_dir(folder).expect("the folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|ending| ending != "md") {
                let text = fs::read_to_string(&path).expect("text");
                assert!(recipe.contains(&text), "{}", path.display());
            }
        }
    }
}
