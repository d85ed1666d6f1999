//! Every privilege that some step needs, by path.

use crate::{
    config::{CloudInitDrive, Config},
    provider::{grammar::Nic, survey::Survey},
};

/// Privileges that some step needs. Held on any one of the paths they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) struct Need {
    pub(in crate::provider) paths: Vec<String>,
    /// Each may be a choice, joined by `|`.
    pub(in crate::provider) privileges: Vec<&'static str>,
    pub(in crate::provider) what_for: &'static str,
}

/// Every privilege that some step needs, by path (§3.3; each proven by removing it alone).
pub(in crate::provider) fn needed_privileges(config: &Config, survey: &Survey) -> Vec<Need> {
    let mut needs = Vec::new();
    // A VMID that nothing has inherits what `/vms` passes on; under a pool's rights it has none
    // until it is a member, and then the pool's (§3.4).
    let mut machines = vec![format!("/vms/{}", config.vmid_range.from)];
    machines.extend(config.pool.as_ref().map(|pool| format!("/pool/{pool}")));
    let agent = if survey.version.major >= 9 {
        "VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted"
    } else {
        "VM.Monitor"
    };
    let mut of_machines = vec![
        "VM.Allocate",
        "VM.Audit",
        "VM.PowerMgmt",
        "VM.Config.Options",
        "VM.Config.CPU",
        "VM.Config.Memory",
        "VM.Config.CDROM",
        "VM.Config.Disk",
        agent,
    ];
    if config.bridge.is_some() || config.vlan_tag.is_some() {
        of_machines.push("VM.Config.Network");
    }
    if config.cloud_init_drive == CloudInitDrive::Replace {
        of_machines.push("VM.Config.Cloudinit");
    }
    needs.push(Need {
        paths: machines,
        privileges: of_machines,
        what_for: "to make, run and remove machines",
    });
    for template in &survey.templates {
        let mut paths = vec![format!("/vms/{}", template.vmid)];
        paths.extend(config.pool.as_ref().map(|pool| format!("/pool/{pool}")));
        needs.push(Need {
            paths,
            privileges: vec!["VM.Clone", "VM.Audit"],
            what_for: "to clone the template",
        });
    }
    needs.push(Need {
        paths: vec![format!("/storage/{}", config.storage)],
        privileges: vec!["Datastore.AllocateSpace"],
        what_for: "to clone disks to `storage`",
    });
    needs.push(Need {
        paths: vec![format!("/storage/{}", config.iso_storage)],
        privileges: vec![
            "Datastore.AllocateTemplate",
            "Datastore.Allocate",
            "Datastore.Audit|Datastore.AllocateSpace",
        ],
        what_for: "to upload, attach and delete seeds on `isoStorage`; a role on that path replaces what `/` gives, so it must name all of them",
    });
    for path in bridge_paths(config, survey) {
        needs.push(Need {
            paths: vec![path],
            privileges: vec!["SDN.Use"],
            what_for: "to use the bridge",
        });
    }
    if survey.snapshot.nodes.len() > 1 {
        needs.push(Need {
            paths: vec!["/".to_owned()],
            privileges: vec!["Sys.Audit"],
            what_for: "to see quorum and memory, which a cluster of several nodes needs",
        });
    } else {
        // Asked for to say what is not looked at without it.
        needs.push(Need {
            paths: vec!["/".to_owned()],
            privileges: Vec::new(),
            what_for: "",
        });
    }
    needs
}

/// The ACL paths of the bridges that a clone and its configuration touch. A vnet's zone is not
/// told to a token that may not look at it; those are left to the bridge list.
fn bridge_paths(config: &Config, survey: &Survey) -> Vec<String> {
    let mut paths = Vec::new();
    for nic in nics(config, survey) {
        let Some(bridge) = nic.bridge() else { continue };
        let zone = if is_vnet(survey, bridge) {
            survey.zones.get(bridge).map(String::as_str)
        } else {
            Some("localnetwork")
        };
        let Some(zone) = zone else { continue };
        let path = match nic.tag() {
            Some(tag) => format!("/sdn/zones/{zone}/{bridge}/{tag}"),
            None => format!("/sdn/zones/{zone}/{bridge}"),
        };
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// The network cards of the templates, and what becomes of their first ones.
fn nics(config: &Config, survey: &Survey) -> Vec<Nic> {
    let mut nics = Vec::new();
    for template in &survey.templates {
        let Ok(read) = &template.config else { continue };
        for (key, value) in &read.keys {
            let is_nic = key
                .strip_prefix("net")
                .is_some_and(|n| n.parse::<u8>().is_ok());
            let Some(nic) = is_nic.then(|| Nic::parse(value)).flatten() else {
                continue;
            };
            if key == "net0" {
                nics.push(nic.moved(config.bridge.as_deref(), config.vlan_tag));
            }
            nics.push(nic);
        }
    }
    nics
}

/// Whether a machine is to be on a vnet of SDN.
pub(in crate::provider) fn uses_vnet(config: &Config, survey: &Survey) -> bool {
    let nics = nics(config, survey);
    let mut bridges = nics.iter().filter_map(Nic::bridge);
    bridges.any(|bridge| is_vnet(survey, bridge))
}

fn is_vnet(survey: &Survey, bridge: &str) -> bool {
    let mut all = survey
        .bridges
        .values()
        .filter_map(|shown| shown.as_ref().ok())
        .flatten();
    all.any(|known| known.iface == bridge && known.kind == "vnet")
}
