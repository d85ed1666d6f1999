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
        busy: None,
        stale: None,
        ha_asked: None,
        in_doubt: None,
    }
}

fn machine(lock: Option<&str>, whose: Whose, power: Power) -> Facts {
    facts(Place::Machine {
        lock: lock.map(Lock::parse),
        whose,
        power,
        configured: true,
        protected: false,
    })
}

fn ours(power: Power) -> Facts {
    machine(None, Whose::Ours(mark()), power)
}

fn protected(configured: bool) -> Facts {
    facts(Place::Machine {
        lock: None,
        whose: Whose::Ours(mark()),
        power: Power::Running,
        configured,
        protected: true,
    })
}

fn class(facts: &Facts) -> ErrorClass {
    next(facts).unwrap_err().class
}

const FOREIGN: Whose = Whose::Foreign { copied: true };

#[test]
fn whatever_runs_is_stopped_and_whatever_is_stopped_is_destroyed() {
    for power in [
        Power::Running,
        Power::Paused,
        Power::IoError,
        Power::Crashed,
        Power::Changing("x".to_owned()),
    ] {
        assert_eq!(next(&ours(power)), Ok(Next::Stop(mark())));
    }
    assert_eq!(next(&ours(Power::Stopped)), Ok(Next::Destroy(mark())));
    let hibernated = machine(Some("suspended"), Whose::Ours(mark()), Power::Stopped);
    assert_eq!(next(&hibernated), Ok(Next::Destroy(mark())));
}

#[test]
fn what_is_not_ours_counts_as_gone_and_what_may_be_does_not() {
    assert_eq!(next(&facts(Place::Free)), Ok(Next::Gone));
    assert_eq!(next(&facts(Place::Container)), Ok(Next::Gone));
    assert_eq!(
        next(&machine(None, FOREIGN, Power::Running)),
        Ok(Next::Gone)
    );
    assert_eq!(
        next(&machine(Some("backup"), FOREIGN, Power::Running)),
        Ok(Next::Gone)
    );
    assert_eq!(
        class(&machine(None, Whose::NotOwned, Power::Running)),
        ErrorClass::NotOwned
    );
    assert_eq!(class(&facts(Place::Hidden)), ErrorClass::NeedsOperator);
    for lock in ["clone", "create", "destroyed"] {
        assert!(
            matches!(
                next(&machine(Some(lock), FOREIGN, Power::Stopped)),
                Ok(Next::Wait(_))
            ),
            "{lock}"
        );
    }
}

#[test]
fn a_task_is_waited_for_also_where_nothing_is_to_be_seen_yet() {
    for facts in [
        facts(Place::Free),
        facts(Place::Hidden),
        ours(Power::Stopped),
        ours(Power::Running),
    ] {
        let busy = Facts {
            busy: Some("destroy".to_owned()),
            ..facts
        };
        assert_eq!(next(&busy), Ok(Next::Wait("destroy".to_owned())));
    }
}

#[test]
fn protection_is_a_persons_once_our_configuration_was_written() {
    assert_eq!(class(&protected(true)), ErrorClass::NeedsOperator);
    assert_eq!(next(&protected(false)), Ok(Next::Unprotect(mark())));
}

#[test]
fn a_lock_is_waited_for_until_it_is_stale() {
    let backup = machine(Some("backup"), Whose::Ours(mark()), Power::Running);
    assert!(matches!(next(&backup), Ok(Next::Wait(_))));
    let stale = Facts {
        stale: Some("qm unlock".to_owned()),
        ..machine(Some("clone"), Whose::Ours(mark()), Power::Stopped)
    };
    assert_eq!(class(&stale), ErrorClass::NeedsOperator);
    let suspending = machine(Some("suspending"), Whose::Ours(mark()), Power::Running);
    assert_eq!(class(&suspending), ErrorClass::NeedsOperator);
}

#[test]
fn an_unanswered_request_to_destroy_is_not_repeated_at_once() {
    let doubt = |seconds| Facts {
        in_doubt: Some(Duration::from_secs(seconds)),
        ..ours(Power::Stopped)
    };
    assert!(matches!(next(&doubt(1)), Ok(Next::Wait(_))));
    assert_eq!(next(&doubt(61)), Ok(Next::Destroy(mark())));
}

#[test]
fn a_stop_that_ha_took_note_of_is_waited_for() {
    let asked = |seconds| Facts {
        ha_asked: Some(Duration::from_secs(seconds)),
        ..ours(Power::Running)
    };
    assert!(matches!(next(&asked(1)), Ok(Next::Wait(_))));
    assert_eq!(next(&asked(21)), Ok(Next::Stop(mark())));
}
