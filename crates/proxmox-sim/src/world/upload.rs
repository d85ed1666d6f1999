//! Uploads: the strict multipart parser and the task behind it.

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal},
    jobs::{Job, ended_by},
    params::Params,
    tasks::{Next, TaskId, Wake},
};
use data_encoding::HEXLOWER;
use serde_json::json;
use sha1::{Digest, Sha1};
use std::{borrow::Cow, sync::Arc};

/// Contents below this many bytes are kept even where no guest will read them.
const KEPT: usize = 64 * 1024;

const FILE: &str = "/usr/share/perl5/PVE/APIServer/AnyEvent.pm";

/// The parts of an upload.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) params: Params,
    pub(super) data: Vec<u8>,
}

/// Takes a multipart body apart the way the real server does: by pattern, in its order.
pub(super) fn parse(content_type: &str, body: &[u8]) -> Result<Upload, Refusal> {
    let failed = || Refusal::plain(500, &format!("upload failed at {FILE} line 1370.\n"));
    let boundary = content_type
        .split_once("boundary=")
        .map(|(_, rest)| rest.split(';').next().unwrap_or_default().trim())
        .ok_or_else(failed)?;
    let delimiter = format!("--{boundary}");
    let mut params = Params::default();
    let mut rest = body;
    loop {
        rest = strip(rest, delimiter.as_bytes()).ok_or_else(failed)?;
        rest = strip(rest, b"\r\n").ok_or_else(failed)?;
        let (head, behind) = cut(rest, b"\r\n\r\n").ok_or_else(failed)?;
        let head = latin(head);
        let first = head.split("\r\n").next().unwrap_or_default();
        let named = first
            .strip_prefix("Content-Disposition: form-data; name=\"")
            .ok_or_else(failed)?;
        let (field, attributes) = named.split_once('"').ok_or_else(failed)?;
        let filename = attributes
            .strip_prefix("; filename=\"")
            .and_then(|it| it.split_once('"'))
            .map(|(name, _)| name.to_owned());
        if let Some(filename) = filename {
            if field != "filename" {
                return Err(Refusal::plain(
                    500,
                    &format!(
                        "wrong field name '{field}' for file upload, expected 'filename' at {FILE} line 1325.\n"
                    ),
                ));
            }
            let end = format!("\r\n{delimiter}--");
            let data = cut(behind, end.as_bytes()).map_or(behind, |(data, _)| data);
            params.set("filename", base_name(&filename));
            return Ok(Upload {
                params,
                data: data.to_vec(),
            });
        }
        let known = ["content", "checksum-algorithm", "checksum"];
        if !known.contains(&field) {
            return Err(failed());
        }
        let (value, behind) = cut(behind, b"\r\n").ok_or_else(failed)?;
        let seen = |name: &str| params.text(name).is_some();
        let late = match field {
            "content" => seen("checksum-algorithm") || seen("checksum"),
            "checksum-algorithm" => seen("checksum"),
            _ => false,
        };
        if late {
            return Err(Refusal::empty(400, "Bad Request"));
        }
        params.set(field, latin(value).into_owned());
        rest = behind;
    }
}

fn strip<'a>(text: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    text.strip_prefix(start)
}

fn cut<'a>(text: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = text.windows(at.len()).position(|window| window == at)?;
    Some((&text[..found], &text[found + at.len()..]))
}

fn latin(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text)
}

/// The last part of a path, with everything unusual made an underscore.
fn base_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut safe = String::new();
    for c in last.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') {
            safe.push(c);
        } else if !safe.ends_with('_') || c.is_ascii() {
            safe.push('_');
        }
    }
    safe
}

/// An uploaded file on its way to its storage.
#[derive(Clone, Debug)]
pub(super) struct ImportFile {
    receiver: String,
    node: String,
    storage: String,
    name: String,
    data: Arc<[u8]>,
    checksum: Option<(String, String)>,
    temporary: String,
    step: u8,
}

impl World {
    /// `POST /nodes/{node}/storage/{storage}/upload`, on the node that received it.
    pub(super) fn post_upload(
        &mut self,
        caller: &Caller,
        params: &Params,
        receiver: &str,
        data: Vec<u8>,
    ) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let storage = params.text("storage").unwrap_or_default().to_owned();
        let held = self.storage_for(&storage, &node).map_err(Refusal::died)?;
        if !held.has_files() {
            return Err(Refusal::died(format!(
                "can't upload to storage type '{}'",
                held.setup.kind
            )));
        }
        let content = params.text("content").unwrap_or_default();
        let name = params.text("filename").unwrap_or_default().to_owned();
        let lower = name.to_lowercase();
        let fits = match content {
            "iso" => [".iso", ".img"].iter().any(|end| lower.ends_with(end)),
            "vztmpl" => [".tar.gz", ".tar.xz", ".tar.zst"]
                .iter()
                .any(|end| lower.ends_with(end)),
            _ => true,
        };
        if !fits {
            return Err(Refusal::parameter("filename", "wrong file extension"));
        }
        if !held.holds(content) {
            return Err(Refusal::died(format!(
                "storage '{storage}' does not support '{content}' content"
            )));
        }
        let checksum = params
            .text("checksum-algorithm")
            .zip(params.text("checksum"))
            .map(|(kind, sum)| (kind.to_owned(), sum.to_owned()));
        let number = (u128::from(self.draw()) << 64) | u128::from(self.draw());
        let job = Job::Import(ImportFile {
            receiver: receiver.to_owned(),
            node,
            storage,
            name,
            data: data.into(),
            checksum,
            temporary: format!("/var/tmp/pveupload-{number:032x}"),
            step: 0,
        });
        Ok(json!(self.begin_task(receiver, "imgcopy", "", caller, job)).into())
    }
}

impl ImportFile {
    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        let volid = format!("{}:iso/{}", self.storage, self.name);
        if let Some(next) = ended_by(&wake) {
            world.drop_volume(&volid, &self.node);
            return next;
        }
        let pace = world.pace;
        let gib = self.data.len() as f64 / f64::from(1 << 30);
        let half = pace.of(f64::midpoint(pace.t.upload, gib * pace.t.upload_gib));
        self.step += 1;
        match self.step {
            1 => {
                world.log(id, format!("starting file import from: {}", self.temporary));
                if let Some((kind, wanted)) = &self.checksum {
                    let got = checksum(kind, &self.data);
                    if got.as_ref().is_some_and(|got| got != wanted) {
                        world.log(id, "calculating checksum...");
                        let got = got.unwrap_or_default();
                        return Next::Failed(format!(
                            "checksum mismatch: got '{got}' != expect '{wanted}'"
                        ));
                    }
                    world.log(id, "calculating checksum...OK, checksum verified");
                }
                Next::After(pace.of(0.01))
            }
            2 => self.begin(world, id, &volid, half),
            3 => {
                self.store(world, &volid, self.data.len());
                Next::After(half)
            }
            _ => {
                world.log(id, "finished file import successfully");
                Next::Done
            }
        }
    }

    /// The copy begins: a file is there, and not whole.
    fn begin(&self, world: &mut World, id: TaskId, volid: &str, half: std::time::Duration) -> Next {
        let path = match world.online_storage(&self.storage, &self.node) {
            Ok(held) => held.path(),
            Err(text) => return Next::Failed(text),
        };
        let target = format!("{path}/template/iso/{}", self.name);
        world.log(id, format!("target node: {}", self.node));
        world.log(id, format!("target file: {target}"));
        world.log(id, format!("file size is: {}", self.data.len()));
        let command = if self.receiver == self.node {
            format!("cp -- {} {target}", self.temporary)
        } else {
            let address = world
                .nodes
                .get(&self.node)
                .map_or_else(String::new, |node| node.setup.address.clone());
            format!(
                "/usr/bin/scp -o BatchMode=yes -p -- {} root@[{address}]:{target}",
                self.temporary
            )
        };
        world.log(id, format!("command: {command}"));
        if world.nodes.get(&self.node).is_none_or(|node| !node.up) {
            return Next::Failed(format!(
                "import failed: command '{command}' failed: exit code 255"
            ));
        }
        let free = world
            .storages
            .get(&self.storage)
            .map_or(0, |held| world.space(held, &self.node).1);
        if (free as usize) < self.data.len() {
            world.drop_volume(volid, &self.node);
            world.log(
                id,
                format!("cp: error writing '{target}': No space left on device"),
            );
            return Next::Failed(format!(
                "import failed: command '{command}' failed: exit code 1"
            ));
        }
        self.store(world, volid, self.data.len() / 2);
        Next::After(half)
    }

    fn store(&self, world: &mut World, volid: &str, length: usize) {
        world.put_volume(volid, &self.node, length as u64, None);
        if let Some(key) = world.volume_key(volid, &self.node)
            && let Some(volume) = world.volumes.get_mut(&key)
        {
            volume.data = (world.setup.outside_guests || length < KEPT).then(|| {
                if length == self.data.len() {
                    Arc::clone(&self.data)
                } else {
                    self.data[..length].into()
                }
            });
        }
    }
}

/// The checksum of an upload in hex; `None` for algorithms that this simulator takes on trust.
fn checksum(kind: &str, data: &[u8]) -> Option<String> {
    match kind {
        "sha1" => Some(HEXLOWER.encode(&Sha1::digest(data))),
        "sha256" => Some(HEXLOWER.encode(&sha2::Sha256::digest(data))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_only_what_is_safe() {
        for (given, kept) in [
            ("a b.iso", "a_b.iso"),
            ("../../x.iso", "x.iso"),
            ("Ã©.iso", "_.iso"),
            ("UP.ISO", "UP.ISO"),
        ] {
            assert_eq!(base_name(given), kept);
        }
    }
}
