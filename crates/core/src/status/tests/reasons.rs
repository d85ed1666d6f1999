//! Every reason.

use super::{words::waitings, *};

/// Statuses of all kinds, to see which reasons occur.
fn every_status() -> Vec<ProxyStatus> {
    let runs = seeing(proven(Standing::Started), reporting());
    let mut all: Vec<ProxyStatus> = waitings()
        .into_iter()
        .map(|waiting| {
            let phase = Phase::Provisioning;
            let plan = Plan {
                phase,
                actions: vec![],
                waiting: Some(waiting),
                recheck: None,
            };
            status(&run(), &runs, &plan)
        })
        .collect();
    let faults = [
        ServingFault::PortClosed,
        ServingFault::AuthRejected,
        ServingFault::WrongProxy,
        ServingFault::Slow,
    ];
    for times in [1, 9] {
        let record = || holding(claim(Standing::Started));
        all.extend(faults.map(|fault| told(&run(), &failing(fault, times, record()))));
    }
    let lost = Observed {
        credential: CredentialSight::Lost,
        ..runs.clone()
    };
    let found = Observed {
        offer: Look::Seen(claim(Standing::Seen)),
        provider: configured(true),
        ..observed(Recorded::Nothing)
    };
    let served = Observed {
        serving: answering(),
        ..runs.clone()
    };
    let abandoned = observed(Recorded::Held(proven(Standing::Started)));
    all.extend([lost, found, served, runs].map(|seen| told(&run(), &seen)));
    all.push(told(&desired(Intent::Abandon), &abandoned));
    all
}

#[test]
fn every_reason_occurs_but_those_that_only_pass_by() {
    // A half made machine is told as `Creating`: that is what is done about it.
    let never = BTreeSet::from([Reason::HalfMade]);
    let occurring: BTreeSet<Reason> = every_status()
        .iter()
        .flat_map(|s| &s.conditions)
        .map(|c| c.reason)
        .collect();
    let missing: BTreeSet<Reason> = Reason::ALL
        .iter()
        .copied()
        .filter(|reason| !occurring.contains(reason))
        .collect();
    assert_eq!(missing, never);
}

#[test]
fn every_reason_has_a_meaning_and_the_name_that_people_see() {
    for reason in Reason::ALL {
        assert!(reason.meaning().trim().ends_with('.'), "{reason}");
        assert_eq!(reason.as_str(), format!("{reason:?}"));
        let stored = serde_json::to_string(reason).unwrap();
        assert_eq!(stored, format!("\"{reason}\""));
    }
}
