//! Reads the manifest directory.

use super::reload::{MOST_LOOKS, QUIET};
use egress_api::{
    manifest::{
        ConfigMap, Document, Documents, Entry, Kind, ObjectId, Secret, documents, duplicates,
    },
    v1alpha1::{Metadata, Proxy},
};
use egress_core::{ProxyId, finding::Finding};
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

/// A Proxy as some file declares it.
#[derive(Clone, Debug)]
pub enum Declared {
    /// Without faults of its own.
    Sound(Box<Proxy>),
    /// With these faults; what could be read all the same serves to look for more of them.
    Faulty(Vec<Finding>, Option<Box<Proxy>>),
}

/// What one scan of the directory showed.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Why it says nothing about what is absent; empty for a complete scan.
    pub gaps: Vec<String>,
    /// Faults in files, for people.
    pub faults: Vec<String>,
    /// The declared Proxies.
    pub proxies: BTreeMap<ProxyId, Declared>,
    /// The declared Secrets, by namespace and name.
    pub secrets: BTreeMap<(String, String), Secret>,
    /// The declared ConfigMaps, by namespace and name.
    pub config_maps: BTreeMap<(String, String), ConfigMap>,
}

impl Scan {
    /// A scan that showed nothing, for this reason.
    pub fn nothing(gap: String) -> Self {
        Self {
            gaps: vec![gap],
            ..Self::default()
        }
    }

    /// Whether what it lacks is really not declared.
    pub fn is_complete(&self) -> bool {
        self.gaps.is_empty()
    }
}

/// A file as it was when it was read.
type Stamp = (SystemTime, u64, u64);

/// A file's name and what is in it.
type Named = (String, Arc<Documents>);

/// Longer than the step of any file system's clock.
const FRESH: Duration = Duration::from_secs(2);

/// One manifest directory. Files that did not change are not read again.
pub struct Manifests {
    dir: PathBuf,
    /// Device and inode at the first sight: another one is another directory.
    place: Option<(u64, u64)>,
    read: HashMap<PathBuf, (Stamp, Arc<Documents>)>,
}

impl Manifests {
    /// A directory that was not read yet.
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            place: None,
            read: HashMap::new(),
        }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes the directory as it is now for the right one, after a person said so.
    pub fn accept_place(&mut self) {
        self.place = None;
    }

    /// Reads `*.yaml`, `*.yml` and `*.json` in the directory, not below it; names that begin
    /// with a dot do not count. Symbolic links are followed, as in a mounted ConfigMap.
    pub fn scan(&mut self) -> Scan {
        let mut scan = Scan::default();
        let shown = self.dir.display().to_string();
        let files = match self.files() {
            Ok((files, strange)) => {
                scan.gaps.extend(strange);
                files
            }
            Err(e) => {
                return Scan::nothing(format!(
                    "the manifest directory {shown} cannot be read ({e}): nothing is deleted until it can"
                ));
            }
        };
        if let Some(gap) = self.check_place(&shown) {
            scan.gaps.push(gap);
        }
        let (all, unread) = self.read_when_quiet(&files);
        scan.gaps.extend(unread);
        self.read.retain(|path, _| files.contains(path));
        for (name, documents) in &all {
            scan.faults.extend(documents.faults(name));
            if !documents.is_complete() {
                scan.gaps.push(format!(
                    "{name} holds a document that cannot be read: nothing is deleted until it is mended"
                ));
            }
            for entry in &documents.entries {
                take(&mut scan, entry);
            }
        }
        for duplicate in duplicates(
            all.iter()
                .map(|(name, docs)| (name.as_str(), docs.as_ref())),
        ) {
            scan.faults.push(format!(
                "{}: {}: {}",
                duplicate.file, duplicate.at, duplicate.finding
            ));
            if let Some(id) = proxy_id(&duplicate.id) {
                scan.proxies
                    .insert(id, Declared::Faulty(vec![duplicate.finding], None));
            }
        }
        scan
    }

    /// Reads the files. Those that were written a moment ago and have faults may be half
    /// written: they count once they are the same twice.
    fn read_when_quiet(&mut self, files: &[PathBuf]) -> (Vec<Named>, Vec<String>) {
        let mut before = Vec::new();
        for _ in 0..MOST_LOOKS {
            let (all, unread) = self.read_all(files);
            let doubtful: Vec<(String, Vec<String>)> = all
                .iter()
                .filter(|(name, _)| is_fresh(&self.dir.join(name)))
                .map(|(name, documents)| (name.clone(), documents.faults(name)))
                .filter(|(_, faults)| !faults.is_empty())
                .collect();
            if doubtful == before {
                return (all, unread);
            }
            before = doubtful;
            thread::sleep(QUIET);
        }
        self.read_all(files)
    }

    fn read_all(&mut self, files: &[PathBuf]) -> (Vec<Named>, Vec<String>) {
        let (mut all, mut unread) = (Vec::new(), Vec::new());
        for path in files {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match self.documents(path) {
                Ok(documents) => all.push((name.into_owned(), documents)),
                // Removed since the directory was read, as in `files`.
                Err(_) if fs::symlink_metadata(path).is_err() => {}
                Err(e) => unread.push(unreadable(path, &e)),
            }
        }
        (all, unread)
    }

    /// The files that count, and for each entry that should be one and is none, a sentence: a
    /// link that leads nowhere is no removed manifest.
    fn files(&self) -> io::Result<(Vec<PathBuf>, Vec<String>)> {
        let (mut files, mut strange) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let hidden = path
                .file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with('.'));
            let named = path
                .extension()
                .is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known));
            if !named || hidden {
                continue;
            }
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => files.push(path),
                Ok(metadata) if metadata.is_dir() => {}
                // A pipe would be waited for without end.
                Ok(_) => strange.push(format!(
                    "{} is no file: nothing is deleted until it is one or gone",
                    path.display()
                )),
                // Removed since the directory was read.
                Err(_) if fs::symlink_metadata(&path).is_err() => {}
                Err(e) => strange.push(unreadable(&path, &e)),
            }
        }
        files.sort();
        strange.sort();
        Ok((files, strange))
    }

    /// A file system that was unmounted leaves an empty directory behind, which can be read.
    fn check_place(&mut self, shown: &str) -> Option<String> {
        let now = fs::metadata(&self.dir).ok().map(|m| (m.dev(), m.ino()))?;
        let first = *self.place.get_or_insert(now);
        (first != now).then(|| {
            format!(
                "{shown} is another directory than before (unmounted or replaced?): nothing is \
                 deleted until it is back, or `egress-proxies prune` says that it is the right one"
            )
        })
    }

    fn documents(&mut self, path: &Path) -> io::Result<Arc<Documents>> {
        let metadata = fs::metadata(path)?;
        let modified = metadata.modified()?;
        let stamp = (modified, metadata.len(), metadata.ino());
        if let Some((read_at, documents)) = self.read.get(path)
            && *read_at == stamp
        {
            return Ok(documents.clone());
        }
        let found = Arc::new(documents(&fs::read_to_string(path)?));
        // A file written a moment ago may be written again with the same time on it.
        if is_recent(modified) {
            self.read.remove(path);
        } else {
            self.read.insert(path.to_owned(), (stamp, found.clone()));
        }
        Ok(found)
    }
}

fn is_recent(modified: SystemTime) -> bool {
    !SystemTime::now()
        .duration_since(modified)
        .is_ok_and(|age| age > FRESH)
}

fn is_fresh(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(is_recent)
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!(
        "{} cannot be read ({error}): nothing is deleted until it can",
        path.display()
    )
}

fn take(scan: &mut Scan, entry: &Entry) {
    let id = entry.id.as_ref().and_then(proxy_id);
    match &entry.content {
        Ok(Document::Proxy(proxy)) => {
            if let Some(id) = id {
                scan.proxies.insert(id, Declared::Sound(proxy.clone()));
            }
        }
        Ok(Document::Secret(secret)) => {
            scan.secrets.insert(named(&secret.metadata), secret.clone());
        }
        Ok(Document::ConfigMap(map)) => {
            scan.config_maps.insert(named(&map.metadata), map.clone());
        }
        Err(findings) => {
            if let Some(id) = id {
                let faulty = Declared::Faulty(findings.clone(), entry.partly.clone());
                scan.proxies.insert(id, faulty);
            }
        }
    }
}

fn named(metadata: &Metadata) -> (String, String) {
    (metadata.namespace.clone(), metadata.name.clone())
}

fn proxy_id(id: &ObjectId) -> Option<ProxyId> {
    (id.kind == Kind::Proxy)
        .then(|| ProxyId::new(&id.namespace, &id.name).ok())
        .flatten()
}
