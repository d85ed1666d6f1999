//! Writes that are cut short: by a death, by an error, at any byte.

use super::*;

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
