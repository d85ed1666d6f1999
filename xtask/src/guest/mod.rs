//! `cargo xtask guest tiny|debian|baked`: disk images for tests, made from Debian's packages.
//!
//! An image lies in the user's cache under the hash of its recipe and of the packages that went
//! into it. Where apt cannot say what it would fetch, the newest image of the recipe serves.

mod baked;
mod debian;
mod disk;
mod kernel;
mod packages;
mod tiny;

pub(crate) use packages::mirror;

use crate::{Stop, payload, run};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// An image that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guest {
    /// Kernel, busybox and nft: boots in seconds.
    Tiny,
    /// Debian with systemd and cloud-init, as it is there.
    Debian,
    /// The same with proxyd, agent and rules in it.
    Baked,
}

impl Guest {
    const ALL: [Self; 3] = [Self::Tiny, Self::Debian, Self::Baked];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Debian => "debian",
            Self::Baked => "baked",
        }
    }

    /// Everything that decides what comes out, packages aside.
    fn recipe(self) -> Result<String, Stop> {
        match self {
            Self::Tiny => Ok(tiny::recipe()),
            Self::Debian => Ok(debian::recipe()),
            Self::Baked => baked::recipe(&payload::build(&crate::root())?),
        }
    }

    fn packages(self) -> Result<Vec<String>, Stop> {
        match self {
            Self::Tiny => tiny::packages(),
            Self::Debian | Self::Baked => debian::packages(),
        }
    }

    /// Programs it is made with, and what brings each.
    const fn tools(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Tiny => tiny::TOOLS,
            // What is added takes debugfs, which comes with mkfs.ext4.
            Self::Debian | Self::Baked => debian::TOOLS,
        }
    }
}

/// `cargo xtask guest NAME`: makes the image where the cache lacks it, and prints its path.
pub(crate) fn guest(args: &[String]) -> Result<(), Stop> {
    let known = || {
        let names: Vec<&str> = Guest::ALL.iter().map(|guest| guest.name()).collect();
        names.join(", ")
    };
    let [name] = args else {
        return Err(Stop::Usage(format!("name one guest of: {}", known())));
    };
    let Some(guest) = named(name) else {
        return Err(Stop::Usage(format!(
            "no guest is called `{name}`; there are: {}",
            known()
        )));
    };
    println!("{}", image(guest)?.display());
    Ok(())
}

/// The guest of this name.
pub(crate) fn named(name: &str) -> Option<Guest> {
    Guest::ALL.into_iter().find(|guest| guest.name() == name)
}

/// The image, from the cache or made now.
pub(crate) fn image(guest: Guest) -> Result<PathBuf, Stop> {
    let cache = cache()?;
    let lock = fs::File::create(cache.join(format!(".guest-{}.lock", guest.name())))?;
    if lock.try_lock().is_err() {
        eprintln!("Waiting for another build of the {} guest.", guest.name());
        lock.lock()?;
    }
    let prefix = format!(
        "guest-{}-{:016x}-",
        guest.name(),
        fnv(guest.recipe()?.as_bytes())
    );
    let file = format!("{}.qcow2", guest.name());
    let wanted = guest
        .packages()
        .and_then(|names| packages::versions(&names).map(|versions| (names, versions)));
    let (names, versions) = match wanted {
        Ok(wanted) => wanted,
        Err(Stop::Because(why)) => {
            return newest(&cache, &prefix, &file).ok_or(Stop::Because(why));
        }
        Err(other) => return Err(other),
    };
    let shelf = cache.join(format!("{prefix}{:016x}", fnv(versions.as_bytes())));
    let made = shelf.join(&file);
    if made.is_file() {
        return Ok(made);
    }
    lacking(guest.tools()).map_or(Ok(()), |why| {
        Err(Stop::Because(format!(
            "the {} guest cannot be made here: {why}",
            guest.name()
        )))
    })?;
    eprintln!(
        "Making the {} guest from {} packages into {}.",
        guest.name(),
        names.len(),
        shelf.display()
    );
    let scratch = cache.join(format!(".guest-{}", guest.name()));
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir(&scratch)?;
    let built = match guest {
        Guest::Tiny => tiny::build(&scratch, &names)?,
        Guest::Debian => debian::build(&scratch, &names)?,
        Guest::Baked => {
            let proxyd = payload::build(&crate::root())?;
            // Each change of proxyd makes another.
            forget(&cache, guest)?;
            baked::build(&scratch, &image(Guest::Debian)?, &proxyd)?
        }
    };
    fs::create_dir_all(&shelf)?;
    fs::rename(built, &made)?;
    fs::remove_dir_all(&scratch)?;
    drop(lock);
    Ok(made)
}

/// Removes all images of this guest.
fn forget(cache: &Path, guest: Guest) -> Result<(), Stop> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let begin = format!("guest-{}-", guest.name());
        if entry.file_name().to_string_lossy().starts_with(&begin) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The folder of the user's cache that is ours.
pub(crate) fn cache() -> Result<PathBuf, Stop> {
    let home = std::env::var_os("HOME")
        .ok_or_else(|| Stop::Because("HOME is not set: the cache lies in it".into()))?;
    let cache = PathBuf::from(home).join(".cache/egress-proxies");
    fs::create_dir_all(&cache)?;
    Ok(cache)
}

/// The image that was made last from this recipe.
fn newest(cache: &Path, prefix: &str, file: &str) -> Option<PathBuf> {
    let mut made: Vec<_> = fs::read_dir(cache)
        .ok()?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path().join(file))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    made.sort();
    made.pop().map(|(_, path)| path)
}

/// What is missing of these programs, as a sentence.
pub(crate) fn lacking(tools: &[(&str, &str)]) -> Option<String> {
    let missing: Vec<&(&str, &str)> = tools
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .collect();
    if missing.is_empty() {
        return None;
    }
    let programs: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    Some(format!(
        "{} {} missing: apt-get install --no-install-recommends {}",
        programs.join(", "),
        if missing.len() == 1 { "is" } else { "are" },
        packages.join(" ")
    ))
}

/// Where a program lies, the folders of the superuser included.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.is_file())
}

/// A command of a program that may lie in the superuser's folders, without input.
pub(crate) fn tool(program: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.stdin(Stdio::null());
    command
}

/// Runs the command quietly; its output is told when it fails.
pub(crate) fn must(command: &mut Command) -> Result<(), Stop> {
    let output = command
        .output()
        .map_err(|source| Stop::Because(format!("`{}`: {source}", run::line(command))))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Stop::Because(format!(
        "`{}` ended with {}:\n{}{}",
        run::line(command),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )))
}

/// Writes a file of a guest, and the folders above it.
fn write(path: &Path, mode: u32, text: &str) -> Result<(), Stop> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// FNV-1a over 64 bits: a name for a recipe, not a proof.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn what_is_missing_is_told_with_the_packages_that_bring_it() {
        assert_eq!(lacking(&[("sh", "dash")]), None);
        let told = lacking(&[("no-such-a", "one"), ("sh", "dash"), ("no-such-b", "one")]);
        assert_eq!(
            told.as_deref(),
            Some("no-such-a, no-such-b are missing: apt-get install --no-install-recommends one")
        );
    }

    #[test]
    fn a_guest_that_nobody_knows_is_wrong_usage() {
        for wrong in [
            &[][..],
            &["huge".to_owned()],
            &["tiny".into(), "tiny".into()],
        ] {
            assert!(matches!(guest(wrong), Err(Stop::Usage(_))), "{wrong:?}");
        }
    }
}
