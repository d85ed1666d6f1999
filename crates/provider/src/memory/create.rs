//! `create`: look, decide, act. Each call sends what can be sent now and comes back.

use super::{
    Memory,
    call::{Call, Elsewhere},
    gate::RequestKind,
    machine::{CLONE_LOCK, Configured, Lock, Power},
    order::{Order, Trouble},
    state::{Faults, Look},
};
use crate::{Operation, Permit, Progress, Proof, Result};
use egress_core::machine::{Mark, WantedMachine, Whose};
use egress_core::{Claim, ErrorClass, MachineKey};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// What `create` does next.
#[derive(Debug)]
enum Next {
    Done,
    /// For this step to end.
    Wait(String),
    Clone,
    Upload,
    Configure,
    Start,
    /// It runs without its configuration (C6).
    Stop(Box<Mark>),
}

/// What stands in the way of any machine, whatever room there is.
fn lacks(faults: &Faults) -> Option<Trouble> {
    if faults.no_quorum {
        Some(Trouble::no_quorum())
    } else if let Some(kind) = faults.denied.first() {
        Some(Trouble::denied(*kind))
    } else {
        faults.no_template.then(Trouble::no_template)
    }
}

impl Memory {
    /// Whether the next machine of a key could be made.
    pub(super) async fn survey_world(&self, key: &MachineKey) -> Result<()> {
        let call = self.call(Operation::Survey, key.name());
        let lacks = call.read(|state, _| lacks(&state.faults)).await?;
        lacks.map_or(Ok(()), |trouble| {
            Err(call.error(trouble.class, trouble.said))
        })
    }

    pub(super) async fn create_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, slot) = self.call_at(Operation::Create, claim)?;
        let seed = self.seed_of(key, claim);
        let look = call.look(slot, &seed, &claim.handles).await?;
        call.tell_failures(&look)?;
        let next = self
            .next_for_create(key, claim, &look)
            .map_err(|t| call.error(t.class, t.said))?;
        let ask = || permit.ask(call.operation, call.target);
        let ask_leaving = || permit.ask_leaving(call.operation, call.target);
        let begun = match next {
            Next::Done => return Ok(Progress::Done),
            Next::Wait(step) => return Ok(self.in_progress(step, look.tasks)),
            Next::Clone => {
                self.check_preconditions(&call, key, slot, &seed).await?;
                let mark = self.mark(key, claim, wanted);
                let order = Order::Clone {
                    name: key.name().into(),
                    text: mark.to_string().into(),
                };
                let sent = call
                    .send(slot, order, || {
                        permit.ask_creating(call.operation, call.target)
                    })
                    .await;
                let clone = match sent {
                    Err(error) if error.class() == ErrorClass::Conflict => {
                        return self.after_refusal(&call, key, claim, slot, &seed).await;
                    }
                    sent => sent?,
                };
                let upload = if look.seed {
                    None
                } else {
                    call.send(slot, Order::Upload { seed }, ask_leaving).await?
                };
                clone.into_iter().chain(upload).collect()
            }
            Next::Upload => call
                .send(slot, Order::Upload { seed }, ask_leaving)
                .await?
                .into_iter()
                .collect(),
            Next::Configure => {
                let configured = Arc::new(self.configured(key, claim, wanted));
                call.send(slot, Order::Configure { seed, configured }, ask)
                    .await?;
                call.send(slot, Order::Start, ask)
                    .await?
                    .into_iter()
                    .collect()
            }
            Next::Start => call
                .send(slot, Order::Start, ask)
                .await?
                .into_iter()
                .collect(),
            Next::Stop(mark) => {
                let proof = Proof::new(&mark, look.at);
                let ask = || {
                    ask()?;
                    proof.spend(call.operation, &claim.slot).map(drop)
                };
                call.send(slot, Order::Stop, ask)
                    .await?
                    .into_iter()
                    .collect::<Vec<_>>()
            }
        };
        let step = begun
            .first()
            .map_or_else(String::new, |handle| handle.step.clone());
        Ok(self.in_progress(step, begun))
    }

    fn next_for_create(
        &self,
        key: &MachineKey,
        claim: &Claim,
        look: &Look,
    ) -> Result<Next, Trouble> {
        if let Some(host) = &look.blind {
            return Err(Trouble::new(
                ErrorClass::Transient,
                format!("{host} does not answer"),
            ));
        }
        let Some(machine) = &look.machine else {
            // Nothing but an upload can run at an empty slot: it may go on beside the clone.
            return Ok(Next::Clone);
        };
        let whose = self.whose(key, &claim.cluster, Some(&claim.slot), &claim.slot, machine);
        let ours_runs = machine.power == Power::Running && machine.configured.is_some();
        match (&machine.lock, &whose) {
            (Some(Lock::Held { reason, .. }), Whose::Ours(_))
                if ours_runs && **reason != *CLONE_LOCK =>
            {
                return Ok(Next::Done);
            }
            (Some(lock), _) => {
                return wait_for(lock, look.at, self.settings.stale_lock).map(Next::Wait);
            }
            (None, _) => {}
        }
        let mark = match whose {
            Whose::Ours(mark) => mark,
            Whose::Foreign { .. } => {
                return Err(Trouble::new(
                    ErrorClass::Conflict,
                    "the slot holds a machine of someone else",
                ));
            }
            Whose::NotOwned => return Err(not_owned()),
        };
        let upload_runs = look
            .tasks
            .iter()
            .any(|task| task.step == RequestKind::Upload.as_str());
        match machine.power {
            Power::Running if ours_runs => Ok(Next::Done),
            Power::Running => Ok(Next::Stop(mark)),
            Power::Paused | Power::Hibernated => Err(Trouble::new(
                ErrorClass::NeedsOperator,
                "an admin paused or hibernated the machine",
            )),
            Power::IoError => Err(Trouble::new(
                ErrorClass::Capacity,
                "the machine is stuck on its storage",
            )),
            Power::Stopped | Power::Crashed if machine.configured.is_some() => Ok(Next::Start),
            Power::Stopped | Power::Crashed if upload_runs => {
                Ok(Next::Wait(RequestKind::Upload.as_str().to_owned()))
            }
            Power::Stopped | Power::Crashed if !look.seed => Ok(Next::Upload),
            Power::Stopped | Power::Crashed => Ok(Next::Configure),
        }
    }

    /// The slot was taken between the look and the request, perhaps by an earlier request of
    /// ours: only a readable machine of someone else is a conflict.
    async fn after_refusal(
        &self,
        call: &Call<'_>,
        key: &MachineKey,
        claim: &Claim,
        slot: u32,
        seed: &str,
    ) -> Result<Progress> {
        let look = call.look(slot, seed, &[]).await?;
        self.next_for_create(key, claim, &look)
            .map_err(|t| call.error(t.class, t.said))?;
        Ok(self.in_progress(RequestKind::Clone.as_str(), look.tasks))
    }

    /// All that this and every later step needs, before the first mutating request (C4).
    async fn check_preconditions(
        &self,
        call: &Call<'_>,
        key: &MachineKey,
        slot: u32,
        seed: &str,
    ) -> Result<()> {
        match call.elsewhere(key, slot, seed).await? {
            Elsewhere::Nowhere => {}
            Elsewhere::Ours(number, ..) => {
                let said = format!("the machine at {number} already bears this key's mark");
                return Err(call.error(ErrorClass::NeedsOperator, said));
            }
            Elsewhere::Undecided(class, said) => return Err(call.error(class, said)),
        }
        let missing = call
            .read(|state, _| lacks(&state.faults).or_else(|| state.faults.full.then(Trouble::full)))
            .await?;
        missing.map_or(Ok(()), |trouble| {
            Err(call.error(trouble.class, trouble.said))
        })
    }

    fn mark(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Mark {
        Mark {
            installation: self.identity.installation.clone(),
            writer: self.identity.writer.clone(),
            provider: self.name.clone(),
            cluster: claim.cluster.clone(),
            slot: claim.slot.clone(),
            uid: key.uid().clone(),
            proxy: wanted.proxy.clone(),
            attempt: claim.attempt,
            config: wanted.config_hash.clone(),
            written: self.world.timestamp(Instant::now()),
        }
    }

    fn configured(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Configured {
        Configured {
            key: key.name().into(),
            attempt: claim.attempt,
            proxy: wanted.proxy.clone(),
            config: wanted.config_hash.clone(),
            size: wanted.size,
            mac: claim.mac.clone().unwrap_or_default(),
            port: self.settings.port,
            user_data: wanted.user_data.clone(),
        }
    }
}

/// Waits for a lock, or says that nobody will ever take it away.
pub(super) fn wait_for(lock: &Lock, now: Instant, stale: Duration) -> Result<String, Trouble> {
    match lock {
        Lock::Task(kind) => Ok(kind.as_str().to_owned()),
        Lock::Held { reason, since } if **reason == *CLONE_LOCK && now >= *since + stale => {
            Err(Trouble::new(
                ErrorClass::NeedsOperator,
                format!("the lock ({reason}) is stale: no task holds it"),
            ))
        }
        Lock::Held { reason, .. } => Ok(format!("lock ({reason})")),
    }
}

pub(super) fn not_owned() -> Trouble {
    Trouble::new(
        ErrorClass::NotOwned,
        "the machine has this key's name and not its mark",
    )
}
