//! Running cargo and git from the top folder.

use crate::Stop;
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

/// A cargo command in `root`, with the cargo that started us.
pub(crate) fn cargo(root: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// The command as a person would type it.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs the command with our output streams; `true` when it ended with code 0.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool, Stop> {
    Ok(command
        .status()
        .map_err(|source| not_started(command, &source))?
        .success())
}

/// Runs the command and gives each line of its standard output to `see` as it comes; `true`
/// when it ended with code 0.
pub(crate) fn each_line(command: &mut Command, mut see: impl FnMut(&str)) -> Result<bool, Stop> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| not_started(command, &source))?;
    if let Some(stdout) = child.stdout.take() {
        for chunk in BufReader::new(stdout).split(b'\n') {
            see(&String::from_utf8_lossy(&chunk?));
        }
    }
    Ok(child.wait()?.success())
}

/// Runs the command and returns its standard output; an error when it fails.
pub(crate) fn text(command: &mut Command) -> Result<String, Stop> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| not_started(command, &source))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Stop::Because(format!(
            "`{}` ended with {}",
            line(command),
            output.status
        )))
    }
}

/// Facts about the workspace and all it depends on, for the platform we ship on.
pub(crate) fn metadata(root: &Path) -> Result<cargo_metadata::Metadata, Stop> {
    cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .other_options([
            "--filter-platform".to_owned(),
            "x86_64-unknown-linux-gnu".to_owned(),
        ])
        .exec()
        .map_err(|source| Stop::Because(format!("cargo metadata: {source}")))
}

fn not_started(command: &Command, source: &std::io::Error) -> Stop {
    Stop::Because(format!("`{}` did not start: {source}", line(command)))
}

/// Builds with this `cargo build` command and returns where the named program lies.
pub(crate) fn built(command: &mut Command, program: &str) -> Result<std::path::PathBuf, Stop> {
    built_as_told(command.arg(MESSAGES), program)
}

/// What makes cargo say where it puts what it builds.
pub(crate) const MESSAGES: &str = "--message-format=json-render-diagnostics";

/// The same with a command that has [`MESSAGES`] among its arguments.
pub(crate) fn built_as_told(
    command: &mut Command,
    program: &str,
) -> Result<std::path::PathBuf, Stop> {
    let messages = text(command)?;
    for message in cargo_metadata::Message::parse_stream(messages.as_bytes()) {
        if let cargo_metadata::Message::CompilerArtifact(artifact) = message?
            && artifact.target.name == program
            && let Some(path) = artifact.executable
        {
            return Ok(path.into());
        }
    }
    Err(Stop::Because(format!(
        "`{}` built no program `{program}`",
        line(command)
    )))
}

/// Writes a file of the repository, and the folders above it.
pub(crate) fn write(root: &Path, path: &str, text: &str) -> Result<(), Stop> {
    let whole = root.join(path);
    let folder = whole.parent().unwrap_or(root);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&whole, text))
        .map_err(|source| Stop::Because(format!("{path}: {source}")))
}
