//! What machines take for the internet: a folder of Debian's packages, and a page.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
};

/// What the page says.
pub const PAGE: &str = "outside\n";

/// Serves the files of a folder, and the page at `/`, for as long as the process lives.
pub fn serve(address: IpAddr, folder: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).expect("a port");
    let bound = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let folder = folder.clone();
            // Whoever hangs up early has had enough.
            thread::spawn(move || drop(answer(stream, &folder)));
        }
    });
    bound
}

fn answer(mut stream: TcpStream, folder: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(first) = lines.next().transpose()? {
        while lines
            .next()
            .transpose()?
            .is_some_and(|line| !line.is_empty())
        {}
        let path = first.split(' ').nth(1).unwrap_or("/");
        let name = path.rsplit('/').next().unwrap_or_default();
        // apt writes it so; a colon is written the same way in the files' names.
        let name = name.replace("%2b", "+").replace("%253a", "%3a");
        let found = if path == "/" {
            Ok(PAGE.as_bytes().to_vec())
        } else {
            fs::read(folder.join(name))
        };
        let (status, body) = match found {
            Ok(body) => ("200 OK", body),
            Err(_) => ("404 Not Found", Vec::new()),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )?;
        stream.write_all(&body)?;
    }
    Ok(())
}
