use super::{
    machine::{LOG, MAX_LOG},
    *,
};
use crate::process::ProcessId;
use std::{
    fs::File,
    os::unix::fs::{MetadataExt as _, symlink},
    time::Duration,
};

fn key() -> MachineKey {
    MachineKey::new("0b6e1f1c-1".parse().unwrap())
}

fn slot() -> Slot {
    Slot::new("127.0.0.1_20001_127.0.0.1")
}

fn made(root: &Path) -> (Directories, MachineDirectory) {
    let directories = Directories::new(root.join("machines/local"));
    assert!(
        directories
            .stage(&key(), "a mark", b"{\"key\":\"n\"}")
            .unwrap()
            .commit(&slot())
            .unwrap()
    );
    let directory = directories.open(&slot()).unwrap().unwrap();
    (directories, directory)
}

#[test]
fn a_directory_appears_whole_for_this_user_alone_and_goes_without_a_trace() {
    let root = tempfile::tempdir().unwrap();
    let (directories, directory) = made(root.path());
    let label = directory.label().unwrap();
    assert_eq!(
        (label.text.as_deref(), label.name.as_deref()),
        (Some("a mark"), Some("n"))
    );
    let path = directories.root().join(slot().as_str());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    assert_eq!(
        fs::metadata(path.join(CONFIG)).unwrap().mode() & 0o777,
        0o600
    );
    assert_eq!(directories.traces().unwrap(), []);

    directories.remove(&key(), &directory).unwrap();
    assert!(directories.open(&slot()).unwrap().is_none());
    directories.trim();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_taken_slot_is_left_as_it_is_and_the_staged_directory_goes() {
    let root = tempfile::tempdir().unwrap();
    let (directories, directory) = made(root.path());
    assert!(
        !directories
            .stage(&key(), "other", b"{}")
            .unwrap()
            .commit(&slot())
            .unwrap()
    );
    assert_eq!(directory.label().unwrap().text.as_deref(), Some("a mark"));
    assert_eq!(directories.traces().unwrap(), []);
}

#[test]
fn what_a_crash_left_is_told_by_the_machines_name_and_can_be_cleared() {
    let root = tempfile::tempdir().unwrap();
    let directories = Directories::new(root.path().to_owned());
    let staged = directories.stage(&key(), "a mark", b"{}").unwrap();
    let [trace] = directories.traces().unwrap().try_into().unwrap();
    assert_eq!(trace.machine, key().name());
    assert!(directories.all().unwrap().is_empty());
    directories.clear(&trace.name).unwrap();
    directories.clear(&trace.name).unwrap();
    drop(staged);
    assert_eq!(directories.traces().unwrap(), []);
}

#[test]
fn links_and_files_at_a_slot_are_seen_and_never_followed() {
    let root = tempfile::tempdir().unwrap();
    let (directories, _) = made(root.path());
    let elsewhere = directories.root().join(slot().as_str());
    symlink(&elsewhere, directories.root().join("linked")).unwrap();
    fs::write(directories.root().join("file"), "x").unwrap();
    for name in ["linked", "file"] {
        let seen = directories.open(&Slot::new(name)).unwrap().unwrap();
        let label = seen.label().unwrap();
        assert_eq!((label.text, label.name), (None, None));
        assert!(seen.lock().is_err());
    }
    assert_eq!(directories.all().unwrap().len(), 3);
    // A linked mark is no mark.
    fs::remove_file(elsewhere.join(MARK)).unwrap();
    symlink(elsewhere.join(CONFIG), elsewhere.join(MARK)).unwrap();
    let directory = directories.open(&slot()).unwrap().unwrap();
    assert_eq!(directory.label().unwrap().text, None);
}

#[test]
fn a_lock_is_held_once() {
    let root = tempfile::tempdir().unwrap();
    let (directories, directory) = made(root.path());
    let held = directory.lock().unwrap().unwrap();
    let again = directories.open(&slot()).unwrap().unwrap();
    assert!(again.lock().unwrap().is_none());
    drop(held);
    assert!(again.lock().unwrap().is_some());
}

#[test]
fn strange_files_are_named_and_the_log_is_bounded() {
    let root = tempfile::tempdir().unwrap();
    let (directories, directory) = made(root.path());
    assert_eq!(directory.strange_files().unwrap(), Vec::<String>::new());
    let path = directories.root().join(slot().as_str());
    fs::write(path.join("notes"), "x").unwrap();
    assert_eq!(directory.strange_files().unwrap(), ["notes"]);

    directory
        .log()
        .unwrap()
        .write_all(b"first\nlast\n\n")
        .unwrap();
    assert_eq!(directory.last_words(), "last");
    File::options()
        .write(true)
        .open(path.join(LOG))
        .unwrap()
        .set_len(MAX_LOG + 1)
        .unwrap();
    assert_eq!(directory.log().unwrap().metadata().unwrap().len(), 0);
}

#[test]
fn a_renewed_directory_forgets_that_it_was_to_stop() {
    let root = tempfile::tempdir().unwrap();
    let (_, directory) = made(root.path());
    let process = ProcessId {
        pid: 1,
        start_time: 2,
    };
    let stopping = Stopping {
        boot_id: "b".into(),
        process,
        asked_after_boot: Duration::from_millis(1500),
    };
    directory.record_stopping(&stopping).unwrap();
    assert_eq!(directory.stopping().unwrap(), Some(stopping));
    directory.renew("another mark", b"{\"key\":\"m\"}").unwrap();
    assert_eq!(directory.stopping().unwrap(), None);
    let label = directory.label().unwrap();
    assert_eq!(
        (label.text.as_deref(), label.name.as_deref()),
        (Some("another mark"), Some("m"))
    );
}
