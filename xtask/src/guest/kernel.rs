//! Debian's kernel, the modules that a guest needs of it, and an initial RAM disk that mounts the
//! disk and does nothing else.

use super::{must, tool, write};
use crate::Stop;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const INITRD: &str = include_str!("../../../hack/guest/initrd.sh");

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

/// Everything that decides what comes out, packages aside.
pub(super) fn recipe() -> String {
    format!("{}{INITRD}", include_str!("kernel.rs"))
}

fn version(unpacked: &Path) -> Result<String, Stop> {
    let mut found = fs::read_dir(unpacked.join("lib/modules"))?;
    match found.next() {
        Some(entry) => Ok(entry?.file_name().to_string_lossy().into_owned()),
        None => Err(Stop::Because(
            "the kernel's package holds no modules".into(),
        )),
    }
}

/// An unpacked kernel: its modules, and what each needs.
pub(super) struct Kernel {
    version: String,
    /// The folder of its modules.
    folder: PathBuf,
    /// A module's file, below the folder, and those that it needs.
    needs: BTreeMap<String, Vec<String>>,
}

impl Kernel {
    /// The kernel below a folder of unpacked packages.
    pub(super) fn read(unpacked: &Path) -> Result<Self, Stop> {
        let version = version(unpacked)?;
        must(tool("depmod").arg("-b").arg(unpacked).arg(&version))?;
        let folder = unpacked.join("lib/modules").join(&version);
        let needs = needs(&fs::read_to_string(folder.join("modules.dep"))?);
        Ok(Self {
            version,
            folder,
            needs,
        })
    }

    /// Its image, below the same folder.
    pub(super) fn image(&self, unpacked: &Path) -> PathBuf {
        unpacked.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// Makes the initial RAM disk, with the busybox of the same folder.
    pub(super) fn initrd(&self, scratch: &Path, unpacked: &Path) -> Result<PathBuf, Stop> {
        let early = scratch.join("early");
        for folder in ["bin", "dev", "proc", "sys", "mnt", "sbin"] {
            fs::create_dir_all(early.join(folder))?;
        }
        install_busybox(unpacked, &early)?;
        write(&early.join("init"), 0o755, INITRD)?;
        self.install(EARLY, &early)?;
        let initrd = scratch.join("initrd");
        pack(&early, &initrd)?;
        Ok(initrd)
    }

    /// Copies these modules and all that they need; what is part of the kernel itself is none.
    pub(super) fn install(&self, wanted: &[&str], root: &Path) -> Result<(), Stop> {
        let to = root.join("lib/modules").join(&self.version);
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
        must(tool("depmod").arg("-b").arg(root).arg(&self.version))
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

/// Puts busybox under all of its names.
pub(super) fn install_busybox(unpacked: &Path, root: &Path) -> Result<(), Stop> {
    let program = root.join("bin/busybox");
    fs::copy(unpacked.join("bin/busybox"), &program)?;
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
}
