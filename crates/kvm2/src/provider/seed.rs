//! The seed of an attempt, and the volumes of a machine.

use super::{Kvm2, call::Call, names::VolumeKind, names::volume_name};
use crate::{
    client::{Kind, Pool, Session, Volume},
    config::GuestAgent,
};
use egress_core::{
    Claim, ErrorClass, MachineKey, SeedVolume,
    machine::WantedMachine,
    proxy_config::{DEFAULT_PORT, Limits, ProxydConfig},
};
use egress_provider::{Permit, Result};
use egress_seed::Seed;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// What to do without a payload.
pub(super) const NO_PAYLOAD: &str = "build it with `cargo xtask payload`, name its folder with `--payload-dir`, or use an image with proxyd in it and `guestAgent: baked`";

/// The management page of proxyd takes a free port of its machine's loopback, as whatever else
/// the image runs has one; the journal names it.
const MANAGEMENT_PORT: u16 = 0;

impl Kvm2 {
    /// The name of a volume of an attempt.
    pub(super) fn volume(&self, key: &MachineKey, attempt: u32, kind: VolumeKind) -> String {
        volume_name(&self.volume_prefix(), key.name(), attempt, kind)
    }

    /// Where an attempt's seed is to lie.
    pub(super) fn seed_volume(&self, key: &MachineKey, attempt: u32) -> SeedVolume {
        SeedVolume {
            name: self.volume(key, attempt, VolumeKind::Seed),
            location: self.config.pool.clone(),
        }
    }

    /// The pool that a claim's volumes lie in: the one it records, else the configured one.
    pub(super) fn pool_of<'a>(&'a self, claim: &'a Claim) -> &'a str {
        let recorded = claim.seed.as_ref().map(|seed| seed.location.as_str());
        recorded
            .filter(|pool| !pool.is_empty())
            .unwrap_or(&self.config.pool)
    }
}

impl Call<'_> {
    /// The seed's bytes: the same for the same wish.
    pub(super) async fn render_seed(
        &self,
        key: &MachineKey,
        attempt: u32,
        mac: Option<&str>,
        wanted: &WantedMachine,
    ) -> Result<Vec<u8>> {
        let provider = self.provider;
        let proxyd = ProxydConfig {
            key: key.name().to_owned(),
            attempt,
            // Both families: the kernel maps IPv4 clients, and proxyd maps them back.
            listen: SocketAddr::from((
                Ipv6Addr::UNSPECIFIED,
                wanted.settings.port.unwrap_or(DEFAULT_PORT),
            )),
            management: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, MANAGEMENT_PORT))),
            egress: None,
            clients: wanted.settings.clients.clone(),
            auth: wanted.settings.auth.clone(),
            limits: Limits::default(),
        };
        let payload = match (&provider.payload, provider.config.guest_agent) {
            (_, GuestAgent::Baked) => None,
            (None, _) => {
                let said = format!("the static proxyd is missing: {NO_PAYLOAD}");
                return Err(self.error(ErrorClass::Permanent, said));
            }
            (Some(path), _) => Some(tokio::fs::read(path).await.map_err(|error| {
                let said = format!("the static proxyd cannot be read: {NO_PAYLOAD}");
                self.error(ErrorClass::Permanent, said).caused_by(error)
            })?),
        };
        let seed = Seed {
            proxyd: &proxyd,
            mac,
            guest_agent: provider.config.guest_agent.into(),
            payload: payload.as_deref(),
            user_data: wanted.user_data.as_ref(),
        };
        seed.render().map_err(|findings| {
            let told: Vec<_> = findings.iter().map(ToString::to_string).collect();
            self.error(ErrorClass::Permanent, told.join("; "))
        })
    }

    /// A pool that is there and active.
    pub(super) async fn pool(&self, session: &Session, name: &str) -> Result<Pool> {
        let pool = session.pool(name).await.map_err(|f| self.failed(f))?;
        let room = session.pool_room(&pool).await.map_err(|f| self.failed(f))?;
        if room.is_running {
            return Ok(pool);
        }
        let said = format!("the storage pool {name} is not active: run `virsh pool-start {name}`");
        Err(self.error(ErrorClass::Transient, said))
    }

    /// Deletes a volume; one that is gone is as well.
    pub(super) async fn delete_volume(
        &self,
        session: &Session,
        volume: &Volume,
        permit: &Permit,
    ) -> Result<()> {
        let last = self.may(permit)?;
        match session.delete_volume(volume, last).await {
            Err(failure) if failure.kind != Kind::NoVolume => Err(self.failed(failure)),
            _ => Ok(()),
        }
    }

    /// Has a pool look at its directory anew. Others may work on it, and some storage cannot be
    /// read just now: then what it knew has to do.
    pub(super) async fn look_anew(&self, session: &Session, pool: &Pool) {
        if let Err(failure) = session.refresh_pool(pool).await {
            tracing::debug!(pool = pool.name, said = %failure, "a pool is not looked at anew");
        }
    }

    /// A volume, if it is there.
    pub(super) async fn find_volume(
        &self,
        session: &Session,
        pool: &Pool,
        name: &str,
    ) -> Result<Option<Volume>> {
        match session.volume(pool, name).await {
            Ok(volume) => Ok(Some(volume)),
            Err(failure) if failure.kind == Kind::NoVolume => Ok(None),
            Err(failure) => Err(self.failed(failure)),
        }
    }
}
