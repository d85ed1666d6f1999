//! Every request this client can send. There is no other way to make one, so that a test can
//! hold all of them against the API's own schema.

use super::{
    ids::{NodeName, Vmid, encoded},
    params::{CloneVm, ConfigChange, Field, ResourceFilter, TaskFilter, TaskSource, zero_or_one},
    upid::Upid,
    upload::{self, IsoName},
    wire::Reuse,
};
use http::Method;
use hyper::body::Bytes;
use std::fmt::Write as _;

/// A request, as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `GET /version`.
    Version,
    /// `GET /cluster/options`: what the datacenter allows.
    ClusterOptions,
    /// `GET /cluster/status`: quorum and nodes.
    ClusterStatus,
    /// `GET /cluster/resources`: the list.
    ClusterResources(ResourceFilter),
    /// `GET /cluster/nextid?vmid=N`: existence, without privilege or lag.
    NextId(Vmid),
    /// `GET /access/permissions?path=P`: the token's own privileges.
    Permissions {
        /// An ACL path such as `/vms/100`.
        path: String,
    },
    /// `GET /pools?poolid=P`.
    Pool {
        /// The pool.
        poolid: String,
    },
    /// `GET /nodes`.
    Nodes,
    /// `GET /nodes/N/time`.
    NodeTime(NodeName),
    /// `GET /nodes/N/certificates/info`.
    Certificates(NodeName),
    /// `GET /nodes/N/network?type=any_bridge`.
    Bridges(NodeName),
    /// `GET /cluster/sdn/vnets`.
    Vnets,
    /// `GET /nodes/N/storage/S/status`.
    StorageStatus {
        /// The node.
        node: NodeName,
        /// The storage.
        storage: String,
    },
    /// `GET /nodes/N/storage/S/content`.
    StorageContent {
        /// The node.
        node: NodeName,
        /// The storage.
        storage: String,
        /// Only of this kind, such as `iso` or `images`.
        content: Option<String>,
        /// Only what belongs to this guest.
        vmid: Option<Vmid>,
    },
    /// `GET /nodes/N/tasks`.
    Tasks {
        /// The node.
        node: NodeName,
        /// Which.
        filter: TaskFilter,
    },
    /// `GET /nodes/N/tasks/U/status`, on the node of the UPID.
    TaskStatus(Upid),
    /// `GET /nodes/N/tasks/U/log`, on the node of the UPID.
    TaskLog {
        /// The task.
        upid: Upid,
        /// The greatest number of lines from the beginning; 0 is all.
        limit: u32,
    },
    /// `GET /nodes/N/qemu/V/config`.
    VmConfig {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
    },
    /// `GET /nodes/N/qemu/V/status/current`.
    VmStatus {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
    },
    /// `GET /nodes/N/qemu/V/agent/network-get-interfaces`.
    AgentInterfaces {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
    },
    /// `POST /nodes/N/qemu/T/clone`.
    Clone(CloneVm),
    /// `POST /nodes/N/storage/S/upload`.
    UploadIso {
        /// The node.
        node: NodeName,
        /// The storage.
        storage: String,
        /// The file's name.
        name: IsoName,
        /// The image.
        image: Bytes,
    },
    /// `PUT /nodes/N/qemu/V/config`.
    SetConfig {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
        /// What changes.
        change: Box<ConfigChange>,
    },
    /// `PUT /nodes/N/qemu/V/resize`.
    Resize {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
        /// The disk, such as `scsi0`.
        disk: String,
        /// Its whole new size in bytes; a repeat changes nothing (§7.4).
        bytes: u64,
    },
    /// `POST /nodes/N/qemu/V/status/start`.
    Start {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
    },
    /// `POST /nodes/N/qemu/V/status/stop`.
    Stop {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
        /// End a waiting shutdown task of ours first; from PVE 8.2.
        overrule_shutdown: bool,
    },
    /// `DELETE /nodes/N/qemu/V?purge=1`; never frees disks that the config does not name (X15).
    DeleteVm {
        /// The node.
        node: NodeName,
        /// The machine.
        vmid: Vmid,
    },
    /// `DELETE /nodes/N/storage/S/content/V`.
    DeleteVolume {
        /// The node.
        node: NodeName,
        /// The storage.
        storage: String,
        /// The volume, such as `isos:iso/x.iso`.
        volid: String,
        /// Wait up to so many seconds, 1 to 30, for the end instead of returning a task.
        delay_s: Option<u8>,
    },
}

/// What travels in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing at all: GET and DELETE, which refuse a body (§1.3).
    Empty,
    /// A form; an empty one has an empty body.
    Form(Vec<Field>),
    /// An ISO image as multipart.
    Iso {
        /// The file's name.
        name: IsoName,
        /// The image.
        image: Bytes,
    },
}

/// A call with its path and parameters in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The method.
    pub method: Method,
    /// The segments of the path below `/api2/json`, not encoded.
    pub path: Vec<String>,
    /// The query.
    pub query: Vec<Field>,
    /// The body.
    pub payload: Payload,
}

impl Rendered {
    /// The path below `/api2/json`, for people and for [`super::Failure::asked`].
    pub fn readable_path(&self) -> String {
        self.path.iter().fold(String::new(), |mut path, segment| {
            path.push('/');
            path.push_str(segment);
            path
        })
    }
    /// Path and query as sent.
    pub fn target(&self) -> String {
        let mut target = String::from("/api2/json");
        for segment in &self.path {
            let _ = write!(target, "/{}", encoded(segment));
        }
        if !self.query.is_empty() {
            target.push('?');
            target.push_str(&form(&self.query));
        }
        target
    }
    /// The content type and the body as sent.
    pub fn body(&self) -> (Option<String>, Bytes) {
        match &self.payload {
            Payload::Empty => (None, Bytes::new()),
            Payload::Form(fields) => (
                Some("application/x-www-form-urlencoded".to_owned()),
                form(fields).into(),
            ),
            Payload::Iso { name, image } => {
                let (content_type, body) = upload::multipart(name, image);
                (Some(content_type), body)
            }
        }
    }
    /// Whether it changes anything, and so needs a connection of its own.
    pub fn reuse(&self) -> Reuse {
        if self.method == Method::GET {
            Reuse::KeepAlive
        } else {
            Reuse::Fresh
        }
    }
}

fn form(fields: &[Field]) -> String {
    fields.iter().fold(String::new(), |mut text, field| {
        if !text.is_empty() {
            text.push('&');
        }
        let _ = write!(text, "{}={}", encoded(&field.name), encoded(&field.value));
        text
    })
}

impl Call {
    /// The request that it stands for.
    pub fn render(&self) -> Rendered {
        match self {
            Self::Version => get(&["version"], vec![]),
            Self::ClusterOptions => get(&["cluster", "options"], vec![]),
            Self::ClusterStatus => get(&["cluster", "status"], vec![]),
            Self::ClusterResources(ResourceFilter::All) => get(&["cluster", "resources"], vec![]),
            Self::ClusterResources(ResourceFilter::Guests) => {
                get(&["cluster", "resources"], vec![Field::new("type", "vm")])
            }
            Self::NextId(vmid) => get(
                &["cluster", "nextid"],
                vec![Field::new("vmid", vmid.to_string())],
            ),
            Self::Permissions { path } => get(
                &["access", "permissions"],
                vec![Field::new("path", path.as_str())],
            ),
            Self::Pool { poolid } => get(&["pools"], vec![Field::new("poolid", poolid.as_str())]),
            Self::Nodes => get(&["nodes"], vec![]),
            Self::NodeTime(node) => get(&["nodes", node.as_str(), "time"], vec![]),
            Self::Certificates(node) => {
                get(&["nodes", node.as_str(), "certificates", "info"], vec![])
            }
            Self::Bridges(node) => get(
                &["nodes", node.as_str(), "network"],
                vec![Field::new("type", "any_bridge")],
            ),
            Self::Vnets => get(&["cluster", "sdn", "vnets"], vec![]),
            Self::StorageStatus { node, storage } => get(
                &["nodes", node.as_str(), "storage", storage, "status"],
                vec![],
            ),
            Self::StorageContent {
                node,
                storage,
                content,
                vmid,
            } => get(
                &["nodes", node.as_str(), "storage", storage, "content"],
                some([
                    ("content", content.clone()),
                    ("vmid", vmid.map(|v| v.to_string())),
                ]),
            ),
            Self::Tasks { node, filter } => get(
                &["nodes", node.as_str(), "tasks"],
                some([
                    (
                        "source",
                        Some(String::from(match filter.source {
                            TaskSource::Active => "active",
                            TaskSource::Archive => "archive",
                            TaskSource::All => "all",
                        })),
                    ),
                    ("typefilter", filter.kind.clone()),
                    ("vmid", filter.vmid.map(|v| v.to_string())),
                    ("since", filter.since.map(|s| s.to_string())),
                    ("limit", filter.limit.map(|n| n.to_string())),
                ]),
            ),
            Self::TaskStatus(upid) => get(
                &[
                    "nodes",
                    upid.node().as_str(),
                    "tasks",
                    upid.as_str(),
                    "status",
                ],
                vec![],
            ),
            Self::TaskLog { upid, limit } => get(
                &["nodes", upid.node().as_str(), "tasks", upid.as_str(), "log"],
                vec![Field::new("limit", limit.to_string())],
            ),
            Self::VmConfig { node, vmid } => get(&machine(node, *vmid, &["config"]), vec![]),
            Self::VmStatus { node, vmid } => {
                get(&machine(node, *vmid, &["status", "current"]), vec![])
            }
            Self::AgentInterfaces { node, vmid } => get(
                &machine(node, *vmid, &["agent", "network-get-interfaces"]),
                vec![],
            ),
            Self::Clone(clone) => send(
                Method::POST,
                &machine(&clone.node, clone.template, &["clone"]),
                some([
                    ("newid", Some(clone.newid.to_string())),
                    ("full", Some(zero_or_one(true))),
                    ("name", Some(clone.name.clone())),
                    ("description", Some(clone.description.clone())),
                    ("storage", Some(clone.storage.clone())),
                    ("pool", clone.pool.clone()),
                    ("target", clone.target.as_ref().map(NodeName::to_string)),
                ]),
            ),
            Self::UploadIso {
                node,
                storage,
                name,
                image,
            } => Rendered {
                method: Method::POST,
                path: path(&["nodes", node.as_str(), "storage", storage, "upload"]),
                query: vec![],
                payload: Payload::Iso {
                    name: name.clone(),
                    image: image.clone(),
                },
            },
            Self::SetConfig { node, vmid, change } => send(
                Method::PUT,
                &machine(node, *vmid, &["config"]),
                change.fields(),
            ),
            Self::Resize {
                node,
                vmid,
                disk,
                bytes,
            } => send(
                Method::PUT,
                &machine(node, *vmid, &["resize"]),
                vec![
                    Field::new("disk", disk.as_str()),
                    Field::new("size", size(*bytes)),
                ],
            ),
            Self::Start { node, vmid } => send(
                Method::POST,
                &machine(node, *vmid, &["status", "start"]),
                vec![],
            ),
            Self::Stop {
                node,
                vmid,
                overrule_shutdown,
            } => send(
                Method::POST,
                &machine(node, *vmid, &["status", "stop"]),
                some([(
                    "overrule-shutdown",
                    overrule_shutdown.then(|| zero_or_one(true)),
                )]),
            ),
            Self::DeleteVm { node, vmid } => Rendered {
                method: Method::DELETE,
                path: path(&machine(node, *vmid, &[])),
                query: vec![Field::new("purge", "1")],
                payload: Payload::Empty,
            },
            Self::DeleteVolume {
                node,
                storage,
                volid,
                delay_s,
            } => Rendered {
                method: Method::DELETE,
                path: path(&["nodes", node.as_str(), "storage", storage, "content", volid]),
                query: some([("delay", delay_s.map(|s| s.to_string()))]),
                payload: Payload::Empty,
            },
        }
    }
}

/// A size in the largest unit that divides it, as the API prints it.
fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes != 0 && bytes.is_multiple_of(GIB) {
        format!("{}G", bytes / GIB)
    } else {
        bytes.to_string()
    }
}

fn path<S: AsRef<str>>(segments: &[S]) -> Vec<String> {
    segments.iter().map(|s| s.as_ref().to_owned()).collect()
}

fn machine(node: &NodeName, vmid: Vmid, rest: &[&str]) -> Vec<String> {
    let mut segments = path(&["nodes", node.as_str(), "qemu"]);
    segments.push(vmid.to_string());
    segments.extend(path(rest));
    segments
}

fn some<const N: usize>(fields: [(&str, Option<String>); N]) -> Vec<Field> {
    fields
        .into_iter()
        .filter_map(|(name, value)| value.map(|v| Field::new(name, v)))
        .collect()
}

fn get<S: AsRef<str>>(segments: &[S], query: Vec<Field>) -> Rendered {
    Rendered {
        method: Method::GET,
        path: path(segments),
        query,
        payload: Payload::Empty,
    }
}

fn send(method: Method, segments: &[String], fields: Vec<Field>) -> Rendered {
    Rendered {
        method,
        path: path(segments),
        query: vec![],
        payload: Payload::Form(fields),
    }
}
