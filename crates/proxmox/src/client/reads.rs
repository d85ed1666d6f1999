//! The reads, one method a call.

use super::{
    answers::{
        AgentAnswer, Bridge, Certificate, ClusterOptions, ClusterStatus, GuestInterface, Node,
        NodeTime, Pool, Privileges, Resource, StorageStatus, Task, TaskLog, Version, VmConfig,
        VmStatus, VmidState, Vnet, Volume,
    },
    call::Call,
    errors::{self, Effect},
    exchange::Client,
    failure::{Failure, Kind},
    ids::{NodeName, Vmid},
    params::{ResourceFilter, TaskFilter},
    upid::{TaskEnd, TaskState, Upid},
};

impl Client {
    /// The version of the API server.
    pub async fn version(&self) -> Result<Version, Failure> {
        self.read(&Call::Version).await
    }
    /// What the datacenter allows.
    pub async fn cluster_options(&self) -> Result<ClusterOptions, Failure> {
        self.read(&Call::ClusterOptions).await
    }
    /// Quorum and nodes; needs Sys.Audit on `/`.
    pub async fn cluster_status(&self) -> Result<ClusterStatus, Failure> {
        self.read(&Call::ClusterStatus).await
    }
    /// The list. Guests without VM.Audit are silently missing.
    pub async fn cluster_resources(
        &self,
        filter: ResourceFilter,
    ) -> Result<Vec<Resource>, Failure> {
        self.read(&Call::ClusterResources(filter)).await
    }
    /// Whether a VMID is in use anywhere in the cluster: needs no privilege and has no lag
    /// (rule 4).
    pub async fn vmid_state(&self, vmid: Vmid) -> Result<VmidState, Failure> {
        let free: Result<NextId, Failure> = self.read(&Call::NextId(vmid)).await;
        match free {
            Ok(NextId(id)) if id == vmid => Ok(VmidState::Free),
            Ok(NextId(id)) => Err(Failure {
                class: errors::class_of(&Kind::UnexpectedAnswer, Effect::Read, Some(200)),
                kind: Kind::UnexpectedAnswer,
                status: Some(200),
                asked: "GET /cluster/nextid".to_owned(),
                said: format!("asked for {vmid}, answered {id}"),
                sent: true,
            }),
            Err(failure) if failure.status == Some(400) && failure.kind == Kind::VmidTaken => {
                Ok(VmidState::Taken)
            }
            Err(failure) => Err(failure),
        }
    }
    /// The token's privileges at an ACL path such as `/storage/isos`.
    pub async fn permissions(&self, path: &str) -> Result<Privileges, Failure> {
        let path = path.to_owned();
        self.read(&Call::Permissions { path }).await
    }
    /// A pool and its members.
    pub async fn pool(&self, poolid: &str) -> Result<Pool, Failure> {
        let poolid = poolid.to_owned();
        self.read(&Call::Pool { poolid }).await
    }
    /// The nodes; their memory only with Sys.Audit.
    pub async fn nodes(&self) -> Result<Vec<Node>, Failure> {
        self.read(&Call::Nodes).await
    }
    /// A node's clock; needs Sys.Audit on the node.
    pub async fn node_time(&self, node: &NodeName) -> Result<NodeTime, Failure> {
        self.read(&Call::NodeTime(node.clone())).await
    }
    /// A node's certificates, the cluster's own authority among them.
    pub async fn certificates(&self, node: &NodeName) -> Result<Vec<Certificate>, Failure> {
        self.read(&Call::Certificates(node.clone())).await
    }
    /// A node's bridges and vnets that the token may use.
    pub async fn network(&self, node: &NodeName) -> Result<Vec<Bridge>, Failure> {
        self.read(&Call::Bridges(node.clone())).await
    }
    /// The vnets of SDN that the token may look at; without SDN.Audit on one it is missing.
    pub async fn vnets(&self) -> Result<Vec<Vnet>, Failure> {
        self.read(&Call::Vnets).await
    }
    /// A storage's state on a node.
    pub async fn storage_status(
        &self,
        node: &NodeName,
        storage: &str,
    ) -> Result<StorageStatus, Failure> {
        self.read(&Call::StorageStatus {
            node: node.clone(),
            storage: storage.to_owned(),
        })
        .await
    }
    /// The volumes of a storage: of one kind (`iso`, `images`), of one guest, or all.
    pub async fn storage_content(
        &self,
        node: &NodeName,
        storage: &str,
        content: Option<&str>,
        vmid: Option<Vmid>,
    ) -> Result<Vec<Volume>, Failure> {
        self.read(&Call::StorageContent {
            node: node.clone(),
            storage: storage.to_owned(),
            content: content.map(str::to_owned),
            vmid,
        })
        .await
    }
    /// The tasks of a node that the token may see: its own, without Sys.Audit.
    pub async fn tasks(&self, node: &NodeName, filter: TaskFilter) -> Result<Vec<Task>, Failure> {
        self.read(&Call::Tasks {
            node: node.clone(),
            filter,
        })
        .await
    }
    /// What a task is doing.
    pub async fn task_status(&self, upid: &Upid) -> Result<TaskState, Failure> {
        self.read(&Call::TaskStatus(upid.clone())).await
    }
    /// The first lines of a task's log; 0 is all.
    pub async fn task_log(&self, upid: &Upid, limit: u32) -> Result<TaskLog, Failure> {
        self.read(&Call::TaskLog {
            upid: upid.clone(),
            limit,
        })
        .await
    }
    /// A machine's config.
    pub async fn vm_config(&self, node: &NodeName, vmid: Vmid) -> Result<VmConfig, Failure> {
        let node = node.clone();
        self.read(&Call::VmConfig { node, vmid }).await
    }
    /// What a machine does right now.
    pub async fn vm_status(&self, node: &NodeName, vmid: Vmid) -> Result<VmStatus, Failure> {
        let node = node.clone();
        self.read(&Call::VmStatus { node, vmid }).await
    }
    /// The guest's interfaces. Holds one of the node's three workers for up to 8 s (rule 9).
    pub async fn agent_interfaces(
        &self,
        node: &NodeName,
        vmid: Vmid,
    ) -> Result<Vec<GuestInterface>, Failure> {
        let node = node.clone();
        let call = Call::AgentInterfaces { node, vmid };
        match self.read(&call).await? {
            AgentAnswer::Interfaces(interfaces) => Ok(interfaces),
            AgentAnswer::Refused { class, said } => {
                let kind = Kind::AgentRefused { class };
                Err(Failure {
                    class: errors::class_of(&kind, Effect::Read, Some(200)),
                    kind,
                    status: Some(200),
                    asked: format!("GET {}", call.render().readable_path()),
                    said,
                    sent: true,
                })
            }
        }
    }
}

/// The answer of `nextid`: a string on the wire though the schema says integer (§5.4).
struct NextId(Vmid);

impl super::answers::Answered for NextId {
    fn read(data: serde_json::Value) -> Result<Self, super::answers::Misfit> {
        super::lenient::as_text(&data)
            .and_then(|text| text.trim().parse().ok())
            .map(Self)
            .ok_or_else(|| format!("{data} is not a VMID"))
    }
}

impl TaskEnd {
    /// What an unsuccessful end means; `None` for a success, also with warnings.
    pub fn failure(&self, upid: &Upid) -> Option<Failure> {
        let (kind, said) = match self {
            Self::Ok | Self::Warnings(_) => return None,
            Self::Unexpected(said) if said.is_empty() => {
                (Kind::TaskUnexpected, "the task has no exit status")
            }
            Self::Unexpected(said) => (Kind::TaskUnexpected, said.as_str()),
            Self::Error(said) => (errors::kind_of_task(said), said.as_str()),
        };
        Some(Failure {
            class: errors::class_of(&kind, Effect::Task, None),
            kind,
            status: None,
            asked: format!("task {upid}"),
            said: said.to_owned(),
            sent: true,
        })
    }
}
