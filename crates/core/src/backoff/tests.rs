use super::*;
use crate::support::key;
use proptest::prelude::*;

#[test]
fn each_class_waits_as_its_row_of_the_contract_says() {
    for class in ErrorClass::ALL {
        let expected: [u64; 4] = match class {
            ErrorClass::Conflict | ErrorClass::Busy => [2, 2, 2, 2],
            ErrorClass::OutcomeUnknown => [2, 4, 8, 300],
            ErrorClass::Transient | ErrorClass::Internal => [1, 2, 4, 300],
            ErrorClass::Capacity
            | ErrorClass::Unauthorized
            | ErrorClass::NeedsOperator
            | ErrorClass::NotOwned => [5, 10, 20, 600],
            ErrorClass::Permanent => [600, 600, 600, 600],
        };
        for (count, base) in [1, 2, 3, 40].into_iter().zip(expected.map(secs)) {
            let wait = after_failure(class, count, &key());
            assert_eq!(wait, with_jitter(base, &key()), "{class}, {count} in a row");
        }
    }
}

proptest! {
    #[test]
    fn a_wait_is_shortened_by_a_tenth_at_most_and_never_for_nothing(
        millis in 0..10_000_000_u64,
        uid in "[a-z0-9]{1,20}",
    ) {
        let key = MachineKey::new(uid.parse().unwrap());
        let base = Duration::from_millis(millis);
        let wait = with_jitter(base, &key);
        prop_assert!(wait <= base && wait >= base.saturating_sub(base / 10), "{:?} of {:?}", wait, base);
        prop_assert_eq!(wait, with_jitter(base, &key));
    }

    #[test]
    fn a_wait_doubles_until_its_limit_and_never_overflows(n in any::<u32>()) {
        let wait = doubling(secs(1), secs(300), n);
        prop_assert!(wait >= secs(1) && wait <= secs(300));
        let next = doubling(secs(1), secs(300), n.saturating_add(1));
        prop_assert!(next == wait * 2 || next == secs(300) || n == 0);
    }
}

#[test]
fn the_longest_times_do_not_overflow() {
    assert_eq!(
        doubling(Duration::MAX, Duration::MAX, u32::MAX),
        Duration::MAX
    );
    assert!(with_jitter(Duration::MAX, &key()) <= Duration::MAX);
}

#[test]
fn keys_made_together_do_not_move_together() {
    let waits: std::collections::BTreeSet<Duration> = (0..100)
        .map(|n| MachineKey::new(format!("uid-{n}").parse().unwrap()))
        .map(|key| with_jitter(secs(30), &key))
        .collect();
    assert!(waits.len() > 90, "{}", waits.len());
}
