use super::*;
use crate::{
    machine::{ErrorClass, MachineState, Standing},
    plan::plan,
    proxy::{Desired, Look, Observed, Recorded},
    status::status,
    support::{answering, claim, gone, holding, observed, proven, reporting, run, seeing, trouble},
};

fn told(desired: &Desired, seen: &Observed) -> ProxyStatus {
    status(desired, seen, &plan(desired, seen))
}

fn runs() -> ProxyStatus {
    let seen = seeing(proven(Standing::Started), reporting());
    told(
        &run(),
        &Observed {
            serving: answering(),
            ..seen
        },
    )
}

fn reasons(old: Option<&ProxyStatus>, new: &ProxyStatus) -> Vec<(EventKind, Reason)> {
    events(old, new)
        .into_iter()
        .map(|event| (event.kind, event.reason))
        .collect()
}

#[test]
fn a_status_that_says_the_same_is_no_event() {
    assert_eq!(events(Some(&runs()), &runs()), []);
    let mut reworded = runs();
    for condition in &mut reworded.conditions {
        condition.message.push_str(" as before");
    }
    reworded.observed_generation += 1;
    assert_eq!(events(Some(&runs()), &reworded), []);
}

#[test]
fn the_first_status_is_told_in_full_but_for_what_only_follows() {
    let new = told(
        &run(),
        &seeing(holding(claim(Standing::Sent)), MachineState::Absent),
    );
    assert_eq!(
        reasons(None, &new),
        [
            (EventKind::Normal, Reason::Accepted),
            (EventKind::Normal, Reason::Creating)
        ]
    );
}

#[test]
fn a_machine_that_comes_up_is_good_news_once() {
    let before = told(
        &run(),
        &seeing(holding(claim(Standing::Sent)), MachineState::Absent),
    );
    assert_eq!(
        reasons(Some(&before), &runs()),
        [
            (EventKind::Normal, Reason::Provisioned),
            (EventKind::Normal, Reason::Serving)
        ]
    );
}

#[test]
fn a_look_that_fails_is_a_warning_and_so_is_a_machine_someone_removed() {
    let blind = Observed {
        machine: Look::Failed(trouble(ErrorClass::Transient)),
        ..observed(Recorded::Held(proven(Standing::Started)))
    };
    let new = told(&run(), &blind);
    assert_eq!(
        reasons(Some(&runs()), &new),
        [(EventKind::Warning, Reason::Transient)]
    );

    let removed = told(
        &run(),
        &seeing(proven(Standing::Started), MachineState::Absent),
    );
    assert_eq!(
        reasons(Some(&runs()), &removed),
        [(EventKind::Warning, Reason::RemovedOutside)]
    );
}

#[test]
fn an_event_says_what_the_condition_says() {
    let new = told(&gone(), &seeing(proven(Standing::Started), reporting()));
    let events = events(Some(&runs()), &new);
    assert_eq!(events.len(), 1);
    let provisioned = new.condition(ConditionType::Provisioned).unwrap();
    assert_eq!(events[0].reason, provisioned.reason);
    assert_eq!(events[0].message, provisioned.message);
    assert_eq!(events[0].kind, EventKind::Normal);
}

#[test]
fn ready_is_never_told_while_it_only_repeats_what_serving_says() {
    let mut new = runs();
    for condition in &mut new.conditions {
        if condition.r#type == ConditionType::Ready {
            condition.reason = Reason::NotServing;
        }
    }
    assert_eq!(events(Some(&runs()), &new), []);
}
