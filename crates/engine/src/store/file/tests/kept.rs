//! What is kept beside records, and what stays of them.

use super::*;

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

#[tokio::test]
async fn what_is_left_behind_on_deletion_is_known_to_the_next_engine_and_goes_with_the_record() {
    let root = TempDir::new().unwrap();
    let note = root.path().join("abandon/shop/a");
    let store = open(root.path());
    let version = store.save(&id("a"), &record("a", 1), None).await.unwrap();
    store.set_abandons(&id("a"), true).await.unwrap();
    store.set_abandons(&id("b"), true).await.unwrap();
    store.set_abandons(&id("b"), false).await.unwrap();
    drop(store);

    let store = open(root.path());
    assert!(store.abandons(&id("a")) && !store.abandons(&id("b")));
    store.directory.disk.cuts.none();
    store.set_abandons(&id("a"), true).await.unwrap();
    assert_eq!(store.directory.disk.cuts.none(), [], "nothing changed");
    store.remove(&id("a"), &version).await.unwrap();
    assert!(!note.exists() && !store.abandons(&id("a")));
    drop(store);
    assert!(!open(root.path()).abandons(&id("a")));
}

#[tokio::test]
async fn a_crash_in_the_midst_of_leaving_behind_forgets_the_record_before_the_note() {
    let mut cut = 0;
    loop {
        let root = TempDir::new().unwrap();
        let store = open(root.path());
        let version = store.save(&id("a"), &record("a", 1), None).await.unwrap();
        store.set_abandons(&id("a"), true).await.unwrap();
        store.directory.disk.cuts.after(cut, Cut::Die);
        let dying = store.clone();
        let task = tokio::spawn(async move { dying.remove(&id("a"), &version).await });
        let ended = task.await.is_ok();
        drop(store);
        let store = open(root.path());
        let recorded = store.load(&id("a")).await.unwrap().is_some();
        assert_eq!(store.abandons(&id("a")), recorded, "cut at step {cut}");
        assert_eq!(root.path().join("abandon/shop/a").exists(), recorded);
        if ended {
            assert!(!recorded);
            break;
        }
        cut += 1;
    }
    assert!(cut > 5, "{cut} steps");
}

#[tokio::test]
async fn what_is_left_behind_is_still_known_when_only_the_records_are_lost() {
    let root = TempDir::new().unwrap();
    let store = open(root.path());
    store.save(&id("a"), &record("a", 1), None).await.unwrap();
    store.set_abandons(&id("a"), true).await.unwrap();
    drop(store);
    fs::remove_dir_all(root.path().join("records")).unwrap();
    assert!(open(root.path()).abandons(&id("a")));
    fs::write(root.path().join("abandon/shop/a"), "").unwrap();
    assert!(open(root.path()).abandons(&id("a")), "damaged");
}

#[tokio::test]
async fn whether_something_is_left_behind_is_only_kept_once_it_is_written() {
    let root = TempDir::new().unwrap();
    let store = open(root.path());
    store.directory.disk.cuts.after(0, Cut::Fail(Errno::NOSPC));
    store.set_abandons(&id("a"), true).await.unwrap_err();
    assert!(!store.abandons(&id("a")));
    store.directory.disk.cuts.none();
    store.set_abandons(&id("a"), true).await.unwrap();
    assert!(store.abandons(&id("a")));
}
