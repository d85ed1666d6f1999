//! Who may open a state directory, and who is told what.

use super::*;

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

#[test]
fn an_empty_directory_on_a_disk_for_reading_only_is_refused_for_that() {
    let root = TempDir::new().unwrap();
    let refused = || io::Error::from(Errno::ROFS);
    let missing = root.path().join("lock");
    let error = lock::for_reading(&missing, refused()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
    fs::write(&missing, "").unwrap();
    lock::for_reading(&missing, refused()).unwrap();
}
