//! Takes a changed configuration file on, and says what of it only a restart can.

use super::{
    Arguments,
    reader::{PATIENCE, Reader},
    state_dir,
    watch::Watch,
};
use crate::{config::Config, failure::Failure};
use egress_core::{Installation, finding::Finding};
use std::{
    fmt::Display,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// For how long a changed file is left alone before it is taken on.
pub const QUIET: Duration = Duration::from_millis(200);
/// How often a file that keeps changing is waited for before it is judged as it is.
pub const MOST_LOOKS: usize = 20;

/// The configuration file while the engine runs.
pub struct ConfigFile {
    path: PathBuf,
    watch: Watch,
    reader: Reader<io::Result<String>>,
    /// As it was last taken on or refused; `None`: it could not be read.
    text: Option<String>,
    read: Option<io::Result<String>>,
    late: Option<String>,
    troubles: Vec<String>,
}

impl ConfigFile {
    /// A file whose changes wake `watch`, and what was read of it at the start.
    pub fn new(path: &Path, text: Option<String>, watch: Watch) -> Self {
        Self {
            path: path.to_owned(),
            watch,
            reader: Reader::new(path.display()),
            text,
            read: None,
            late: None,
            troubles: Vec::new(),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file; [`news`](Self::news) tells what came of it. May be dropped at any time.
    pub async fn look(&mut self) {
        let (path, watch) = (self.path.clone(), self.watch.clone());
        let known = self.text.clone();
        let read = move || {
            let dir = path.parent().unwrap_or(Path::new(""));
            let here = dir.as_os_str().is_empty();
            watch.add(if here { Path::new(".") } else { dir });
            read_when_quiet(&path, known.as_deref())
        };
        match self.reader.read(PATIENCE, read).await {
            Ok(read) => (self.read, self.late) = (Some(read), None),
            Err(late) => {
                let late = format!("{late}: the configuration before stays in force");
                if self.late.is_none() {
                    tracing::warn!("{late}");
                }
                self.late = Some(late);
            }
        }
    }

    /// What is wrong with the file: what the last news told, and that it cannot be read now.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.iter().chain(&self.late).cloned().collect()
    }

    /// Keeps what the last news told.
    pub fn set_troubles(&mut self, troubles: Vec<String>) {
        self.troubles = troubles;
    }

    /// The configuration, when the last look showed another text than the one before.
    pub fn news(&mut self) -> Option<Result<Config, Failure>> {
        let read = self.read.take()?;
        let text = read.as_ref().ok().cloned();
        if text == self.text {
            return None;
        }
        self.text = text;
        Some(Config::of(&self.path, read).map_err(|faulty| faulty.failure))
    }
}

/// Reads a file; with another text than `known`, when it has the same one twice: whoever
/// writes it in place empties it first.
fn read_when_quiet(path: &Path, known: Option<&str>) -> io::Result<String> {
    let mut read = fs::read_to_string(path);
    for _ in 0..MOST_LOOKS {
        if known.is_some() && read.as_deref().ok() == known {
            break;
        }
        thread::sleep(QUIET);
        let before = std::mem::replace(&mut read, fs::read_to_string(path));
        if read.as_ref().ok() == before.as_ref().ok() {
            break;
        }
    }
    read
}

/// What an engine works with from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The deployment's name.
    pub installation: Installation,
    /// Where the admin page was asked to listen.
    pub listen: SocketAddr,
    /// The manifest directory.
    pub manifests: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
}

impl Fixed {
    /// What of a changed configuration is not in force: `path: value: what is wrong: what to
    /// do`. A field that a flag overrides says nothing.
    pub fn not_in_force(&self, config: &Config, arguments: &Arguments) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut differs = |field: &str, now: &dyn Display, in_force: &dyn Display| {
            findings.push(Finding::new(
                field,
                now,
                format!("changed while the engine runs, and {in_force} stays in force"),
                "restart the engine to take it on",
            ));
        };
        let installation = config.installation();
        if installation != self.installation {
            differs("installation", &installation, &self.installation);
        }
        if config.admin.listen != self.listen {
            differs("admin.listen", &config.admin.listen, &self.listen);
        }
        let manifests = arguments.manifests.as_ref().or(config.manifests.as_ref());
        if manifests != Some(&self.manifests) {
            let now = manifests.map(|dir| dir.display().to_string());
            let now = now.unwrap_or_default();
            differs("manifests", &now, &self.manifests.display());
        }
        // Without HOME there is no default; then the field was taken away.
        let state = state_dir(arguments.state_dir.as_deref(), Some(config)).unwrap_or_default();
        if state != self.state_dir {
            differs("stateDir", &state.display(), &self.state_dir.display());
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_being_written_is_not_judged_by_its_first_half() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.yaml");
        fs::write(&path, "whole").expect("written");
        assert_eq!(
            read_when_quiet(&path, Some("whole")).expect("read"),
            "whole"
        );
        // As `cp` does it: emptied, then filled.
        fs::write(&path, "").expect("written");
        let (target, written) = (path.clone(), Duration::from_millis(50));
        let writer = thread::spawn(move || {
            thread::sleep(written);
            fs::write(target, "another").expect("written");
        });
        assert_eq!(
            read_when_quiet(&path, Some("whole")).expect("read"),
            "another"
        );
        writer.join().expect("it wrote");
        fs::remove_file(&path).expect("removed");
        assert!(read_when_quiet(&path, Some("another")).is_err());
    }

    #[test]
    fn each_field_that_needs_a_restart_is_named_and_a_flag_keeps_its_field_quiet() {
        let text = "installation: new\nproviders: [{name: here, local: {}}]\nmanifests: m2\n\
                    stateDir: s2\nadmin: {listen: '127.0.0.1:9'}\n";
        let config = Config::read(text).expect("it is sound");
        let fixed = Fixed {
            installation: "old".parse().expect("a name"),
            listen: "127.0.0.1:0".parse().expect("an address"),
            manifests: "m1".into(),
            state_dir: "s1".into(),
        };
        let told = |arguments: &Arguments| -> Vec<String> {
            let findings = fixed.not_in_force(&config, arguments);
            findings.iter().map(ToString::to_string).collect()
        };
        let line = |field: &str, now: &str, old: &str| {
            format!(
                "{field}: {now}: changed while the engine runs, and {old} stays in force: \
                 restart the engine to take it on"
            )
        };
        let all = [
            line("installation", "new", "old"),
            line("admin.listen", "127.0.0.1:9", "127.0.0.1:0"),
            line("manifests", "m2", "m1"),
            line("stateDir", "s2", "s1"),
        ];
        assert_eq!(told(&Arguments::default()), all);
        let flags = Arguments {
            manifests: Some("m1".into()),
            state_dir: Some("s1".into()),
            ..Arguments::default()
        };
        assert_eq!(told(&flags), all[..2]);
    }
}
