use super::*;
use egress_core::{Installation, MachineUid};
use std::task::Poll;

fn id() -> ProxyId {
    ProxyId::new("shop", "a").unwrap()
}

fn record(number: u32) -> Record {
    let installation: Installation = "lab".parse().unwrap();
    let uid = MachineUid::standalone(&installation, &id(), 1);
    Record {
        last_attempt: number,
        ..Record::new(uid, installation, id())
    }
}

/// Gives the verdict to the write of this number, and lets all others pass.
struct At(u64, Verdict);

#[async_trait::async_trait]
impl Gate for At {
    async fn judge(&self, write: &Write) -> Verdict {
        if write.number == self.0 {
            self.1
        } else {
            Verdict::Pass
        }
    }
}

/// How a write ended that a crash may have cut off: `None` when it hangs.
async fn crash<T>(
    write: impl Future<Output = Result<T, StoreError>>,
) -> Option<Result<T, StoreError>> {
    let mut write = std::pin::pin!(write);
    std::future::poll_fn(|cx| {
        Poll::Ready(match write.as_mut().poll(cx) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn each_verdict_cuts_a_save_and_a_removal_where_it_says_and_the_next_process_sees_it() {
    let unknown = StoreErrorKind::OutcomeUnknown;
    let unavailable = StoreErrorKind::Unavailable;
    for (verdict, hangs, landed, error) in [
        (Verdict::Pass, false, true, None),
        (
            Verdict::FailBefore(unavailable),
            false,
            false,
            Some(unavailable),
        ),
        (Verdict::FailAfter(unknown), false, true, Some(unknown)),
        (Verdict::HangBefore, true, false, None),
        (Verdict::HangAfter, true, true, None),
    ] {
        for removal in [false, true] {
            let store = MemoryStore::new();
            let version = store.save(&id(), &record(1), None).await.unwrap();
            store.set_gate(Some(Arc::new(At(2, verdict))));
            let outcome = if removal {
                crash(store.remove(&id(), &version)).await
            } else {
                crash(store.save(&id(), &record(2), Some(&version)))
                    .await
                    .map(|saved| saved.map(drop))
            };
            assert_eq!(outcome.is_none(), hangs, "{verdict:?}");
            let kind = outcome.and_then(Result::err).map(|error| error.kind);
            assert_eq!(kind, error, "{verdict:?}");

            let next_process = store.clone();
            drop(store);
            let found = next_process
                .load(&id())
                .await
                .unwrap()
                .map(|stored| stored.record);
            let expected = match (landed, removal) {
                (false, _) => Some(record(1)),
                (true, false) => Some(record(2)),
                (true, true) => None,
            };
            assert_eq!(found, expected, "{verdict:?}");
            assert_eq!(next_process.writes(), 2);
            assert_eq!(next_process.reads(), 1);
        }
    }
}

#[tokio::test]
async fn a_write_with_a_wrong_version_lands_under_no_verdict() {
    for verdict in [
        Verdict::Pass,
        Verdict::FailAfter(StoreErrorKind::OutcomeUnknown),
        Verdict::HangAfter,
    ] {
        let store = MemoryStore::new();
        store.save(&id(), &record(1), None).await.unwrap();
        store.set_gate(Some(Arc::new(At(2, verdict))));
        let outcome = crash(store.save(&id(), &record(2), None)).await.unwrap();
        assert_eq!(outcome.unwrap_err().kind, StoreErrorKind::Conflict);
        assert_eq!(store.load(&id()).await.unwrap().unwrap().record, record(1));
    }
}

#[tokio::test]
async fn a_gate_sees_what_would_be_written_and_can_be_taken_away() {
    struct Seen(Mutex<Vec<Write>>);
    #[async_trait::async_trait]
    impl Gate for Seen {
        async fn judge(&self, write: &Write) -> Verdict {
            held(&self.0).push(write.clone());
            Verdict::Pass
        }
    }
    let seen = Arc::new(Seen(Mutex::default()));
    let store = MemoryStore::new();
    store.set_gate(Some(seen.clone()));
    let version = store.save(&id(), &record(1), None).await.unwrap();
    store.remove(&id(), &version).await.unwrap();
    store.set_gate(None);
    store.save(&id(), &record(2), None).await.unwrap();
    let expected = [
        (1, WriteKind::Save(Box::new(record(1)))),
        (2, WriteKind::Remove),
    ]
    .map(|(number, kind)| Write {
        number,
        id: id(),
        kind,
    });
    assert_eq!(*held(&seen.0), expected);
}
