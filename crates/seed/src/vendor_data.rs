//! Our own part of the first boot, as a `#cloud-config-archive` (no MIME, readable as it lies
//! on the disk). It holds scripts alone: a boothook and, where the agent is a package, a
//! script of the final stage. Neither is merged with anything of the user's.

use crate::GuestAgent;
use egress_core::proxy_config::ProxydConfig;

/// Copies from the seed and starts proxyd; run in cloud-init's network stage.
const INSTALL: &str = include_str!("vendor_data/install.sh");
/// Installs the distribution's agent; run in cloud-init's final stage.
const INSTALL_AGENT: &str = include_str!("vendor_data/install-agent.sh");
/// Turns cloud-init off when the first boot has ended.
pub(crate) const FIRST_BOOT_UNIT: &str = include_str!("vendor_data/first-boot.service");
/// The guest agent that proxyd is, too.
pub(crate) const AGENT_UNIT: &str = include_str!("vendor_data/agent.service");
/// Loads the rules; proxyd does not start without.
pub(crate) const POLICY_UNIT: &str = include_str!("vendor_data/policy.service");
/// What proxyd may not reach.
pub(crate) const POLICY: &str = include_str!("vendor_data/policy.nft");
const PROXYD_UNIT: &str = include_str!("vendor_data/proxyd.service");

/// How long proxyd may take to stop beyond its own drain, in seconds.
const STOP_MARGIN_SECONDS: u32 = 20;

/// The file `vendor-data`.
pub(crate) fn render(agent: GuestAgent) -> String {
    let mut text = "#cloud-config-archive\n".to_owned();
    // cloud-init takes the first line of a boothook off; the rest is the program.
    let boothook = format!("#cloud-boothook\n{INSTALL}");
    add_part(
        &mut text,
        "text/cloud-boothook",
        "egress-proxies-install",
        &boothook,
    );
    if agent == GuestAgent::Package {
        add_part(
            &mut text,
            "text/x-shellscript",
            "egress-proxies-agent",
            INSTALL_AGENT,
        );
    }
    text
}

/// proxyd's systemd unit, for this configuration.
pub(crate) fn proxyd_unit(config: &ProxydConfig) -> String {
    let ports = [Some(config.listen), config.management];
    let privileged = ports
        .iter()
        .flatten()
        .any(|at| (1..1024).contains(&at.port()));
    let capabilities = if privileged {
        "CapabilityBoundingSet=CAP_NET_BIND_SERVICE\nAmbientCapabilities=CAP_NET_BIND_SERVICE"
    } else {
        "CapabilityBoundingSet="
    };
    let stop = config
        .limits
        .drain_seconds
        .saturating_add(STOP_MARGIN_SECONDS);
    PROXYD_UNIT
        .replace("@capabilities@", capabilities)
        .replace("@stop-seconds@", &stop.to_string())
}

/// One entry of the archive, its content as a literal block.
fn add_part(text: &mut String, kind: &str, name: &str, content: &str) {
    text.push_str("- type: ");
    text.push_str(kind);
    text.push_str("\n  filename: ");
    text.push_str(name);
    text.push_str("\n  content: |\n");
    for line in content.lines() {
        if !line.is_empty() {
            text.push_str("    ");
            text.push_str(line);
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egress_core::proxy_config::{Auth, Limits};
    use serde_json::Value;

    fn parts(agent: GuestAgent) -> Vec<(String, String)> {
        let read: Vec<Value> = serde_saphyr::from_str(&render(agent)).expect("YAML");
        let text = |part: &Value, key: &str| part[key].as_str().expect("text").to_owned();
        read.iter()
            .map(|part| (text(part, "type"), text(part, "content")))
            .collect()
    }

    #[test]
    fn the_archive_holds_the_scripts_byte_for_byte() {
        let package = parts(GuestAgent::Package);
        assert_eq!(package.len(), 2);
        assert_eq!(package[0].0, "text/cloud-boothook");
        assert_eq!(package[0].1, format!("#cloud-boothook\n{INSTALL}"));
        assert_eq!(package[1].0, "text/x-shellscript");
        assert_eq!(package[1].1, INSTALL_AGENT);
        assert_eq!(parts(GuestAgent::Baked), package[..1]);
        assert_eq!(parts(GuestAgent::Builtin), package[..1]);
    }

    #[test]
    fn cloud_init_does_not_take_the_archive_for_a_mime_message() {
        let text = render(GuestAgent::Package);
        assert!(!text.to_ascii_lowercase().contains("mime-version:"));
        assert!(text.is_ascii() && !text.contains('\t'));
    }

    fn unit(listen: &str, drain_seconds: u32) -> String {
        proxyd_unit(&ProxydConfig {
            key: "px-a".into(),
            attempt: 1,
            listen: listen.parse().expect("address"),
            management: None,
            egress: None,
            clients: Vec::new(),
            auth: Auth::None {},
            limits: Limits {
                drain_seconds,
                ..Limits::default()
            },
        })
    }

    #[test]
    fn the_unit_may_bind_a_low_port_only_where_one_is_asked_for() {
        let low = unit("0.0.0.0:443", 10);
        assert!(low.contains("\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n"));
        let high = unit("0.0.0.0:3128", 10);
        assert!(high.contains("\nCapabilityBoundingSet=\n"));
        assert!(!high.contains("Ambient"));
        assert!(!low.contains('@') || low.contains("@system-service"));
    }

    #[test]
    fn the_unit_lets_proxyd_drain_before_it_is_killed() {
        assert!(unit("0.0.0.0:3128", 600).contains("\nTimeoutStopSec=620\n"));
        assert!(!unit("0.0.0.0:3128", 600).contains("@stop"));
    }
}
