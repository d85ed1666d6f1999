//! When a connection last moved a byte, shared by whoever must know.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Duration, Instant, sleep_until},
};

/// The last movement on one client connection.
pub(crate) struct IdleClock {
    start: Instant,
    last_millis: AtomicU64,
    holds: AtomicU32,
}

impl IdleClock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            last_millis: AtomicU64::new(0),
            holds: AtomicU32::new(0),
        }
    }

    /// Notes a movement.
    pub(crate) fn touch(&self) {
        self.last_millis
            .store(self.start.elapsed().as_millis() as u64, Relaxed);
    }

    /// Comes back once nothing has moved for `limit`.
    pub(crate) async fn quiet_for(&self, limit: Duration) {
        loop {
            let last = self.start + Duration::from_millis(self.last_millis.load(Relaxed));
            let due = last + limit;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// Like [`Self::quiet_for`], but a held clock counts as moving.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            self.quiet_for(limit).await;
            if self.holds.load(Relaxed) == 0 {
                return;
            }
            self.touch();
        }
    }

    /// Keeps the connection from counting as idle while someone with a deadline of their own
    /// (a dial, a wait for a response) is at work, so that they get to answer.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.touch();
        self.holds.fetch_add(1, Relaxed);
        Hold(self)
    }
}

/// Ends the hold when dropped.
pub(crate) struct Hold<'a>(&'a IdleClock);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Relaxed);
        self.0.touch();
    }
}

/// A client's stream that keeps its clock.
pub(crate) struct ClockedStream {
    stream: TcpStream,
    clock: Arc<IdleClock>,
}

impl ClockedStream {
    pub(crate) fn new(stream: TcpStream, clock: Arc<IdleClock>) -> Self {
        Self { stream, clock }
    }

    /// The stream alone.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(result, Poll::Ready(Ok(_))) {
            self.clock.touch();
        }
        result
    }
}

impl AsyncRead for ClockedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.note(result)
    }
}

impl AsyncWrite for ClockedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
