//! What a program must be to run in any image: an ELF file (`elf(5)`) for x86-64 that asks for
//! no dynamic loader.

/// The program header that names a loader.
const PT_INTERP: u32 = 3;
/// x86-64, as an ELF file writes it.
const EM_X86_64: u16 = 62;

/// What is wrong with a program, if anything.
pub(crate) fn fault(program: &[u8]) -> Option<&'static str> {
    let is_elf64 = program.starts_with(b"\x7fELF\x02\x01");
    let header = || -> Option<(u16, u64, u16, u16)> {
        let machine = u16::from_le_bytes(at(program, 18)?);
        let offset = u64::from_le_bytes(at(program, 32)?);
        let size = u16::from_le_bytes(at(program, 54)?);
        let count = u16::from_le_bytes(at(program, 56)?);
        Some((machine, offset, size, count))
    };
    let Some((machine, offset, size, count)) = header().filter(|_| is_elf64) else {
        return Some("is no Linux program of 64 bits");
    };
    if machine != EM_X86_64 {
        return Some("is a program for another kind of processor than x86-64");
    }
    let asks_for_loader = (0..u64::from(count)).any(|index| {
        usize::try_from(offset + index * u64::from(size))
            .ok()
            .and_then(|start| at(program, start))
            .is_some_and(|kind| u32::from_le_bytes(kind) == PT_INTERP)
    });
    asks_for_loader.then_some("is not static: an image may lack the libraries that it asks for")
}

fn at<const N: usize>(program: &[u8], start: usize) -> Option<[u8; N]> {
    program.get(start..)?.get(..N)?.try_into().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{EM_X86_64, PT_INTERP, fault};

    /// The head of a program with one program header of this type.
    pub(crate) fn program(machine: u16, kind: u32) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64, 0);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.resize(64 + 56, 0);
        bytes
    }

    #[test]
    fn a_static_program_is_taken_and_every_other_file_is_refused() {
        assert_eq!(fault(&program(EM_X86_64, 1)), None);
        let own = std::fs::read("/proc/self/exe").expect("this program");
        for (bytes, why) in [
            (program(EM_X86_64, PT_INTERP), "is not static"),
            (own, "is not static"),
            (program(183, 1), "another kind of processor"),
            (b"#!/bin/sh".to_vec(), "no Linux program"),
            (b"\x7fELF\x01\x01".to_vec(), "no Linux program"),
            (program(EM_X86_64, 1)[..40].to_vec(), "no Linux program"),
            (Vec::new(), "no Linux program"),
        ] {
            let found = fault(&bytes);
            assert!(found.is_some_and(|f| f.contains(why)), "{why}: {found:?}");
        }
    }
}
