//! A disk that a BIOS boots, made of files alone: no mount, no loop device.

use super::{must, tool};
use crate::Stop;
use std::{
    fs::{self, File},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

const SECTOR: u64 = 512;
/// The first partition's start, in sectors, as every tool of today has it.
const FIRST: u64 = 2048;
const MIB: u64 = 1024 * 1024;

/// Type of a FAT16 partition, addressed by sector.
const FAT16: u8 = 0x0e;
/// Type of a Linux partition.
const LINUX: u8 = 0x83;

/// A partition of the old table.
struct Partition {
    kind: u8,
    bootable: bool,
    /// In sectors.
    start: u64,
    /// In sectors.
    count: u64,
}

/// What goes onto the disk.
pub(super) struct Parts<'a> {
    /// An empty folder for what is made on the way.
    pub(super) scratch: &'a Path,
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    /// The kernel's command line.
    pub(super) command_line: &'a str,
    /// The folder that becomes the second partition's file system.
    pub(super) root: &'a Path,
    /// Its label.
    pub(super) label: &'a str,
    /// Its size, in MiB.
    pub(super) root_mib: u64,
}

/// Makes the disk as a compressed qcow2 and returns its path.
pub(super) fn build(parts: &Parts<'_>) -> Result<PathBuf, Stop> {
    let within = |name: &str| parts.scratch.join(name);
    let boot = within("boot.fat");
    let needed = fs::metadata(parts.kernel)?.len() + fs::metadata(parts.initrd)?.len();
    let boot_bytes = (needed / MIB + 4) * MIB;
    File::create(&boot)?.set_len(boot_bytes)?;
    // The boot sector must know how far from the disk's begin it lies.
    must(
        tool("mkfs.vfat")
            .args(["-F", "16", "-h", &FIRST.to_string(), "-n", "TINYBOOT"])
            .arg(&boot),
    )?;
    must(tool("syslinux").arg("--install").arg(&boot))?;
    let menu = within("syslinux.cfg");
    fs::write(
        &menu,
        format!(
            "DEFAULT guest\nPROMPT 0\nTIMEOUT 0\nLABEL guest\n KERNEL vmlinuz\n INITRD initrd\n APPEND {}\n",
            parts.command_line
        ),
    )?;
    for (from, to) in [
        (parts.kernel, "::vmlinuz"),
        (parts.initrd, "::initrd"),
        (&menu, "::syslinux.cfg"),
    ] {
        must(
            tool("mcopy")
                .arg("-o")
                .arg("-i")
                .arg(&boot)
                .arg(from)
                .arg(to),
        )?;
    }

    let root = within("root.ext4");
    File::create(&root)?.set_len(parts.root_mib * MIB)?;
    must(
        tool("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-L", parts.label])
            .args(["-E", "lazy_itable_init=0,nodiscard,root_owner=0:0"])
            .arg("-d")
            .arg(parts.root)
            .arg(&root),
    )?;

    let partitions = [
        Partition {
            kind: FAT16,
            bootable: true,
            start: FIRST,
            count: boot_bytes / SECTOR,
        },
        Partition {
            kind: LINUX,
            bootable: false,
            start: FIRST + boot_bytes / SECTOR,
            count: parts.root_mib * MIB / SECTOR,
        },
    ];
    let raw = within("disk.raw");
    let mut disk = File::create(&raw)?;
    disk.write_all(&record(&boot_code()?, &partitions)?)?;
    for (partition, image) in partitions.iter().zip([&boot, &root]) {
        disk.seek(SeekFrom::Start(partition.start * SECTOR))?;
        std::io::copy(&mut File::open(image)?, &mut disk)?;
    }
    disk.sync_all()?;
    let made = within("disk.qcow2");
    must(
        tool("qemu-img")
            .args(["convert", "-c", "-f", "raw", "-O", "qcow2"])
            .arg(&raw)
            .arg(&made),
    )?;
    Ok(made)
}

/// The code that starts the active partition, as syslinux's package brings it.
fn boot_code() -> Result<Vec<u8>, Stop> {
    let path = "/usr/lib/syslinux/mbr/mbr.bin";
    fs::read(path).map_err(|source| {
        Stop::Because(format!("{path}: {source}: apt-get install syslinux-common"))
    })
}

/// The first sector: code, table of partitions, signature.
fn record(code: &[u8], partitions: &[Partition]) -> Result<Vec<u8>, Stop> {
    if code.len() > 440 {
        return Err(Stop::Because(format!(
            "mbr.bin: {} bytes do not fit before the table of partitions",
            code.len()
        )));
    }
    let mut sector = code.to_vec();
    sector.resize(446, 0);
    for partition in partitions {
        let number = |sectors: u64| {
            u32::try_from(sectors)
                .map(u32::to_le_bytes)
                .map_err(|_| Stop::Because("the disk is too large for its table".into()))
        };
        sector.push(if partition.bootable { 0x80 } else { 0 });
        // Cylinders of old: nobody reads them where the type says sectors.
        sector.extend([0xfe, 0xff, 0xff, partition.kind, 0xfe, 0xff, 0xff]);
        sector.extend(number(partition.start)?);
        sector.extend(number(partition.count)?);
    }
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    Ok(sector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sector_holds_code_table_and_signature() {
        let partitions = [Partition {
            kind: LINUX,
            bootable: true,
            start: 2048,
            count: 65536,
        }];
        let sector = record(&[1, 2, 3], &partitions).expect("a sector");
        assert_eq!(sector.len(), 512);
        assert_eq!(sector[..4], [1, 2, 3, 0]);
        assert_eq!(sector[446..447], [0x80]);
        assert_eq!(sector[450], LINUX);
        assert_eq!(sector[454..462], [0, 8, 0, 0, 0, 0, 1, 0]);
        assert_eq!(sector[510..], [0x55, 0xaa]);
        assert!(record(&[0; 441], &[]).is_err());
    }
}
