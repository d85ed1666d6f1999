use super::*;
use egress_core::machine::SeedVolume;
use egress_engine::sweep::Thing;
use egress_provider::Leftover;

fn checked() -> Said {
    Said {
        check: Some(check(&Ok(Report::default()))),
        listing: None,
    }
}

fn listed(suspects: Vec<ProviderFinding>) -> Said {
    Said {
        listing: Some(ListingSeen {
            machines: 3,
            unaccounted: suspects.len(),
            suspects,
            at: "2026-01-01T00:00:00Z".into(),
        }),
        ..checked()
    }
}

fn seed() -> Suspect {
    Suspect {
        class: SuspectClass::Leftover,
        thing: Thing::Seed(Leftover {
            volume: SeedVolume {
                name: "local:iso/proxy-a.iso".into(),
                location: "local".into(),
            },
            machine: "proxy-a".into(),
            created_at: None,
        }),
        held_by: Vec::new(),
    }
}

#[test]
fn what_belongs_to_no_proxy_is_named_with_what_to_do_and_stands_over_a_change_of_leaders() {
    let said = listed(vec![suspect(&seed())]);
    let first = status(Some("local"), 2, said, None).unwrap();
    let [finding] = first.findings.as_slice() else {
        panic!("{:?}", first.findings);
    };
    assert_eq!(finding.reason, "Leftover");
    assert!(finding.found.contains("proxy-a.iso"), "{}", finding.found);
    assert!(finding.remedy.contains("remove it"), "{}", finding.remedy);
    assert_eq!(first.counts.as_ref().unwrap().unaccounted, Some(1));

    let next = status(Some("local"), 2, checked(), Some(&first)).unwrap();
    assert_eq!(next, first, "the next leader has listed nothing yet");
    let after = status(Some("local"), 2, listed(Vec::new()), Some(&next)).unwrap();
    assert_eq!(after.findings, [], "it was removed");
}
