//! The configuration file.

use crate::failure::Failure;
use egress_api::{
    v1alpha1::{ProviderAbilities, Proxy},
    yaml,
};
use egress_core::{
    Identity, Installation, ProviderName,
    document::{Reading, read_document},
    finding::Finding,
};
use egress_kvm2::Kvm2;
use egress_local::Local;
use egress_provider::Provider;
use egress_proxmox::{Payload, Proxmox};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The installation of a configuration that names none.
const DEFAULT_INSTALLATION: &str = "standalone";

/// The whole file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// The name of this deployment. Two deployments that share a host need different ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installation: Option<Installation>,
    /// The providers, each with a name that manifests use.
    pub providers: Vec<ProviderBlock>,
    /// The directory with the manifests; relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifests: Option<PathBuf>,
    /// The state directory; relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<PathBuf>,
    /// The admin page.
    pub admin: AdminBlock,
}

/// One named provider.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderBlock {
    /// The name that manifests use.
    pub name: ProviderName,
    /// A provider that runs each proxy as a process of this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<egress_local::Config>,
    /// A provider that makes each proxy a virtual machine of Proxmox VE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxmox: Option<egress_proxmox::Config>,
    /// A provider that makes each proxy a domain of libvirt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm2: Option<egress_kvm2::Config>,
}

impl ProviderBlock {
    /// The kinds that it says it is.
    fn kinds(&self) -> Vec<&'static str> {
        let said = [
            ("local", self.local.is_some()),
            ("proxmox", self.proxmox.is_some()),
            ("kvm2", self.kvm2.is_some()),
        ];
        let said = said.into_iter().filter(|(_, said)| *said);
        said.map(|(kind, _)| kind).collect()
    }
}

/// The admin page.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdminBlock {
    /// Where it listens: a loopback address; port 0 takes a free one.
    pub listen: SocketAddr,
}

impl Default for AdminBlock {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }
}

/// Whom the admin page may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This host alone: the page takes orders.
    Host,
    /// The network too: the page only shows, and a cluster asks it from elsewhere.
    Network,
}

/// A configuration with faults.
#[derive(Debug)]
pub struct Faulty {
    /// What is wrong with it.
    pub failure: Failure,
    /// What could be read all the same: only to look for more faults.
    pub partly: Option<Box<Config>>,
}

impl Config {
    /// Reads the file; everything that is wrong with it at once.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        Self::of(path, std::fs::read_to_string(path)).map_err(|faulty| faulty.failure)
    }

    /// The configuration that was read from this file.
    pub fn of(path: &Path, text: io::Result<String>) -> Result<Self, Faulty> {
        Self::reaching(path, text, Reach::Host)
    }

    /// The configuration that was read from this file, of a program whose page reaches so far.
    pub fn reaching(path: &Path, text: io::Result<String>, reach: Reach) -> Result<Self, Faulty> {
        let name = path.display().to_string();
        let text = text.map_err(|e| Faulty {
            failure: Failure::refused(format!(
                "--config: {name}: cannot be read ({e}): name a readable file"
            )),
            partly: None,
        })?;
        let mut reading = Self::reading(&text, reach);
        let base = path.parent().unwrap_or(Path::new("."));
        if let Some(config) = &mut reading.value {
            let mut files: Vec<&mut PathBuf> = Vec::new();
            for block in &mut config.providers {
                if let Some(proxmox) = &mut block.proxmox {
                    files.extend([&mut proxmox.ca_file, &mut proxmox.token_file]);
                }
                if let Some(kvm2) = &mut block.kvm2 {
                    let certificates = [&mut kvm2.ca_file, &mut kvm2.cert_file, &mut kvm2.key_file];
                    files.extend(certificates.into_iter().flatten());
                }
            }
            let dirs = [&mut config.manifests, &mut config.state_dir];
            for path in dirs.into_iter().flatten().chain(files) {
                *path = base.join(&*path);
            }
        }
        let partly = reading.value.clone().map(Box::new);
        reading.into_result().map_err(|findings| Faulty {
            failure: Failure::faults(&name, &findings),
            partly,
        })
    }

    /// Reads a text.
    pub fn read(text: &str) -> Result<Self, Vec<Finding>> {
        Self::reading(text, Reach::Host).into_result()
    }

    fn reading(text: &str, reach: Reach) -> Reading<Self> {
        let fault = |finding| Reading {
            value: None,
            findings: vec![finding],
        };
        let mut documents = yaml::read_all(text);
        if documents.len() > 1 {
            return fault(Finding::new(
                "",
                format!("{} documents", documents.len()),
                "a configuration is one document",
                "remove the lines with ---",
            ));
        }
        let value = match documents.pop().map(|document| document.content) {
            Some(Ok(value)) => value,
            Some(Err(finding)) => return fault(finding),
            None => serde_json::json!({}),
        };
        read_document::<Self>(value).checked(|config| config.validate(reach))
    }

    fn validate(&self, reach: Reach) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.providers.is_empty() {
            findings.push(Finding::new(
                "providers",
                "",
                "no provider is configured",
                "add one, as in: providers: [{name: here, local: {}}]",
            ));
        }
        let mut names = BTreeSet::new();
        for (index, block) in self.providers.iter().enumerate() {
            let path = format!("providers[{index}]");
            if !names.insert(&block.name) {
                findings.push(Finding::new(
                    format!("{path}.name"),
                    &block.name,
                    "the name is used twice",
                    "give each provider a name of its own",
                ));
            }
            if let Some(local) = &block.local {
                findings.extend(local.validate(&format!("{path}.local")));
            }
            if let Some(proxmox) = &block.proxmox {
                findings.extend(proxmox.validate(&format!("{path}.proxmox")));
            }
            if let Some(kvm2) = &block.kvm2 {
                findings.extend(kvm2.validate(&format!("{path}.kvm2")));
            }
            match block.kinds().as_slice() {
                [] => findings.push(Finding::new(
                    path,
                    "",
                    "says no kind of provider",
                    "add `local: {}`, or a block `proxmox` or `kvm2`",
                )),
                [_] => {}
                several => findings.push(Finding::new(
                    path,
                    several.join(", "),
                    "says several kinds of provider",
                    "write one block for each, with a name of its own",
                )),
            }
        }
        if reach == Reach::Host && !self.admin.listen.ip().is_loopback() {
            findings.push(Finding::new(
                "admin.listen",
                self.admin.listen,
                "is not a loopback address",
                "use 127.0.0.1 or [::1]; put a proxy with authentication in front to reach it from elsewhere",
            ));
        }
        findings
    }

    /// The deployment's name.
    pub fn installation(&self) -> Installation {
        self.installation.clone().unwrap_or_else(|| {
            DEFAULT_INSTALLATION
                .parse()
                .expect("a name written in this file is legal")
        })
    }

    /// Makes the providers.
    pub fn providers(
        &self,
        identity: &Identity,
        state_dir: &Path,
        payload: &PayloadArguments,
    ) -> Vec<Arc<dyn Provider>> {
        let payload = payload.find();
        let provider = |block: &ProviderBlock| -> Option<Arc<dyn Provider>> {
            if let Some(config) = block.local.clone() {
                return Some(Arc::new(Local::new(
                    block.name.clone(),
                    identity.clone(),
                    config,
                    state_dir.to_owned(),
                    egress_local::OWN_PROGRAM.into(),
                )));
            }
            if let Some(config) = block.kvm2.clone() {
                return Some(Arc::new(Kvm2::new(
                    block.name.clone(),
                    identity.clone(),
                    config,
                    payload.clone(),
                )));
            }
            let config = block.proxmox.clone()?;
            Some(Arc::new(Proxmox::new(
                block.name.clone(),
                identity.clone(),
                config,
                Payload::new(payload.clone()),
            )))
        };
        self.providers.iter().filter_map(provider).collect()
    }

    /// The providers on Proxmox VE, to look at and not to make machines with.
    pub fn proxmox(&self, identity: &Identity) -> Vec<(ProviderName, Proxmox)> {
        let provider = |block: &ProviderBlock| {
            let (name, config) = (block.name.clone(), block.proxmox.clone()?);
            let proxmox = Proxmox::new(name.clone(), identity.clone(), config, Payload::default());
            Some((name, proxmox))
        };
        self.providers.iter().filter_map(provider).collect()
    }

    /// The providers on libvirt, to look at and not to make machines with.
    pub fn kvm2(&self, identity: &Identity) -> Vec<(ProviderName, Kvm2)> {
        let provider = |block: &ProviderBlock| {
            let (name, config) = (block.name.clone(), block.kvm2.clone()?);
            let kvm2 = Kvm2::new(name.clone(), identity.clone(), config, None);
            Some((name, kvm2))
        };
        self.providers.iter().filter_map(provider).collect()
    }

    /// The block of the provider of this name.
    pub fn block(&self, name: &str) -> Option<&ProviderBlock> {
        self.providers.iter().find(|b| b.name.as_str() == name)
    }

    /// What stands against a Proxy's place at its provider, beside what is wrong with it
    /// anywhere.
    pub fn refuses(&self, proxy: &Proxy) -> Vec<Finding> {
        let provider = &proxy.spec.provider;
        if let Some(abilities) = self.abilities(provider) {
            return proxy.spec.refused_by(&abilities);
        }
        let known: Vec<&str> = self.providers.iter().map(|p| p.name.as_str()).collect();
        vec![Finding::new(
            "spec.provider",
            provider,
            "no provider of this name is configured",
            format!("use one of {}, or configure it", known.join(", ")),
        )]
    }

    /// What the provider of this name can do, if it is configured.
    pub fn abilities(&self, name: &str) -> Option<ProviderAbilities> {
        let block = self.block(name)?;
        let (kind, user_data) = if block.local.is_some() {
            ("local", false)
        } else if block.proxmox.is_some() {
            ("proxmox", true)
        } else {
            block.kvm2.as_ref()?;
            ("kvm2", true)
        };
        Some(ProviderAbilities { kind, user_data })
    }
}

/// Where the proxy's program for virtual machines is.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PayloadArguments {
    /// The directory with the static proxyd that `cargo xtask payload` builds, for machines
    /// that get it with their seed. Default: the directory of this program.
    #[arg(long, value_name = "DIR")]
    payload_dir: Option<PathBuf>,
}

impl PayloadArguments {
    /// Where it is: in the directory given, else beside this program if it lies there.
    pub fn find(&self) -> Option<PathBuf> {
        let beside = || Some(std::env::current_exe().ok()?.parent()?.to_owned());
        let dir = self.payload_dir.clone().or_else(beside)?;
        let path = dir.join("proxyd");
        (self.payload_dir.is_some() || path.is_file()).then_some(path)
    }
}
