//! Where all traffic goes: an origin that costs as little as it can.

use std::net::{Ipv4Addr, SocketAddr};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The addresses it answers at: one alone would run out of ports.
const ADDRESSES: u8 = 16;
/// Bytes in the body of an answer.
pub const BODY: usize = 1024;
/// What a client sends first in a tunnel: one byte comes back.
pub const ECHO: u8 = b'E';
/// What a client sends first in a tunnel: bytes come without end.
pub const STREAM: u8 = b'S';

/// Answers until the runtime ends.
pub async fn start() -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for last in 1..=ADDRESSES {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 2, 0, last), 0)).await;
        let listener = listener.expect("loopback addresses can be bound");
        addresses.push(listener.local_addr().expect("it is bound"));
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(answer(stream))),
                    Err(error) => eprintln!("origin: {error}"),
                }
            }
        });
    }
    addresses
}

/// One connection, until either side ends it.
async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let page = page();
    let mut buffer = vec![0; 4096];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        match buffer[0] {
            ECHO => {
                stream.write_all(&[ECHO]).await?;
                filled = 0;
            }
            STREAM => loop {
                stream.write_all(ZEROS).await?;
            },
            // Nobody sends a second request before the answer to the first.
            _ if buffer[..filled].ends_with(b"\r\n\r\n") => {
                stream.write_all(&page).await?;
                filled = 0;
            }
            _ => {}
        }
    }
}

static ZEROS: &[u8] = &[0; 64 * 1024];

fn page() -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\n\
         Content-Length: {BODY}\r\n\r\n"
    );
    [head.as_bytes(), &[b'x'; BODY]].concat()
}
