//! `cargo xtask fidelity`: how much of what running Proxmox VE code answered the simulator
//! answers alike.

use crate::{Stop, run};
use std::path::Path;

/// Replays the recorded exchanges and prints the share; with a folder, what differs is written
/// there.
pub(crate) fn fidelity(root: &Path, args: &[String]) -> Result<(), Stop> {
    let mut command = run::cargo(root);
    command.args(["test", "--quiet", "--package", "egress-proxmox-sim"]);
    command.args(["--test", "fidelity", "--", "--nocapture"]);
    match args {
        [] => {}
        [folder] if !folder.starts_with('-') => {
            let folder = std::path::absolute(folder)?;
            command.env("FIDELITY_REPORT", folder);
        }
        _ => return Err(Stop::Usage("fidelity takes one folder at most".into())),
    }
    if run::succeeds(&mut command)? {
        Ok(())
    } else {
        Err(Stop::Failed)
    }
}
