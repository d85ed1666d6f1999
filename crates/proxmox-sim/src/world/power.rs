//! Starting, stopping, pausing, and what the HA manager makes of it.

use super::{
    Event, World,
    access::Caller,
    answers::{Outcome, Refusal},
    guest::{Drive, Machine, Net, Running, is_drive, is_net, property_flag},
    jobs::{Job, ended_by},
    params::Params,
    tasks::{Next, TaskId, Wake},
};
use serde_json::json;

/// A machine that is started.
#[derive(Clone, Debug)]
pub(super) struct StartMachine {
    node: String,
    vmid: u32,
    step: u8,
    resumes: bool,
}

/// A machine that is stopped or asked to shut down.
#[derive(Clone, Debug)]
pub(super) struct StopMachine {
    node: String,
    vmid: u32,
    /// Seconds to wait for a guest that was asked politely; `None` for a hard stop.
    polite: Option<f64>,
    /// Whether a guest that does not listen is stopped hard after that.
    force: bool,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Lock,
    Check,
    Terminate,
    Kill,
    Quit,
    CleanUp,
    GiveUp,
}

/// What else is done to a running machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Pause,
    ToDisk,
    Resume,
    Reset,
}

/// A pause, a resume, a reset, a hibernation.
#[derive(Clone, Debug)]
pub(super) struct PowerChange {
    node: String,
    vmid: u32,
    change: Change,
    step: u8,
}

/// A request to the HA manager.
#[derive(Clone, Debug)]
pub(super) struct RequestHa {
    vmid: u32,
    start: bool,
    step: u8,
}

impl World {
    /// `POST …/status/start`.
    pub(super) fn post_start(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        Self::refuse_skiplock(caller, params)?;
        for name in [
            "stateuri",
            "migratedfrom",
            "migration_type",
            "targetstorage",
            "force-cpu",
        ] {
            if params.text(name).is_some() && caller.id != "root@pam" {
                return Err(Refusal::parameter(name, "Only root may use this option."));
            }
        }
        if !self.has_quorum() {
            return Err(Refusal::died("cluster not ready - no quorum?"));
        }
        if self.guests.get(&vmid).is_some_and(|guest| guest.ha) {
            return Ok(self.request_ha(&node, vmid, caller, true));
        }
        let job = start_job(&node, vmid);
        let upid = self.begin_task(&node, "qmstart", &vmid.to_string(), caller, job);
        Ok(json!(upid).into())
    }

    fn request_ha(
        &mut self,
        node: &str,
        vmid: u32,
        caller: &Caller,
        start: bool,
    ) -> super::answers::Reply {
        let kind = if start { "hastart" } else { "hastop" };
        let job = Job::Ha(RequestHa {
            vmid,
            start,
            step: 0,
        });
        json!(self.begin_task(node, kind, &vmid.to_string(), caller, job)).into()
    }

    /// `POST …/status/stop`.
    pub(super) fn post_stop(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        Self::refuse_skiplock(caller, params)?;
        let managed = self.guests.get(&vmid).is_some_and(|guest| guest.ha);
        if managed {
            return Ok(self.request_ha(&node, vmid, caller, false));
        }
        if params.flag("overrule-shutdown") {
            let text = vmid.to_string();
            let politely: Vec<TaskId> = self
                .tasks
                .running()
                .filter(|(_, task)| task.is("qmshutdown", &text))
                .map(|(id, _)| id)
                .collect();
            for id in politely {
                self.interrupt_task(id);
            }
        }
        let job = Job::Stop(StopMachine {
            node: node.clone(),
            vmid,
            polite: None,
            force: true,
            step: Step::Begin,
        });
        let upid = self.begin_task(&node, "qmstop", &vmid.to_string(), caller, job);
        Ok(json!(upid).into())
    }

    /// `POST …/status/shutdown`.
    pub(super) fn post_shutdown(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        Self::refuse_skiplock(caller, params)?;
        let guest = self.guests.get(&vmid);
        let paused = guest
            .and_then(|guest| guest.running.as_ref())
            .is_some_and(|running| running.qmp == "paused");
        let force = params.flag("forceStop");
        if paused && !force {
            return Err(Refusal::died("VM is paused - cannot shutdown"));
        }
        if guest.is_some_and(|guest| guest.ha) {
            return Ok(self.request_ha(&node, vmid, caller, false));
        }
        let job = Job::Stop(StopMachine {
            node: node.clone(),
            vmid,
            polite: (!paused).then(|| params.number("timeout").unwrap_or(60.0)),
            force,
            step: Step::Begin,
        });
        let upid = self.begin_task(&node, "qmshutdown", &vmid.to_string(), caller, job);
        Ok(json!(upid).into())
    }

    /// `POST …/status/suspend`, `resume` and `reset`.
    pub(super) fn post_change(&mut self, caller: &Caller, params: &Params, what: &str) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        Self::refuse_skiplock(caller, params)?;
        let (change, kind) = match what {
            "suspend" if params.flag("todisk") => (Change::ToDisk, "qmsuspend"),
            "suspend" => (Change::Pause, "qmpause"),
            "resume" => (Change::Resume, "qmresume"),
            _ => (Change::Reset, "qmreset"),
        };
        let guest = self.machine_or_missing(&node, vmid)?;
        let hibernated = change == Change::Resume && guest.lock() == Some("suspended");
        if guest.running.is_none() && !hibernated {
            return Err(Refusal::died(format!("VM {vmid} not running")));
        }
        let job = if hibernated {
            Job::Start(StartMachine {
                node: node.clone(),
                vmid,
                step: 0,
                resumes: true,
            })
        } else {
            Job::Power(PowerChange {
                node: node.clone(),
                vmid,
                change,
                step: 0,
            })
        };
        let upid = self.begin_task(&node, kind, &vmid.to_string(), caller, job);
        Ok(json!(upid).into())
    }

    /// The HA manager does what it was asked for.
    pub(super) fn ha_acts(&mut self, vmid: u32, birth: u64, start: bool) {
        let right = self
            .guests
            .get(&vmid)
            .is_some_and(|guest| guest.birth == birth);
        if right && start {
            self.power_on(vmid);
        } else if right {
            self.power_off(vmid);
        }
    }

    /// QEMU runs from now on; waiting changes take effect.
    pub(super) fn power_on(&mut self, vmid: u32) {
        let stopped = |guest: &Machine| guest.running.is_none();
        if !self.guests.get(&vmid).is_some_and(stopped) {
            return;
        }
        let pid = self.tasks.next_pid();
        let now = self.now;
        self.apply_pending(vmid);
        if let Some(guest) = self.guests.get_mut(&vmid) {
            guest.starts += 1;
            if guest.lock() == Some("suspended") {
                guest.config.remove("lock");
            }
            guest.running = Some(Running {
                pid,
                since: now,
                qmp: "running",
                hung: false,
                agent_device: guest.config.contains_key("agent"),
            });
        }
    }

    /// QEMU is gone; waiting changes take effect.
    pub(super) fn power_off(&mut self, vmid: u32) {
        if let Some(guest) = self.guests.get_mut(&vmid) {
            guest.running = None;
        }
        self.apply_pending(vmid);
    }

    /// The rest of a start's checks, those that ask more than the configuration.
    fn check_start(&mut self, id: TaskId, node: &str, vmid: u32) -> Result<(), String> {
        let config = self.machine(node, vmid)?.merged();
        for (key, value) in &config {
            if !is_drive(key) {
                continue;
            }
            let drive = Drive::parse(value);
            let Some((storage, _)) = drive.volume() else {
                continue;
            };
            self.online_storage(storage, node)?;
            if drive.is_cloudinit() {
                continue;
            }
            if self.volume(&drive.file, node).is_none() {
                return Err(format!("volume '{}' does not exist", drive.file));
            }
        }
        for (key, value) in &config {
            if !is_net(key) {
                continue;
            }
            match Net::parse(value).options.get("bridge") {
                Some(bridge) => {
                    if !self.setup.bridges.iter().any(|it| it.name == *bridge) {
                        return Err(format!("bridge '{bridge}' does not exist"));
                    }
                }
                None => self.warn(
                    id,
                    &format!("{key}: no bridge configured, using user-mode network"),
                ),
            }
        }
        let view = Machine {
            config,
            ..Machine::default()
        };
        let Some(host) = self.nodes.get(node) else {
            return Ok(());
        };
        let (cpus, memory, kvm) = (host.setup.cpus, host.setup.memory, host.setup.kvm);
        if view.cpus() > u64::from(cpus) {
            return Err(format!("MAX {cpus} vcpus allowed per VM on this node"));
        }
        if view.memory() > memory {
            self.log(
                id,
                "qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory",
            );
            return Err("start failed: QEMU exited with code 1".to_owned());
        }
        let cpu_host = view
            .config
            .get("cpu")
            .is_some_and(|cpu| cpu.split(',').next() == Some("host"));
        if cpu_host && !kvm {
            self.log(
                id,
                "qemu-system-x86_64: CPU model 'host' requires KVM or HVF",
            );
            return Err("start failed: QEMU exited with code 1".to_owned());
        }
        if self.version >= 9
            && let Some(disk) = view.config.get("efidisk0")
            && property_flag(disk, "pre-enrolled-keys")
            && !disk.contains("ms-cert=2023k")
        {
            self.warn(
                id,
                "EFI disk without 'ms-cert=2023k' option, suggesting that not all UEFI 2023",
            );
        }
        Ok(())
    }
}

/// The work of starting a machine.
pub(super) fn start_job(node: &str, vmid: u32) -> Job {
    Job::Start(StartMachine {
        node: node.to_owned(),
        vmid,
        step: 0,
        resumes: false,
    })
}

impl StartMachine {
    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        self.step += 1;
        match self.step {
            1 => Next::After(pace.of(pace.t.start / 10.0)),
            2 => Next::Have(World::machine_lock(&self.node, self.vmid), pace.t.lock_wait),
            3 => {
                let checked = self.check(world);
                match checked.and_then(|()| world.check_start(id, &self.node, self.vmid)) {
                    Ok(()) => Next::After(pace.of(pace.t.start * 0.8)),
                    Err(text) => Next::Failed(text),
                }
            }
            4 => {
                world.power_on(self.vmid);
                Next::After(pace.of(pace.t.start / 10.0))
            }
            _ => Next::Done,
        }
    }

    fn check(&self, world: &World) -> Result<(), String> {
        let guest = world.machine(&self.node, self.vmid)?;
        if guest.is_template() {
            return Err("you can't start a vm if it's a template".to_owned());
        }
        match guest.lock() {
            Some("suspended") | None => {}
            Some("backup") if guest.running.is_some() => {}
            Some(lock) => return Err(format!("VM is locked ({lock})")),
        }
        if guest.running.is_some() {
            return Err(format!("VM {} already running", self.vmid));
        }
        if self.resumes && guest.lock() != Some("suspended") {
            return Err(format!("VM {} not running", self.vmid));
        }
        Ok(())
    }
}

impl StopMachine {
    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        let vmid = self.vmid;
        match self.step {
            Step::Begin => {
                self.step = Step::Lock;
                Next::After(pace.of(pace.t.stop / 20.0))
            }
            Step::Lock => {
                self.step = Step::Check;
                Next::Have(World::machine_lock(&self.node, vmid), pace.t.lock_wait)
            }
            Step::Check => self.check(world),
            Step::Terminate => {
                world.log(
                    id,
                    "VM quit/powerdown failed - terminating now with SIGTERM",
                );
                self.step = Step::Kill;
                Next::After(pace.of(pace.t.term_wait))
            }
            Step::Kill => {
                world.log(id, "VM still running - terminating now with SIGKILL");
                self.step = Step::Quit;
                Next::After(pace.of(1.0))
            }
            Step::Quit => {
                if let Some(guest) = world.guests.get_mut(&vmid) {
                    guest.running = None;
                }
                self.step = Step::CleanUp;
                Next::After(pace.of(pace.t.stop * 0.8))
            }
            Step::CleanUp => {
                world.power_off(vmid);
                Next::Done
            }
            Step::GiveUp if self.force => {
                world.log(
                    id,
                    "VM quit/powerdown failed - terminating now with SIGTERM",
                );
                self.step = Step::Quit;
                Next::After(pace.of(1.0))
            }
            Step::GiveUp => Next::Failed("VM quit/powerdown failed - got timeout".to_owned()),
        }
    }

    fn check(&mut self, world: &World) -> Next {
        let pace = world.pace;
        let here = world
            .guests
            .get(&self.vmid)
            .filter(|guest| guest.node == self.node && !guest.container);
        let Some(guest) = here else {
            return Next::Failed(format!(
                "unable to find configuration file for VM {} on node '{}'",
                self.vmid, self.node
            ));
        };
        let Some(running) = &guest.running else {
            return Next::Done;
        };
        if let Some(lock) = guest.lock() {
            return Next::Failed(format!("VM is locked ({lock})"));
        }
        if let Some(seconds) = self.polite {
            if running.hung || guest.deaf || running.qmp != "running" {
                self.step = Step::GiveUp;
                return Next::After(pace.of(seconds));
            }
            self.step = Step::Quit;
            return Next::After(pace.of(pace.t.shutdown));
        }
        if running.hung {
            self.step = Step::Terminate;
            return Next::After(pace.of(pace.t.quit_wait));
        }
        self.step = Step::Quit;
        Next::After(pace.of(pace.t.stop / 10.0))
    }
}

impl PowerChange {
    pub(super) fn step(&mut self, world: &mut World, _: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        self.step += 1;
        match self.step {
            1 => Next::After(pace.of(0.01)),
            2 => Next::Have(World::machine_lock(&self.node, self.vmid), pace.t.lock_wait),
            3 => self.change(world),
            _ if self.change == Change::ToDisk => {
                world.power_off(self.vmid);
                if let Some(guest) = world.guests.get_mut(&self.vmid) {
                    guest
                        .config
                        .insert("lock".to_owned(), "suspended".to_owned());
                }
                Next::Done
            }
            _ => Next::Done,
        }
    }

    fn change(&self, world: &mut World) -> Next {
        let pace = world.pace;
        let now = world.now;
        if let Err(text) = world.machine(&self.node, self.vmid) {
            return Next::Failed(text);
        }
        let Some(guest) = world.guests.get_mut(&self.vmid) else {
            return Next::Done;
        };
        if let Some(lock) = guest.lock()
            && !(self.change == Change::Resume && lock == "backup")
        {
            return Next::Failed(format!("VM is locked ({lock})"));
        }
        let Some(running) = guest.running.as_mut() else {
            return Next::Failed(format!("VM {} not running", self.vmid));
        };
        match self.change {
            Change::Pause => running.qmp = "paused",
            Change::Resume => running.qmp = "running",
            Change::Reset => {
                running.qmp = "running";
                running.since = now;
            }
            Change::ToDisk => {
                guest
                    .config
                    .insert("lock".to_owned(), "suspending".to_owned());
                return Next::After(pace.of(1.0));
            }
        }
        Next::After(pace.of(0.02))
    }
}

impl RequestHa {
    pub(super) fn step(&mut self, world: &mut World, _: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        self.step += 1;
        if self.step == 1 {
            return Next::After(world.pace.of(0.3));
        }
        if !world.has_quorum() {
            return Next::Failed("cluster not ready - no quorum?".to_owned());
        }
        if let Some(birth) = world.guests.get(&self.vmid).map(|guest| guest.birth) {
            let at = world.now + world.pace.of(world.pace.t.ha);
            let event = Event::Ha {
                vmid: self.vmid,
                birth,
                start: self.start,
            };
            world.schedule(at, event);
        }
        Next::Done
    }
}
