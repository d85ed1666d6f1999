//! The tiny guest: Debian's cloud kernel, busybox and nft, with the scripts of `hack/guest/tiny`.

use super::{disk, must, packages, tool};
use crate::Stop;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
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

/// Drivers that the initial RAM disk needs to reach the disk.
const EARLY: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "ata_piix",
    "crc32c_generic",
    "ext4",
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

const INITRD: &str = include_str!("../../../hack/guest/tiny/initrd.sh");
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=1 tsc=reliable no_timer_check \
                            mitigations=off random.trust_cpu=on net.ifnames=0";
const LABEL: &str = "tiny-root";
const ROOT_MIB: u64 = 64;

/// Everything that decides what comes out, packages aside.
pub(super) fn recipe() -> String {
    let mut recipe = format!(
        "{}{}{INITRD}",
        include_str!("tiny.rs"),
        include_str!("disk.rs")
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
    let kernel = kernel_version(&unpacked)?;
    let modules = Modules::read(&unpacked, &kernel)?;
    let busybox = unpacked.join("bin/busybox");

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
    install_busybox(&busybox, &root)?;
    for (path, mode, text) in SCRIPTS {
        write(&root.join(path), *mode, text)?;
    }
    install_nft(&unpacked, &root)?;
    modules.install(LATE, &root)?;

    let early = scratch.join("early");
    for folder in ["bin", "dev", "proc", "sys", "mnt", "sbin"] {
        fs::create_dir_all(early.join(folder))?;
    }
    install_busybox(&busybox, &early)?;
    write(&early.join("init"), 0o755, INITRD)?;
    modules.install(EARLY, &early)?;
    let initrd = scratch.join("initrd");
    pack(&early, &initrd)?;

    disk::build(&disk::Parts {
        scratch,
        kernel: &unpacked.join(format!("boot/vmlinuz-{kernel}")),
        initrd: &initrd,
        command_line: COMMAND_LINE,
        root: &root,
        label: LABEL,
        root_mib: ROOT_MIB,
    })
}

fn kernel_version(unpacked: &Path) -> Result<String, Stop> {
    let mut found = fs::read_dir(unpacked.join("lib/modules"))?;
    match found.next() {
        Some(entry) => Ok(entry?.file_name().to_string_lossy().into_owned()),
        None => Err(Stop::Because(
            "the kernel's package holds no modules".into(),
        )),
    }
}

/// The modules of a kernel, and what each needs.
struct Modules {
    /// The folder of this kernel's modules.
    folder: PathBuf,
    kernel: String,
    /// A module's file, below the folder, and those that it needs.
    needs: BTreeMap<String, Vec<String>>,
}

impl Modules {
    fn read(unpacked: &Path, kernel: &str) -> Result<Self, Stop> {
        must(tool("depmod").arg("-b").arg(unpacked).arg(kernel))?;
        let folder = unpacked.join("lib/modules").join(kernel);
        let needs = needs(&fs::read_to_string(folder.join("modules.dep"))?);
        Ok(Self {
            folder,
            kernel: kernel.to_owned(),
            needs,
        })
    }

    /// Copies these modules and all that they need; what is part of the kernel itself is none.
    fn install(&self, wanted: &[&str], root: &Path) -> Result<(), Stop> {
        let to = root.join("lib/modules").join(&self.kernel);
        let builtin = fs::read_to_string(self.folder.join("modules.builtin"))?;
        for name in wanted {
            let is_builtin = builtin.lines().any(|path| module_name(path) == *name);
            if !is_builtin && !self.needs.keys().any(|path| module_name(path) == *name) {
                return Err(Stop::Because(format!("the kernel has no module {name}")));
            }
        }
        for path in closure(&self.needs, wanted) {
            let target = to.join(&path);
            if let Some(folder) = target.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::copy(self.folder.join(&path), target)?;
        }
        for name in [
            "modules.order",
            "modules.builtin",
            "modules.builtin.modinfo",
        ] {
            fs::copy(self.folder.join(name), to.join(name))?;
        }
        must(tool("depmod").arg("-b").arg(root).arg(&self.kernel))
    }
}

/// The name by which `modprobe` knows a module's file.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

/// Reads `modules.dep`.
fn needs(text: &str) -> BTreeMap<String, Vec<String>> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needed)| {
            let needed = needed.split_whitespace().map(str::to_owned).collect();
            (path.to_owned(), needed)
        })
        .collect()
}

/// The files of these modules and of all that they need.
fn closure(needs: &BTreeMap<String, Vec<String>>, wanted: &[&str]) -> BTreeSet<String> {
    let mut open: Vec<&String> = needs
        .keys()
        .filter(|path| wanted.contains(&module_name(path).as_str()))
        .collect();
    let mut found = BTreeSet::new();
    while let Some(path) = open.pop() {
        if found.insert(path.clone()) {
            open.extend(needs.get(path).into_iter().flatten());
        }
    }
    found
}

fn install_busybox(busybox: &Path, root: &Path) -> Result<(), Stop> {
    let program = root.join("bin/busybox");
    fs::copy(busybox, &program)?;
    let listed = Command::new(&program).arg("--list").output()?;
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let link = root.join("bin").join(name);
        if name != "busybox" && !link.exists() {
            symlink("busybox", link)?;
        }
    }
    // Where the kernel looks for them.
    for name in ["init", "modprobe"] {
        symlink("../bin/busybox", root.join("sbin").join(name))?;
    }
    Ok(())
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

fn write(path: &Path, mode: u32, text: &str) -> Result<(), Stop> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Packs a folder as an initial RAM disk.
fn pack(folder: &Path, into: &Path) -> Result<(), Stop> {
    let packed = Command::new("sh")
        .args([
            "-c",
            "find . | cpio --quiet -o -H newc -R 0:0 | zstd -q -19",
        ])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(File::create(into)?)
        .status()?;
    if packed.success() {
        Ok(())
    } else {
        Err(Stop::Because(
            "the initial RAM disk could not be packed".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_brings_all_that_it_needs() {
        let needs = needs(
            "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\n\
             kernel/fs/jbd2/jbd2.ko:\nkernel/lib/crc16.ko:\n\
             kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio.ko\n\
             kernel/drivers/virtio/virtio.ko:\n",
        );
        let found = closure(&needs, &["ext4"]);
        let names: Vec<String> = found.iter().map(|path| module_name(path)).collect();
        assert_eq!(names, ["ext4", "jbd2", "crc16"]);
        assert_eq!(closure(&needs, &["virtio_rng"]).len(), 2);
        assert!(closure(&needs, &["absent"]).is_empty());
    }

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
