//! Reads files away from the runtime's threads: a mount that hangs holds up nothing but what
//! lies on it, and is told.

use std::{fmt::Display, time::Duration};
use tokio::{task::JoinHandle, time::Instant};

/// How long a read may take before it is told.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long one that was told already is waited for at a time.
const FURTHER: Duration = Duration::from_secs(1);

/// One read at a time: the next begins when the last has ended.
#[derive(Debug)]
pub struct Reader<T> {
    what: String,
    under_way: Option<(Instant, JoinHandle<T>)>,
}

impl<T: Send + 'static> Reader<T> {
    /// Reads what is called so.
    pub fn new(what: impl Display) -> Self {
        Self {
            what: what.to_string(),
            under_way: None,
        }
    }

    /// Begins `read`, unless an earlier one still goes on, and waits so long for its end.
    /// Dropped or given up it goes on, and the next call waits for the same one. The error is
    /// the beginning of a sentence that says how long it takes already.
    pub async fn read(
        &mut self,
        patience: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let (since, task) = self
            .under_way
            .get_or_insert_with(|| (Instant::now(), tokio::task::spawn_blocking(read)));
        let left = patience.saturating_sub(since.elapsed()).max(FURTHER);
        let Ok(ended) = tokio::time::timeout(left, task).await else {
            // The same text from then on, so that it is told once.
            let taken = since.elapsed().min(PATIENCE).as_secs();
            let what = &self.what;
            return Err(format!("reading {what} has taken {taken} s and goes on"));
        };
        self.under_way = None;
        ended.map_err(|e| format!("reading {} was cut off ({e})", self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test(start_paused = true)]
    async fn a_read_that_hangs_is_told_after_its_patience_and_its_end_is_not_missed() {
        let (answer, answered) = mpsc::channel();
        let mut reader = Reader::new("dir");
        let begun = Instant::now();
        let mut first = Box::pin(reader.read(PATIENCE, move || answered.recv().unwrap_or(0)));
        // While a blocking thread works, this clock goes on only by hand.
        assert!(is_pending(&mut first).await);
        tokio::time::advance(PATIENCE).await;
        let told = first.await;
        assert_eq!(
            told,
            Err("reading dir has taken 30 s and goes on".to_owned())
        );
        assert_eq!(begun.elapsed(), PATIENCE);

        // The next call begins no second read, and waits a moment only.
        let mut second = Box::pin(reader.read(PATIENCE, || 1));
        assert!(is_pending(&mut second).await);
        tokio::time::advance(FURTHER).await;
        assert_eq!(
            second.await,
            Err("reading dir has taken 30 s and goes on".to_owned())
        );
        answer.send(7).expect("the read waits for it");
        assert_eq!(reader.read(PATIENCE, || 2).await, Ok(7));
        assert_eq!(reader.read(PATIENCE, || 3).await, Ok(3));
    }

    /// Polls once; whether it is not done.
    async fn is_pending<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
        std::future::poll_fn(|context| {
            let pending = std::pin::Pin::new(&mut *future).poll(context).is_pending();
            std::task::Poll::Ready(pending)
        })
        .await
    }
}
