//! One run of one case: its machines, and what is cleared away after it.

use super::{
    Harness, Offered, PowerEvent, Stranger,
    verdict::{Miss, Verdict, require},
};
use crate::{Capabilities, Operation, Provider, RecordedSlot};
use egress_core::{
    Claim, Identity, MachineKey, MachineUid, Mark, ProxyId, Slot, Standing,
    machine::{ConfigHash, MachineSize, WantedMachine},
    proxy_config::{Auth, GENERATED_USER, ProxySettings, Verifier},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A machine of a case, with the part of a record that the engine would keep.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) key: MachineKey,
    pub(super) wanted: WantedMachine,
    pub(super) claim: Claim,
    pub(super) by: Arc<dyn Provider>,
    /// Steps that were begun one by one; more than [`MOST_STEPS`] is going in circles.
    pub(super) steps: usize,
}

impl Machine {
    pub(super) fn recorded(&self) -> RecordedSlot {
        RecordedSlot {
            key: self.key.clone(),
            slot: self.claim.slot.clone(),
        }
    }
}

/// How many looks in a row must find nothing after a case that was cut off, and how far they
/// lie apart: a request that was written reaches its host within it.
const QUIET_LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// What must be cleared away after a case.
#[derive(Default)]
pub(super) struct Traces {
    pub(super) machines: Vec<Machine>,
    strangers: Vec<Slot>,
    seeds: Vec<String>,
}

/// The bench as one case sees it.
pub struct Trial {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) identity: Identity,
    pub(super) caps: Capabilities,
    pub(super) harness: Option<Arc<dyn Harness>>,
    pub(super) wrap: super::run::Wrap,
    /// Begins every name of this case; nothing else on the hypervisor begins so.
    pub(super) prefix: String,
    pub(super) namespace: String,
    pub(super) size: MachineSize,
    pub(super) call_deadline: Duration,
    /// How much faster than time the world runs.
    pace: f64,
    traces: Mutex<Traces>,
    names: Mutex<Vec<String>>,
}

impl Trial {
    pub(super) fn new(
        subject: &super::Subject,
        provider: Arc<dyn Provider>,
        options: &super::Options,
        number: usize,
        pace: f64,
    ) -> Self {
        Self {
            caps: provider.capabilities(),
            call_deadline: subject
                .harness
                .as_ref()
                .map_or(Duration::from_mins(11), |h| h.call_deadline()),
            provider,
            pace: pace.max(1.0),
            identity: subject.identity.clone(),
            harness: subject.harness.clone(),
            wrap: subject.wrap.clone(),
            prefix: format!("{}-{number}", options.run_id),
            namespace: format!("conformance-{}", options.run_id),
            size: options.size,
            traces: Mutex::default(),
            names: Mutex::default(),
        }
    }

    pub(super) fn traces(&self) -> std::sync::MutexGuard<'_, Traces> {
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of all machines this case ever wished for.
    pub(super) fn names(&self) -> Vec<String> {
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The harness; a case that asks for it without one is not run.
    pub(super) fn world(&self) -> Verdict<&dyn Harness> {
        self.harness
            .as_deref()
            .ok_or_else(|| Miss::NotRun("needs a harness".into()))
    }

    /// A new instance of the provider under test.
    pub(super) async fn restart(&self) -> Verdict<Arc<dyn Provider>> {
        Ok((self.wrap)(self.world()?.restart().await?))
    }

    /// The provider of another installation, wrapped as the one under test.
    pub(super) async fn other_installation(&self) -> Verdict<Arc<dyn Provider>> {
        Ok((self.wrap)(self.world()?.other_installation().await?))
    }

    /// Key and wish of a machine that nothing else has.
    pub(super) fn wish(&self, label: &str) -> Verdict<(MachineKey, WantedMachine)> {
        let name = format!("{}-{label}", self.prefix);
        let uid: MachineUid = name.parse().map_err(|e| Miss::Failed(format!("{e}")))?;
        let proxy =
            ProxyId::new(&self.namespace, &name).map_err(|e| Miss::Failed(format!("{e}")))?;
        let clients = "127.0.0.0/8"
            .parse()
            .map_err(|e| Miss::Failed(format!("{e}")))?;
        let verifier = Verifier::new(GENERATED_USER, &format!("password of {name}"));
        let wanted = WantedMachine {
            proxy,
            size: self.size,
            settings: ProxySettings {
                port: None,
                clients: vec![clients],
                auth: Auth::Basic {
                    verifiers: vec![verifier],
                    generation: 1,
                },
            },
            config_hash: ConfigHash::of(name.as_bytes()),
            user_data: None,
        };
        let key = MachineKey::new(uid);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.push(key.name().to_owned());
        Ok((key, wanted))
    }

    /// A machine with a claim of the provider under test.
    pub(super) async fn claimed(&self, label: &str) -> Verdict<Machine> {
        self.claimed_by(&self.provider, label).await
    }

    /// A machine with a claim of this provider.
    pub(super) async fn claimed_by(
        &self,
        provider: &Arc<dyn Provider>,
        label: &str,
    ) -> Verdict<Machine> {
        let (key, wanted) = self.wish(label)?;
        let taken = self.taken();
        let call = provider.claim(&key, &wanted, 1, &taken);
        let claim = self.call(Operation::Claim, call).await??;
        require!(
            claim.standing == Standing::Unsent && claim.attempt == 1,
            "the claim of a new machine stands at {:?}, attempt {}",
            claim.standing,
            claim.attempt
        );
        let machine = Machine {
            key,
            wanted,
            claim,
            by: provider.clone(),
            steps: 0,
        };
        self.remember(&machine);
        Ok(machine)
    }

    /// Every slot that this case has used.
    pub(super) fn taken(&self) -> Vec<Slot> {
        let traces = self.traces();
        traces
            .machines
            .iter()
            .map(|m| m.claim.slot.clone())
            .chain(traces.strangers.clone())
            .collect()
    }

    pub(super) fn remember(&self, machine: &Machine) {
        let mut traces = self.traces();
        match traces.machines.iter_mut().find(|m| m.key == machine.key) {
            Some(known) => *known = machine.clone(),
            None => traces.machines.push(machine.clone()),
        }
    }

    /// The mark that the machine bears, or would bear.
    pub(super) fn mark_of(&self, machine: &Machine) -> Mark {
        Mark {
            installation: self.identity.installation.clone(),
            writer: self.identity.writer.clone(),
            provider: self.provider.name().clone(),
            cluster: machine.claim.cluster.clone(),
            slot: machine.claim.slot.clone(),
            uid: machine.key.uid().clone(),
            proxy: machine.wanted.proxy.clone(),
            attempt: machine.claim.attempt,
            config: machine.wanted.config_hash.clone(),
            written: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    /// Places a stranger and sees to it that it is removed in the end.
    pub(super) async fn place(&self, slot: &Slot, stranger: &Stranger) -> Verdict {
        self.world()?.place(slot, stranger).await?;
        self.disown(slot);
        self.catch_up().await
    }

    /// What lies at this slot is removed by the harness after the case, not by the provider.
    pub(super) fn disown(&self, slot: &Slot) {
        self.traces().strangers.push(slot.clone());
    }

    /// Leaves a seed behind and sees to it that it is removed in the end.
    pub(super) async fn leave_seed(&self, key: &MachineKey) -> Verdict<String> {
        let name = self.world()?.leave_seed(key).await?;
        self.traces().seeds.push(name.clone());
        self.catch_up().await?;
        Ok(name)
    }

    /// Changes a machine's power behind the provider's back.
    pub(super) async fn power(&self, machine: &Machine, event: PowerEvent) -> Verdict {
        self.world()?.power(&machine.claim.slot, event).await?;
        self.catch_up().await
    }

    /// How long this much of the world's time takes.
    pub(super) fn scaled(&self, time: Duration) -> Duration {
        time.div_f64(self.pace)
    }

    /// After how many polls a call is dropped or frozen, one number a try: each in a world
    /// without a clock of its own; over a wire, where a call has many, some of them.
    pub(super) fn moments(&self, most: usize) -> Vec<usize> {
        let dense = self.pace <= 1.0;
        let chosen = [1, 2, 3, 5, 8, 13, 21, 34];
        (1..=most)
            .filter(|polls| dense || chosen.contains(polls))
            .collect()
    }

    /// Lets this much of the world's time pass for provider and world.
    pub(super) async fn pass(&self, time: Duration) -> Verdict {
        Ok(self.world()?.pass(self.scaled(time)).await?)
    }

    /// Waits until reads show what the harness did.
    pub(super) async fn catch_up(&self) -> Verdict {
        Ok(self.world()?.catch_up().await?)
    }

    /// How many mutating requests arrived so far.
    pub(super) async fn sent(&self) -> Verdict<usize> {
        Ok(self.world()?.mutations().await?.len())
    }

    /// Nothing was sent since `before`.
    pub(super) async fn nothing_sent_since(&self, before: usize, during: &str) -> Verdict {
        let all = self.world()?.mutations().await?;
        let sent = all.get(before..).unwrap_or_default();
        require!(
            sent.is_empty(),
            "during {during} something was sent: {sent:?}"
        );
        Ok(())
    }

    /// Clears away what a case made that was cut off in the middle of a call: its last request
    /// may have its effect after the first look.
    pub(super) async fn clear_cut_off(&self) -> Vec<String> {
        let machines = self.traces().machines.clone();
        let mut trouble = self.clear(true).await;
        let mut quiet = 0;
        while trouble.is_empty() && quiet < QUIET_LOOKS {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            let recorded: Vec<_> = machines.iter().map(Machine::recorded).collect();
            let listing = match self.listing(&recorded).await {
                Ok(listing) => listing,
                Err(miss) => return vec![format!("the listing: {miss:?}")],
            };
            let is_left = |machine: &&Machine| {
                let key = &machine.key;
                let listed = listing.machines.iter().any(|m| m.mark.uid == *key.uid());
                listed || listing.leftovers.iter().any(|l| l.machine == key.name())
            };
            quiet += 1;
            for mut left in machines.iter().filter(is_left).cloned() {
                quiet = 0;
                if let Err(miss) = self.down(&*left.by.clone(), &mut left).await {
                    trouble.push(format!("{} could not be deleted: {miss:?}", left.key));
                }
            }
        }
        trouble
    }

    /// Clears away what the case made. The unwrapped provider does it where the harness can
    /// make one, so that a fault of the one under test is not counted in every case.
    pub(super) async fn clear(&self, by_force: bool) -> Vec<String> {
        let Traces {
            machines,
            strangers,
            seeds,
        } = std::mem::take(&mut *self.traces());
        let mut trouble = Vec::new();
        let harness = self.harness.as_deref();
        if let Some(harness) = harness {
            note(&mut trouble, "heal", harness.heal().await);
            for slot in &strangers {
                note(&mut trouble, "remove", harness.remove(slot).await);
            }
            for seed in &seeds {
                note(
                    &mut trouble,
                    "remove a seed",
                    harness.remove_seed(seed).await,
                );
            }
        }
        for mut machine in machines {
            let mut provider = machine.by.clone();
            if let Some(harness) = harness {
                // Most machines are neither locked nor protected; saying so is no trouble.
                let _not_locked = harness.unlock(&machine.claim.slot).await;
                let _not_protected = harness.unprotect(&machine.claim.slot).await;
                let ours = Arc::ptr_eq(&machine.by, &self.provider);
                if let (true, Ok(fresh)) = (ours, harness.restart().await) {
                    provider = fresh;
                }
            }
            if let Err(miss) = self.down(&*provider, &mut machine).await {
                trouble.push(format!("{} could not be deleted: {miss:?}", machine.key));
            }
            if let (true, Some(harness)) = (by_force, harness) {
                let _nothing_there = harness.remove(&machine.claim.slot).await;
            }
        }
        // What `down` touched once more is known to be gone or told above.
        self.traces().machines.clear();
        trouble
    }
}

fn note(trouble: &mut Vec<String>, what: &str, outcome: Offered) {
    if let Err(refusal) = outcome {
        trouble.push(format!("{what}: {refusal}"));
    }
}
