use super::*;
use egress_core::{ClusterId, Slot, machine::ConfigHash};

fn mark() -> Box<Mark> {
    Box::new(Mark {
        installation: "home".parse().unwrap(),
        writer: None,
        provider: "pv1".parse().unwrap(),
        cluster: ClusterId::new("AA"),
        slot: Slot::new("100042"),
        uid: "uid-1".parse().unwrap(),
        proxy: "default/a".parse().unwrap(),
        attempt: 1,
        config: ConfigHash::of(b"x"),
        written: jiff::Timestamp::UNIX_EPOCH,
    })
}

fn facts(place: Place) -> Facts {
    Facts {
        place,
        cloning: false,
        uploaded: false,
        seed_lost: false,
        stale: None,
        unknown: false,
    }
}

fn machine(lock: Option<&str>, whose: Whose, power: Option<Power>, configured: bool) -> Facts {
    facts(Place::Machine {
        lock: lock.map(Lock::parse),
        whose,
        power,
        configured,
    })
}

fn ours(power: Power, configured: bool) -> Facts {
    machine(None, Whose::Ours(mark()), Some(power), configured)
}

fn class(facts: &Facts) -> ErrorClass {
    next(facts).unwrap_err().class
}

fn waits(facts: &Facts) -> bool {
    matches!(next(facts), Ok(Next::Wait(_)))
}

const FOREIGN: Whose = Whose::Foreign { copied: false };

#[test]
fn a_free_slot_is_cloned_to_unless_a_clone_is_on_its_way() {
    assert_eq!(next(&facts(Place::Free)), Ok(Next::Clone));
    assert!(waits(&Facts {
        cloning: true,
        ..facts(Place::Free)
    }));
}

#[test]
fn the_steps_of_a_fresh_machine_follow_each_other() {
    let fresh = machine(None, Whose::Ours(mark()), None, false);
    assert_eq!(next(&fresh), Ok(Next::Upload));
    assert_eq!(
        next(&Facts {
            uploaded: true,
            ..fresh
        }),
        Ok(Next::Configure)
    );
    assert_eq!(next(&ours(Power::Stopped, true)), Ok(Next::Start));
    assert_eq!(next(&ours(Power::Running, true)), Ok(Next::Done));
}

#[test]
fn a_marked_unlocked_machine_is_not_finished_until_its_task_is() {
    let marked = machine(None, Whose::Ours(mark()), None, false);
    assert!(waits(&Facts {
        cloning: true,
        uploaded: true,
        ..marked
    }));
}

#[test]
fn a_lock_comes_before_the_name() {
    for whose in [FOREIGN, Whose::NotOwned, Whose::Ours(mark())] {
        for lock in ["clone", "create", "import", "rollback", "destroyed"] {
            assert!(
                waits(&machine(
                    Some(lock),
                    whose.clone(),
                    Some(Power::Stopped),
                    false
                )),
                "{lock}"
            );
        }
    }
}

#[test]
fn a_stale_lock_needs_an_operator_unless_a_task_is_found() {
    let stale = Facts {
        stale: Some("qm unlock 100042".to_owned()),
        ..machine(Some("clone"), FOREIGN, Some(Power::Stopped), false)
    };
    assert_eq!(class(&stale), ErrorClass::NeedsOperator);
    assert!(waits(&Facts {
        cloning: true,
        ..stale
    }));
}

#[test]
fn only_a_machine_proven_foreign_is_a_conflict() {
    assert_eq!(
        class(&machine(None, FOREIGN, Some(Power::Running), false)),
        ErrorClass::Conflict
    );
    assert_eq!(
        class(&machine(
            Some("backup"),
            FOREIGN,
            Some(Power::Running),
            false
        )),
        ErrorClass::Conflict
    );
    assert_eq!(
        class(&machine(None, Whose::NotOwned, Some(Power::Running), false)),
        ErrorClass::NotOwned
    );
    assert_eq!(class(&facts(Place::Container)), ErrorClass::Conflict);
}

#[test]
fn what_is_hidden_is_ours_while_a_task_says_so_and_a_persons_when_nobody_knows() {
    assert!(waits(&Facts {
        cloning: true,
        ..facts(Place::Hidden)
    }));
    assert_eq!(
        class(&Facts {
            unknown: true,
            ..facts(Place::Hidden)
        }),
        ErrorClass::NeedsOperator
    );
    assert_eq!(class(&facts(Place::Hidden)), ErrorClass::Conflict);
}

#[test]
fn what_runs_unconfigured_is_stopped_first() {
    for power in [
        Power::Running,
        Power::Paused,
        Power::IoError,
        Power::Crashed,
    ] {
        assert_eq!(next(&ours(power, false)), Ok(Next::Stop(mark())));
    }
    assert_eq!(next(&ours(Power::Crashed, true)), Ok(Next::Stop(mark())));
    assert!(waits(&ours(Power::Changing("prelaunch".to_owned()), false)));
}

#[test]
fn what_an_admin_or_the_storage_did_is_left_and_told() {
    assert_eq!(class(&ours(Power::Paused, true)), ErrorClass::NeedsOperator);
    assert_eq!(class(&ours(Power::IoError, true)), ErrorClass::Capacity);
    let hibernated = machine(
        Some("suspended"),
        Whose::Ours(mark()),
        Some(Power::Stopped),
        true,
    );
    assert_eq!(class(&hibernated), ErrorClass::NeedsOperator);
}

#[test]
fn a_backup_of_a_running_machine_is_no_obstacle() {
    let backup = machine(
        Some("backup"),
        Whose::Ours(mark()),
        Some(Power::Running),
        true,
    );
    assert_eq!(next(&backup), Ok(Next::Done));
    assert!(waits(&machine(
        Some("backup"),
        Whose::Ours(mark()),
        Some(Power::Stopped),
        true
    )));
    assert!(waits(&machine(
        Some("backup"),
        Whose::Ours(mark()),
        Some(Power::Running),
        false
    )));
}

#[test]
fn a_lost_seed_is_uploaded_again_before_the_next_start() {
    let lost = Facts {
        seed_lost: true,
        ..ours(Power::Stopped, true)
    };
    assert_eq!(next(&lost), Ok(Next::Upload));
}
