//! What a test bench can do to the world beneath a provider.

use crate::Provider;
use async_trait::async_trait;
use egress_core::{Host, Identity, MachineKey, Slot};
use std::{sync::Arc, time::Duration};

/// Why a harness did not do what a case asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no such ability: the case is printed as not run.
    #[error("the harness cannot {0}")]
    NotOffered(&'static str),
    /// It tried and the world did not let it: the case fails, and the harness is to blame.
    #[error("the harness stumbled: {0}")]
    Stumbled(String),
}

/// The answer of an ability that a harness may lack.
pub type Offered<T = ()> = Result<T, Refusal>;

/// A machine that the harness puts into the world behind the provider's back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Its name.
    pub name: String,
    /// What stands where a mark would stand: nothing, a note, or a whole mark line.
    pub text: Option<String>,
    /// Whether it is a template; else it is an ordinary, running machine.
    pub template: bool,
}

/// What someone does to a machine's power, at the hypervisor and not through the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// Started, configured or not.
    Started,
    /// Shut down and left in place.
    Off,
    /// Paused in memory.
    Paused,
    /// Suspended to disk.
    Hibernated,
    /// Ended by a fault of its own.
    Crashed,
    /// Stopped by the hypervisor on a storage error.
    IoError,
    /// Still running, but deaf to a polite request to stop.
    Hung,
}

/// Locks that others hold on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// A backup of a running machine: everything about it stays readable.
    Backup,
    /// A clone in the making: neither name nor mark can be read.
    Clone,
}

/// What becomes of a mutating request whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// It has its effect at once.
    Landed,
    /// It never has an effect.
    Lost,
    /// It has its effect so long after it was sent.
    Late(Duration),
}

/// How the way to the hypervisor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Good.
    Up,
    /// Connections are refused.
    Down,
    /// Requests are taken and never answered.
    Hanging,
}

/// Which credential the provider finds where it reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The hypervisor takes it.
    Right,
    /// The hypervisor refuses it.
    Wrong,
    /// Exchanged: a new one lies there, the hypervisor takes it and refuses the old one.
    Rotated,
}

/// How the machine's guest agent (or what stands for it) answers from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// It reports the addresses.
    Answering,
    /// There is none, and the hypervisor knows (`NoAgent`).
    Missing,
    /// It is there and does not answer now.
    Silent,
    /// It answers and never reports an address (`NeverReported` after the boot time-out).
    Addressless,
}

/// The test bench of one provider: one world, and everything that can happen in it.
///
/// Each ability with a body may be left out; the cases that ask for it are then printed as
/// not run. Slots are those that the provider's own `claim` and `list` speak of. Only
/// [`heal`](Self::heal) undoes a fault; machines are removed by the cases themselves.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Who the providers made by [`restart`](Self::restart) are.
    fn identity(&self) -> Identity;

    /// A new instance of the provider under test over the same world, as a restart of the
    /// process makes it. Earlier instances stay usable: they are the frozen old process.
    async fn restart(&self) -> Offered<Arc<dyn Provider>>;

    /// Undoes every fault that does not lie on a machine (network, credentials, capacity,
    /// precondition, cluster, quorum, blind spot, pending losses). Called after each case.
    async fn heal(&self) -> Offered;

    /// Everything in the world that could be left behind: machines, disks, seeds, tasks,
    /// processes, directories; one sorted line each, stable while nothing changes. What may
    /// stay by design (a counter, a log) is left out.
    async fn inventory(&self) -> Offered<Vec<String>>;

    /// The longest that one call of this provider may take, a hanging world included (T1).
    fn call_deadline(&self) -> Duration {
        Duration::from_mins(1)
    }

    /// Texts that must never show up in an error, a log, a mark or a debug print (E2):
    /// tokens and passwords that the world and the provider's configuration hold.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the provider's steps show in [`mutations`](Self::mutations) alone: each request has
    /// had its effect when it is answered, so that no task of a step is ever open.
    fn steps_show_as_requests(&self) -> bool {
        false
    }

    /// How much faster than time its world runs, and the provider's own waits with it; at least
    /// 1. The suite's waits are divided by it.
    async fn pace(&self) -> Offered<f64> {
        Ok(1.0)
    }

    /// Lets time pass for provider and world. Real worlds wait; virtual ones jump.
    async fn pass(&self, time: Duration) -> Offered {
        if time > Duration::from_secs(10) {
            return Err(Refusal::NotOffered("let more than 10 s pass"));
        }
        tokio::time::sleep(time).await;
        Ok(())
    }

    /// Waits until reads show everything that was done to the world so far; nothing to wait
    /// for where reads are strong.
    async fn catch_up(&self) -> Offered {
        Ok(())
    }

    /// A provider of another installation over the same world.
    async fn other_installation(&self) -> Offered<Arc<dyn Provider>> {
        Err(Refusal::NotOffered(
            "make a provider of another installation",
        ))
    }

    /// Every mutating request that reached the world so far, one line each, oldest first.
    async fn mutations(&self) -> Offered<Vec<String>> {
        Err(Refusal::NotOffered("tell which mutating requests arrived"))
    }

    /// All that the world knows of what lies at a slot (power, name, text, disks, owner) as
    /// one text that changes when anything of it is touched; `None` when nothing is there.
    async fn describe(&self, _slot: &Slot) -> Offered<Option<String>> {
        Err(Refusal::NotOffered("describe what lies at a slot"))
    }

    /// Puts a machine at a free slot.
    async fn place(&self, _slot: &Slot, _stranger: &Stranger) -> Offered {
        Err(Refusal::NotOffered("place a machine of someone else"))
    }

    /// Copies the machine at a slot with all it bears, as a person would. Answers where the
    /// copy is.
    async fn copy(&self, _slot: &Slot) -> Offered<Slot> {
        Err(Refusal::NotOffered("copy a machine"))
    }

    /// Removes whatever lies at a slot, with disks and seed; fine when nothing is there.
    async fn remove(&self, _slot: &Slot) -> Offered {
        Err(Refusal::NotOffered("remove a machine"))
    }

    /// Renames the machine at a slot.
    async fn rename(&self, _slot: &Slot, _name: &str) -> Offered {
        Err(Refusal::NotOffered("rename a machine"))
    }

    /// Replaces the text that holds the mark; `None` takes it away.
    async fn edit_mark(&self, _slot: &Slot, _text: Option<&str>) -> Offered {
        Err(Refusal::NotOffered("edit a mark"))
    }

    /// Changes the power of the machine at a slot.
    async fn power(&self, _slot: &Slot, _event: PowerEvent) -> Offered {
        Err(Refusal::NotOffered("change a machine's power"))
    }

    /// Protects the machine at a slot against removal until [`unprotect`](Self::unprotect).
    async fn protect(&self, _slot: &Slot) -> Offered {
        Err(Refusal::NotOffered("protect a machine"))
    }

    /// Takes the protection away again.
    async fn unprotect(&self, _slot: &Slot) -> Offered {
        Err(Refusal::NotOffered("protect a machine"))
    }

    /// Locks the machine at a slot until [`unlock`](Self::unlock). [`Lock::Clone`] also works
    /// at a free slot: a nameless, locked machine without a mark appears there.
    async fn lock(&self, _slot: &Slot, _lock: Lock) -> Offered {
        Err(Refusal::NotOffered("lock a machine"))
    }

    /// Takes the lock away again; what [`Lock::Clone`] put at a free slot goes with it.
    async fn unlock(&self, _slot: &Slot) -> Offered {
        Err(Refusal::NotOffered("lock a machine"))
    }

    /// Moves the machine at a slot to another host. Answers which.
    async fn migrate(&self, _slot: &Slot) -> Offered<Host> {
        Err(Refusal::NotOffered("move a machine to another host"))
    }

    /// Changes how the agent of the machine at a slot answers.
    async fn agent(&self, _slot: &Slot, _agent: Agent) -> Offered {
        Err(Refusal::NotOffered("change a machine's agent"))
    }

    /// Leaves a seed in the world, made for this key, that no machine uses. Answers its full
    /// name. It is removed by [`remove_seed`](Self::remove_seed).
    async fn leave_seed(&self, _key: &MachineKey) -> Offered<String> {
        Err(Refusal::NotOffered("leave a seed behind"))
    }

    /// Removes a seed by its full name.
    async fn remove_seed(&self, _name: &str) -> Offered {
        Err(Refusal::NotOffered("leave a seed behind"))
    }

    /// Makes every task that runs now end in an error. Answers how many there were.
    async fn fail_tasks(&self) -> Offered<usize> {
        Err(Refusal::NotOffered("make running tasks fail"))
    }

    /// The answer of the next mutating request is lost on its way.
    async fn lose_answer(&self, _landing: Landing) -> Offered {
        Err(Refusal::NotOffered("lose the answer of a request"))
    }

    /// Changes the way to the hypervisor.
    async fn network(&self, _network: Network) -> Offered {
        Err(Refusal::NotOffered("change the network"))
    }

    /// Changes the credential.
    async fn credentials(&self, _credentials: Credentials) -> Offered {
        Err(Refusal::NotOffered("change the credentials"))
    }

    /// Another cluster answers at the same address until healed.
    async fn change_cluster(&self) -> Offered {
        Err(Refusal::NotOffered("change the cluster's identity"))
    }

    /// There is no room for another machine until healed.
    async fn fill_up(&self) -> Offered {
        Err(Refusal::NotOffered("use up the capacity"))
    }

    /// A precondition of create fails until healed that only its later steps need: the
    /// template is gone, or a privilege for the last step is missing (C4).
    async fn break_precondition(&self) -> Offered {
        Err(Refusal::NotOffered("break a precondition of create"))
    }

    /// The cluster has no quorum until healed.
    async fn lose_quorum(&self) -> Offered {
        Err(Refusal::NotOffered("take away the quorum"))
    }

    /// One part of the world (a host, a storage, a directory) does not answer until healed,
    /// while the rest does.
    async fn blind_spot(&self) -> Offered {
        Err(Refusal::NotOffered("hide a part of the world"))
    }
}
