//! One connection to libvirt: calls by serial number, answers in any order, signs of life.

use super::{
    errors::{ServerError, asked, class},
    failure::{Failure, Kind},
    frame::{
        Frame, Header, KEEPALIVE, MessageType, PING, PONG, REMOTE, STREAM_CHUNK, Status, Unreadable,
    },
    procedure::{Effect, Procedure},
    transport::Bytes,
    xdr::{Malformed, Reader, Writer},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncWriteExt, ReadHalf, WriteHalf},
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, timeout_at},
};

/// After so long without a word from the server it is asked for a sign of life.
const QUIET: Duration = Duration::from_secs(5);
/// After so many questions without any word the connection is given up.
const UNANSWERED: u32 = 3;
/// A call has one answer, and a stream its end: more is no answer of libvirt.
const ANSWERS: usize = 4;
/// How long a sign of life may take to be written.
const SIGN_TIME: Duration = Duration::from_secs(5);

type Half = WriteHalf<Box<dyn Bytes>>;

/// Who waits for what; `Err` once the connection has ended, with the reason.
type Waiting = Result<HashMap<u32, mpsc::Sender<Frame>>, String>;

#[derive(Clone)]
struct Shared {
    waiting: Arc<Mutex<Waiting>>,
    writer: Arc<tokio::sync::Mutex<Half>>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Nothing is written or awaited any more.
    fn end(&self, why: String) {
        let mut waiting = self.waiting();
        if waiting.is_ok() {
            *waiting = Err(why);
        }
    }
}

/// An open connection. It ends when the last copy is dropped.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    shared: Shared,
    serial: AtomicU32,
    reader: AbortHandle,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Until when a call may be written, and until when its answer is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// After this moment nothing is written.
    pub write: Instant,
    /// After this moment nothing is awaited.
    pub answer: Instant,
}

impl Deadlines {
    /// Both within so much time from now.
    pub fn within(time: Duration) -> Self {
        let end = Instant::now() + time;
        Self {
            write: end,
            answer: end,
        }
    }
}

impl Connection {
    /// Over a stream of bytes. Nothing is sent yet.
    pub fn over(stream: Box<dyn Bytes>) -> Self {
        let (read, write) = tokio::io::split(stream);
        let shared = Shared {
            waiting: Arc::new(Mutex::new(Ok(HashMap::new()))),
            writer: Arc::new(tokio::sync::Mutex::new(write)),
        };
        let reader = tokio::spawn(listen(read, shared.clone())).abort_handle();
        Self(Arc::new(Inner {
            shared,
            serial: AtomicU32::new(0),
            reader,
        }))
    }

    /// Whether it can still be used, as far as is known.
    pub fn is_open(&self) -> bool {
        self.0.shared.waiting().is_ok()
    }

    /// Calls a procedure and reads its answer. `about` names what it is about, for people.
    pub async fn call<T>(
        &self,
        procedure: Procedure,
        about: &str,
        arguments: Writer,
        deadlines: Deadlines,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, Failure> {
        let (_serial, mut answers) = self.send(procedure, about, arguments, deadlines).await?;
        let body = self
            .answer(procedure, about, &mut answers, deadlines.answer)
            .await?;
        let mut reader = Reader::new(&body);
        let value = read(&mut reader).map_err(|bad| unexpected(procedure, about, &bad))?;
        // Newer servers may tell more than this client knows of.
        Ok(value)
    }

    /// Calls a procedure that takes a stream, and streams these bytes to it.
    pub async fn call_with_stream(
        &self,
        procedure: Procedure,
        about: &str,
        arguments: Writer,
        bytes: &[u8],
        deadlines: Deadlines,
    ) -> Result<(), Failure> {
        let (serial, mut answers) = self.send(procedure, about, arguments, deadlines).await?;
        self.answer(procedure, about, &mut answers, deadlines.answer)
            .await?;
        let header = Header {
            program: REMOTE,
            procedure: procedure.number(),
            kind: MessageType::Stream,
            serial,
            status: Status::Continue,
        };
        for chunk in bytes.chunks(STREAM_CHUNK) {
            // The server says that it takes no more: its answer says why.
            if !answers.is_empty() {
                break;
            }
            let body = chunk.to_vec();
            let part = Frame { header, body };
            self.write(&part, deadlines.answer)
                .await
                .map_err(|_| cut_off(procedure, about, "while its bytes were sent"))?;
        }
        if answers.is_empty() {
            let end = Frame {
                header: Header {
                    status: Status::Ok,
                    ..header
                },
                body: Vec::new(),
            };
            self.write(&end, deadlines.answer)
                .await
                .map_err(|_| cut_off(procedure, about, "before the end of its bytes"))?;
        }
        self.answer(procedure, about, &mut answers, deadlines.answer)
            .await
            .map(drop)
    }

    /// Calls a procedure that gives a stream, and reads it to its end: no more than `most` bytes,
    /// in few messages.
    pub async fn call_for_stream(
        &self,
        procedure: Procedure,
        about: &str,
        arguments: Writer,
        most: usize,
        deadlines: Deadlines,
    ) -> Result<Vec<u8>, Failure> {
        let (serial, mut answers) = self.send(procedure, about, arguments, deadlines).await?;
        let mut bytes = Vec::new();
        let (mut answered, mut ended) = (false, false);
        // The first bytes may overtake the answer.
        while !(answered && ended) {
            let part = self
                .part(procedure, about, &mut answers, deadlines.answer)
                .await?;
            match part.header.kind {
                MessageType::Reply => answered = true,
                // An empty one is the end of what there is to read.
                _ if part.body.is_empty() => ended = true,
                _ if bytes.len() + part.body.len() > most => {
                    let what = "a stream longer than was asked for";
                    return Err(unexpected(procedure, about, &Malformed { what }));
                }
                _ => bytes.extend(part.body),
            }
        }
        let end = Frame {
            header: Header {
                program: REMOTE,
                procedure: procedure.number(),
                kind: MessageType::Stream,
                serial,
                status: Status::Ok,
            },
            body: Vec::new(),
        };
        self.write(&end, deadlines.answer)
            .await
            .map_err(|_| cut_off(procedure, about, "at the end of its bytes"))?;
        // It may tell the end again before it hears ours.
        loop {
            let part = self
                .part(procedure, about, &mut answers, deadlines.answer)
                .await?;
            if part.header.status == Status::Ok {
                return Ok(bytes);
            }
        }
    }

    async fn send(
        &self,
        procedure: Procedure,
        about: &str,
        arguments: Writer,
        deadlines: Deadlines,
    ) -> Result<(u32, mpsc::Receiver<Frame>), Failure> {
        let serial = self
            .0
            .serial
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        let (sender, answers) = mpsc::channel(ANSWERS);
        match self.0.shared.waiting().as_mut() {
            Ok(waiting) => {
                waiting.retain(|_, sender| !sender.is_closed());
                waiting.insert(serial, sender);
            }
            Err(why) => return Err(Failure::not_sent(asked(procedure, about), why.clone())),
        }
        let frame = Frame {
            header: Header {
                program: REMOTE,
                procedure: procedure.number(),
                kind: MessageType::Call,
                serial,
                status: Status::Ok,
            },
            body: arguments.into_bytes(),
        };
        self.write(&frame, deadlines.write)
            .await
            .map_err(|said| Failure::not_sent(asked(procedure, about), said))?;
        Ok((serial, answers))
    }

    /// Writes a whole message or ends the connection: a part of one has no effect.
    async fn write(&self, frame: &Frame, until: Instant) -> Result<(), String> {
        self.0.shared.write(frame, until).await
    }

    async fn answer(
        &self,
        procedure: Procedure,
        about: &str,
        answers: &mut mpsc::Receiver<Frame>,
        until: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let frame = self.part(procedure, about, answers, until).await?;
        if frame.header.status == Status::Ok {
            return Ok(frame.body);
        }
        let what = "a stream that nobody asked for";
        Err(unexpected(procedure, about, &Malformed { what }))
    }

    /// The next message for a call, unless it is an error.
    async fn part(
        &self,
        procedure: Procedure,
        about: &str,
        answers: &mut mpsc::Receiver<Frame>,
        until: Instant,
    ) -> Result<Frame, Failure> {
        let frame = match timeout_at(until, answers.recv()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                let why = self.0.shared.waiting().as_ref().err().cloned();
                return Err(cut_off(procedure, about, why.as_deref().unwrap_or("")));
            }
            Err(_) => return Err(cut_off(procedure, about, "no answer in time")),
        };
        if frame.header.status != Status::Error {
            return Ok(frame);
        }
        Err(match ServerError::decode(&frame.body) {
            Ok(error) => error.failure(procedure, about),
            Err(bad) => unexpected(procedure, about, &bad),
        })
    }
}

impl Shared {
    async fn write(&self, frame: &Frame, until: Instant) -> Result<(), String> {
        let Ok(mut writer) = timeout_at(until, self.writer.lock()).await else {
            return Err("its time was over before it could be written".to_owned());
        };
        self.write_to(&mut writer, frame, until).await
    }

    /// Whether it was written. Where somebody writes, that is sign of life enough: the server
    /// counts any message.
    async fn write_if_idle(&self, frame: &Frame) -> Result<bool, String> {
        let Ok(mut writer) = self.writer.try_lock() else {
            return Ok(false);
        };
        let until = Instant::now() + SIGN_TIME;
        self.write_to(&mut writer, frame, until)
            .await
            .map(|()| true)
    }

    async fn write_to(
        &self,
        writer: &mut Half,
        frame: &Frame,
        until: Instant,
    ) -> Result<(), String> {
        let Some(bytes) = frame.encode() else {
            return Err("the message is longer than libvirt takes".to_owned());
        };
        if Instant::now() >= until {
            return Err("its time was over before it could be written".to_owned());
        }
        // Dropped in the middle, the rest must never follow: the guard sees to that.
        let guard = EndsUnlessWhole(Some(self));
        let written = timeout_at(until, async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        });
        match written.await {
            Ok(Ok(())) => {
                guard.whole();
                Ok(())
            }
            Ok(Err(error)) => Err(format!("the connection broke: {error}")),
            Err(_) => Err("the connection takes no more bytes".to_owned()),
        }
    }
}

struct EndsUnlessWhole<'a>(Option<&'a Shared>);

impl EndsUnlessWhole<'_> {
    fn whole(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsUnlessWhole<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.end("a message could not be written whole".to_owned());
        }
    }
}

/// Reads until the connection ends.
async fn listen(mut from: ReadHalf<Box<dyn Bytes>>, shared: Shared) {
    let mut unanswered = 0;
    let why = loop {
        // `read` is not begun anew after a time-out: half a message would be lost.
        let mut reading = std::pin::pin!(Frame::read(&mut from));
        let frame = loop {
            match tokio::time::timeout(QUIET, &mut reading).await {
                Ok(read) => break read,
                Err(_) if unanswered >= UNANSWERED => {
                    let why = "the server gives no sign of life".to_owned();
                    break Err(Unreadable::Broken(std::io::Error::other(why)));
                }
                Err(_) => match shared.write_if_idle(&sign_of_life(PING)).await {
                    Ok(true) => unanswered += 1,
                    // Somebody writes, and has a deadline of its own.
                    Ok(false) => {}
                    Err(why) => break Err(Unreadable::Broken(std::io::Error::other(why))),
                },
            }
        };
        unanswered = 0;
        let frame = match frame {
            Ok(frame) => frame,
            Err(Unreadable::Broken(error)) => break format!("the connection ended: {error}"),
            Err(Unreadable::Malformed(what)) => break format!("no message of libvirt: {what}"),
        };
        let header = frame.header;
        if header.program == KEEPALIVE {
            if header.procedure == PING
                && let Err(why) = shared.write_if_idle(&sign_of_life(PONG)).await
            {
                break why;
            }
            continue;
        }
        match header.kind {
            MessageType::Reply | MessageType::Stream if header.program == REMOTE => {
                let mut waiting = shared.waiting();
                let Ok(waiting) = waiting.as_mut() else {
                    return;
                };
                if let Some(sender) = waiting.get(&header.serial)
                    && sender.try_send(frame).is_err()
                {
                    // Nobody waits any more.
                    waiting.remove(&header.serial);
                }
            }
            // Events that nobody subscribed to, and programs that nobody called.
            _ => {}
        }
    };
    shared.end(why);
}

const fn sign_of_life(procedure: u32) -> Frame {
    Frame {
        header: Header {
            program: KEEPALIVE,
            procedure,
            kind: MessageType::Event,
            serial: 0,
            status: Status::Ok,
        },
        body: Vec::new(),
    }
}

fn cut_off(procedure: Procedure, about: &str, how: &str) -> Failure {
    Failure {
        class: class(Kind::CutOff, procedure.effect()),
        kind: Kind::CutOff,
        code: None,
        asked: asked(procedure, about),
        said: match procedure.effect() {
            Effect::Reads => format!("no answer: {how}"),
            Effect::Changes => format!("sent, and no answer came: {how}"),
        },
    }
}

fn unexpected(procedure: Procedure, about: &str, bad: &Malformed) -> Failure {
    Failure {
        class: class(Kind::UnexpectedAnswer, procedure.effect()),
        kind: Kind::UnexpectedAnswer,
        code: None,
        asked: asked(procedure, about),
        said: bad.to_string(),
    }
}

#[cfg(test)]
mod tests;
