//! The crash walk over a real libvirtd: the process ends at each request that changes something,
//! with that request lost or carried out, and another one goes on.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use egress_core::{
    Claim, Identity, MachineKey, Standing,
    machine::{MachineState, WantedMachine},
};
use egress_kvm2::{Config, bench::Bench};
use egress_provider::{
    Permit, Progress, Provider,
    conformance::{Harness, Landing},
};
use std::{fmt, fs, sync::Arc};
use support::{Ground, Machine, soon};
use tokio::{task::JoinSet, time::Instant};

/// How many lives are lived side by side.
const AT_ONCE: usize = 4;
/// More requests than a life has are none of it.
const MOST: usize = 16;

/// What is done once or again until it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Create,
    Delete,
}

/// One life: in which half the process dies, at which request, and whether that one landed.
#[derive(Clone, Copy)]
struct Fall {
    half: Half,
    request: usize,
    landing: Landing,
}

impl fmt::Display for Fall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}, request {}, {:?}",
            self.half, self.request, self.landing
        )
    }
}

/// The machine of a life, and its provider's process: the record outlives it.
struct Life {
    bench: Bench,
    provider: Arc<dyn Provider>,
    key: MachineKey,
    wanted: WantedMachine,
    claim: Claim,
}

impl Life {
    async fn begin(ground: &Ground, config: Config, directory: &std::path::Path) -> Self {
        let run = uuid::Uuid::new_v4().simple().to_string();
        let identity = Identity {
            installation: format!("crash-{}", &run[..8]).parse().expect("a name"),
            writer: None,
        };
        let name = "kvm-a".parse().expect("a name");
        let bench = Bench::start(name, identity, config.clone(), None, &ground.uri, directory);
        let bench = bench.expect("a bench");
        let provider = bench.process();
        // Key and wish alone.
        let like = Machine::wished(&Arc::new(support::provider(config)), "walked");
        let claim = provider.claim(&like.key, &like.wanted, 1, &[]).await;
        Self {
            provider,
            key: like.key,
            wanted: like.wanted,
            claim: claim.expect("a place"),
            bench,
        }
    }

    async fn call(&mut self, half: Half) -> egress_provider::Result<Progress> {
        let permit = Permit::new(self.claim.attempt, soon());
        match half {
            Half::Create => {
                self.claim.standing = self.claim.standing.max(Standing::Sent);
                let create = self
                    .provider
                    .create(&self.key, &self.claim, &self.wanted, &permit);
                create.await
            }
            Half::Delete => self.provider.delete(&self.key, &self.claim, &permit).await,
        }
    }

    /// Goes through one half. True where the process died on the way.
    async fn go(&mut self, half: Half, fall: Option<Fall>) -> bool {
        if let Some(fall) = fall {
            self.bench.lose_after(fall.request, fall.landing);
        }
        let before = self.sent().await;
        let end = soon();
        let mut died = false;
        loop {
            assert!(Instant::now() < end, "{half:?} does not come to an end");
            match self.call(half).await {
                Ok(Progress::Done) => break,
                Ok(Progress::InProgress { recheck, .. }) => tokio::time::sleep(recheck).await,
                Err(error) => {
                    let here = fall.filter(|_| !died);
                    let Some(fall) = here else {
                        panic!("{half:?}: {}", error.chain());
                    };
                    assert_eq!(
                        self.sent().await - before,
                        fall.request + 1,
                        "{}",
                        error.chain()
                    );
                    died = true;
                    // All that is left is the record, and what landed.
                    self.provider = self.bench.process();
                }
            }
        }
        self.bench.heal().await.expect("healed");
        died
    }

    async fn sent(&self) -> usize {
        self.bench.mutations().await.expect("offered").len()
    }
}

/// How many domains and files of a key there are.
async fn left(ground: &Ground, key: &MachineKey) -> (usize, usize) {
    let session = ground.session().await;
    let domains = session.domains().await.expect("domains");
    let domains = domains.iter().filter(|domain| domain.name == key.name());
    let files = fs::read_dir(ground.dir.join("pool")).expect("the pool");
    let names = files.map(|file| file.expect("a file").file_name());
    let ours = names.filter(|name| name.to_string_lossy().contains(key.name()));
    (domains.count(), ours.count())
}

/// One life. True where the process died in it.
async fn live(ground: Arc<Ground>, config: Config, fall: Fall) -> bool {
    let directory = tempfile::tempdir().expect("a folder");
    let mut life = Life::begin(&ground, config, directory.path()).await;
    let in_half = |half| Some(fall).filter(|fall| fall.half == half);
    let mut died = life.go(Half::Create, in_half(Half::Create)).await;
    assert_eq!(left(&ground, &life.key).await, (1, 2), "{fall}");
    life.claim.standing = Standing::Started;
    let seen = life.provider.get(&life.key, &life.claim).await;
    let state = seen.expect("it is seen").state;
    assert!(
        matches!(state, MachineState::Provisioning | MachineState::Running(_)),
        "{fall}: {state:?}"
    );
    let listing = life.provider.list(&[]).await.expect("a listing");
    assert_eq!(
        (listing.machines.len(), listing.leftovers.len()),
        (1, 0),
        "{fall}"
    );
    died |= life.go(Half::Delete, in_half(Half::Delete)).await;
    assert_eq!(left(&ground, &life.key).await, (0, 0), "{fall}");
    let seen = life.provider.get(&life.key, &life.claim).await;
    assert_eq!(
        seen.expect("it is looked for").state,
        MachineState::Absent,
        "{fall}"
    );
    died
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_request_leaves_one_domain_and_then_nothing() {
    let Some(ground) = Ground::find().map(Arc::new) else {
        return;
    };
    let config = ground.config().await;
    let mut falls = Vec::new();
    for half in [Half::Create, Half::Delete] {
        for landing in [Landing::Lost, Landing::Landed] {
            falls.push((half, landing));
        }
    }
    for (half, landing) in falls {
        let mut lives = JoinSet::new();
        let mut begun = 0;
        let mut fell = 0;
        // Until the half has no further request.
        let mut ended = false;
        while !ended || !lives.is_empty() {
            while !ended && lives.len() < AT_ONCE {
                assert!(begun < MOST, "{half:?} does not come to an end");
                let fall = Fall {
                    half,
                    request: begun,
                    landing,
                };
                begun += 1;
                lives.spawn(live(ground.clone(), config.clone(), fall));
            }
            if let Some(life) = lives.join_next().await {
                let died = life.expect("a life without a fault");
                fell += usize::from(died);
                ended |= !died;
            }
        }
        println!("{half:?} {landing:?}: died {fell} times");
        // Two volumes, an upload, definition and start; or destroy, undefine and two volumes.
        assert!(fell >= 4, "{half:?}: {fell}");
    }
}
