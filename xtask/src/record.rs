//! `cargo xtask record --config FILE [FOLDER]`: the answers of the hosts that a configuration
//! names, as fixtures.
//!
//! The product itself asks, with reads only: what is recorded must be asked by the very client
//! whose understanding the fixtures will test. Nothing is saved that holds a token.

use crate::{Stop, run};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where the answers go if no folder is named, below the top folder.
const FOLDER: &str = "target/recorded";

/// Builds the product and runs its `check --record`.
pub(crate) fn record(root: &Path, args: &[String]) -> Result<(), Stop> {
    let (config, folder) = match args {
        [flag, config] if flag == "--config" => (config, root.join(FOLDER)),
        [flag, config, folder] if flag == "--config" => (config, PathBuf::from(folder)),
        _ => {
            let usage = "record takes `--config FILE` and, if wanted, a folder";
            return Err(Stop::Usage(usage.into()));
        }
    };
    let program = run::built(
        run::cargo(root)
            .args(["build", "--quiet", "--workspace", "--all-features"])
            .args(["--bin", "egress-proxies"]),
        "egress-proxies",
    )?;
    // In the folder that this was called from: both paths may be relative to it.
    let mut check = Command::new(program);
    check.args(["check", "--config", config, "--record"]);
    if run::succeeds(check.arg(folder).stdin(Stdio::null()))? {
        return Ok(());
    }
    Err(Stop::Failed)
}
