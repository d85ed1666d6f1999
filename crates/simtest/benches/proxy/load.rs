//! The same load for everyone: so many clients that each wait for their answer before they
//! ask again.

use crate::origin::{BODY, ECHO, STREAM};
use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use std::{
    future::Future,
    io::{Error, ErrorKind, Result},
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// A client that waits longer counts as failed.
const HOPELESS: Duration = Duration::from_secs(10);

/// How requests get to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Without a proxy: what generator and origin could do.
    Direct,
    /// By a proxy that listens there.
    Proxy(SocketAddr),
}

/// What one load came to.
#[derive(Debug, Default)]
pub struct Sample {
    /// Requests, tunnels or bytes.
    pub done: f64,
    /// From the first to the last.
    pub seconds: f64,
    /// How long each took, in milliseconds.
    pub times: Vec<f64>,
    /// How many failed, and why the last did.
    pub failures: (u32, Option<Error>),
}

/// One client of a load.
struct Client {
    route: Route,
    target: SocketAddr,
    source: Ipv4Addr,
    until: Instant,
}

impl Client {
    async fn connect(&self) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
        socket.bind((self.source, 0).into())?;
        let stream = match self.route {
            Route::Direct => socket.connect(self.target).await?,
            Route::Proxy(proxy) => socket.connect(proxy).await?,
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A tunnel to the origin.
    async fn tunnel(&self) -> Result<TcpStream> {
        let mut stream = self.connect().await?;
        if self.route == Route::Direct {
            return Ok(stream);
        }
        let target = self.target;
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = [0; 1024];
        let mut filled = 0;
        while !buffer[..filled].ends_with(b"\r\n\r\n") {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        if buffer[..filled].get(9..12) == Some(b"200") {
            Ok(stream)
        } else {
            let answer = String::from_utf8_lossy(&buffer[..filled]).into_owned();
            Err(Error::other(answer))
        }
    }

    /// A tunnel with one byte through it, there and back.
    async fn proven_tunnel(&self) -> Result<TcpStream> {
        let mut stream = self.tunnel().await?;
        stream.write_all(&[ECHO]).await?;
        stream.read_u8().await?;
        Ok(stream)
    }

    /// One request; `None`: the connection is not kept. A kept one that the proxy closed
    /// meanwhile is no failure, only a new connection.
    async fn request(&self, kept: Option<TcpStream>) -> Result<Option<TcpStream>> {
        if let Some(kept) = kept
            && let Ok(kept) = self.request_over(kept).await
        {
            return Ok(kept);
        }
        self.request_over(self.connect().await?).await
    }

    async fn request_over(&self, mut stream: TcpStream) -> Result<Option<TcpStream>> {
        let target = self.target;
        let place = match self.route {
            Route::Direct => String::new(),
            Route::Proxy(_) => format!("http://{target}"),
        };
        let request = format!("GET {place}/ HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = [0; BODY + 2048];
        let mut filled = 0;
        let head = loop {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
            if let Some(at) = buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
        let whole = text.contains(&format!("content-length: {BODY}\r\n"));
        if !whole || text.get(9..12) != Some("200") {
            return Err(Error::other(text));
        }
        let closes = text.starts_with("http/1.0") || text.contains("connection: close");
        while filled < head + BODY {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        Ok((!closes).then_some(stream))
    }
}

/// What the clients do until their time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Plain requests over kept connections, where they are kept.
    Requests,
    /// New tunnels, each with a byte through it and back.
    Connects,
    /// Bytes from the origin, each client through one tunnel.
    Stream,
}

impl Client {
    async fn live(&self, load: Load) -> Sample {
        let mut sample = Sample::default();
        let mut kept = None;
        while Instant::now() < self.until {
            match load {
                Load::Requests => kept = sample.time(self.request(kept)).await.flatten(),
                Load::Connects => drop(sample.time(self.proven_tunnel()).await),
                Load::Stream => {
                    if let Some(tunnel) = sample.time(self.tunnel()).await {
                        sample.done = self.read(tunnel).await as f64;
                    }
                }
            }
        }
        sample
    }

    /// How many bytes came.
    async fn read(&self, mut tunnel: TcpStream) -> usize {
        let mut buffer = vec![0; 256 * 1024];
        let mut bytes = 0;
        if tunnel.write_all(&[STREAM]).await.is_ok() {
            while Instant::now() < self.until
                && let Ok(read @ 1..) = tunnel.read(&mut buffer).await
            {
                bytes += read;
            }
        }
        bytes
    }
}

/// Runs so many clients beside each other for so long.
pub async fn run(
    load: Load,
    route: Route,
    targets: &[SocketAddr],
    clients: u32,
    time: Duration,
) -> Sample {
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for number in 0..clients {
        let client = client(route, targets, number, begun + time);
        running.spawn(async move { client.live(load).await });
    }
    let mut whole = Sample::default();
    for sample in running.join_all().await {
        whole.done += sample.done;
        whole.times.extend(sample.times);
        whole.failures.0 += sample.failures.0;
        whole.failures.1 = sample.failures.1.or(whole.failures.1);
    }
    whole.seconds = begun.elapsed().as_secs_f64();
    whole
}

/// So many tunnels that stay open until they are dropped.
pub async fn quiet_tunnels(route: Route, targets: &[SocketAddr], count: u32) -> Vec<TcpStream> {
    let until = Instant::now();
    let mut open = Vec::new();
    for number in 0..count {
        let tunnel = client(route, targets, number, until).proven_tunnel().await;
        open.push(tunnel.expect("a tunnel"));
    }
    open
}

fn client(route: Route, targets: &[SocketAddr], number: u32, until: Instant) -> Client {
    let last = (number % 16) as u8 + 1;
    Client {
        route,
        target: targets[number as usize % targets.len()],
        source: Ipv4Addr::new(127, 1, 0, last),
        until,
    }
}

impl Sample {
    async fn time<T>(&mut self, step: impl Future<Output = Result<T>>) -> Option<T> {
        let begun = Instant::now();
        let ended = timeout(HOPELESS, step).await;
        match ended.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok(value) => {
                self.done += 1.0;
                self.times.push(begun.elapsed().as_secs_f64() * 1000.0);
                Some(value)
            }
            Err(error) => {
                self.failures.0 += 1;
                self.failures.1 = Some(error);
                // One that is down must not turn the generator into a busy loop.
                tokio::time::sleep(Duration::from_millis(10)).await;
                None
            }
        }
    }
}
