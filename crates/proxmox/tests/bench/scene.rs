//! A world, a provider over it, and one machine with the record that an engine would keep.

use crate::bench::{self, Sim};
use egress_core::{
    Claim, ErrorClass, MachineKey, Mark, Standing,
    machine::{Addresses, ConfigHash, MachineSize, MachineState, WantedMachine},
    proxy_config::{Auth, ProxySettings, Verifier},
};
use egress_provider::{
    Error, Permit, Progress, Provider, Result as Answer, conformance::Harness as _,
};
use egress_proxmox::{Config, bench::Bench};
use egress_proxmox_sim::world::Setup;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// How long a whole creation or deletion may take, with all that goes wrong on the way.
const PATIENCE: Duration = Duration::from_hours(1);

pub struct Scene {
    directory: Arc<tempfile::TempDir>,
    pub sim: Arc<Sim>,
    pub bench: Arc<Bench>,
    pub provider: Arc<dyn Provider>,
    pub key: MachineKey,
    pub wanted: WantedMachine,
}

impl Scene {
    pub async fn new(setup: Setup) -> Self {
        Self::with(setup, |_| {}).await
    }

    pub async fn with(setup: Setup, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (sim, bench) = bench::bench_with(setup, directory.path(), change);
        Self::over(directory, sim, bench).await
    }

    pub async fn over(directory: tempfile::TempDir, sim: Arc<Sim>, bench: Arc<Bench>) -> Self {
        let provider = bench.restart().await.unwrap();
        let wanted = WantedMachine {
            proxy: "default/a".parse().unwrap(),
            size: MachineSize {
                cpus: 1,
                memory_mib: 512,
                disk_gib: 2,
            },
            settings: ProxySettings {
                port: None,
                clients: Vec::new(),
                auth: Auth::Basic {
                    verifiers: vec![Verifier::new("egress", "x")],
                    generation: 1,
                },
            },
            config_hash: ConfigHash::of(b"x"),
            user_data: None,
        };
        Self {
            directory: Arc::new(directory),
            sim,
            bench,
            provider,
            key: MachineKey::new("uid-1".parse().unwrap()),
            wanted,
        }
    }

    /// Another key in the same process.
    pub fn of(&self, uid: &str) -> Self {
        Self {
            directory: self.directory.clone(),
            sim: self.sim.clone(),
            bench: self.bench.clone(),
            provider: self.provider.clone(),
            key: MachineKey::new(uid.parse().unwrap()),
            wanted: self.wanted.clone(),
        }
    }

    /// The same key in a new process, which remembers nothing of the one before it.
    pub async fn restarted(&self) -> Self {
        Self {
            provider: self.bench.restart().await.unwrap(),
            ..self.of(self.key.uid().as_str())
        }
    }

    pub async fn claim(&self) -> Claim {
        self.provider
            .claim(&self.key, &self.wanted, 1, &[])
            .await
            .unwrap()
    }

    pub async fn create_once(&self, claim: &mut Claim) -> Result<Progress, Error> {
        claim.standing = claim.standing.max(Standing::Sent);
        let permit = Permit::new(claim.attempt, Instant::now() + Duration::from_mins(10));
        let progress = self
            .provider
            .create(&self.key, claim, &self.wanted, &permit)
            .await?;
        self.record(claim, &progress, Standing::Started).await;
        Ok(progress)
    }

    pub async fn delete_once(&self, claim: &mut Claim) -> Answer<Progress> {
        let permit = Permit::new(claim.attempt, Instant::now() + Duration::from_mins(10));
        let progress = self.provider.delete(&self.key, claim, &permit).await?;
        let standing = claim.standing;
        self.record(claim, &progress, standing).await;
        Ok(progress)
    }

    async fn record(&self, claim: &mut Claim, progress: &Progress, done: Standing) {
        match progress {
            Progress::Done => {
                claim.handles.clear();
                claim.standing = claim.standing.max(done);
            }
            Progress::InProgress {
                handles, recheck, ..
            } => {
                claim.handles.clone_from(handles);
                sleep(*recheck).await;
            }
        }
    }

    pub async fn up(&self, claim: &mut Claim) {
        let troubles = self.up_through(claim).await;
        assert!(troubles.is_empty(), "{troubles:#?}");
    }

    /// Creates until it is done, through whatever may be tried again; answers what went wrong.
    pub async fn up_through(&self, claim: &mut Claim) -> Vec<Error> {
        let end = Instant::now() + PATIENCE;
        let mut troubles = Vec::new();
        while Instant::now() < end {
            match self.create_once(claim).await {
                Ok(Progress::Done) => return troubles,
                Ok(_) => {}
                Err(error) => troubles.push(may_be_tried_again(error).await),
            }
        }
        panic!("create does not come to an end: {troubles:#?}");
    }

    pub async fn down(&self, claim: &mut Claim) {
        let troubles = self.down_through(claim).await;
        assert!(troubles.is_empty(), "{troubles:#?}");
    }

    /// Deletes until it is done, through whatever may be tried again; answers what went wrong.
    pub async fn down_through(&self, claim: &mut Claim) -> Vec<Error> {
        let end = Instant::now() + PATIENCE;
        let mut troubles = Vec::new();
        while Instant::now() < end {
            match self.delete_once(claim).await {
                Ok(Progress::Done) => return troubles,
                Ok(_) => {}
                Err(error) => troubles.push(may_be_tried_again(error).await),
            }
        }
        panic!("delete does not come to an end: {troubles:#?}");
    }

    pub async fn state(&self, claim: &Claim) -> MachineState {
        self.provider.get(&self.key, claim).await.unwrap().state
    }

    pub async fn reports(&self, claim: &Claim) {
        for _ in 0..200 {
            if matches!(
                self.state(claim).await,
                MachineState::Running(Addresses::Reported { .. })
            ) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("it reports no address");
    }

    pub async fn seal(&self, claim: &mut Claim) {
        for _ in 0..50 {
            let permit = Permit::new(claim.attempt, Instant::now() + Duration::from_mins(10));
            let progress = self.provider.seal(&self.key, claim, &permit).await.unwrap();
            self.record(claim, &progress, Standing::Sealed).await;
            if progress == Progress::Done {
                return;
            }
        }
        panic!("seal does not come to an end");
    }

    pub fn tell(&self, order: serde_json::Value) -> serde_json::Value {
        self.sim.tell(order).unwrap()
    }

    /// All that is known of a machine, whatever the API shows; `None` when there is none.
    pub fn describe(&self, vmid: u32) -> Option<String> {
        let told = self.tell(serde_json::json!({"do": "describe", "vmid": vmid}));
        told.as_str().map(str::to_owned)
    }

    /// One key of a machine's configuration.
    pub fn config(&self, vmid: u32, key: &str) -> Option<String> {
        let text = self.describe(vmid)?;
        let prefix = format!("{key}: ");
        let value = text.lines().find_map(|line| line.strip_prefix(&prefix))?;
        Some(value.to_owned())
    }

    pub fn mark(&self, vmid: u32) -> Option<Mark> {
        Mark::find(&self.describe(vmid)?)
    }

    pub fn lines(&self, order: &str) -> Vec<String> {
        serde_json::from_value(self.tell(serde_json::json!({ "do": order }))).unwrap()
    }

    /// Whatever exists in the world.
    pub fn inventory(&self) -> Vec<String> {
        self.lines("inventory")
    }

    /// The machines in the world that are no templates.
    pub fn machines(&self) -> Vec<String> {
        let mut lines = self.inventory();
        lines.retain(|line| line.starts_with("machine "));
        lines
    }

    /// Every changing request that arrived, with its body, oldest first.
    pub fn mutations(&self) -> Vec<String> {
        self.lines("mutations")
    }

    /// How many clones were asked for.
    pub fn clones(&self) -> usize {
        let sent = self.mutations();
        sent.iter().filter(|line| line.contains("/clone ")).count()
    }
}

/// The VMID of a claim.
pub fn vmid(claim: &Claim) -> u32 {
    claim.slot.as_str().parse().unwrap()
}

/// The file of a claim's seed.
pub fn seed_file(claim: &Claim) -> String {
    let volume = &claim.seed.as_ref().unwrap().name;
    volume.rsplit('/').next().unwrap().to_owned()
}

/// An engine waits and tries again after these, and after no others.
async fn may_be_tried_again(error: Error) -> Error {
    let again = [
        ErrorClass::Transient,
        ErrorClass::Busy,
        ErrorClass::OutcomeUnknown,
    ];
    assert!(again.contains(&error.class()), "{error}");
    sleep(Duration::from_secs(2)).await;
    error
}
