//! Records that cannot be read, or that someone edited.

use super::*;

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
