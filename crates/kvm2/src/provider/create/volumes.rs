//! A machine's volumes: its disk over the base image, and its seed.

use super::{Creation, SOON};
use crate::{
    client::{Kind, MOST_DOWNLOADED, Pool, Volume},
    provider::{
        descriptions::VolumeView, domain_xml, look::Machine, names::VolumeKind, survey::Survey,
    },
};
use egress_core::ErrorClass;
use egress_provider::{Progress, Result};

impl Creation<'_> {
    /// Disk and seed; `None` once both are whole.
    pub(super) async fn make_volumes(
        &self,
        machine: Option<&Machine<'_>>,
    ) -> Result<Option<Progress>> {
        let call = &self.call;
        let survey = self.preconditions().await?;
        let mac = self.mac(machine)?;
        let seed = call
            .render_seed(self.key, self.claim.attempt, Some(&mac), self.wanted)
            .await?;
        let pool = call.pool(&self.session, self.pool_name()).await?;
        if !self.make_disk(&pool, &survey).await? || !self.make_seed(&pool, &seed).await? {
            return Ok(Some(
                call.in_progress("another call makes its volumes", SOON),
            ));
        }
        call.provider.hints().seed_written(self.uuid, self.wanted);
        Ok(None)
    }

    /// False where someone else made it in between.
    async fn make_disk(&self, pool: &Pool, survey: &Survey) -> Result<bool> {
        let call = &self.call;
        let name = self.volume(VolumeKind::Disk);
        let bytes = self.disk_bytes(survey)?;
        let Some(base) = &survey.base else {
            return Err(call.error(ErrorClass::Internal, "a survey without a base image"));
        };
        if let Some(volume) = call.find_volume(&self.session, pool, &name).await? {
            let xml = self.session.volume_xml(&volume).await;
            let xml = xml.map_err(|f| call.failed(f))?;
            let is_fit = VolumeView::read(&xml).is_ok_and(|view| {
                view.format.as_deref() == Some("qcow2")
                    && view.backing.as_deref() == Some(base.path.as_str())
                    && view.capacity == bytes
            });
            if is_fit {
                return Ok(true);
            }
            // Never started, so nothing of worth is on it.
            call.delete_volume(&self.session, &volume, self.permit)
                .await?;
        }
        let format = base.format.as_deref().unwrap_or("qcow2");
        let xml = domain_xml::overlay(&name, bytes, &base.path, format);
        let made = self.make_volume(pool, &name, &xml).await?;
        Ok(made.is_some())
    }

    async fn make_seed(&self, pool: &Pool, seed: &[u8]) -> Result<bool> {
        let call = &self.call;
        let name = self.volume(VolumeKind::Seed);
        let mut there = call.find_volume(&self.session, pool, &name).await?;
        if let Some(volume) = &there {
            let size = self.session.volume_size(volume).await;
            let size = size.map_err(|f| call.failed(f))?;
            if size.capacity != seed.len() as u64 {
                call.delete_volume(&self.session, volume, self.permit)
                    .await?;
                there = None;
            }
        }
        let volume = if let Some(volume) = there {
            volume
        } else {
            let xml = domain_xml::seed_volume(&name, seed.len() as u64);
            let Some(volume) = self.make_volume(pool, &name, &xml).await? else {
                return Ok(false);
            };
            volume
        };
        // What lies there may be a part of it, or another one of that size: then it is written
        // from its beginning on.
        if self.holds(&volume, seed).await? {
            return Ok(true);
        }
        let last = call.may_leave(self.permit)?;
        let sent = self.session.upload(&volume, seed, last).await;
        sent.map_err(|f| call.failed(f))?;
        Ok(true)
    }

    /// Whether a volume holds these bytes. From its end on: that is written last.
    async fn holds(&self, volume: &Volume, seed: &[u8]) -> Result<bool> {
        for (index, part) in seed.chunks(MOST_DOWNLOADED).enumerate().rev() {
            let offset = (index * MOST_DOWNLOADED) as u64;
            let read = self.session.download(volume, offset, part.len()).await;
            if read.map_err(|f| self.call.failed(f))? != part {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `None` where a volume or a file of that name is there: the next look sees it.
    async fn make_volume(&self, pool: &Pool, name: &str, xml: &str) -> Result<Option<Volume>> {
        let call = &self.call;
        let last = call.may_leave(self.permit)?;
        match self.session.create_volume(pool, name, xml, last).await {
            Ok(volume) => Ok(Some(volume)),
            Err(failure) if failure.kind == Kind::VolumeTaken => {
                // It may be a file that the pool does not know of.
                let refreshed = self.session.refresh_pool(pool).await;
                refreshed.map_err(|f| call.failed(f))?;
                Ok(None)
            }
            Err(failure) => Err(call.failed(failure)),
        }
    }

    /// The size of the disk: what is wished for, and no less than the base image.
    pub(super) fn disk_bytes(&self, survey: &Survey) -> Result<u64> {
        let call = &self.call;
        let base = survey.base.as_ref().map_or(0, |base| base.capacity);
        let wanted = u64::from(self.wanted.size.disk_gib) << 30;
        if wanted >= base {
            return Ok(wanted);
        }
        let least = base.div_ceil(1 << 30);
        let said = format!(
            "spec.machine.diskGiB: {}: the base image has {least} GiB and a disk cannot be smaller: ask for {least} or more",
            self.wanted.size.disk_gib
        );
        Err(call.error(ErrorClass::Permanent, said))
    }
}
