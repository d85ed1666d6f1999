//! Bytes both ways between two streams, with one idle clock for both.
//!
//! A quiet tunnel holds no buffer: bytes are read into a buffer of the worker thread and
//! written at once; only what the other side does not take yet is kept, and nothing more is
//! read from that side meanwhile.

use hyper::body::{Buf, Bytes};
use prometheus_client::metrics::counter::Counter;
use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Duration, Instant, sleep},
};

/// The most that is moved by one read, in bytes.
const CHUNK: usize = 64 * 1024;

thread_local! {
    static CHUNK_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK].into_boxed_slice());
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    /// Both sides said they were done.
    Finished,
    /// No byte in either direction for the idle time.
    Idle,
    /// A side broke off.
    Broken,
}

/// One direction of a tunnel.
struct Direction<'a> {
    /// Read, but not written yet.
    kept: Bytes,
    stage: Stage,
    counter: &'a Counter,
}

#[derive(PartialEq, Eq)]
enum Stage {
    Copying,
    /// The source ended; its end is to be passed on.
    Ending,
    Ended,
}

impl Direction<'_> {
    /// Moves what can be moved; ready when the source's end has been passed on. `moved` is
    /// set when a byte was read or written.
    fn poll_copy<A, B>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut A,
        sink: &mut B,
        moved: &mut bool,
    ) -> Poll<io::Result<()>>
    where
        A: AsyncRead + Unpin,
        B: AsyncWrite + Unpin,
    {
        loop {
            while !self.kept.is_empty() {
                let written = ready!(Pin::new(&mut *sink).poll_write(cx, &self.kept))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.kept.advance(written);
                self.counter.inc_by(written as u64);
                *moved = true;
            }
            match self.stage {
                Stage::Copying => {
                    if ready!(self.poll_chunk(cx, source, sink, moved))? == 0 {
                        self.stage = Stage::Ending;
                        *moved = true;
                    }
                }
                Stage::Ending => {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx))?;
                    self.stage = Stage::Ended;
                }
                Stage::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads one chunk and writes as much of it as the sink takes; the number of bytes read.
    fn poll_chunk<A, B>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut A,
        sink: &mut B,
        moved: &mut bool,
    ) -> Poll<io::Result<usize>>
    where
        A: AsyncRead + Unpin,
        B: AsyncWrite + Unpin,
    {
        CHUNK_BUFFER.with_borrow_mut(|buffer| {
            let mut chunk = ReadBuf::new(buffer);
            ready!(Pin::new(source).poll_read(cx, &mut chunk))?;
            let read = chunk.filled();
            if read.is_empty() {
                return Poll::Ready(Ok(0));
            }
            *moved = true;
            let written = match Pin::new(sink).poll_write(cx, read) {
                Poll::Ready(result) => result?,
                Poll::Pending => 0,
            };
            self.counter.inc_by(written as u64);
            self.kept = Bytes::copy_from_slice(&read[written..]);
            Poll::Ready(Ok(read.len()))
        })
    }
}

/// Copies both ways until both sides have ended, one breaks off, or neither moves a byte for
/// `idle`. `early` is what the client sent before the tunnel stood. An end of one side is
/// passed on to the other, whose own bytes go on.
pub(crate) async fn copy_both_ways<A, B>(
    client: &mut A,
    early: Bytes,
    target: &mut B,
    idle: Duration,
    counters: [&Counter; 2],
) -> TunnelEnd
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let [sent, received] = counters;
    let mut up = Direction {
        kept: early,
        stage: Stage::Copying,
        counter: sent,
    };
    let mut down = Direction {
        kept: Bytes::new(),
        stage: Stage::Copying,
        counter: received,
    };
    let mut last = Instant::now();
    let mut timer = pin!(sleep(idle));

    poll_fn(|cx| {
        let mut moved = false;
        let up_end = up.poll_copy(cx, client, target, &mut moved);
        let down_end = down.poll_copy(cx, target, client, &mut moved);
        match (up_end, down_end) {
            (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => {
                return Poll::Ready(TunnelEnd::Broken);
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(TunnelEnd::Finished),
            _ => {}
        }
        if moved {
            last = Instant::now();
        }
        // The timer is moved only when it fires: once an idle time, not once a chunk.
        while timer.as_mut().poll(cx).is_ready() {
            let due = last + idle;
            if due <= Instant::now() {
                return Poll::Ready(TunnelEnd::Idle);
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;
