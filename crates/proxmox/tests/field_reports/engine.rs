//! What only the loop shows: many passes, and nothing done that was not meant.

use crate::{bench, instead, scene::Scene, task_ended, times};
use async_trait::async_trait;
use egress_core::{
    MachineKey, Mark, ProxyId,
    history::History,
    machine::{ConfigHash, MachineSize},
    plan::Phase,
    proxy::{AuthSource, Desired, Intent, ProxySpec, ServingFault, Trouble, UserDataRef},
    proxy_config::{GENERATED_USER, IdentityAnswer},
};
use egress_engine::{
    Always, Credential, Credentials, Found, FoundText, Outcome, Prober, Providers, pass,
    pass::Parts, probe::Fault, store::memory::MemoryStore,
};
use egress_proxmox_sim::world::Setup;
use serde_json::{Value, json};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// One engine over the simulator, with records that outlive it.
struct Lab {
    scene: Arc<Scene>,
    store: MemoryStore,
    parts: Parts,
    histories: Vec<History>,
    epoch: Instant,
}

impl Lab {
    async fn new(proxies: usize) -> Self {
        let scene = Arc::new(Scene::new(Setup::default()).await);
        let store = MemoryStore::new();
        let parts = Parts {
            store: Arc::new(store.clone()),
            providers: Arc::new(Providers::new([scene.provider.clone()])),
            credentials: Arc::new(OnePassword),
            prober: Arc::new(Guests(scene.clone())),
            permits: Arc::new(Always),
        };
        Self {
            scene,
            store,
            parts,
            histories: (0..proxies).map(|_| History::default()).collect(),
            epoch: Instant::now(),
        }
    }

    /// One pass of each Proxy; what each came to, `None` where it failed.
    async fn passes(&mut self, intent: impl Fn() -> Intent) -> Vec<Option<Outcome>> {
        let mut outcomes = Vec::new();
        for (number, history) in self.histories.iter_mut().enumerate() {
            let desired = desired(number, intent());
            let now = self.epoch.elapsed();
            outcomes.push(pass(&self.parts, &desired, now, history).await.ok());
        }
        outcomes
    }

    /// Passes, a second apart, until every Proxy is in this phase with nothing left to do.
    async fn reach(&mut self, phase: Phase) {
        for _ in 0..1200 {
            let all = self.passes(|| Intent::Run(spec())).await;
            let there = |outcome: &Option<Outcome>| {
                outcome.as_ref().is_some_and(|outcome| {
                    outcome.plan.phase == phase && outcome.plan.actions.is_empty()
                })
            };
            if all.iter().all(there) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("not all are {phase:?}: {:#?}", self.scene.inventory());
    }

    async fn live(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.passes(|| Intent::Run(spec())).await;
            sleep(Duration::from_secs(5)).await;
        }
    }
}

fn desired(number: usize, intent: Intent) -> Desired {
    Desired {
        proxy: ProxyId::new("default", &format!("p{number}")).unwrap(),
        uid: format!("uid-{number}").parse().unwrap(),
        installation: bench::identity().installation,
        generation: 1,
        intent,
    }
}

fn spec() -> ProxySpec {
    ProxySpec {
        provider: bench::name(),
        size: MachineSize {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 2,
        },
        port: None,
        clients: Vec::new(),
        auth: AuthSource::Generated,
        user_data: None,
        probe_interval: Duration::from_mins(1),
        probe_timeout: Duration::from_secs(5),
        failure_threshold: 3,
        config_hash: ConfigHash::of(b"x"),
    }
}

/// The same password for all.
struct OnePassword;

#[async_trait]
impl Credentials for OnePassword {
    async fn find(&self, _: &ProxyId, _: &AuthSource) -> Result<Found, Trouble> {
        Ok(Found::Known(Credential {
            user: GENERATED_USER.into(),
            password: "simulated".into(),
            generation: 1,
        }))
    }
    async fn ensure(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble> {
        self.find(id, source).await
    }
    async fn cloud_config(&self, id: &ProxyId, source: &UserDataRef) -> Result<FoundText, Trouble> {
        Ok(FoundText::at(id, source, None))
    }
    async fn forget(&self, _: &ProxyId) -> Result<(), Trouble> {
        Ok(())
    }
}

/// Answers as the proxy of whichever machine has the address.
struct Guests(Arc<Scene>);

impl Guests {
    fn at(&self, address: IpAddr) -> Option<Mark> {
        let IpAddr::V4(v4) = address else {
            return None;
        };
        // The simulator's rule: 198.18.0.10 and the number, modulo 131000.
        let host = u32::from(v4) - u32::from(Ipv4Addr::new(198, 18, 0, 10));
        let number = if host < 100_000 { host + 131_000 } else { host };
        let text = self.0.describe(number)?;
        text.contains("running as").then(|| Mark::find(&text))?
    }
}

#[async_trait]
impl Prober for Guests {
    async fn identify(
        &self,
        endpoint: SocketAddr,
        credential: Option<&Credential>,
        _: Duration,
    ) -> Result<IdentityAnswer, Fault> {
        let mark = self.at(endpoint.ip()).ok_or_else(|| {
            (
                ServingFault::PortClosed,
                format!("nothing listens at {endpoint}"),
            )
        })?;
        Ok(IdentityAnswer {
            key: MachineKey::new(mark.uid).name().to_owned(),
            attempt: mark.attempt,
            credential_generation: credential.map_or(0, |known| known.generation),
            version: "sim".to_owned(),
            draining: false,
        })
    }
}

#[tokio::test(start_paused = true)]
async fn b24_a_proxy_deleted_before_it_ever_had_a_machine_is_gone_without_a_made_up_number() {
    let mut lab = Lab::new(1).await;
    let mut gone = false;
    for _ in 0..60 {
        let outcome = lab.passes(|| Intent::Delete).await.pop().flatten();
        gone = outcome.is_some_and(|outcome| outcome.gone);
        if gone {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert!(gone, "it never goes");
    let asked = lab.scene.sim.take_requests();
    let wrong: Vec<_> = asked
        .iter()
        .filter(|line| !line.starts_with("GET") || line.contains("-1") || line.contains("vmid=0"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(start_paused = true)]
async fn b126_ten_minutes_without_an_answer_delete_nothing_and_make_nothing() {
    let something = |status: u16, reason: &str, body: Value| instead("/", status, reason, &body);
    let null = json!({"data": null});
    let outages: [(&str, Value); 8] = [
        ("refused", json!({"do": "network", "state": "down"})),
        ("silent", json!({"do": "network", "state": "hanging"})),
        ("401", something(401, "No ticket", null.clone())),
        (
            "403",
            something(403, "Permission check failed (/, Sys.Audit)", null.clone()),
        ),
        ("500", something(500, "Internal Server Error", null.clone())),
        ("502", something(502, "Bad Gateway", json!("<html>"))),
        ("595", something(595, "No route to host", null.clone())),
        (
            "empty",
            instead("/cluster/resources", 200, "OK", &json!({"data": []})),
        ),
    ];
    let mut lab = Lab::new(10).await;
    lab.reach(Phase::Running).await;
    for (what, outage) in outages {
        let before = (lab.scene.mutations(), lab.scene.machines());
        assert_eq!(before.1.len(), 10, "{what}");
        lab.scene.tell(outage);
        lab.live(Duration::from_mins(10)).await;
        lab.scene.tell(json!({"do": "heal"}));
        let after = (lab.scene.mutations(), lab.scene.machines());
        assert_eq!(after, before, "{what}");
        lab.reach(Phase::Running).await;
        assert_eq!(lab.scene.machines(), before.1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn b162_a_machine_that_was_switched_off_is_started_though_nobody_changed_a_wish() {
    let mut lab = Lab::new(1).await;
    lab.reach(Phase::Running).await;
    let mark_of = |lab: &Lab| {
        let machine = lab.scene.machines().pop().unwrap();
        machine.split(' ').nth(1).unwrap().parse::<u32>().unwrap()
    };
    let number = mark_of(&lab);
    lab.scene
        .tell(json!({"do": "power", "vmid": number, "event": "off"}));
    // As often as each pass asks to be called again, and no other cause.
    let end = Instant::now() + Duration::from_mins(5);
    loop {
        let outcome = lab.passes(|| Intent::Run(spec())).await.pop().flatten();
        let wait = outcome.and_then(|outcome| outcome.recheck);
        sleep(wait.expect("it asks to be looked at again")).await;
        let text = lab.scene.describe(number).unwrap();
        if text.contains("running as") {
            break;
        }
        assert!(Instant::now() < end, "it stays off");
    }
    assert_eq!((lab.scene.clones(), mark_of(&lab)), (1, number));
}

#[tokio::test(start_paused = true)]
async fn b14_an_engine_that_dies_before_the_answer_is_recorded_and_loses_its_records_makes_one() {
    let mut lab = Lab::new(1).await;
    lab.scene
        .tell(json!({"do": "lose-answer", "landing": "landed"}));
    while lab.scene.clones() == 0 {
        lab.passes(|| Intent::Run(spec())).await;
        sleep(Duration::from_secs(1)).await;
    }
    // Another process, which has the same records and knows no more.
    let next = lab.scene.restarted().await;
    lab.parts.providers = Arc::new(Providers::new([next.provider.clone()]));
    lab.histories = vec![History::default()];
    lab.reach(Phase::Running).await;
    assert_eq!((lab.scene.clones(), lab.scene.machines().len()), (1, 1));
    // And one that has none.
    lab.store = MemoryStore::new();
    lab.parts.store = Arc::new(lab.store.clone());
    lab.parts.providers = Arc::new(Providers::new([lab
        .scene
        .restarted()
        .await
        .provider
        .clone()]));
    lab.histories = vec![History::default()];
    lab.reach(Phase::Running).await;
    assert_eq!((lab.scene.clones(), lab.scene.machines().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn b32_a_number_that_cannot_be_used_is_recorded_and_another_one_is_taken() {
    let mut lab = Lab::new(1).await;
    while lab.scene.clones() == 0 {
        lab.passes(|| Intent::Run(spec())).await;
    }
    lab.scene.tell(json!({"do": "fail-tasks"}));
    let text = "clone failed: disk image '/x/vm-1-disk-0.qcow2' already exists";
    lab.scene.tell(times(1, task_ended("qmclone", text)));
    lab.reach(Phase::Running).await;
    let numbers = cloned_to(&lab.scene);
    assert_eq!(numbers.len(), 2, "{numbers:?}");
    assert_ne!(numbers[0], numbers[1], "the same number again");
    assert_eq!(lab.scene.machines().len(), 1);
}

/// The numbers that clones were asked for, oldest first.
fn cloned_to(scene: &Scene) -> Vec<String> {
    let sent = scene.mutations();
    sent.iter()
        .filter(|line| line.contains("/clone "))
        .filter_map(|line| line.split("newid=").nth(1)?.split('&').next())
        .map(str::to_owned)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn b40_a_clone_that_fails_again_and_again_is_told_and_made_at_its_number_in_the_end() {
    let mut lab = Lab::new(1).await;
    lab.scene
        .tell(json!({"do": "hold-storage", "storage": "local-lvm", "seconds": 600.0}));
    let mut told = false;
    let end = Instant::now() + Duration::from_mins(9);
    while Instant::now() < end {
        let outcome = lab.passes(|| Intent::Run(spec())).await.pop().flatten();
        let outcome = outcome.unwrap();
        told |= outcome
            .status
            .conditions
            .iter()
            .any(|condition| condition.message.contains("got timeout"));
        sleep(outcome.recheck.unwrap_or(Duration::from_mins(1))).await;
    }
    assert!(told, "why it fails is not in the status");
    let tries = lab.scene.clones();
    // Each waits for the lock for 10 s before it fails.
    assert!((3..=54).contains(&tries), "{tries} tries in nine minutes");
    let mut numbers = cloned_to(&lab.scene);
    numbers.dedup();
    assert_eq!(numbers.len(), 1, "the same number: nothing is there");
    lab.reach(Phase::Running).await;
    assert_eq!(lab.scene.machines().len(), 1);
}
