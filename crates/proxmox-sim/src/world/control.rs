//! Everything that people, accidents and hosts do to the world, as data.

use super::setup::{AclSetup, TokenSetup};
use serde::{Deserialize, Serialize};

/// One thing that happens beside the API. As JSON: `{"do": "lose-answer", "landing": "lost"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Control {
    /// Answers names that a client needs: nodes, template, storages, pools, tokens without
    /// their secrets, time.
    Facts,
    /// Answers one sorted line for everything that could be left behind.
    Inventory,
    /// Answers the mutating requests that arrived so far, one line each, oldest first.
    Mutations,
    /// Answers one text of all that is known of a guest, or null.
    Describe {
        /// The guest.
        vmid: u32,
    },
    /// Puts a machine at a free number.
    Place {
        /// Where.
        vmid: u32,
        /// Its name.
        name: String,
        /// Its description.
        #[serde(default)]
        text: Option<String>,
        /// Whether it is a template; else it is an ordinary, running machine.
        #[serde(default)]
        template: bool,
        /// Its node; the first one if left out.
        #[serde(default)]
        node: Option<String>,
        /// Whether it is a container.
        #[serde(default)]
        container: bool,
    },
    /// Copies a machine with all it bears, as a person would. Answers the copy's number.
    Copy {
        /// Which.
        vmid: u32,
        /// The copy's number; the lowest free one above it if left out.
        #[serde(default)]
        to: Option<u32>,
    },
    /// Removes a guest with its disks and its seed.
    Remove {
        /// Which.
        vmid: u32,
    },
    /// Renames a machine.
    Rename {
        /// Which.
        vmid: u32,
        /// Its new name.
        name: String,
    },
    /// Replaces a machine's description; null takes it away.
    EditDescription {
        /// Which.
        vmid: u32,
        /// The new text.
        text: Option<String>,
    },
    /// Sets a key of a machine's configuration as root; null takes it away.
    SetKey {
        /// Which machine.
        vmid: u32,
        /// Which key.
        key: String,
        /// Its new value.
        value: Option<String>,
    },
    /// Changes a machine's power.
    Power {
        /// Which.
        vmid: u32,
        /// How.
        event: Power,
    },
    /// Sets `protection`.
    Protect {
        /// Which.
        vmid: u32,
    },
    /// Takes `protection` away.
    Unprotect {
        /// Which.
        vmid: u32,
    },
    /// Sets a machine's lock. `clone` and `create` also work at a free number: a nameless,
    /// locked entry appears there.
    Lock {
        /// Which.
        vmid: u32,
        /// The lock.
        lock: String,
    },
    /// `qm unlock`; an entry that [`Control::Lock`] made goes with it.
    Unlock {
        /// Which.
        vmid: u32,
    },
    /// Moves a guest to another node. Answers which.
    Migrate {
        /// Which.
        vmid: u32,
        /// Where to; any other node if left out.
        #[serde(default)]
        to: Option<String>,
    },
    /// Changes how a guest's agent answers from now on.
    Agent {
        /// Which.
        vmid: u32,
        /// How.
        agent: AgentBehaviour,
    },
    /// What every guest without an order of its own does.
    DefaultAgent {
        /// How.
        agent: AgentBehaviour,
    },
    /// Sets the addresses that a guest reports beside its loopback and link-local ones.
    Addresses {
        /// Which.
        vmid: u32,
        /// IPv4 and IPv6 addresses.
        addresses: Vec<std::net::IpAddr>,
    },
    /// Puts an ISO on a storage. Answers its volume.
    LeaveSeed {
        /// Its file name.
        name: String,
        /// The storage; the first that takes ISOs if left out.
        #[serde(default)]
        storage: Option<String>,
    },
    /// Removes an ISO by file name or volume.
    RemoveSeed {
        /// Which.
        name: String,
    },
    /// Makes every running task end in an error. Answers how many there were.
    FailTasks,
    /// SIGKILL to the running tasks of a type, all if left out. Answers how many there were.
    KillTasks {
        /// `qmclone`, `qmdestroy` and so on.
        #[serde(default)]
        kind: Option<String>,
        /// Only this one.
        #[serde(default)]
        upid: Option<String>,
    },
    /// SIGSTOP to the workers of a type that run now or begin later, until [`Control::Continue`].
    StallTasks {
        /// `qmclone`, `qmdestroy` and so on.
        kind: String,
        /// How many; the rest runs on.
        #[serde(default)]
        count: Option<u32>,
    },
    /// SIGCONT to all stalled workers.
    Continue,
    /// The answer of the next mutating request is lost on its way.
    LoseAnswer {
        /// What becomes of the request.
        landing: Landing,
        /// For `late`: after how many seconds it has its effect.
        #[serde(default)]
        seconds: f64,
        /// Whether the API server says 596 after its time-out instead of dropping the
        /// connection.
        #[serde(default)]
        timed_out: bool,
    },
    /// Loses mutating answers at random from now on; reads too where asked.
    LoseAtRandom {
        /// How many of a thousand requests; 0 ends it.
        permille: u32,
        /// Whether reads are lost too.
        #[serde(default)]
        reads: bool,
    },
    /// Answers the next requests in place of the API: something in front of it, or something
    /// no one expects.
    AnswerWith {
        /// The status.
        status: u16,
        /// The reason phrase.
        #[serde(default)]
        reason: String,
        /// The body.
        #[serde(default)]
        body: String,
        /// The content type.
        #[serde(default)]
        content_type: Option<String>,
        /// Only requests whose path contains this.
        #[serde(default)]
        path: String,
        /// How many requests; all until healed if left out.
        #[serde(default)]
        count: Option<u32>,
    },
    /// Changes the way to the API servers.
    Network {
        /// How it is.
        state: Network,
        /// Only to this node's.
        #[serde(default)]
        node: Option<String>,
    },
    /// Adds a token, or replaces it.
    AddToken {
        /// The token.
        token: TokenSetup,
        /// Its entries.
        #[serde(default)]
        acl: Vec<AclSetup>,
    },
    /// Takes a token away; [`Control::Heal`] brings it back.
    RevokeToken {
        /// `user@realm!name`.
        id: String,
    },
    /// Gives a token a new secret and takes the old one away.
    RotateToken {
        /// `user@realm!name`.
        id: String,
        /// The new secret; made up if left out.
        #[serde(default)]
        secret: Option<String>,
    },
    /// Adds entries to the access control list.
    Grant {
        /// The entries.
        acl: Vec<AclSetup>,
    },
    /// Sets a role's privileges.
    SetRole {
        /// Which.
        role: String,
        /// All it has.
        privileges: Vec<String>,
    },
    /// Takes one privilege from every role until healed.
    RemovePrivilege {
        /// `VM.Config.Network` and so on.
        privilege: String,
    },
    /// Another cluster answers at the same addresses, with the same tokens and template but
    /// none of the machines, until healed.
    ChangeCluster,
    /// Uses up a storage until healed.
    FillStorage {
        /// Which; all if left out.
        #[serde(default)]
        storage: Option<String>,
        /// How many bytes stay free.
        #[serde(default)]
        free: u64,
    },
    /// Uses up a node's memory until healed.
    FillMemory {
        /// Which; all if left out.
        #[serde(default)]
        node: Option<String>,
        /// How many bytes stay free.
        #[serde(default)]
        free: u64,
    },
    /// Takes a storage off line or brings it back.
    StorageOnline {
        /// Which.
        storage: String,
        /// Whether it is.
        online: bool,
    },
    /// Holds a storage's lock for so many seconds.
    HoldStorage {
        /// Which.
        storage: String,
        /// How long.
        seconds: f64,
    },
    /// Holds a machine's lock file for so many seconds.
    HoldMachine {
        /// Which.
        vmid: u32,
        /// How long.
        seconds: f64,
    },
    /// Holds the lock of the users' file (pool membership) for so many seconds.
    HoldUsers {
        /// How long.
        seconds: f64,
    },
    /// Makes the template of this number vanish until healed.
    HideTemplate {
        /// Which.
        vmid: u32,
    },
    /// Whether the cluster has quorum.
    Quorum {
        /// Whether it does.
        on: bool,
    },
    /// Switches a node off or on. Its machines stop with it.
    Node {
        /// Which.
        node: String,
        /// Whether it is up.
        up: bool,
    },
    /// Stops, hangs or starts a daemon of a node.
    Daemon {
        /// Which node; all if left out.
        #[serde(default)]
        node: Option<String>,
        /// Which daemon.
        daemon: Daemon,
        /// What becomes of it.
        state: DaemonState,
    },
    /// Sets a node's clock off by so many seconds.
    ClockSkew {
        /// Which.
        node: String,
        /// How many; negative is slow.
        seconds: i64,
    },
    /// Whether high availability looks after a guest.
    Ha {
        /// Which.
        vmid: u32,
        /// Whether it does.
        managed: bool,
    },
    /// Sets who may use which tags; left out: free.
    Tags {
        /// `free`, `existing`, `list` or `none`.
        #[serde(default)]
        user_allow: Option<String>,
        /// The tags of `list`.
        #[serde(default)]
        user_allow_list: Vec<String>,
        /// Tags that only Sys.Modify on `/` may set.
        #[serde(default)]
        registered_tags: Vec<String>,
    },
    /// Undoes every fault that does not lie on a machine.
    Heal,
}

/// What someone does to a machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    /// Started, configured or not.
    Started,
    /// Shut down and left in place.
    Off,
    /// Paused in memory.
    Paused,
    /// Suspended to disk.
    Hibernated,
    /// QEMU ended by itself.
    Crashed,
    /// Stopped by QEMU on a storage error.
    IoError,
    /// Stopped by QEMU on an error of the machine's processor.
    InternalError,
    /// Running, but deaf: neither the monitor nor the guest answers.
    Hung,
}

/// How a guest's agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentBehaviour {
    /// It reports the addresses.
    #[default]
    Answering,
    /// The configuration has no agent.
    Missing,
    /// It does not answer.
    Silent,
    /// It answers and reports no usable address.
    Addressless,
    /// It answers 200 with an error object: the command is disabled.
    Refusing,
    /// It reports interfaces without the network card's MAC address, and another address.
    Lying,
    /// It takes the ping and then lets the command time out.
    Slow,
}

/// What becomes of a request whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Landing {
    /// It has its effect at once.
    Landed,
    /// It never has an effect.
    Lost,
    /// It has its effect later.
    Late,
}

/// How the way to an API server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Good.
    Up,
    /// Connections are refused.
    Down,
    /// Requests are taken and never answered.
    Hanging,
}

/// A daemon of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Daemon {
    /// The HTTPS server.
    Pveproxy,
    /// The server behind it that does what needs root.
    Pvedaemon,
    /// The cluster's file system.
    Pmxcfs,
    /// The sender of the status broadcasts.
    Pvestatd,
}

/// How a daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonState {
    /// It works.
    Up,
    /// It is not there.
    Down,
    /// It takes requests and works on them when it goes on.
    Hung,
}
