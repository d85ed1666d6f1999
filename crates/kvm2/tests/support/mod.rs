//! A real libvirtd, as `cargo xtask libvirt-up` runs it, and machines without an operating system.

pub mod host;

use egress_core::{
    Claim, ClusterId, Identity, MachineKey, Slot, Standing,
    machine::{ConfigHash, MachineSize, MachineState, ObservedMachine, WantedMachine},
    proxy_config::{Auth, ProxySettings, Verifier},
};
use egress_kvm2::{
    Config, Kvm2,
    client::{Client, Dialer, HostUri, Session, TlsFiles},
};
use egress_provider::{Permit, Progress, Provider, Result};
use std::{env, io::Write, path::PathBuf, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Long enough for everything here on a busy host.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// An empty disk: nothing boots from it, so that a machine costs no time.
const EMPTY: &str = "egress-empty.qcow2";

/// Where libvirt is.
pub struct Ground {
    pub uri: HostUri,
    /// libvirt-up's own directory.
    pub dir: PathBuf,
}

impl Ground {
    /// What `libvirt-up` tells its command. Elsewhere it says what would enable the test; where
    /// nothing may be left out, that is a failure.
    pub fn find() -> Option<Self> {
        let told = |name: &str| env::var(name).ok();
        let found = (|| {
            Some(Self {
                uri: told("EGRESS_LIBVIRT_URI")?.parse().ok()?,
                dir: told("EGRESS_LIBVIRT_DIR")?.into(),
            })
        })();
        if found.is_none() {
            let why = "real machines: cargo xtask ci guests, as root";
            assert!(
                !env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
                "{why}"
            );
            // Not by `eprintln!`, which a passing test keeps to itself.
            writeln!(std::io::stderr(), "NOT RUN: {why}").expect("a stream");
        }
        found
    }

    /// A connection beside the provider's.
    pub async fn session(&self) -> Session {
        let client = Client::new(Dialer::new(self.uri.clone(), TlsFiles::default()));
        client.open(PATIENCE).await.expect("libvirt answers")
    }

    /// The name of an empty base image in the pool `default`, which is made once.
    pub async fn empty_image(&self) -> &'static str {
        // One test makes it, those beside it wait.
        static MAKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _making = MAKING.lock().await;
        let session = self.session().await;
        let pool = session.pool("default").await.expect("the pool");
        if session.volume(&pool, EMPTY).await.is_err() {
            let xml = format!(
                "<volume><name>{EMPTY}</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target></volume>"
            );
            session
                .create_volume(&pool, EMPTY, &xml, soon())
                .await
                .expect("it can be made");
        }
        EMPTY
    }

    /// The configuration of a provider here.
    pub async fn config(&self) -> Config {
        self.config_of(&[&self.uri]).await
    }

    /// The same with these hosts.
    pub async fn config_of(&self, hosts: &[&HostUri]) -> Config {
        let hosts: Vec<_> = hosts
            .iter()
            .map(|uri| serde_json::json!({"uri": uri}))
            .collect();
        let config = serde_json::json!({
            "hosts": hosts,
            "baseImage": self.empty_image().await,
            "domainType": "qemu",
            "guestAgent": "baked",
            "reserve": {"storagePercent": 0, "memoryMiB": 0},
        });
        serde_json::from_value(config).expect("a configuration")
    }
}

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A provider of an installation that nobody else has.
pub fn provider(config: Config) -> Kvm2 {
    let run = uuid::Uuid::new_v4().simple().to_string();
    let identity = Identity {
        installation: format!("test-{}", &run[..8]).parse().expect("a name"),
        writer: None,
    };
    Kvm2::new("kvm-a".parse().expect("a name"), identity, config, None)
}

/// The same as another process is it: it remembers nothing.
pub fn again(provider: &Kvm2, config: Config) -> Kvm2 {
    let identity = provider.identity().clone();
    Kvm2::new(provider.name().clone(), identity, config, None)
}

/// A provider, and one machine of it.
pub struct Machine {
    pub provider: Arc<Kvm2>,
    pub key: MachineKey,
    pub wanted: WantedMachine,
    pub claim: Claim,
}

impl Machine {
    /// With a claim of a provider of its own, and not made yet.
    pub async fn claimed(name: &str, config: Config) -> Self {
        Self::of(&Arc::new(provider(config)), name).await
    }

    /// With a claim of this provider, and not made yet.
    pub async fn of(provider: &Arc<Kvm2>, name: &str) -> Self {
        let mut machine = Self::wished(provider, name);
        machine.claim().await.expect("a place");
        machine
    }

    /// Without a claim worth anything.
    pub fn wished(provider: &Arc<Kvm2>, name: &str) -> Self {
        let run = uuid::Uuid::new_v4().simple().to_string();
        let key = MachineKey::new(format!("{name}-{}", &run[..8]).parse().expect("a UID"));
        let wanted = WantedMachine {
            proxy: format!("default/{name}").parse().expect("a name"),
            size: MachineSize {
                cpus: 1,
                memory_mib: 32,
                disk_gib: 1,
            },
            settings: ProxySettings {
                port: None,
                clients: vec!["192.0.2.0/24".parse().expect("a network")],
                auth: Auth::Basic {
                    verifiers: vec![Verifier::new("egress", "swordfish")],
                    generation: 1,
                },
            },
            config_hash: ConfigHash::of(name.as_bytes()),
            user_data: None,
        };
        let claim = Claim {
            provider: provider.name().clone(),
            cluster: ClusterId::new(""),
            slot: Slot::new(""),
            host: None,
            attempt: 1,
            standing: Standing::Unsent,
            handles: Vec::new(),
            mac: None,
            seed: None,
            unsettled: false,
            retiring: None,
        };
        Self {
            provider: provider.clone(),
            key,
            wanted,
            claim,
        }
    }

    /// Asks for a place.
    pub async fn claim(&mut self) -> Result<()> {
        self.claim = self.provider.claim(&self.key, &self.wanted, 1, &[]).await?;
        Ok(())
    }

    fn permit(&self) -> Permit {
        Permit::new(self.claim.attempt, soon())
    }

    pub async fn create(&mut self) -> Result<Progress> {
        self.claim.standing = self.claim.standing.max(Standing::Sent);
        let permit = self.permit();
        self.provider
            .create(&self.key, &self.claim, &self.wanted, &permit)
            .await
    }

    /// Creates until it is started.
    pub async fn up(&mut self) {
        let end = soon();
        loop {
            match self.create().await {
                Ok(Progress::Done) => break,
                Ok(Progress::InProgress { recheck, .. }) => tokio::time::sleep(recheck).await,
                Err(error) => assert!(Instant::now() < end, "create: {}", error.chain()),
            }
            assert!(Instant::now() < end, "create does not come to an end");
        }
        self.claim.standing = Standing::Started;
    }

    pub async fn get(&self) -> Result<ObservedMachine> {
        self.provider.get(&self.key, &self.claim).await
    }

    /// Its state; trouble on the way is waited out.
    pub async fn state(&self) -> MachineState {
        let end = soon();
        loop {
            match self.get().await {
                Ok(seen) => return seen.state,
                Err(error) => assert!(Instant::now() < end, "get: {}", error.chain()),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn delete(&self) -> Result<Progress> {
        let permit = self.permit();
        self.provider.delete(&self.key, &self.claim, &permit).await
    }

    pub async fn seal(&self) -> Result<Progress> {
        let permit = self.permit();
        self.provider.seal(&self.key, &self.claim, &permit).await
    }

    /// Deletes it, and sees to it that nothing of its provider's is left.
    pub async fn down(&self) {
        self.gone().await;
        let listing = self.provider.list(&[]).await.expect("a listing");
        assert_eq!(listing, egress_provider::Listing::default());
    }

    /// Deletes it.
    pub async fn gone(&self) {
        let end = soon();
        loop {
            match self.delete().await {
                Ok(Progress::Done) => break,
                Ok(Progress::InProgress { recheck, .. }) => tokio::time::sleep(recheck).await,
                Err(error) => {
                    assert!(Instant::now() < end, "delete: {}", error.chain());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            assert!(Instant::now() < end, "delete does not come to an end");
        }
        assert_eq!(self.state().await, MachineState::Absent);
    }

    /// The UUID of its domain.
    pub fn uuid(&self) -> uuid::Uuid {
        self.claim.slot.as_str().parse().expect("a UUID")
    }
}
