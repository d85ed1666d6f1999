//! What a host may ask, as QEMU's schema for agents writes it.

use serde_json::{Value, json};

/// How a machine goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Powerdown,
    Halt,
    Reboot,
}

/// A command that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Sync(i64),
    SyncDelimited(i64),
    Ping,
    Info,
    NetworkGetInterfaces,
    GetOsinfo,
    GetHostName,
    GetTime,
    Shutdown(Mode),
}

/// The names of all commands, and whether each is answered when all is well.
const COMMANDS: [(&str, bool); 9] = [
    ("guest-get-host-name", true),
    ("guest-get-osinfo", true),
    ("guest-get-time", true),
    ("guest-info", true),
    ("guest-network-get-interfaces", true),
    ("guest-ping", true),
    ("guest-shutdown", false),
    ("guest-sync", true),
    ("guest-sync-delimited", true),
];

/// Why a request is not carried out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("The command {0} has not been found")]
    Unknown(String),
    #[error("JSON parse error, {0}")]
    Malformed(String),
    #[error("JSON parse error, no value")]
    Noise,
    #[error("the request is too long")]
    TooLong,
    #[error("QMP input must be a JSON object")]
    NoObject,
    #[error("QMP input lacks member 'execute'")]
    NoCommand,
    #[error("Parameter '{0}' is missing")]
    Missing(&'static str),
    #[error("Invalid parameter type for '{0}', expected: {1}")]
    Type(&'static str, &'static str),
    #[error("Parameter 'mode' does not accept value '{0}'")]
    Mode(String),
    #[error("Parameter '{0}' is unexpected")]
    Unexpected(String),
    #[error("{0}")]
    Failed(String),
}

impl Refusal {
    /// The class, of which QEMU's protocol has few.
    pub(super) const fn class(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "CommandNotFound",
            _ => "GenericError",
        }
    }
}

/// Reads a request: the id that its answer bears, if it has one, and the command.
pub(super) fn parse(text: &[u8]) -> (Option<Value>, Result<Command, Refusal>) {
    let mut request = match serde_json::from_slice(text) {
        Ok(Value::Object(request)) => request,
        Ok(_) => return (None, Err(Refusal::NoObject)),
        Err(error) => return (None, Err(Refusal::Malformed(error.to_string()))),
    };
    let id = request.remove("id");
    let command = match request.get("execute") {
        None => Err(Refusal::NoCommand),
        Some(Value::String(name)) => command(name, request.get("arguments")),
        Some(_) => Err(Refusal::Type("execute", "string")),
    };
    (id, command)
}

fn command(name: &str, arguments: Option<&Value>) -> Result<Command, Refusal> {
    let takes: &[&str] = match name {
        "guest-sync" | "guest-sync-delimited" => &["id"],
        "guest-shutdown" => &["mode"],
        name if COMMANDS.iter().any(|(known, _)| *known == name) => &[],
        unknown => return Err(Refusal::Unknown(unknown.to_owned())),
    };
    let empty = serde_json::Map::new();
    let arguments = match arguments {
        None => &empty,
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(Refusal::Type("arguments", "object")),
    };
    if let Some(extra) = arguments.keys().find(|key| !takes.contains(&key.as_str())) {
        return Err(Refusal::Unexpected(extra.clone()));
    }
    let id = || match arguments.get("id") {
        None => Err(Refusal::Missing("id")),
        Some(id) => id.as_i64().ok_or(Refusal::Type("id", "integer")),
    };
    Ok(match name {
        "guest-sync" => Command::Sync(id()?),
        "guest-sync-delimited" => Command::SyncDelimited(id()?),
        "guest-ping" => Command::Ping,
        "guest-info" => Command::Info,
        "guest-network-get-interfaces" => Command::NetworkGetInterfaces,
        "guest-get-osinfo" => Command::GetOsinfo,
        "guest-get-host-name" => Command::GetHostName,
        "guest-get-time" => Command::GetTime,
        "guest-shutdown" => Command::Shutdown(mode(arguments.get("mode"))?),
        unknown => return Err(Refusal::Unknown(unknown.to_owned())),
    })
}

fn mode(value: Option<&Value>) -> Result<Mode, Refusal> {
    match value {
        None => Ok(Mode::Powerdown),
        Some(Value::String(mode)) => match mode.as_str() {
            "powerdown" => Ok(Mode::Powerdown),
            "halt" => Ok(Mode::Halt),
            "reboot" => Ok(Mode::Reboot),
            other => Err(Refusal::Mode(other.to_owned())),
        },
        Some(_) => Err(Refusal::Type("mode", "string")),
    }
}

/// The answer to `guest-info`.
pub(super) fn info() -> Value {
    let commands: Vec<Value> = COMMANDS
        .iter()
        .map(
            |(name, answered)| json!({"name": name, "enabled": true, "success-response": answered}),
        )
        .collect();
    json!({"version": env!("CARGO_PKG_VERSION"), "supported_commands": commands})
}
