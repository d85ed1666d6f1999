//! The guest agent: tells a hypervisor this machine's addresses and shuts it down, in the
//! protocol of QEMU's own agent (`qga/qapi-schema.json` of QEMU), over a virtio port.
//!
//! It is a process of its own beside the proxy, and blocks: one host asks one thing at a time.
//! It does what a provider needs and nothing that a host could misuse: no command that reads
//! or writes files or runs programs of the host's choice.

mod command;
mod frame;
mod interfaces;
mod os;

use command::{Command, Mode, Refusal};
use frame::{Frame, Frames};
use serde_json::{Value, json};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, SystemTime},
};

/// Where a hypervisor's channel for the agent shows up in a Linux guest.
pub const PORT: &str = "/dev/virtio-ports/org.qemu.guest_agent.0";

/// A port that is not there yet, or that another agent holds, is looked at again after this.
const BETWEEN_OPENINGS: Duration = Duration::from_secs(1);
/// A port whose host end is closed reads as empty, and nothing tells when it opens.
const BETWEEN_READS: Duration = Duration::from_millis(200);

/// Answers on this port for as long as the process lives. Where the port is missing it waits,
/// and where another agent holds it, it steps aside until that one lets go.
///
/// Returns where the port may not be opened at all. systemd looks up the devices that a unit may
/// use when it starts it: one that began before the driver was there never may, and has to be
/// started anew.
pub fn run(port: &Path) -> io::Error {
    let mut told = None;
    loop {
        match OpenOptions::new().read(true).write(true).open(port) {
            Ok(mut file) => {
                told = None;
                tracing::info!(port = %port.display(), "answering");
                let error = serve(&mut file);
                tracing::warn!(%error, "the port is opened anew");
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return error,
            Err(error) => {
                // Once for each reason: the wait may be a machine's whole life.
                if told != Some(error.kind()) {
                    told = Some(error.kind());
                    tracing::info!(port = %port.display(), %error, "waiting for the port");
                }
            }
        }
        thread::sleep(BETWEEN_OPENINGS);
    }
}

/// Answers until the port breaks, and says how it did.
fn serve(port: &mut File) -> io::Error {
    let mut frames = Frames::default();
    let mut bytes = [0; 4096];
    loop {
        match port.read(&mut bytes) {
            Ok(0) => {
                // What a host began to say before it went away is nothing to the next one.
                frames = Frames::default();
                thread::sleep(BETWEEN_READS);
            }
            Ok(count) => {
                for frame in frames.take(&bytes[..count]) {
                    if let Some(reply) = reply(&frame)
                        && let Err(error) = port.write_all(&reply)
                    {
                        return error;
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error,
        }
    }
}

/// What the host reads; nothing where a machine that goes down owes no answer.
fn reply(frame: &Frame) -> Option<Vec<u8>> {
    let (id, outcome) = match frame {
        Frame::Request(text) => command::parse(text),
        Frame::TooLong => (None, Err(Refusal::TooLong)),
        Frame::Noise => (None, Err(Refusal::Noise)),
    };
    let mut delimited = false;
    let outcome = outcome.and_then(|command| {
        delimited = matches!(command, Command::SyncDelimited(_));
        execute(command)
    });
    let mut answer = match outcome {
        Ok(None) => return None,
        Ok(Some(value)) => json!({"return": value}),
        Err(refusal) => json!({"error": {"class": refusal.class(), "desc": refusal.to_string()}}),
    };
    if let Some(id) = id {
        answer["id"] = id;
    }
    let mut bytes = Vec::new();
    if delimited {
        bytes.push(frame::DELIMITER);
    }
    bytes.extend(answer.to_string().into_bytes());
    bytes.push(b'\n');
    Some(bytes)
}

/// Carries a command out; `None` where it is answered by silence.
fn execute(command: Command) -> Result<Option<Value>, Refusal> {
    let failed = |error: io::Error| Refusal::Failed(error.to_string());
    Ok(Some(match command {
        Command::Sync(id) | Command::SyncDelimited(id) => json!(id),
        Command::Ping => json!({}),
        Command::Info => command::info(),
        Command::NetworkGetInterfaces => json!(interfaces::observe().map_err(failed)?),
        Command::GetOsinfo => os::info(Path::new("/")),
        Command::GetHostName => json!({"host-name": os::host_name()}),
        Command::GetTime => {
            let since = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            json!(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
        }
        Command::Shutdown(mode) => {
            shut_down(mode).map_err(failed)?;
            return Ok(None);
        }
    }))
}

/// Begins to shut the machine down, by whatever it has for that.
fn shut_down(mode: Mode) -> io::Result<()> {
    let (verb, flag) = match mode {
        Mode::Powerdown => ("poweroff", "-P"),
        Mode::Halt => ("halt", "-H"),
        Mode::Reboot => ("reboot", "-r"),
    };
    tracing::info!(verb, "the hypervisor asked for it");
    // Not `shutdown` first: in a machine without D-Bus systemd's needs what is not there.
    let ways: [(&str, &[&str]); 2] = [
        ("systemctl", &["--no-block", verb]),
        ("shutdown", &[flag, "now"]),
    ];
    let mut last = io::Error::other("nothing here can shut the machine down");
    for (program, arguments) in ways {
        let ended = std::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        match ended {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => last = io::Error::other(format!("{program} ended with {status}")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
