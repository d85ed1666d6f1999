use super::*;
use crate::{
    machine::{ClusterId, Handle, Host, Retirement, SeedVolume, Standing},
    support::{claim, holding, proof, proven, provider, record},
};

/// A record as it lies in annotations and files: reading it must stay possible for ever.
const GOLDEN: &str = r#"{
  "schema": 1,
  "machine_uid": "0c5c1b6e-6c5e-4b52-9d8a-0d5f2c1a7e11",
  "installation": "lab",
  "proxy": "shop/eu-1",
  "last_attempt": 2,
  "claim": {
    "provider": "pve",
    "cluster": "cluster-a",
    "slot": "102",
    "host": "node-1",
    "attempt": 2,
    "standing": "Accepted",
    "handles": [
      {
        "step": "clone",
        "id": "UPID:1"
      }
    ],
    "mac": "bc:24:11:00:00:01",
    "seed": {
      "name": "local:iso/seed.iso",
      "location": "local"
    },
    "unsettled": true,
    "retiring": "SpecChanged"
  },
  "spent": [
    {
      "provider": "pve",
      "slot": "101",
      "attempt": 1,
      "why": "Refused"
    }
  ],
  "proven": {
    "address": "192.0.2.7:3128",
    "egress": "198.51.100.9",
    "credential_generation": 1
  }
}"#;

fn full() -> Record {
    let claim = Claim {
        cluster: ClusterId::new("cluster-a"),
        slot: Slot::new("102"),
        host: Some(Host::new("node-1")),
        attempt: 2,
        handles: vec![Handle {
            step: "clone".into(),
            id: "UPID:1".into(),
        }],
        mac: Some("bc:24:11:00:00:01".into()),
        seed: Some(SeedVolume {
            name: "local:iso/seed.iso".into(),
            location: "local".into(),
        }),
        unsettled: true,
        retiring: Some(Retirement::SpecChanged),
        ..claim(Standing::Accepted)
    };
    let spent = Spent {
        provider: provider(),
        slot: Slot::new("101"),
        attempt: 1,
        why: SpentWhy::Refused,
    };
    let egress = Some("198.51.100.9".parse().unwrap());
    Record {
        spent: vec![spent],
        proven: Some(Proven { egress, ..proof() }),
        ..record().with_claim(claim)
    }
}

#[test]
fn a_record_is_stored_as_it_always_was() {
    assert_eq!(serde_json::to_string_pretty(&full()).unwrap(), GOLDEN);
    assert_eq!(serde_json::from_str::<Record>(GOLDEN).unwrap(), full());
}

#[test]
fn a_record_of_the_shortest_form_is_read() {
    let stored = r#"{"schema":1,"machine_uid":"0c5c1b6e-6c5e-4b52-9d8a-0d5f2c1a7e11","installation":"lab","proxy":"shop/eu-1","last_attempt":0}"#;
    assert_eq!(serde_json::to_string(&record()).unwrap(), stored);
    assert_eq!(serde_json::from_str::<Record>(stored).unwrap(), record());
}

#[test]
fn every_standing_is_further_on_than_the_one_before_and_read_back_by_its_name() {
    use Standing::{Accepted, Sealed, Seen, Sent, Started, Unsent};
    let all = [Unsent, Sent, Accepted, Seen, Started, Sealed];
    assert!(all.is_sorted());
    for standing in all {
        let stored = serde_json::to_string(&standing).unwrap();
        assert_eq!(stored, format!("\"{standing:?}\""));
        assert_eq!(serde_json::from_str::<Standing>(&stored).unwrap(), standing);
    }
}

#[test]
fn a_claim_given_up_is_remembered_and_its_proof_is_not() {
    let given_up = proven(Standing::Started).without_claim(SpentWhy::Freed);
    assert_eq!((given_up.claim, given_up.proven), (None, None));
    assert_eq!(given_up.last_attempt, 1);
    let spent = Spent {
        provider: provider(),
        slot: Slot::new("101"),
        attempt: 1,
        why: SpentWhy::Freed,
    };
    assert_eq!(given_up.spent, [spent]);
}

#[test]
fn giving_up_no_claim_changes_nothing() {
    assert_eq!(record().without_claim(SpentWhy::Refused), record());
}

#[test]
fn only_the_newest_spent_slots_are_kept_and_no_attempt_number_comes_twice() {
    let max = u32::try_from(Record::MAX_SPENT).unwrap();
    let mut record = record();
    for attempt in 1..=max + 5 {
        let claim = Claim {
            attempt,
            ..claim(Standing::Sent)
        };
        record = record.with_claim(claim).without_claim(SpentWhy::Refused);
    }
    assert_eq!(record.spent.len(), Record::MAX_SPENT);
    assert_eq!(record.spent.first().map(|s| s.attempt), Some(6));
    assert_eq!(record.spent.last().map(|s| s.attempt), Some(max + 5));
    assert_eq!(record.last_attempt, max + 5);
}

#[test]
fn a_machine_found_from_an_early_attempt_does_not_take_the_numbers_back() {
    let late = Record {
        last_attempt: 9,
        ..record()
    };
    assert_eq!(late.with_claim(claim(Standing::Seen)).last_attempt, 9);
    assert_eq!(holding(claim(Standing::Seen)).last_attempt, 1);
}

#[test]
fn a_proof_of_before_that_names_no_port_is_read_and_nonsense_is_not() {
    let read = |address: &str| {
        let text = format!(r#"{{"address": {address:?}, "credential_generation": 1}}"#);
        serde_json::from_str::<Proven>(&text).map(|proven| proven.address.to_string())
    };
    for (written, meant) in [
        ("192.0.2.7", "192.0.2.7:3128"),
        ("2001:db8::7", "[2001:db8::7]:3128"),
        ("192.0.2.7:20001", "192.0.2.7:20001"),
        ("[2001:db8::7]:20001", "[2001:db8::7]:20001"),
    ] {
        assert_eq!(read(written).unwrap(), meant);
    }
    for nonsense in ["", "here", "192.0.2.7:", "192.0.2.300"] {
        assert!(read(nonsense).is_err(), "{nonsense}");
    }
}
