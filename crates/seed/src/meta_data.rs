//! Who the machine is, to cloud-init: another instance id makes it begin anew.

/// The file `meta-data`. Both values are quoted: a name may look like a number in YAML. The
/// install script looks for the first line, byte for byte.
pub(crate) fn render(name: &str, attempt: u32) -> String {
    format!("instance-id: \"{name}-{attempt}\"\nlocal-hostname: \"{name}\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_is_named_by_machine_and_attempt() {
        assert_eq!(
            render("1e3", 2),
            "instance-id: \"1e3-2\"\nlocal-hostname: \"1e3\"\n"
        );
    }
}
