//! Providers that break one rule each: the suite must fail on that rule. A suite that passes
//! everything would pass these as well.

mod bench;

use egress_core::{
    Claim, ErrorClass, Host, MachineKey, ProviderName, Slot,
    machine::{Addresses, MachineState, ObservedMachine, StopReason, WantedMachine},
    proxy_config::Auth,
};
use egress_provider::{
    Capabilities, Error, Listing, Operation, Permit, Progress, Provider, RecordedSlot, Report,
    Result,
    conformance::{CaseResult, Harness, Options, Outcome, Subject, Tier, render, run},
    memory::Physics,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// What a provider does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    CreatesTwice,
    OverwritesStrangers,
    RemakesForOtherCredentials,
    CallsLockedAbsent,
    ChecksNothing,
    SurveysNothing,
    SendsEachRequestTwice,
    CallsUnconfiguredRunning,
    LeavesThingsWhenReading,
    CallsErrorsAbsent,
    ReportsLoopback,
    RemembersTheHost,
    WaitsForTheAgentForever,
    CallsSilenceProvisioning,
    CallsABackupStopped,
    LeaksTheSeed,
    DeletesBySlotOnly,
    DeletesByNameOnly,
    DestroysOnAnOldLook,
    SaysDoneBeforeGone,
    TakesProtectionAway,
    DeletesWhatItMadeItselfOnly,
    ReusesFreedSlots,
    SwallowsListErrors,
    ListsCopiesAsOurs,
    ListsOtherInstallations,
    CallsTheUnknownTransient,
    PrintsASecret,
    KeepsTheFirstRefusal,
    SaysDoneWithoutNetwork,
    CallsTheAbsentUnknown,
    HangsWithTheWorld,
    StaysLockedWhenDropped,
    IgnoresThePermit,
    AsksThePermitTooEarly,
    RetriesACutOffCall,
    MisnamesItsErrors,
}

/// Memory with one fault.
struct Broken {
    inner: Arc<dyn Provider>,
    world: Arc<dyn Harness>,
    fault: Fault,
    first_hosts: Mutex<BTreeMap<MachineKey, Host>>,
    first_slots: Mutex<BTreeMap<MachineKey, Slot>>,
    made: Mutex<BTreeSet<MachineKey>>,
    first_auth: Mutex<BTreeMap<MachineKey, Auth>>,
    seen: Mutex<BTreeSet<MachineKey>>,
    refused: AtomicBool,
    calling: AtomicBool,
}

fn open<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forever(permit: &Permit) -> Permit {
    Permit::new(permit.attempt(), Instant::now() + Duration::from_hours(1))
}

impl Broken {
    fn around(inner: Arc<dyn Provider>, world: Arc<dyn Harness>, fault: Fault) -> Self {
        Self {
            inner,
            world,
            fault,
            first_hosts: Mutex::default(),
            first_slots: Mutex::default(),
            made: Mutex::default(),
            first_auth: Mutex::default(),
            seen: Mutex::default(),
            refused: AtomicBool::new(false),
            calling: AtomicBool::new(false),
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// What some faults do to the answer of any call.
    async fn answer<T>(&self, operation: Operation, answer: Result<T>) -> Result<T> {
        if self.is(Fault::KeepsTheFirstRefusal) && self.refused.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorClass::Unauthorized,
                operation,
                "memory",
                "as before",
            ));
        }
        let Err(error) = answer else { return answer };
        Err(match self.fault {
            Fault::KeepsTheFirstRefusal if error.class() == ErrorClass::Unauthorized => {
                self.refused.store(true, Ordering::Relaxed);
                error
            }
            Fault::PrintsASecret => {
                let said = format!("{} with {}", error.said(), self.world.secrets().concat());
                Error::new(error.class(), operation, error.target(), said)
            }
            Fault::MisnamesItsErrors => Error::new(
                error.class(),
                Operation::Check,
                error.target(),
                error.said(),
            ),
            Fault::CallsTheUnknownTransient if error.class() == ErrorClass::OutcomeUnknown => {
                Error::new(
                    ErrorClass::Transient,
                    operation,
                    error.target(),
                    error.said(),
                )
            }
            Fault::HangsWithTheWorld if error.class() == ErrorClass::Transient => {
                std::future::pending().await
            }
            _ => error,
        })
    }

    fn begin(&self, operation: Operation, key: &MachineKey) -> Result<()> {
        if self.is(Fault::StaysLockedWhenDropped) && self.calling.swap(true, Ordering::Relaxed) {
            let said = "another call is under way";
            return Err(Error::new(ErrorClass::Busy, operation, key.name(), said));
        }
        Ok(())
    }

    fn end(&self) {
        self.calling.store(false, Ordering::Relaxed);
    }

    /// The harness's part of a fault; what it cannot do, the fault does not do.
    async fn meddle(&self, slot: &Slot) {
        let _nothing_there = self.world.remove(slot).await;
    }
}

#[async_trait::async_trait]
impl Provider for Broken {
    fn name(&self) -> &ProviderName {
        self.inner.name()
    }
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn check(&self) -> Result<Report> {
        if self.is(Fault::ChecksNothing) {
            return Ok(Report::default());
        }
        let answer = self.inner.check().await;
        self.answer(Operation::Check, answer).await
    }

    async fn claim(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        let answer = self.inner.claim(key, wanted, attempt, taken).await;
        let mut claim = self.answer(Operation::Claim, answer).await?;
        if self.is(Fault::ReusesFreedSlots) {
            let mut first = open(&self.first_slots);
            claim.slot = first.entry(key.clone()).or_insert(claim.slot).clone();
        }
        Ok(claim)
    }

    async fn survey(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Result<()> {
        if self.is(Fault::SurveysNothing) {
            return Ok(());
        }
        let answer = self.inner.survey(key, claim, wanted).await;
        self.answer(Operation::Survey, answer).await
    }

    async fn create(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        self.begin(Operation::Create, key)?;
        open(&self.made).insert(key.clone());
        let answer = match self.fault {
            Fault::CreatesTwice if claim.handles.is_empty() => {
                let taken = [claim.slot.clone()];
                if let Ok(twin) = self.inner.claim(key, wanted, claim.attempt, &taken).await {
                    let permit = forever(permit);
                    let _either = self.inner.create(key, &twin, wanted, &permit).await;
                }
                self.inner.create(key, claim, wanted, permit).await
            }
            Fault::RemakesForOtherCredentials => {
                let auth = wanted.settings.auth.clone();
                let before = open(&self.first_auth).insert(key.clone(), auth.clone());
                if before.is_some_and(|before| before != auth) {
                    self.meddle(&claim.slot).await;
                }
                self.inner.create(key, claim, wanted, permit).await
            }
            Fault::SendsEachRequestTwice => {
                let again = forever(permit);
                let first = self.inner.create(key, claim, wanted, permit);
                let second = self.inner.create(key, claim, wanted, &again);
                let (answer, _either) = tokio::join!(first, second);
                answer
            }
            Fault::IgnoresThePermit => {
                self.inner
                    .create(key, claim, wanted, &forever(permit))
                    .await
            }
            Fault::AsksThePermitTooEarly => {
                permit.ask(Operation::Create, key.name())?;
                self.inner
                    .create(key, claim, wanted, &forever(permit))
                    .await
            }
            _ => self.inner.create(key, claim, wanted, permit).await,
        };
        let answer = match answer {
            Err(error)
                if self.is(Fault::RetriesACutOffCall)
                    && error.class() == ErrorClass::OutcomeUnknown =>
            {
                self.inner
                    .create(key, claim, wanted, &forever(permit))
                    .await
            }
            answer => answer,
        };
        let conflict = answer
            .as_ref()
            .is_err_and(|e| e.class() == ErrorClass::Conflict);
        let answer = if conflict && self.is(Fault::OverwritesStrangers) {
            self.meddle(&claim.slot).await;
            self.inner.create(key, claim, wanted, permit).await
        } else {
            answer
        };
        self.end();
        self.answer(Operation::Create, answer).await
    }

    async fn get(&self, key: &MachineKey, claim: &Claim) -> Result<ObservedMachine> {
        let answer = self.inner.get(key, claim).await;
        if answer.is_err() && self.is(Fault::CallsErrorsAbsent) {
            return Ok(ObservedMachine::only(MachineState::Absent));
        }
        let mut seen = self.answer(Operation::Get, answer).await?;
        seen.state = match (self.fault, seen.state) {
            (
                Fault::CallsLockedAbsent,
                MachineState::InProgress { .. } | MachineState::Unknown { .. },
            ) => MachineState::Absent,
            (Fault::CallsUnconfiguredRunning, MachineState::Stopped(StopReason::HalfMade))
                if seen.uptime.is_some() =>
            {
                MachineState::Running(Addresses::Unreported)
            }
            (Fault::ReportsLoopback, MachineState::Running(Addresses::Reported { port, .. })) => {
                let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
                MachineState::Running(Addresses::Reported { addresses, port })
            }
            (
                Fault::WaitsForTheAgentForever,
                MachineState::Stopped(StopReason::NoAgent | StopReason::NeverReported),
            )
            | (Fault::CallsSilenceProvisioning, MachineState::Running(Addresses::Unreported)) => {
                MachineState::Provisioning
            }
            (Fault::CallsABackupStopped, MachineState::Running(_)) if seen.busy.is_some() => {
                MachineState::Stopped(StopReason::PoweredOff)
            }
            (Fault::CallsTheAbsentUnknown, MachineState::Absent)
                if open(&self.seen).contains(key) =>
            {
                MachineState::Unknown {
                    why: "it was there a moment ago".to_owned(),
                }
            }
            (_, state) => state,
        };
        if matches!(seen.state, MachineState::Running(_)) {
            open(&self.seen).insert(key.clone());
        }
        if let (Fault::RemembersTheHost, Some(host)) = (self.fault, seen.host.clone()) {
            seen.host = Some(
                open(&self.first_hosts)
                    .entry(key.clone())
                    .or_insert(host)
                    .clone(),
            );
        }
        Ok(seen)
    }

    async fn seal(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        let answer = self.inner.seal(key, claim, permit).await;
        self.answer(Operation::Seal, answer).await
    }

    async fn delete(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        self.begin(Operation::Delete, key)?;
        if self.is(Fault::DeletesWhatItMadeItselfOnly) && !open(&self.made).contains(key) {
            let said = "the user's wish for this machine is not known";
            return Err(Error::new(
                ErrorClass::Permanent,
                Operation::Delete,
                key.name(),
                said,
            ));
        }
        match self.fault {
            Fault::DestroysOnAnOldLook => {
                let look = self.inner.get(key, claim);
                let seen = tokio::time::timeout(Duration::from_secs(1), look).await;
                let stopped = MachineState::Stopped(StopReason::PoweredOff);
                if seen.is_ok_and(|seen| seen.is_ok_and(|seen| seen.state == stopped)) {
                    // Whoever is at the slot after this await, it was ours before.
                    tokio::task::yield_now().await;
                    permit.ask(Operation::Delete, key.name())?;
                    self.meddle(&claim.slot).await;
                }
            }
            Fault::DeletesBySlotOnly => self.meddle(&claim.slot).await,
            Fault::TakesProtectionAway => {
                let _not_protected = self.world.unprotect(&claim.slot).await;
            }
            _ => {}
        }
        let answer = if self.is(Fault::IgnoresThePermit) {
            self.inner.delete(key, claim, &forever(permit)).await
        } else {
            self.inner.delete(key, claim, permit).await
        };
        let answer = match (self.fault, answer) {
            (Fault::SaysDoneBeforeGone, Ok(Progress::InProgress { .. })) => Ok(Progress::Done),
            (Fault::SaysDoneWithoutNetwork, Err(error))
                if error.class() == ErrorClass::Transient =>
            {
                Ok(Progress::Done)
            }
            (Fault::DeletesByNameOnly, Err(error)) if error.class() == ErrorClass::NotOwned => {
                self.meddle(&claim.slot).await;
                Ok(Progress::Done)
            }
            (Fault::LeaksTheSeed, Ok(Progress::Done)) if open(&self.made).remove(key) => {
                let _left = self.world.leave_seed(key).await;
                Ok(Progress::Done)
            }
            (_, answer) => answer,
        };
        self.end();
        self.answer(Operation::Delete, answer).await
    }

    async fn list(&self, recorded: &[RecordedSlot]) -> Result<Listing> {
        let answer = self.inner.list(recorded).await;
        if answer.is_err() && self.is(Fault::SwallowsListErrors) {
            return Ok(Listing::default());
        }
        let mut listing = self.answer(Operation::List, answer).await?;
        match self.fault {
            Fault::ListsCopiesAsOurs => {
                for copy in std::mem::take(&mut listing.copies) {
                    listing.machines.push(egress_provider::ListedMachine {
                        mark: copy.mark,
                        host: None,
                        seed: None,
                        created_at: None,
                    });
                }
            }
            Fault::ListsOtherInstallations => {
                if let Ok(other) = self.world.other_installation().await {
                    listing
                        .machines
                        .extend(other.list(recorded).await?.machines);
                }
            }
            Fault::LeavesThingsWhenReading => {
                if let Some(first) = recorded.first() {
                    let _left = self.world.leave_seed(&first.key).await;
                }
            }
            _ => {}
        }
        Ok(listing)
    }
}

fn failed_rules(results: &[CaseResult]) -> BTreeSet<&'static str> {
    let failed = results
        .iter()
        .filter(|r| matches!(r.outcome, Outcome::Failed(_)));
    failed.map(|r| r.rule).collect()
}

/// Runs the whole suite on a provider with this fault; answers the rules that fail.
async fn suite_on(fault: Fault) -> (BTreeSet<&'static str>, String) {
    let bench = bench::bench(Physics {
        settle: Duration::from_mins(1),
        ..Physics::default()
    });
    let world = bench.clone();
    let subject = Subject::on(bench)
        .wrapped(move |inner| Arc::new(Broken::around(inner, world.clone(), fault)));
    let results = run(&subject, &Options::new(Tier::Extended, "broken")).await;
    let failed = failed_rules(&results);
    println!("{fault:?}: the suite fails on {failed:?}");
    (failed, render(&results))
}

/// The rule must be among those that fail: this fault shows in many ways.
async fn breaks(fault: Fault, rule: &'static str) {
    let (failed, table) = suite_on(fault).await;
    assert!(
        failed.contains(rule),
        "{fault:?} must fail on {rule}\n{table}"
    );
}

/// The rule must be the only one that fails: nothing else is wrong with this provider.
async fn breaks_only(fault: Fault, rule: &'static str) {
    let (failed, table) = suite_on(fault).await;
    assert_eq!(failed, BTreeSet::from([rule]), "{fault:?}\n{table}");
}

macro_rules! each_breaks_its_rule {
    ($($name:ident: $fault:ident $breaks:ident $rule:literal;)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                $breaks(Fault::$fault, $rule).await;
            }
        )*

        #[test]
        fn every_rule_has_a_provider_that_breaks_it() {
            let broken: BTreeSet<_> = [$($rule),*].into();
            let rules: BTreeSet<_> =
                egress_provider::conformance::cases().iter().map(|c| c.rule).collect();
            assert_eq!(broken, rules);
        }
    };
}

each_breaks_its_rule! {
    a_provider_that_creates_twice_fails: CreatesTwice breaks "C1";
    a_provider_that_remakes_for_other_credentials_fails: RemakesForOtherCredentials breaks_only "C1";
    a_provider_that_overwrites_strangers_fails: OverwritesStrangers breaks_only "C2";
    a_provider_that_calls_a_locked_machine_absent_fails: CallsLockedAbsent breaks "C3";
    a_provider_that_checks_nothing_fails: ChecksNothing breaks_only "C4";
    a_provider_that_surveys_nothing_fails: SurveysNothing breaks "C4";
    a_provider_that_sends_each_request_twice_fails: SendsEachRequestTwice breaks "C5";
    a_provider_that_calls_an_unconfigured_machine_running_fails: CallsUnconfiguredRunning breaks_only "C6";
    a_provider_that_leaves_things_when_reading_fails: LeavesThingsWhenReading breaks "G1";
    a_provider_that_calls_errors_absent_fails: CallsErrorsAbsent breaks "G2";
    a_provider_that_reports_loopback_fails: ReportsLoopback breaks_only "G3";
    a_provider_that_remembers_the_host_fails: RemembersTheHost breaks_only "G4";
    a_provider_that_waits_for_the_agent_forever_fails: WaitsForTheAgentForever breaks_only "G5";
    a_provider_that_calls_silence_provisioning_fails: CallsSilenceProvisioning breaks_only "G6";
    a_provider_that_calls_a_backup_stopped_fails: CallsABackupStopped breaks_only "G7";
    a_provider_that_leaks_the_seed_fails: LeaksTheSeed breaks "D1";
    a_provider_that_deletes_by_slot_only_fails: DeletesBySlotOnly breaks "D2";
    a_provider_that_deletes_by_name_only_fails: DeletesByNameOnly breaks "D2";
    a_provider_that_destroys_on_an_old_look_fails: DestroysOnAnOldLook breaks_only "D2";
    a_provider_that_says_done_before_gone_fails: SaysDoneBeforeGone breaks "D3";
    a_provider_that_takes_protection_away_fails: TakesProtectionAway breaks_only "D4";
    a_provider_that_deletes_what_it_made_itself_only_fails: DeletesWhatItMadeItselfOnly breaks "D5";
    a_provider_that_reuses_freed_slots_fails: ReusesFreedSlots breaks "D6";
    a_provider_that_swallows_list_errors_fails: SwallowsListErrors breaks "L1";
    a_provider_that_lists_copies_as_ours_fails: ListsCopiesAsOurs breaks_only "L2";
    a_provider_that_lists_other_installations_fails: ListsOtherInstallations breaks_only "L3";
    a_provider_that_calls_the_unknown_transient_fails: CallsTheUnknownTransient breaks "E1";
    a_provider_that_prints_a_secret_fails: PrintsASecret breaks_only "E2";
    a_provider_that_keeps_the_first_refusal_fails: KeepsTheFirstRefusal breaks "E3";
    a_provider_that_says_done_without_network_fails: SaysDoneWithoutNetwork breaks "E4";
    a_provider_that_calls_the_absent_unknown_fails: CallsTheAbsentUnknown breaks "E5";
    a_provider_that_hangs_with_the_world_fails: HangsWithTheWorld breaks "T1";
    a_provider_that_stays_locked_when_dropped_fails: StaysLockedWhenDropped breaks_only "T2";
    a_provider_that_ignores_the_permit_fails: IgnoresThePermit breaks_only "T3";
    a_provider_that_asks_the_permit_too_early_fails: AsksThePermitTooEarly breaks_only "T3";
    a_provider_that_retries_a_cut_off_call_fails: RetriesACutOffCall breaks "E1";
    a_provider_that_misnames_its_errors_fails: MisnamesItsErrors breaks_only "O1";
}
