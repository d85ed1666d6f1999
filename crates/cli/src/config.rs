//! The configuration file.

use crate::failure::Failure;
use egress_api::{v1alpha1::ProviderAbilities, yaml};
use egress_core::{
    Identity, Installation, ProviderName,
    document::{Reading, read_document},
    finding::Finding,
};
use egress_local::Local;
use egress_provider::Provider;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
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

/// Kinds of provider that are known by name and come later.
const LATER: [&str; 2] = ["proxmox", "kvm2"];

/// Says of a kind that comes later that it does, in place of "unknown" and of "no kind".
fn named_kinds(mut findings: Vec<Finding>) -> Vec<Finding> {
    let mut later = BTreeSet::new();
    for finding in &mut findings {
        if let Some((block, kind)) = finding.path.rsplit_once('.')
            && LATER.contains(&kind)
            && block.starts_with("providers[")
            && block.ends_with(']')
        {
            later.insert(block.to_owned());
            "is not in this version".clone_into(&mut finding.problem);
            "use `local`, the only kind so far".clone_into(&mut finding.remedy);
        }
    }
    findings.retain(|finding| !later.contains(&finding.path));
    findings
}

impl Config {
    /// Reads the file; everything that is wrong with it at once.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Failure::refused(format!(
                "--config: {name}: cannot be read ({e}): name a readable file"
            ))
        })?;
        let mut config = Self::read(&text).map_err(|findings| Failure::faults(&name, &findings))?;
        let base = path.parent().unwrap_or(Path::new("."));
        for dir in [&mut config.manifests, &mut config.state_dir]
            .into_iter()
            .flatten()
        {
            *dir = base.join(&*dir);
        }
        Ok(config)
    }

    /// Reads a text.
    pub fn read(text: &str) -> Result<Self, Vec<Finding>> {
        let mut documents = yaml::read_all(text);
        if documents.len() > 1 {
            return Err(vec![Finding::new(
                "",
                format!("{} documents", documents.len()),
                "a configuration is one document",
                "remove the lines with ---",
            )]);
        }
        let value = match documents.pop() {
            Some(document) => document.content.map_err(|finding| vec![finding])?,
            None => serde_json::json!({}),
        };
        let reading: Reading<Self> = read_document(value);
        reading
            .checked(Self::validate)
            .into_result()
            .map_err(named_kinds)
    }

    fn validate(&self) -> Vec<Finding> {
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
            match &block.local {
                Some(local) => findings.extend(local.validate(&format!("{path}.local"))),
                None => findings.push(Finding::new(
                    path,
                    &block.name,
                    "says no kind of provider",
                    "add `local: {}`",
                )),
            }
        }
        if !self.admin.listen.ip().is_loopback() {
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
    ) -> Result<Vec<Arc<dyn Provider>>, Failure> {
        let program = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("the path of this program: {e}")))?;
        let local = |block: &ProviderBlock| -> Option<Arc<dyn Provider>> {
            let config = block.local.clone()?;
            Some(Arc::new(Local::new(
                block.name.clone(),
                identity.clone(),
                config,
                state_dir.to_owned(),
                program.clone(),
            )))
        };
        Ok(self.providers.iter().filter_map(local).collect())
    }

    /// What the provider of this name can do, if it is configured.
    pub fn abilities(&self, name: &str) -> Option<ProviderAbilities> {
        let block = self
            .providers
            .iter()
            .find(|block| block.name.as_str() == name)?;
        block.local.as_ref().map(|_| ProviderAbilities {
            kind: "local",
            user_data: false,
        })
    }
}
