use super::*;
use crate::{
    machine::{Addresses, StopReason},
    support::{SETTLE, claim, holding, key, proven, record, reporting, secs, trouble},
};

fn retry_in(history: &History, now: Duration) -> Option<Duration> {
    history.holding(now).map(|f| f.retry_at.saturating_sub(now))
}

fn may_land(history: &History, claim: &Claim, now: u64) -> Duration {
    history.may_land_for(claim, SETTLE, secs(now))
}

fn machine(state: MachineState) -> ObservedMachine {
    ObservedMachine::only(state)
}

#[test]
fn a_create_whose_outcome_this_process_does_not_know_settles_after_the_bound() {
    let claim = claim(Standing::Sent);
    let mut history = History::default();
    history.note_record(Some(&holding(claim.clone())), secs(100));
    assert_eq!(may_land(&history, &claim, 100), SETTLE);
    history.note_record(Some(&holding(claim.clone())), secs(500)); // seen before: no new timer
    assert_eq!(
        may_land(&history, &claim, 500),
        SETTLE.saturating_sub(secs(400))
    );
    assert_eq!(may_land(&history, &claim, 999), secs(1));
    assert_eq!(may_land(&history, &claim, 1000), secs(0));
    history.note_record(Some(&holding(claim.clone())), secs(2000));
    assert_eq!(may_land(&history, &claim, 2000), secs(0));
}

#[test]
fn a_create_that_this_process_saw_answered_is_settled() {
    let claim = claim(Standing::Sent);
    let mut history = History::default();
    history.note_recorded(None, &claim);
    history.note_record(Some(&holding(claim.clone())), secs(1));
    history.note_created(1, Sent::MACHINE, Some(ErrorClass::Transient), secs(2));
    history.note_created(1, Sent::MACHINE, None, secs(3));
    assert_eq!(may_land(&history, &claim, 3), secs(0));
}

#[test]
fn a_claim_found_standing_unsent_accepted_or_further_on_is_settled() {
    for standing in [
        Standing::Unsent,
        Standing::Accepted,
        Standing::Seen,
        Standing::Started,
    ] {
        let claim = claim(standing);
        let mut history = History::default();
        history.note_record(Some(&holding(claim.clone())), secs(1));
        assert_eq!(may_land(&history, &claim, 1), secs(0), "{standing:?}");
    }
}

#[test]
fn a_claim_that_says_it_is_unsettled_is_waited_for_however_it_stands() {
    let claim = Claim {
        unsettled: true,
        ..claim(Standing::Started)
    };
    let mut history = History::default();
    history.note_record(Some(&holding(claim.clone())), secs(1));
    assert_eq!(may_land(&history, &claim, 1), SETTLE);
}

#[test]
fn each_repeat_of_an_unknown_create_begins_the_wait_anew() {
    for class in [ErrorClass::OutcomeUnknown, ErrorClass::Internal] {
        let claim = claim(Standing::Sent);
        let mut history = History::default();
        history.note_recorded(None, &claim);
        history.note_created(1, Sent::MACHINE, Some(class), secs(10));
        assert_eq!(may_land(&history, &claim, 10), SETTLE);
        // A definite answer to a repeat says nothing about the request before it.
        history.note_created(1, Sent::MACHINE, None, secs(50));
        assert_eq!(may_land(&history, &claim, 50), SETTLE, "{class}");
    }
}

/// A look at the machine that this attempt made.
fn made_by(attempt: u32) -> ObservedMachine {
    ObservedMachine {
        attempt: Some(attempt),
        ..machine(MachineState::Stopped(StopReason::HalfMade))
    }
}

#[test]
fn one_request_has_landed_once_its_machine_is_seen_with_its_mark() {
    let claim = claim(Standing::Sent);
    let record = holding(claim.clone());
    // Sent by a process that died, and by this one without an answer.
    let mut found = History::default();
    found.note_record(Some(&record), secs(1));
    let mut unheard = History::default();
    unheard.note_recorded(None, &claim);
    unheard.note_created(1, Sent::MACHINE, Some(ErrorClass::OutcomeUnknown), secs(1));
    for mut history in [found, unheard] {
        for unproven in [
            machine(MachineState::InProgress {
                step: "clone".into(),
            }),
            made_by(7),
        ] {
            history.note_machine(&record, &unproven, secs(2));
            assert!(!may_land(&history, &claim, 2).is_zero(), "{unproven:?}");
        }
        history.note_machine(&record, &made_by(1), secs(3));
        assert_eq!(may_land(&history, &claim, 3), secs(0));
        history.note_record(Some(&record), secs(4));
        assert_eq!(may_land(&history, &claim, 4), secs(0), "opened anew");
    }
}

#[test]
fn only_who_promised_a_request_and_knows_that_none_went_out_takes_it_back() {
    let sent = claim(Standing::Sent);
    let promised = || {
        let mut history = History::default();
        history.note_recorded(Some(&claim(Standing::Unsent)), &claim(Standing::Sent));
        history
    };
    let after = |what: Sent, failed: Option<ErrorClass>| {
        let mut history = promised();
        history.note_created(1, what, failed, secs(1));
        history
    };
    let others = Sent {
        machine: false,
        others: true,
    };
    assert!(promised().sent_nothing(&sent));
    let refused = after(Sent::MACHINE, Some(ErrorClass::Permanent));
    assert!(refused.sent_nothing(&sent));

    let mut found = History::default();
    found.note_record(Some(&holding(sent.clone())), secs(1));
    let mut unsaved = promised();
    unsaved.note_unsaved();
    for (what, history) in [
        ("found by a later process", found),
        ("written by someone meanwhile", unsaved),
        ("accepted", after(Sent::MACHINE, None)),
        (
            "unheard of",
            after(Sent::MACHINE, Some(ErrorClass::OutcomeUnknown)),
        ),
        ("its seed is there", after(others, None)),
        (
            "its seed may come",
            after(others, Some(ErrorClass::OutcomeUnknown)),
        ),
    ] {
        assert!(!history.sent_nothing(&sent), "{what}");
    }
    let twice = Claim {
        unsettled: true,
        ..sent
    };
    let next = Claim {
        attempt: 2,
        ..claim(Standing::Sent)
    };
    for other in [twice, next, claim(Standing::Accepted)] {
        assert!(!promised().sent_nothing(&other), "{other:?}");
    }
}

#[test]
fn a_machine_does_not_settle_what_may_have_been_sent_twice() {
    let sent = claim(Standing::Sent);
    let twice = Claim {
        unsettled: true,
        ..sent.clone()
    };
    let unknown = Some(ErrorClass::OutcomeUnknown);
    let others = Sent {
        machine: false,
        others: true,
    };
    let both = Sent {
        machine: true,
        others: true,
    };
    let mut lost = History::default();
    lost.note_recorded(None, &sent);
    lost.note_created(1, both, unknown, secs(1));
    let mut cases = vec![("the seed is on its way too", sent.clone(), lost)];
    for (what, second) in [("a second one", Sent::MACHINE), ("a seed", others)] {
        let mut history = History::default();
        history.note_record(Some(&holding(sent.clone())), secs(1));
        history.note_created(1, second, unknown, secs(2));
        cases.push((what, sent.clone(), history));
    }
    // Accepted, and yet not to be seen: it was sent again.
    let mut again = History::default();
    again.note_recorded(None, &sent);
    again.note_created(1, Sent::MACHINE, None, secs(1));
    again.note_created(1, Sent::MACHINE, unknown, secs(2));
    cases.push(("an accepted one before it", sent.clone(), again));
    let mut told = History::default();
    told.note_record(Some(&holding(twice.clone())), secs(1));
    cases.push(("the record says so", twice.clone(), told));
    // Another process wrote that it sends one more.
    let mut aside = History::default();
    aside.note_recorded(None, &sent);
    aside.note_created(1, Sent::MACHINE, None, secs(1));
    aside.note_record(Some(&holding(twice.clone())), secs(2));
    cases.push(("another process says so", twice, aside));
    for (what, claim, mut history) in cases {
        history.note_machine(&holding(claim.clone()), &made_by(1), secs(3));
        assert!(!may_land(&history, &claim, 3).is_zero(), "{what}");
    }
}

#[test]
fn an_attempt_is_unsent_until_a_request_of_it_was_not_refused() {
    let sent = claim(Standing::Sent);
    let fresh = || {
        let mut history = History::default();
        assert!(!history.is_unsent(1), "another process may have sent it");
        history.note_recorded(None, &sent);
        history
    };
    assert!(fresh().is_unsent(1));
    assert!(!fresh().is_unsent(2));
    for (failed, still) in [
        (Some(ErrorClass::Busy), true),
        (Some(ErrorClass::OutcomeUnknown), false),
        (Some(ErrorClass::Internal), false),
        (None, false),
    ] {
        let mut history = fresh();
        history.note_created(1, Sent::MACHINE, failed, secs(1));
        assert_eq!(history.is_unsent(1), still, "{failed:?}");
    }
    let mut unsaved = fresh();
    unsaved.note_unsaved();
    assert!(!unsaved.is_unsent(1), "someone else wrote the record");
    let mut known = History::default();
    known.note_recorded(Some(&claim(Standing::Accepted)), &sent);
    assert!(!known.is_unsent(1), "it was sent before");
}

#[test]
fn what_is_open_about_one_attempt_says_nothing_about_the_next() {
    let mut history = History::default();
    history.note_created(1, Sent::MACHINE, Some(ErrorClass::OutcomeUnknown), secs(10));
    let next = Claim {
        attempt: 2,
        ..claim(Standing::Sent)
    };
    assert_eq!(may_land(&history, &next, 10), secs(0));
}

#[test]
fn failures_in_a_row_wait_longer_and_another_class_begins_anew() {
    let mut history = History::default();
    let mut waits = Vec::new();
    for class in [ErrorClass::Transient; 3]
        .into_iter()
        .chain([ErrorClass::Capacity])
    {
        history.note_failure(trouble(class), &key(), secs(0));
        waits.push((
            history.failure().unwrap().count,
            retry_in(&history, secs(0)).unwrap(),
        ));
    }
    let counts: Vec<u32> = waits.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [1, 2, 3, 1]);
    assert!(
        waits[0].1 < waits[1].1 && waits[1].1 < waits[2].1,
        "{waits:?}"
    );
    history.note_success();
    assert_eq!(history.failure(), None);
    assert_eq!(history.holding(secs(0)), None);
}

#[test]
fn an_answered_look_does_not_end_the_wait_after_a_failed_create() {
    let mut history = History::default();
    history.note_failure(trouble(ErrorClass::Capacity), &key(), secs(0));
    let wait = retry_in(&history, secs(0));
    history.note_look_failed(trouble(ErrorClass::Transient), &key(), secs(0));
    assert!(history.holding(secs(0)).is_some_and(|f| f.looking));
    assert!(history.failure().is_some_and(|f| f.looking));
    history.note_looked();
    assert_eq!(retry_in(&history, secs(0)), wait);
    assert!(history.failure().is_some_and(|f| !f.looking));
}

#[test]
fn restarts_count_for_an_hour_and_only_for_the_same_machine() {
    let mut history = History::default();
    let record = holding(claim(Standing::Started));
    history.note_record(Some(&record), secs(0));
    history.note_restart(secs(10));
    history.note_restart(secs(2000));
    assert_eq!(history.restarts(), 2);
    history.note_record(Some(&record), secs(10) + CRASH_WINDOW);
    assert_eq!(history.restarts(), 1);
    let next = holding(Claim {
        attempt: 2,
        ..claim(Standing::Sent)
    });
    history.note_record(Some(&next), secs(10) + CRASH_WINDOW);
    assert_eq!(history.restarts(), 0);
}

#[test]
fn a_machine_just_started_again_may_look_stopped_for_a_moment() {
    let mut history = History::default();
    assert_eq!(history.restart_grace(secs(5)), secs(0));
    history.note_restart(secs(100));
    assert_eq!(history.restart_grace(secs(100)), RESTART_GRACE);
    assert_eq!(
        history.restart_grace(secs(104)),
        RESTART_GRACE.saturating_sub(secs(4))
    );
    assert_eq!(history.restart_grace(secs(100) + RESTART_GRACE), secs(0));
}

#[test]
fn the_second_replacement_in_a_row_waits_and_each_after_it_twice_as_long() {
    let mut history = History::default();
    assert_eq!(history.replace_at(), secs(0));
    let mut waits = Vec::new();
    for n in 0..12 {
        history.note_replacement(secs(n));
        waits.push(history.replace_at().saturating_sub(secs(n)).as_secs());
    }
    assert_eq!(
        waits,
        [0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600, 3600]
    );
    history.note_record(Some(&record()), secs(11) + CRASH_WINDOW * 2);
    assert_eq!(history.replace_at(), secs(0));
}

#[test]
fn a_changed_wish_ends_every_wait_for_what_failed_as_it_was_before() {
    let mut history = History::default();
    for at in [0, 10, 20] {
        history.note_replacement(secs(at));
    }
    history.note_failure(trouble(ErrorClass::Permanent), &key(), secs(20));
    history.note_look_failed(trouble(ErrorClass::Transient), &key(), secs(20));
    assert!(history.replace_at() > secs(21));
    history.note_changed();
    assert_eq!(history.holding(secs(21)), None);
    assert_eq!(history.replace_at(), Duration::ZERO);
}

#[test]
fn the_boot_timer_runs_while_there_is_no_address_and_stops_with_the_first() {
    let record = holding(claim(Standing::Started));
    let unreported = || machine(MachineState::Running(Addresses::Unreported));
    let mut history = History::default();
    history.note_machine(&record, &machine(MachineState::Provisioning), secs(10));
    history.note_machine(&record, &unreported(), secs(20));
    let task = MachineState::InProgress {
        step: "backup".into(),
    };
    history.note_machine(&record, &machine(task), secs(30));
    assert_eq!(history.booting_since(1), Some(secs(10)));
    assert_eq!(history.booting_since(2), None);
    history.note_machine(&record, &machine(reporting()), secs(40));
    assert_eq!(history.booting_since(1), None);
    // Silent after it was proven is not booting.
    history.note_machine(&proven(Standing::Started), &unreported(), secs(50));
    assert_eq!(history.booting_since(1), None);
}

#[test]
fn a_probe_or_a_restart_ends_the_boot_timer_too() {
    for end in [
        |h: &mut History| h.note_restart(secs(9)),
        |h: &mut History| h.note_serving(false),
    ] {
        let mut history = History::default();
        history.note_booting(1, secs(1));
        end(&mut history);
        assert_eq!(history.booting_since(1), None);
    }
}

#[test]
fn failed_probes_count_until_one_is_answered_or_the_machine_is_another() {
    let mut history = History::default();
    history.note_record(Some(&holding(claim(Standing::Started))), secs(0));
    history.note_serving(false);
    history.note_serving(false);
    assert_eq!(history.serving_faults(), 2);
    history.note_serving(true);
    assert_eq!(history.serving_faults(), 0);
    history.note_serving(false);
    let next = holding(Claim {
        attempt: 2,
        ..claim(Standing::Sent)
    });
    history.note_record(Some(&next), secs(0));
    assert_eq!(history.serving_faults(), 0);
}

#[test]
fn a_freed_slot_rests_for_the_settle_bound_and_a_refused_one_for_ten_minutes() {
    let spent = |why| holding(claim(Standing::Sent)).without_claim(why);
    for (why, rest) in [(SpentWhy::Freed, SETTLE), (SpentWhy::Refused, REFUSED_FOR)] {
        let record = spent(why);
        let mut history = History::default();
        let slots = |history: &History, now| history.untouchable(&record, SETTLE, now);
        // Before its first sight, it rests in any case.
        assert_eq!(slots(&history, secs(50)).len(), 1, "{why:?}");
        history.note_record(Some(&record), secs(100));
        assert_eq!(slots(&history, secs(99) + rest).len(), 1, "{why:?}");
        assert_eq!(slots(&history, secs(100) + rest), [], "{why:?}");
    }
}

#[test]
fn without_a_record_all_is_forgotten_but_the_failure_that_holds_calls_back() {
    let mut history = History::default();
    history.note_record(Some(&holding(claim(Standing::Sent))), secs(1));
    history.note_restart(secs(1));
    history.note_replacement(secs(1));
    history.note_failure(trouble(ErrorClass::Capacity), &key(), secs(1));
    history.note_look_failed(trouble(ErrorClass::Transient), &key(), secs(1));
    history.note_record(None, secs(2));
    let mut only_failures = History::default();
    only_failures.note_failure(trouble(ErrorClass::Capacity), &key(), secs(1));
    only_failures.note_look_failed(trouble(ErrorClass::Transient), &key(), secs(1));
    assert_eq!(history, only_failures);
}
