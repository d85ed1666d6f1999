//! `cargo xtask payload`: the proxy's program as machines get it, with no library needed.

use crate::{Stop, run};
use std::path::{Path, PathBuf};

/// Builds the static proxyd and prints its path and size.
pub(crate) fn payload(root: &Path) -> Result<(), Stop> {
    let path = build(root)?;
    println!(
        "{} {} bytes",
        path.display(),
        std::fs::metadata(&path)?.len()
    );
    Ok(())
}

/// Builds the static proxyd and returns where it lies.
pub(crate) fn build(root: &Path) -> Result<PathBuf, Stop> {
    build_static(root, "egress-proxyd", "proxyd")
}

/// Builds a program of a package with no library needed, and returns where it lies.
pub(crate) fn build_static(root: &Path, package: &str, program: &str) -> Result<PathBuf, Stop> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // With a target named, the flag reaches the program and no build script.
    let path = run::built(
        run::cargo(root)
            .args(["build", "--release", "--package", package])
            .args(["--bin", program, "--target", &target])
            .env("RUSTFLAGS", "-C target-feature=+crt-static"),
        program,
    )?;
    must_be_static(&path)?;
    Ok(path)
}

/// Refuses a program that needs a library.
pub(crate) fn must_be_static(program: &Path) -> Result<(), Stop> {
    if names_loader(&std::fs::read(program)?) {
        return Err(Stop::Because(format!(
            "{} still asks for a dynamic loader",
            program.display()
        )));
    }
    Ok(())
}

/// Whether the program carries the path of glibc's loader, as only a dynamic one does.
fn names_loader(program: &[u8]) -> bool {
    [&b"/ld-linux"[..], b"/lib/ld-", b"/lib64/ld-"]
        .iter()
        .any(|loader| {
            program
                .get(..4096)
                .unwrap_or(program)
                .windows(loader.len())
                .any(|at| at == *loader)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_a_static_one() {
        let own = std::fs::read(std::env::current_exe().expect("path")).expect("own program");
        assert!(names_loader(&own), "tests are linked dynamically");
        assert!(!names_loader(b"\x7fELF without a loader"));
    }
}
