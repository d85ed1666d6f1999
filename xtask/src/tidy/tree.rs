//! The files of the repository: tracked, or new and not ignored.

use crate::{Stop, run};
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// All files, sorted by path.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

/// One file.
pub(crate) struct File {
    /// From the top folder, with `/`.
    pub(crate) path: String,
    /// What it holds; empty where that is not UTF-8.
    pub(crate) text: String,
}

impl File {
    /// Lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }

    /// What follows the last dot of the file's name, if there is one.
    pub(crate) fn extension(&self) -> Option<&str> {
        Some(self.name().rsplit_once('.')?.1)
    }

    /// The last part of the path.
    pub(crate) fn name(&self) -> &str {
        self.path
            .rsplit_once('/')
            .map_or(self.path.as_str(), |(_, name)| name)
    }
}

impl Tree {
    /// Reads all files below `root` that git knows or would add.
    pub(crate) fn read(root: &Path) -> Result<Self, Stop> {
        // A clone of another user is refused by git unless told otherwise on the command line.
        let listing = run::text(
            Command::new("git")
                .args([
                    "-c",
                    "safe.directory=*",
                    "ls-files",
                    "-z",
                    "-co",
                    "--exclude-standard",
                ])
                .current_dir(root)
                .stdin(Stdio::null()),
        )?;
        let mut files = Vec::new();
        for path in listing.split('\0').filter(|path| !path.is_empty()) {
            match std::fs::read(root.join(path)) {
                Ok(bytes) => files.push(File {
                    path: path.to_owned(),
                    text: String::from_utf8(bytes).unwrap_or_default(),
                }),
                // Deleted, and not yet told to git.
                Err(source) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(Stop::Because(format!("{path}: {source}"))),
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        Ok(Self { files })
    }

    /// A tree made of paths and texts.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| File {
                path: (*path).to_owned(),
                text: (*text).to_owned(),
            })
            .collect();
        Self { files }
    }

    /// The file at this path.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether there is a file at this path, or any file below it.
    pub(crate) fn holds(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let below = |file: &File| {
            file.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        path.is_empty() || self.files.iter().any(below)
    }

    /// Files whose name ends with one of these, dot left out: `["rs", "sh"]`.
    pub(crate) fn with_extension<'a>(
        &'a self,
        wanted: &'a [&'a str],
    ) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(|file| {
            file.extension()
                .is_some_and(|found| wanted.contains(&found))
        })
    }

    /// Names of the folders right below `crates/`.
    pub(crate) fn crate_folders(&self) -> Vec<&str> {
        let mut folders: Vec<&str> = self
            .files
            .iter()
            .filter_map(|file| file.path.strip_prefix("crates/")?.split_once('/'))
            .map(|(folder, _)| folder)
            .collect();
        folders.dedup();
        folders
    }
}
