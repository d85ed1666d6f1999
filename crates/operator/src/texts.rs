//! Texts that Proxies refer to, read anew while a machine is refused: Secrets and ConfigMaps may
//! be read and not watched, so that nobody tells of a change.

use crate::{cache::Cache, config::Present, wishes::desired};
use egress_core::{Installation, ProxyId, proxy::UserDataRef, status::Reason};
use egress_engine::{Credentials, FoundText, Handle, ProxyView};
use sha2::{Digest, Sha256};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// From one look to the next.
const PERIOD: Duration = Duration::from_secs(20);

/// Reads the texts of refused Proxies.
pub struct Texts {
    /// Whose Proxies.
    pub handle: Handle,
    /// What they refer to.
    pub cache: Arc<Cache>,
    /// With which their specs are read.
    pub config: Arc<Present>,
    /// Whose they are.
    pub installation: Installation,
    /// Where the texts are.
    pub credentials: Arc<dyn Credentials>,
}

impl Texts {
    /// Has what was refused tried again once its text is another one, for as long as it is
    /// polled.
    pub async fn follow_forever(self) {
        let mut seen: HashMap<ProxyId, [u8; 32]> = HashMap::new();
        loop {
            tokio::time::sleep(PERIOD).await;
            let views = self.handle.views();
            seen.retain(|id, _| views.iter().any(|view| view.proxy == *id));
            for view in views.iter().filter(|view| is_refused(view)) {
                let id = &view.proxy;
                let Some(source) = self.source(id) else {
                    continue;
                };
                let found = self.credentials.cloud_config(id, &source).await;
                let Ok(FoundText::Here(text)) = found else {
                    continue;
                };
                let digest = Sha256::digest(text.expose()).into();
                // Also at the first sight: it may be another one than the one that was refused.
                if seen.insert(id.clone(), digest) != Some(digest) {
                    self.handle.renew(id.clone());
                }
            }
        }
    }

    fn source(&self, id: &ProxyId) -> Option<UserDataRef> {
        let held = self.cache.get(id)?;
        let desired = desired(&held, &self.config, &self.installation)?;
        desired.spec()?.user_data.clone()
    }
}

/// Whether a machine of this Proxy is refused for what it is to be.
fn is_refused(view: &ProxyView) -> bool {
    let mut reasons = view.status.conditions.iter().map(|c| c.reason);
    reasons.any(|reason| matches!(reason, Reason::Permanent | Reason::ReplacementRefused))
}
