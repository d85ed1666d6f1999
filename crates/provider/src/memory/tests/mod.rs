//! The world and its client, case by case. The suite's cases are not repeated here.

mod client;
mod crowd;
mod gates;
mod step;

use super::{Memory, Physics, Settings, World};
use crate::{Permit, Progress, Provider};
use egress_core::machine::{ConfigHash, MachineSize, MachineState, StopReason, WantedMachine};
use egress_core::proxy_config::{Auth, ProxySettings};
use egress_core::{Claim, Identity, MachineKey, MachineUid, ProxyId};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

pub fn identity() -> Identity {
    Identity {
        installation: "ours".parse().expect("legal"),
        writer: None,
    }
}

pub fn memory(world: &Arc<World>) -> Memory {
    memory_with(world, Settings::default())
}

pub fn memory_with(world: &Arc<World>, settings: Settings) -> Memory {
    Memory::new(
        "lab".parse().expect("legal"),
        identity(),
        world.clone(),
        settings,
    )
}

pub fn key(number: u32) -> MachineKey {
    let uid: MachineUid = format!("uid-{number}").parse().expect("legal");
    MachineKey::new(uid)
}

pub fn wanted() -> WantedMachine {
    WantedMachine {
        proxy: ProxyId::new("default", "one").expect("legal"),
        size: MachineSize {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 4,
        },
        settings: ProxySettings {
            port: None,
            clients: vec!["10.0.0.0/8".parse().expect("legal")],
            auth: Auth::None {},
        },
        config_hash: ConfigHash::of(b"one"),
        user_data: None,
    }
}

pub fn permit() -> Permit {
    Permit::new(1, Instant::now() + Duration::from_mins(1))
}

pub async fn claim(provider: &dyn Provider, key: &MachineKey) -> Claim {
    provider
        .claim(key, &wanted(), 1, &[])
        .await
        .expect("the world has room")
}

/// Calls until `Done`, waiting as told. Answers the steps it waited for.
pub async fn until_done<F: Future<Output = crate::Result<Progress>>>(
    mut call: impl FnMut() -> F,
) -> Vec<String> {
    let mut steps = Vec::new();
    for _ in 0..1000 {
        match call().await.expect("nothing goes wrong here") {
            Progress::Done => return steps,
            Progress::InProgress { step, recheck, .. } => {
                if steps.last() != Some(&step) {
                    steps.push(step);
                }
                tokio::time::sleep(recheck).await;
            }
        }
    }
    panic!("not done after 1000 calls: {steps:?}");
}

/// Makes a machine, to the end. Answers the steps.
pub async fn create(memory: &Memory, key: &MachineKey, claim: &Claim) -> Vec<String> {
    until_done(|| async move { memory.create(key, claim, &wanted(), &permit()).await }).await
}

/// Deletes a machine, to the end. Answers the steps.
pub async fn delete(memory: &Memory, key: &MachineKey, claim: &Claim) -> Vec<String> {
    until_done(|| async move { memory.delete(key, claim, &permit()).await }).await
}

pub async fn state(memory: &Memory, key: &MachineKey, claim: &Claim) -> MachineState {
    memory
        .get(key, claim)
        .await
        .expect("the world answers")
        .state
}

pub fn number(claim: &Claim) -> u32 {
    claim
        .slot
        .as_str()
        .parse()
        .expect("a slot of this provider is a number")
}

pub const HALF_MADE: MachineState = MachineState::Stopped(StopReason::HalfMade);

/// A world, a client, a key and its claim.
pub async fn scene(physics: Physics) -> (Arc<World>, Memory, MachineKey, Claim) {
    let world = World::new(physics);
    let memory = memory(&world);
    let key = key(1);
    let claim = claim(&memory, &key).await;
    (world, memory, key, claim)
}
