//! The one table from libvirt's errors to what they mean. Codes are those of `virterror.h`;
//! where one code has several meanings, the text decides.

use super::{
    failure::{Failure, Kind},
    procedure::{Effect, Procedure},
    xdr::{Malformed, Reader},
};
use egress_core::ErrorClass;

/// An error as it stands in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// `virErrorNumber`.
    pub code: i32,
    /// Its text for people.
    pub message: String,
}

impl ServerError {
    /// From the body of an answer whose status is an error. What follows the text is not needed.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let code = reader.i32()?;
        let _domain = reader.i32()?;
        let message = reader.optional()?.unwrap_or_default();
        Ok(Self { code, message })
    }

    /// What it means.
    pub fn kind(&self) -> Kind {
        let says = |text: &str| self.message.contains(text);
        // A full disk shows in many codes and always in these words (strerror of ENOSPC, and
        // qemu-img's).
        if says("No space left on device") {
            return Kind::NoRoom;
        }
        match self.code {
            42 => Kind::NoDomain,
            80 => Kind::NoMetadata,
            28 => Kind::DomainTaken,
            9 if says("already exists with uuid") || says("is already defined with uuid") => {
                Kind::DomainTaken
            }
            9 if says("is already active") || says("already running") => Kind::WrongState,
            86 | 97 => Kind::AgentSilent,
            74 | 55 | 84 if says("agent is not configured") => Kind::NoAgent,
            // A file is there that the pool does not know of.
            55 if says("volume target path") && says("already exists") => Kind::VolumeTaken,
            55 if says("storage pool") => Kind::PoolInactive,
            55 if says("network") && says("is not active") => Kind::NetworkInactive,
            55 => Kind::WrongState,
            49 => Kind::NoPool,
            50 => Kind::NoVolume,
            90 => Kind::VolumeTaken,
            43 => Kind::NoNetwork,
            68 | 87 | 78 => Kind::Busy,
            1 | 9 if says("asynchronous jobs running") || says("is being allocated") => Kind::Busy,
            3 | 67 | 74 | 84 => Kind::Unsupported,
            8 if says("unsupported flags") || says("not supported") || says("not support") => {
                Kind::Unsupported
            }
            8 | 27 | 35 | 92 | 99 => Kind::DescriptionRefused,
            1 if says("qemu") || says("QEMU") || says("process exited") || says("monitor") => {
                Kind::HostFailed
            }
            38 => Kind::HostFailed,
            45 | 79 | 94 => Kind::Unauthenticated,
            29 | 88 => Kind::AccessDenied,
            _ => Kind::Unclassified,
        }
    }

    /// As the failure of a procedure.
    pub fn failure(&self, procedure: Procedure, about: &str) -> Failure {
        let kind = self.kind();
        Failure {
            class: class(kind, procedure.effect()),
            kind,
            code: Some(self.code),
            asked: asked(procedure, about),
            said: one_line(&self.message),
        }
    }
}

/// How a call is named in a failure.
pub fn asked(procedure: Procedure, about: &str) -> String {
    if about.is_empty() {
        procedure.as_str().to_owned()
    } else {
        format!("{} of {about}", procedure.as_str())
    }
}

/// What a caller may do.
pub const fn class(kind: Kind, effect: Effect) -> ErrorClass {
    match kind {
        Kind::NoDomain | Kind::NoMetadata | Kind::NoVolume | Kind::VolumeTaken | Kind::Busy => {
            ErrorClass::Busy
        }
        Kind::DomainTaken | Kind::NoAgent => ErrorClass::NeedsOperator,
        Kind::WrongState
        | Kind::AgentSilent
        | Kind::PoolInactive
        | Kind::NetworkInactive
        | Kind::HostFailed
        | Kind::NotSent => ErrorClass::Transient,
        Kind::NoPool
        | Kind::NoNetwork
        | Kind::Unsupported
        | Kind::DescriptionRefused
        | Kind::CertificateUntrusted
        | Kind::CertificateExpired
        | Kind::CertificateForOthers
        | Kind::CertificateInvalid
        | Kind::HostKeyChanged
        | Kind::HostKeyUnknown
        | Kind::FilesUnusable => ErrorClass::Permanent,
        Kind::NoRoom => ErrorClass::Capacity,
        Kind::Unauthenticated
        | Kind::AccessDenied
        | Kind::CertificateRefused
        | Kind::LoginRefused => ErrorClass::Unauthorized,
        Kind::UnexpectedAnswer => match effect {
            Effect::Reads => ErrorClass::Internal,
            Effect::Changes => ErrorClass::OutcomeUnknown,
        },
        Kind::CutOff | Kind::Unclassified => match effect {
            Effect::Reads => ErrorClass::Transient,
            Effect::Changes => ErrorClass::OutcomeUnknown,
        },
    }
}

/// Without line breaks, and not longer than a person reads: what was tried stands at the
/// beginning, and why it failed at the end.
fn one_line(text: &str) -> String {
    const HEAD: usize = 150;
    const TAIL: usize = 150;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let signs = line.chars().count();
    if signs <= HEAD + TAIL {
        return line;
    }
    let head: String = line.chars().take(HEAD).collect();
    let tail: String = line.chars().skip(signs - TAIL).collect();
    format!("{head} ... {tail}")
}

#[cfg(test)]
mod tests;
