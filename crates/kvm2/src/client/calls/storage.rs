//! Pools and volumes.

use super::{MOST, uuid};
use crate::client::{
    CHANGE_DEADLINE, Failure, Session, UPLOAD_DEADLINE,
    connection::Deadlines,
    procedure::Procedure,
    xdr::{Malformed, Reader, Writer},
};
use tokio::time::Instant;
use uuid::Uuid;

/// The most bytes that one call reads of a volume.
pub const MOST_DOWNLOADED: usize = 64 * 1024;

/// A storage pool, as calls name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
}

/// A pool's state and room, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRoom {
    /// Whether it is active and whole.
    pub is_running: bool,
    /// All of it.
    pub capacity: u64,
    /// What is free.
    pub available: u64,
}

/// A volume, as calls name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The pool's name.
    pub pool: String,
    /// Its own name there.
    pub name: String,
    /// What identifies it: its path, in pools of files.
    pub key: String,
}

/// A volume's size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSize {
    /// What the guest sees.
    pub capacity: u64,
    /// What it takes now.
    pub allocation: u64,
}

impl Pool {
    fn arguments(&self) -> Writer {
        Writer::new().text(&self.name).fixed(self.uuid.as_bytes())
    }
}

impl Volume {
    fn arguments(&self) -> Writer {
        Writer::new()
            .text(&self.pool)
            .text(&self.name)
            .text(&self.key)
    }
    fn read(answer: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            pool: answer.text()?,
            name: answer.text()?,
            key: answer.text()?,
        })
    }
}

impl Session {
    /// A pool by its name.
    pub async fn pool(&self, name: &str) -> Result<Pool, Failure> {
        let procedure = Procedure::StoragePoolLookupByName;
        self.read(procedure, name, Writer::new().text(name), |answer| {
            Ok(Pool {
                name: answer.text()?,
                uuid: uuid(answer)?,
            })
        })
        .await
    }

    /// Its state and room.
    pub async fn pool_room(&self, pool: &Pool) -> Result<PoolRoom, Failure> {
        const RUNNING: u32 = 2;
        let procedure = Procedure::StoragePoolGetInfo;
        self.read(procedure, &pool.name, pool.arguments(), |answer| {
            let state = answer.u32()?;
            let capacity = answer.u64()?;
            let _allocation = answer.u64()?;
            Ok(PoolRoom {
                is_running: state == RUNNING,
                capacity,
                available: answer.u64()?,
            })
        })
        .await
    }

    /// Its description.
    pub async fn pool_xml(&self, pool: &Pool) -> Result<String, Failure> {
        let procedure = Procedure::StoragePoolGetXmlDesc;
        self.read(procedure, &pool.name, pool.arguments().u32(0), |answer| {
            answer.text()
        })
        .await
    }

    /// Every volume that the pool knows of.
    pub async fn volumes(&self, pool: &Pool) -> Result<Vec<Volume>, Failure> {
        let procedure = Procedure::StoragePoolListAllVolumes;
        let arguments = pool.arguments().i32(1).u32(0);
        self.read(procedure, &pool.name, arguments, |answer| {
            answer.list(MOST, Volume::read)
        })
        .await
    }

    /// A volume by its name.
    pub async fn volume(&self, pool: &Pool, name: &str) -> Result<Volume, Failure> {
        let procedure = Procedure::StorageVolLookupByName;
        self.read(procedure, name, pool.arguments().text(name), Volume::read)
            .await
    }

    /// Its size.
    pub async fn volume_size(&self, volume: &Volume) -> Result<VolumeSize, Failure> {
        let procedure = Procedure::StorageVolGetInfo;
        self.read(procedure, &volume.name, volume.arguments(), |answer| {
            let _kind = answer.i32()?;
            Ok(VolumeSize {
                capacity: answer.u64()?,
                allocation: answer.u64()?,
            })
        })
        .await
    }

    /// Its description.
    pub async fn volume_xml(&self, volume: &Volume) -> Result<String, Failure> {
        let procedure = Procedure::StorageVolGetXmlDesc;
        let arguments = volume.arguments().u32(0);
        self.read(procedure, &volume.name, arguments, |answer| answer.text())
            .await
    }

    /// Has the pool look at its directory anew, which may take longer than other reads.
    pub async fn refresh_pool(&self, pool: &Pool) -> Result<(), Failure> {
        let procedure = Procedure::StoragePoolRefresh;
        let arguments = pool.arguments().u32(0);
        let deadlines = Deadlines::within(CHANGE_DEADLINE);
        self.connection
            .call(procedure, &pool.name, arguments, deadlines, |_| Ok(()))
            .await
    }

    /// Makes a volume from its description. After `last` it is not sent, as below.
    pub async fn create_volume(
        &self,
        pool: &Pool,
        name: &str,
        xml: &str,
        last: Instant,
    ) -> Result<Volume, Failure> {
        let procedure = Procedure::StorageVolCreateXml;
        let arguments = pool.arguments().text(xml).u32(0);
        self.change(procedure, name, arguments, last, Volume::read)
            .await
    }

    /// Writes these bytes from the volume's beginning on.
    pub async fn upload(
        &self,
        volume: &Volume,
        bytes: &[u8],
        last: Instant,
    ) -> Result<(), Failure> {
        let arguments = volume.arguments().u64(0).u64(bytes.len() as u64).u32(0);
        let deadlines = Deadlines {
            write: last,
            answer: Instant::now() + UPLOAD_DEADLINE,
        };
        let procedure = Procedure::StorageVolUpload;
        self.connection
            .call_with_stream(procedure, &volume.name, arguments, bytes, deadlines)
            .await
    }

    /// Reads so many bytes from an offset on; fewer where the volume ends. At most
    /// [`MOST_DOWNLOADED`].
    pub async fn download(
        &self,
        volume: &Volume,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Failure> {
        let length = length.min(MOST_DOWNLOADED);
        let arguments = volume.arguments().u64(offset).u64(length as u64).u32(0);
        let procedure = Procedure::StorageVolDownload;
        let deadlines = Deadlines::within(self.reads);
        self.connection
            .call_for_stream(procedure, &volume.name, arguments, length, deadlines)
            .await
    }

    /// Deletes a volume.
    pub async fn delete_volume(&self, volume: &Volume, last: Instant) -> Result<(), Failure> {
        let procedure = Procedure::StorageVolDelete;
        let arguments = volume.arguments().u32(0);
        self.change(procedure, &volume.name, arguments, last, |_| Ok(()))
            .await
    }
}
