//! Debian's packages: what apt would fetch, and their files.

use super::{must, tool};
use crate::Stop;
use std::{fs, path::Path};

/// The package that a package of no content of its own leads to, `linux-image-cloud-amd64` to
/// the kernel of the day.
pub(super) fn leads_to(name: &str, prefix: &str) -> Result<String, Stop> {
    let output = tool("apt-cache")
        .args(["depends", "--important", name])
        .output()
        .map_err(|source| Stop::Because(format!("apt-cache: {source}")))?;
    depends(&String::from_utf8_lossy(&output.stdout), prefix).ok_or_else(|| {
        Stop::Because(format!(
            "apt knows no package {name}: apt-get update, on Debian"
        ))
    })
}

fn depends(told: &str, prefix: &str) -> Option<String> {
    told.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
}

/// The files that apt would fetch for these packages, with their checksums, one a line.
pub(super) fn versions(names: &[String]) -> Result<String, Stop> {
    let output = tool("apt-get")
        .args(["download", "--print-uris", "-q"])
        .args(names)
        .output()
        .map_err(|source| Stop::Because(format!("apt-get: {source}")))?;
    if !output.status.success() {
        return Err(Stop::Because(format!(
            "apt cannot say which packages it would fetch (apt-get update): {}",
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    Ok(files(&String::from_utf8_lossy(&output.stdout)))
}

/// Name and checksum of each file; mirrors differ in the address only.
fn files(told: &str) -> String {
    let mut lines: Vec<String> = told
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (name, _, sum) = (words.next()?, words.next()?, words.next()?);
            Some(format!("{name} {sum}\n"))
        })
        .collect();
    lines.sort();
    lines.concat()
}

/// Fetches the packages into `dir` and unpacks them into `root`; apt checks them.
pub(super) fn unpack(names: &[String], dir: &Path, root: &Path) -> Result<(), Stop> {
    fs::create_dir_all(dir)?;
    must(
        tool("apt-get")
            .args(["download", "-q", "-o", "APT::Sandbox::User=root"])
            .args(names)
            .current_dir(dir),
    )?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            must(tool("dpkg-deb").arg("-x").arg(&path).arg(root))?;
        }
    }
    Ok(())
}

/// Makes a folder that apt takes a package and all that it needs from: the files and their list.
pub(crate) fn mirror(dir: &Path, name: &str) -> Result<(), Stop> {
    let output = tool("apt-cache")
        .args(["depends", "--recurse", "--important", "--no-pre-depends"])
        .args(["--no-conflicts", "--no-breaks", "--no-replaces", name])
        .output()
        .map_err(|source| Stop::Because(format!("apt-cache: {source}")))?;
    let names = needed(&String::from_utf8_lossy(&output.stdout));
    fs::create_dir_all(dir)?;
    must(
        tool("apt-get")
            .args(["download", "-q", "-o", "APT::Sandbox::User=root"])
            .args(&names)
            .current_dir(dir),
    )?;
    let told = |command: &mut std::process::Command| -> Result<String, Stop> {
        let output = command.current_dir(dir).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let mut list = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let file = entry.file_name();
        let control = told(tool("dpkg-deb").arg("-f").arg(&file))?;
        let sum = told(tool("sha256sum").arg(&file))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        let (file, size) = (file.to_string_lossy(), entry.metadata()?.len());
        list.push(format!(
            "{control}\nFilename: ./{file}\nSize: {size}\nSHA256: {sum}\n\n"
        ));
    }
    Ok(fs::write(dir.join("Packages"), list.concat())?)
}

/// The packages of a list of what needs what: those that begin a line and are no mere names.
fn needed(told: &str) -> Vec<String> {
    let begins = |line: &&str| !line.starts_with([' ', '<', '|']) && !line.is_empty();
    told.lines().filter(begins).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_the_day_is_found_behind_its_name() {
        let told = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n";
        assert_eq!(
            depends(told, "linux-image-").as_deref(),
            Some("linux-image-6.1.0-57-cloud-amd64")
        );
        assert_eq!(depends("", "linux-image-"), None);
    }

    #[test]
    fn what_a_package_needs_are_the_lines_that_begin_with_a_name() {
        let told = "a\n  Depends: b\n |Depends: <c>\nb\n<c>\n";
        assert_eq!(needed(told), ["a", "b"]);
    }

    #[test]
    fn the_mirror_makes_no_other_image() {
        let told = "'http://a.example/b.deb' b_1.deb 12 SHA256:ff\n'http://a.example/a.deb' a_1.deb 3 SHA256:ee\n";
        assert_eq!(files(told), "a_1.deb SHA256:ee\nb_1.deb SHA256:ff\n");
        assert_eq!(files(&told.replace("a.example", "b.example")), files(told));
    }
}
