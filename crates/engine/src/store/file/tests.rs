use super::*;
use crate::Credential;
use crate::store::StoreErrorKind::{Conflict, Corrupt, Lost, OutcomeUnknown, Unavailable};
use disk::Step;
use egress_core::MachineUid;
use rustix::io::Errno;
use secrecy::ExposeSecret;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// What happens at a step.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The system call fails.
    Fail(Errno),
    /// The process ends, as by `kill -9`: nothing after it runs, no clean-up either.
    Die,
}

/// Cuts changes on disk short, for the tests here.
#[derive(Default)]
pub(in crate::store::file) struct Cuts {
    plan: Mutex<Option<(usize, Cut)>>,
    reached: Mutex<Vec<Step>>,
}

impl Cuts {
    pub(in crate::store::file) fn reach(&self, step: Step) -> io::Result<()> {
        let mut reached = held(&self.reached);
        reached.push(step);
        match *held(&self.plan) {
            Some((at, Cut::Fail(error))) if reached.len() > at => Err(error.into()),
            Some((at, Cut::Die)) if reached.len() > at => {
                std::panic::resume_unwind(Box::new("cut off"))
            }
            _ => Ok(()),
        }
    }
    /// Lets so many steps pass, then every later one is cut.
    fn after(&self, steps: usize, cut: Cut) {
        held(&self.reached).clear();
        *held(&self.plan) = Some((steps, cut));
    }
    /// Lets every step pass; answers with those that were reached since the last plan.
    fn none(&self) -> Vec<Step> {
        *held(&self.plan) = None;
        std::mem::take(&mut *held(&self.reached))
    }
}

fn lab() -> Installation {
    "lab".parse().unwrap()
}

fn open(root: &Path) -> FileStore {
    FileStore::open(root, &lab(), "here", OpenMode::default()).unwrap()
}

fn refusal(root: &Path, installation: &Installation, host: &str) -> OpenError {
    FileStore::open(root, installation, host, OpenMode::default()).unwrap_err()
}

fn take_over(root: &Path, host: &str) -> FileStore {
    FileStore::open(root, &lab(), host, OpenMode { take_over: true }).unwrap()
}

fn id(name: &str) -> ProxyId {
    ProxyId::new("shop", name).unwrap()
}

fn record(name: &str, number: u32) -> Record {
    let uid = MachineUid::standalone(&lab(), &id(name), 1);
    Record {
        last_attempt: number,
        ..Record::new(uid, lab(), id(name))
    }
}

fn record_file(root: &Path, name: &str) -> PathBuf {
    root.join("records/shop").join(format!("{name}.json"))
}

/// Every file below a directory, but for the lock and the identity.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in disk::entries(&directory).unwrap() {
            if entry.path().is_dir() {
                directories.push(entry.path());
            }
            let path = entry
                .path()
                .strip_prefix(root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            if !["lock", IDENTITY].contains(&path.as_str()) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Create,
    Replace,
    Remove,
}

impl Change {
    const ALL: [Self; 3] = [Self::Create, Self::Replace, Self::Remove];

    /// A directory in which the record is as it must be before the change.
    async fn prepare(self) -> (TempDir, FileStore, Option<Stored>) {
        let root = TempDir::new().unwrap();
        let store = open(root.path());
        store
            .save(&id("other"), &record("other", 1), None)
            .await
            .unwrap();
        if self != Self::Create {
            store.save(&id("a"), &record("a", 1), None).await.unwrap();
        }
        let before = store.load(&id("a")).await.unwrap();
        (root, store, before)
    }

    async fn execute(self, store: &FileStore, before: Option<&Stored>) -> Result<(), StoreError> {
        let version = before.map(|stored| &stored.version);
        match self {
            Self::Create | Self::Replace => store
                .save(&id("a"), &record("a", 2), version)
                .await
                .map(drop),
            Self::Remove => store.remove(&id("a"), version.unwrap()).await,
        }
    }

    fn after(self) -> Option<Record> {
        (self != Self::Remove).then(|| record("a", 2))
    }
}

#[tokio::test]
async fn one_save_syncs_one_file_and_one_directory_once() {
    let (_root, store, before) = Change::Replace.prepare().await;
    store.directory.disk.cuts.none();
    Change::Replace
        .execute(&store, before.as_ref())
        .await
        .unwrap();
    let steps = store.directory.disk.cuts.none();
    let expected = [
        Step::Create,
        Step::Write,
        Step::SyncFile,
        Step::Rename,
        Step::SyncDirectory,
    ];
    assert_eq!(steps, expected);
}

#[tokio::test]
async fn a_death_at_any_step_leaves_the_old_record_or_the_new_one() {
    for change in Change::ALL {
        let mut deaths = 0;
        loop {
            let (root, store, before) = change.prepare().await;
            store.directory.disk.cuts.after(deaths, Cut::Die);
            let (dying, old) = (store.clone(), before.clone());
            let task = tokio::spawn(async move { change.execute(&dying, old.as_ref()).await });
            let outcome = task.await;
            drop(store);

            let store = open(root.path());
            let found = store.load(&id("a")).await.unwrap();
            let old = found == before;
            let new = found.clone().map(|stored| stored.record) == change.after();
            assert!(old || new, "{change:?} cut at step {deaths}: {found:?}");
            if let Ok(outcome) = &outcome {
                outcome.as_ref().unwrap();
                assert!(new, "{change:?} was acknowledged: {found:?}");
            }
            assert_eq!(
                store.load(&id("other")).await.unwrap().unwrap().record,
                record("other", 1)
            );
            assert!(
                !files(root.path())
                    .iter()
                    .any(|file| file.contains(disk::TEMPORARY))
            );
            if found.is_none() && change == Change::Remove {
                assert_eq!(store.incarnation(&id("a")).await.unwrap(), 1);
            }
            let version = found.map(|stored| stored.version);
            store
                .save(&id("a"), &record("a", 3), version.as_ref())
                .await
                .unwrap();
            if outcome.is_ok() {
                break;
            }
            deaths += 1;
        }
        let steps = if change == Change::Remove { 7 } else { 5 };
        assert_eq!(deaths, steps, "{change:?}");
    }
}

#[tokio::test]
async fn an_error_at_any_step_says_whether_anything_changed_and_the_next_try_succeeds() {
    for errno in [Errno::NOSPC, Errno::ROFS, Errno::ACCESS, Errno::IO] {
        for change in Change::ALL {
            let (_root, store, before) = change.prepare().await;
            store.directory.disk.cuts.none();
            change.execute(&store, before.as_ref()).await.unwrap();
            let steps = store.directory.disk.cuts.none();
            for (at, step) in steps.iter().enumerate() {
                let (root, store, before) = change.prepare().await;
                let cuts = &store.directory.disk.cuts;
                cuts.after(at, Cut::Fail(errno));
                let error = change.execute(&store, before.as_ref()).await.unwrap_err();
                let last_group = at + 2 >= steps.len();
                let unclear = last_group && (*step == Step::SyncDirectory || errno == Errno::IO);
                let expected = if unclear { OutcomeUnknown } else { Unavailable };
                assert_eq!(
                    error.kind, expected,
                    "{change:?} {errno:?} {at} {step:?}: {error}"
                );
                assert!(
                    error.text.contains(&root.path().display().to_string()),
                    "{error}"
                );
                assert!(error.source.is_some());
                if unclear {
                    // The disk still fails: no answer is better than one a crash may undo.
                    let blind = store.load(&id("a")).await.unwrap_err();
                    assert!(
                        matches!(blind.kind, Unavailable | OutcomeUnknown),
                        "{blind}"
                    );
                    let listed = store.list().await.unwrap();
                    assert!(listed.iter().any(|(_, result)| result.is_err()));
                    assert!(listed.iter().any(|(_, result)| result.is_ok()));
                } else {
                    assert_eq!(store.load(&id("a")).await.unwrap(), before);
                }
                cuts.none();
                let found = store.load(&id("a")).await.unwrap();
                let new = found.clone().map(|stored| stored.record) == change.after();
                assert!(found == before || (unclear && new), "{found:?}");
                match (change, &found) {
                    (Change::Remove, None) => {}
                    _ => change.execute(&store, found.as_ref()).await.unwrap(),
                }
                drop(store);
                let found = open(root.path()).load(&id("a")).await.unwrap();
                assert_eq!(found.map(|stored| stored.record), change.after());
                assert!(
                    !files(root.path())
                        .iter()
                        .any(|file| file.contains(disk::TEMPORARY))
                );
            }
        }
    }
}

#[test]
fn each_refusal_of_the_disk_has_a_sentence_of_its_own() {
    let path = Path::new("/state/records");
    let sentences: std::collections::BTreeSet<String> = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::ROFS,
        Errno::ACCESS,
        Errno::MFILE,
        Errno::IO,
        Errno::NOTDIR,
    ]
    .into_iter()
    .map(|errno| {
        let error = disk::unavailable("write", path, errno.into());
        assert!(
            error.text.starts_with("cannot write /state/records: "),
            "{error}"
        );
        let cause = error.source.unwrap().to_string();
        assert!(
            !error.text.contains(&cause),
            "the display repeats its source: {cause}"
        );
        error.text
    })
    .collect();
    assert_eq!(sentences.len(), 7);
}

#[tokio::test]
async fn a_temporary_file_cut_at_any_byte_is_ignored_and_removed() {
    let (root, store, _) = Change::Replace.prepare().await;
    let whole = fs::read(record_file(root.path(), "a")).unwrap();
    drop(store);
    for length in 0..=whole.len() {
        let temporary = root.path().join("records/shop/.tmp-0");
        fs::write(&temporary, &whole[..length]).unwrap();
        let store = open(root.path());
        assert!(!temporary.exists());
        let listed = store.list().await.unwrap();
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|(_, result)| result.is_ok()));
        assert!(store.ignored().is_empty());
    }
}

#[tokio::test]
async fn a_record_file_cut_at_any_byte_is_named_and_never_overwritten() {
    let (root, store, before) = Change::Replace.prepare().await;
    drop(store);
    let path = record_file(root.path(), "a");
    let whole = fs::read(&path).unwrap();
    // The last byte is the line end: without it the record is still whole.
    for length in 0..whole.len() - 1 {
        fs::write(&path, &whole[..length]).unwrap();
        let store = open(root.path());
        let error = store.load(&id("a")).await.unwrap_err();
        assert_eq!(error.kind, Corrupt);
        assert!(error.text.contains(&path.display().to_string()), "{error}");
        for expected in [None, before.as_ref().map(|stored| &stored.version)] {
            let error = store
                .save(&id("a"), &record("a", 9), expected)
                .await
                .unwrap_err();
            assert_eq!(error.kind, Corrupt);
        }
        assert_eq!(fs::read(&path).unwrap(), whole[..length]);
    }
}

#[tokio::test]
async fn every_kind_of_damage_is_corrupt_with_its_reason() {
    let (root, store, _) = Change::Replace.prepare().await;
    drop(store);
    let path = record_file(root.path(), "a");
    let whole = fs::read_to_string(&path).unwrap();
    let newer_record = whole.replace("\"record\":{\"schema\":1", "\"record\":{\"schema\":2");
    for (content, reason) in [
        ("# a person's note\n".to_owned(), "expected"),
        ("[]".to_owned(), "invalid length"),
        (format!("{whole}{whole}"), "trailing"),
        (
            whole.replacen("\"schema\":1", "\"schema\":2", 1),
            "its layout is 2, known here is 1",
        ),
        (newer_record, "its layout is 2, known here is 1"),
        (
            whole.replace("shop/a", "shop/b"),
            "it is the record of shop/b",
        ),
        (whole.replace("shop/a", "../a"), "is not a valid namespace"),
        (whole.replace("machine_uid", "uid"), "missing field"),
    ] {
        assert_ne!(content, whole);
        fs::write(&path, &content).unwrap();
        let store = open(root.path());
        let error = store.load(&id("a")).await.unwrap_err();
        assert_eq!(error.kind, Corrupt, "{content}");
        assert!(error.text.contains(reason), "{error} lacks {reason}");
        assert!(error.text.contains("mv "), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_record_that_is_mended_or_moved_away_needs_no_restart() {
    let (root, store, before) = Change::Replace.prepare().await;
    drop(store);
    let path = record_file(root.path(), "a");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, "damaged").unwrap();
    let store = open(root.path());
    assert_eq!(store.load(&id("a")).await.unwrap_err().kind, Corrupt);
    fs::write(&path, whole).unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap(), before);

    fs::write(&path, "damaged again").unwrap();
    let error = store
        .save(
            &id("a"),
            &record("a", 2),
            before.as_ref().map(|s| &s.version),
        )
        .await;
    assert_eq!(error.unwrap_err().kind, Corrupt);
    assert_eq!(store.load(&id("a")).await.unwrap_err().kind, Corrupt);
    fs::rename(&path, path.with_extension("json.corrupt")).unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap(), None);
    store.save(&id("a"), &record("a", 2), None).await.unwrap();
    drop(store);
    let store = open(root.path());
    assert_eq!(store.ignored(), [path.with_extension("json.corrupt")]);
    assert_eq!(
        store.load(&id("a")).await.unwrap().unwrap().record,
        record("a", 2)
    );
}

#[tokio::test]
async fn a_record_edited_while_the_engine_runs_is_not_overwritten() {
    let (root, store, before) = Change::Replace.prepare().await;
    let before = before.unwrap();
    let path = record_file(root.path(), "a");
    let edited = fs::read_to_string(&path).unwrap();
    let edited = edited.replace("\"last_attempt\":1", "\"last_attempt\":7");
    fs::write(&path, &edited).unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap(), Some(before.clone()));

    let error = store
        .save(&id("a"), &record("a", 2), Some(&before.version))
        .await
        .unwrap_err();
    assert_eq!(error.kind, Conflict);
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
    let found = store.load(&id("a")).await.unwrap().unwrap();
    assert_eq!(found.record, record("a", 7));
    store
        .save(&id("a"), &record("a", 8), Some(&found.version))
        .await
        .unwrap();

    fs::remove_file(&path).unwrap();
    let error = store.remove(&id("a"), &found.version).await.unwrap_err();
    assert_eq!(error.kind, Conflict);
    assert_eq!(store.load(&id("a")).await.unwrap(), None);
}

#[tokio::test]
async fn a_steady_store_does_not_touch_the_disk() {
    let (root, store, before) = Change::Replace.prepare().await;
    fs::remove_dir_all(root.path().join("records")).unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap(), before);
    assert_eq!(store.list().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_second_engine_is_refused_and_told_which_process_is_the_first() {
    let root = TempDir::new().unwrap();
    let store = open(root.path());
    let error = refusal(root.path(), &lab(), "here");
    assert!(
        matches!(error, OpenError::AlreadyRunning { pid: Some(pid), .. } if pid == std::process::id()),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains(&format!("pid {}", std::process::id())),
        "{error}"
    );
    let forced = FileStore::open(root.path(), &lab(), "here", OpenMode { take_over: true });
    assert!(matches!(forced, Err(OpenError::AlreadyRunning { .. })));

    let clone = store.clone();
    drop(store);
    assert!(matches!(
        refusal(root.path(), &lab(), "here"),
        OpenError::AlreadyRunning { .. }
    ));
    drop(clone);
    assert_eq!(fs::read_to_string(root.path().join("lock")).unwrap(), "");
    open(root.path());
}

#[tokio::test]
async fn a_directory_that_was_removed_or_replaced_is_lost_and_left_alone() {
    for replaced in [false, true] {
        let above = TempDir::new().unwrap();
        let root = above.path().join("state");
        let store = open(&root);
        let version = store.save(&id("a"), &record("a", 1), None).await.unwrap();
        store.check_lock().unwrap();
        if replaced {
            fs::rename(&root, above.path().join("old")).unwrap();
            drop(open(&root));
        } else {
            fs::remove_dir_all(&root).unwrap();
        }
        let before = files(above.path());
        let credential = Credential::generate(1).unwrap();
        let writer = WriterId::new("other");
        for (what, kind) in [
            ("check", store.check_lock().unwrap_err().kind),
            (
                "save",
                store
                    .save(&id("a"), &record("a", 2), Some(&version))
                    .await
                    .unwrap_err()
                    .kind,
            ),
            (
                "create",
                store
                    .save(&id("b"), &record("b", 1), None)
                    .await
                    .unwrap_err()
                    .kind,
            ),
            (
                "remove",
                store.remove(&id("a"), &version).await.unwrap_err().kind,
            ),
            (
                "incarnation",
                store.set_incarnation(&id("a"), 4).await.unwrap_err().kind,
            ),
            (
                "credential",
                store
                    .credentials()
                    .save(&id("a"), &credential)
                    .await
                    .unwrap_err()
                    .kind,
            ),
            (
                "admin",
                store
                    .write_admin("127.0.0.1:1".parse().unwrap())
                    .unwrap_err()
                    .kind,
            ),
        ] {
            assert_eq!(kind, Lost, "{what}");
        }
        let adopted = store.adopt_writer(&writer).unwrap_err();
        assert!(
            matches!(&adopted, OpenError::Disk(e) if e.kind == Lost),
            "{adopted}"
        );
        drop(store);
        assert_eq!(files(above.path()), before);
    }
}

#[tokio::test]
async fn a_directory_of_another_host_is_refused_until_it_is_taken_over_with_its_writer() {
    let (root, store, before) = Change::Replace.prepare().await;
    let identity = store.identity();
    drop(store);
    let error = refusal(root.path(), &lab(), "there");
    assert!(matches!(error, OpenError::OtherHost { .. }), "{error}");
    assert!(error.to_string().contains("--take-over"), "{error}");

    let store = take_over(root.path(), "there");
    assert!(!store.fresh());
    assert_eq!(store.identity(), identity);
    assert_eq!(store.load(&id("a")).await.unwrap(), before);
    drop(store);
    assert!(matches!(
        refusal(root.path(), &lab(), "here"),
        OpenError::OtherHost { .. }
    ));
    FileStore::open(root.path(), &lab(), "there", OpenMode::default()).unwrap();
}

#[tokio::test]
async fn a_directory_of_another_installation_is_refused_until_it_is_taken_over() {
    let (root, store, _) = Change::Replace.prepare().await;
    let writer = store.identity().writer;
    drop(store);
    let other: Installation = "other".parse().unwrap();
    let error = refusal(root.path(), &other, "here");
    assert!(
        matches!(error, OpenError::OtherInstallation { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("lab") && error.to_string().contains("--take-over"));
    let mode = OpenMode { take_over: true };
    let store = FileStore::open(root.path(), &other, "here", mode).unwrap();
    assert_eq!(
        store.identity(),
        Identity {
            installation: other,
            writer
        }
    );
}

#[tokio::test]
async fn only_an_empty_or_taken_over_directory_adopts_another_writer() {
    let root = TempDir::new().unwrap();
    let found = WriterId::new("from-the-marks");
    let store = open(root.path());
    assert!(store.fresh());
    assert_ne!(store.identity().writer, Some(found.clone()));
    drop(store);

    // A crash before the marks were looked at: still empty.
    let store = open(root.path());
    assert!(store.fresh());
    store.adopt_writer(&found).unwrap();
    assert_eq!(store.identity().writer, Some(found.clone()));
    store.save(&id("a"), &record("a", 1), None).await.unwrap();
    drop(store);

    let store = open(root.path());
    assert!(!store.fresh());
    assert_eq!(store.identity().writer, Some(found.clone()));
    store.adopt_writer(&found).unwrap();
    let error = store.adopt_writer(&WriterId::new("third")).unwrap_err();
    assert!(matches!(error, OpenError::OtherWriter { .. }), "{error}");
    drop(store);

    let store = take_over(root.path(), "here");
    store.adopt_writer(&WriterId::new("third")).unwrap();
    drop(store);
    assert_eq!(
        open(root.path()).identity().writer,
        Some(WriterId::new("third"))
    );
}

#[tokio::test]
async fn a_directory_that_only_remembers_incarnations_or_credentials_is_not_fresh() {
    let root = TempDir::new().unwrap();
    open(root.path())
        .set_incarnation(&id("a"), 1)
        .await
        .unwrap();
    assert!(!open(root.path()).fresh());
    let root = TempDir::new().unwrap();
    let credential = Credential::generate(1).unwrap();
    open(root.path())
        .credentials()
        .save(&id("a"), &credential)
        .await
        .unwrap();
    assert!(!open(root.path()).fresh());
}

#[tokio::test]
async fn records_without_a_readable_identity_are_refused_until_they_are_taken_over() {
    let (root, store, _) = Change::Replace.prepare().await;
    drop(store);
    let path = root.path().join(IDENTITY);
    let whole = fs::read_to_string(&path).unwrap();
    for damaged in ["{", "{\"schema\":2}", &whole.replace("lab", "Not A Label")] {
        fs::write(&path, damaged).unwrap();
        let error = refusal(root.path(), &lab(), "here");
        assert!(
            matches!(error, OpenError::IdentityUnreadable { .. }),
            "{error}"
        );
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    }
    fs::rename(&path, root.path().join("identity.json.bad")).unwrap();
    let error = refusal(root.path(), &lab(), "here");
    assert!(
        matches!(error, OpenError::IdentityMissing { .. }),
        "{error}"
    );
    let store = take_over(root.path(), "here");
    store
        .adopt_writer(&WriterId::new("from-the-marks"))
        .unwrap();
    drop(store);
    assert_eq!(open(root.path()).list().await.unwrap().len(), 2);
}

#[test]
fn a_directory_that_holds_something_else_is_refused_untouched() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("thesis.tex"), "years of work").unwrap();
    let error = refusal(root.path(), &lab(), "here");
    assert!(matches!(&error, OpenError::NotAStateDirectory { entry, .. } if entry == "thesis.tex"));
    assert_eq!(files(root.path()), ["thesis.tex"]);
}

#[test]
fn a_new_directory_is_for_its_user_alone() {
    let above = TempDir::new().unwrap();
    let root = above.path().join("deep/state");
    drop(open(&root));
    assert_eq!(
        fs::metadata(&root).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[tokio::test]
async fn a_removed_record_leaves_its_incarnation_number_and_nothing_else() {
    let root = TempDir::new().unwrap();
    let store = open(root.path());
    assert_eq!(store.incarnation(&id("a")).await.unwrap(), 0);
    for round in 1..=3 {
        let version = store
            .save(&id("a"), &record("a", round), None)
            .await
            .unwrap();
        assert_eq!(
            store.incarnation(&id("a")).await.unwrap(),
            u64::from(round) - 1
        );
        store
            .credentials()
            .save(&id("a"), &Credential::generate(1).unwrap())
            .await
            .unwrap();
        store.credentials().remove(&id("a")).await.unwrap();
        store.remove(&id("a"), &version).await.unwrap();
        assert_eq!(store.incarnation(&id("a")).await.unwrap(), u64::from(round));
    }
    let left = [
        "credentials",
        "incarnations",
        "incarnations/shop",
        "incarnations/shop/a",
        "records",
    ];
    assert_eq!(files(root.path()), left);
}

#[tokio::test]
async fn an_incarnation_never_falls_and_a_damaged_one_keeps_its_record() {
    let root = TempDir::new().unwrap();
    let store = open(root.path());
    store.set_incarnation(&id("a"), 5).await.unwrap();
    store.set_incarnation(&id("a"), 3).await.unwrap();
    assert_eq!(store.incarnation(&id("a")).await.unwrap(), 5);
    let version = store.save(&id("a"), &record("a", 1), None).await.unwrap();
    let path = root.path().join("incarnations/shop/a");
    fs::write(&path, "five").unwrap();
    let error = store.remove(&id("a"), &version).await.unwrap_err();
    assert_eq!(error.kind, Corrupt);
    assert!(error.text.contains(&path.display().to_string()), "{error}");
    assert!(store.load(&id("a")).await.unwrap().is_some());
    fs::write(&path, "5").unwrap();
    store.remove(&id("a"), &version).await.unwrap();
    assert_eq!(store.incarnation(&id("a")).await.unwrap(), 6);
}

#[tokio::test]
async fn a_credential_is_kept_for_its_user_alone_and_printed_nowhere() {
    let root = TempDir::new().unwrap();
    let credential = Credential::generate(3).unwrap();
    let password = credential.password.expose_secret().to_owned();
    assert_eq!(password.len(), 26);
    assert_ne!(
        password,
        Credential::generate(3).unwrap().password.expose_secret()
    );
    assert!(!format!("{credential:?}").contains(&password));

    let store = open(root.path());
    assert!(store.credentials().load(&id("a")).await.unwrap().is_none());
    store
        .credentials()
        .save(&id("a"), &credential)
        .await
        .unwrap();
    drop(store);
    let path = root.path().join("credentials/shop/a.json");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let credentials = open(root.path()).credentials();
    let found = credentials.load(&id("a")).await.unwrap().unwrap();
    assert_eq!((found.user.as_str(), found.generation), ("egress", 3));
    assert_eq!(found.auth(), credential.auth());

    let whole = fs::read_to_string(&path).unwrap();
    for damaged in [
        whole.replace("\"generation\":3", "\"generation\":\"x\""),
        whole.replace("shop/a", "shop/b"),
        whole.replace("\"schema\":1", "\"schema\":9"),
        whole[..whole.len() - 3].to_owned(),
        whole.replace(
            "\"user\":\"egress\"",
            &format!("\"user\":\"{password}\",\"user\":1"),
        ),
        format!("\"{password}\""),
    ] {
        fs::write(&path, &damaged).unwrap();
        let error = credentials.load(&id("a")).await.unwrap_err();
        assert_eq!(error.kind, Corrupt, "{damaged}");
        assert!(!format!("{error} {error:?}").contains(&password));
        let error = credentials.save(&id("a"), &credential).await.unwrap_err();
        assert_eq!(error.kind, Corrupt);
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    }
    credentials.remove(&id("a")).await.unwrap();
    credentials.remove(&id("a")).await.unwrap();
    assert!(credentials.load(&id("a")).await.unwrap().is_none());
}

#[test]
fn the_admin_address_is_found_by_another_process() {
    let root = TempDir::new().unwrap();
    assert_eq!(FileStore::read_admin(root.path()).unwrap(), None);
    let store = open(root.path());
    let address = "127.0.0.1:4711".parse().unwrap();
    store.write_admin(address).unwrap();
    assert_eq!(FileStore::read_admin(root.path()).unwrap(), Some(address));
    fs::write(root.path().join(ADMIN), "nowhere").unwrap();
    assert_eq!(
        FileStore::read_admin(root.path()).unwrap_err().kind,
        Corrupt
    );
    store.remove_admin().unwrap();
    assert_eq!(FileStore::read_admin(root.path()).unwrap(), None);
}

#[test]
fn this_host_has_an_id_that_stays() {
    let host = host_id().unwrap();
    assert_eq!(host.len(), 32);
    assert_eq!(host, host_id().unwrap());
    if let Ok(machine_id) = fs::read_to_string("/etc/machine-id") {
        assert!(!machine_id.contains(&host));
    }
}
