//! The table as its callers see it: exact under threads, bounded, and robust against chosen keys.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use headgate_core::limit::calendar::Calendar;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::DamagedState;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table;
use headgate_core::table::answer::{Check, Mode, OnFull};

type Table = table::Table<ProcessStorage>;

const NOW_US: i64 = 1_800_000_000_000_000;
const HIT: Mode = Mode { commit: true, max_delay_us: None };
/// The algorithms of rates: leases have tests of their own.
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::LeakyQueue,
    Algorithm::Stepwise,
    Algorithm::CalendarWindow,
];

/// The result of a call that cannot fail on states that this process wrote.
fn sure<T>(result: Result<T, DamagedState>) -> T {
    result.expect("a sound state")
}

fn table(max_keys: usize, on_full: OnFull) -> Table {
    Table::new(
        [7; 16],
        ProcessStorage::new(Bounds { max_keys, max_log_blocks: 1_000_000, max_holds: 1_000_000, on_full }),
    )
}

fn is_window(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::SlidingWindow | Algorithm::CalendarWindow
    )
}

fn hours() -> Calendar {
    Calendar::numbered(3_600_000_000, || Ok::<_, ()>(vec![(0, 3_600_000_000)])).expect("a calendar")
}

fn limit(table: &Table, scope: &str, algorithm: Algorithm, quota: i64) -> Arc<Registered> {
    let refill = if is_window(algorithm) { 0 } else { 1 };
    let limit = Limit::new(algorithm, 1, quota, 3_600_000_000, refill).expect("a limit").on(hours());
    sure(table.register(Definition { scope, text: "", limit }, NOW_US)).expect("room for a limit")
}

fn check<'limit>(table: &Table, limit: &'limit Registered, key: &str) -> Check<'limit> {
    Check { limit, key: table.seed().text(key.as_bytes()), cost: 1, shadow: false }
}

#[test]
fn concurrent_threads_pass_exactly_the_limit() {
    for algorithm in ALGORITHMS {
        for round in 0..20 {
            let table = table(100_000, OnFull::Forget);
            let narrow = limit(&table, "narrow", algorithm, 1000);
            let wide = limit(&table, "wide", Algorithm::TokenBucket, 100_000);
            let (passed, start) = (AtomicUsize::new(0), Barrier::new(4));
            thread::scope(|scope| {
                for thread in 0..4 {
                    let (table, narrow, wide, passed, start) = (&table, &narrow, &wide, &passed, &start);
                    scope.spawn(move || {
                        start.wait();
                        for number in 0..600 {
                            // Two keys in two shards, locked in either order by the callers.
                            let own = format!("key-{thread}-{number}");
                            let mut checks = [check(table, narrow, "shared"), check(table, wide, &own)];
                            if (number + round) % 2 == 0 {
                                checks.reverse();
                            }
                            passed.fetch_add(
                                usize::from(sure(table.apply(&checks, NOW_US, HIT)).allowed),
                                Ordering::Relaxed,
                            );
                        }
                    });
                }
            });
            assert_eq!(passed.into_inner(), 1000, "{algorithm:?}");
            assert_eq!(sure(table.stats()).keys, 1001, "a refused request left something behind");
        }
    }
}

#[test]
fn a_new_state_beside_known_ones_disturbs_none() {
    let table = table(4000, OnFull::Refuse);
    let known: Vec<Arc<Registered>> =
        ALGORITHMS.iter().map(|algorithm| limit(&table, &format!("{algorithm:?}"), *algorithm, 2000)).collect();
    let fresh = limit(&table, "fresh", Algorithm::TokenBucket, 1);
    for number in 1..=1000 {
        // The new state comes first, between or last among the known ones, in the same shard.
        let mut checks: Vec<Check> = known.iter().map(|limit| check(&table, limit, "known")).collect();
        checks.insert(number % 7, check(&table, &fresh, &format!("new-{number}")));
        let answer = sure(table.apply(&checks, NOW_US + number as i64 / 100, HIT));
        assert!(answer.allowed);
        for (check, reading) in checks.iter().zip(answer.readings.all()) {
            let expected = if std::ptr::eq(check.limit, &raw const *fresh) { 0 } else { 2000 - number as i64 };
            assert_eq!(reading.remaining, expected, "{:?}", check.limit.limit.algorithm);
        }
    }
}

#[test]
fn threads_with_new_keys_stay_within_the_bound() {
    for on_full in [OnFull::Forget, OnFull::Refuse, OnFull::Pass] {
        let table = table(20_000, on_full);
        let limit = limit(&table, "limit", Algorithm::SlidingWindow, 5);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (table, limit) = (&table, &limit);
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let key = format!("{thread}-{number}");
                        sure(table.apply(&[check(table, limit, &key)], NOW_US, HIT));
                        assert!(sure(table.stats()).keys <= 20_000);
                    }
                });
            }
        });
        let stats = sure(table.stats());
        assert_eq!(stats.keys, 20_000);
        assert_eq!(stats.evicted + stats.refused_full + stats.passed_full, 60_000);
    }
}

#[test]
fn growing_moves_every_state() {
    let table = table(400_000, OnFull::Refuse);
    let limits = ALGORITHMS.map(|algorithm| limit(&table, &format!("{algorithm:?}"), algorithm, 5));
    for round in 1..=2 {
        for number in 0..50_000 {
            let key = format!("user:{number}");
            let checks = limits.each_ref().map(|limit| check(&table, limit, &key));
            let answer = sure(table.apply(&checks, NOW_US + round, HIT));
            assert!(answer.allowed);
            for reading in answer.readings.all() {
                assert_eq!(reading.remaining, 5 - round);
            }
        }
        assert_eq!(sure(table.stats()).keys, 400_000);
    }
}

#[test]
fn memory_is_64_bytes_a_key_at_most_at_any_size() {
    let table = table(1_000_000, OnFull::Refuse);
    let limit = limit(&table, "limit", Algorithm::SlidingWindow, 5);
    for number in 1..=400_000 {
        sure(table.apply(&[check(&table, &limit, &number.to_string())], NOW_US, HIT));
        if number % 10_007 == 0 && number > 50_000 {
            let stats = sure(table.stats());
            assert!(stats.bytes <= 64 * stats.keys, "{} bytes for {} keys", stats.bytes, stats.keys);
        }
    }
}

#[test]
fn the_seed_decides_where_keys_fall() {
    let tables = [[1; 16], [2; 16]].map(|seed| {
        Table::new(
            seed,
            ProcessStorage::new(Bounds { max_keys: 10, max_log_blocks: 10, max_holds: 10, on_full: OnFull::Refuse }),
        )
    });
    let keys: Vec<String> = (0..1000).map(|number| format!("user:{number}")).collect();
    let order = |table: &Table| {
        let mut keys = keys.clone();
        keys.sort_by_key(|key| table.seed().text(key.as_bytes()).tag);
        keys
    };
    assert_ne!(order(&tables[0]), order(&tables[1]));
}

#[test]
fn a_charge_that_is_given_back_in_full_takes_no_room() {
    let table = table(20_000, OnFull::Refuse);
    let limits: Vec<Arc<Registered>> =
        ALGORITHMS.iter().map(|algorithm| limit(&table, &format!("{algorithm:?}"), *algorithm, 10)).collect();
    for number in 0..10_000 {
        let keys = [format!("one {number}"), format!("two {number}")];
        let checks: Vec<Check> =
            keys.iter().flat_map(|key| limits.iter().map(|limit| check(&table, limit, key))).collect();
        assert!(sure(table.apply(&checks, NOW_US + number, HIT)).allowed);
        sure(table.give_back(&checks, NOW_US + number, NOW_US + number));
    }
    let stats = sure(table.stats());
    assert_eq!((stats.keys, stats.expired, stats.evicted, stats.refused_full), (0, 0, 0, 0));
}

/// Register unused limits; they are dropped whenever there are more than 4096.
fn register_unused(table: &Table, count: usize, now_us: i64) -> Vec<u32> {
    let limit = Limit::new(Algorithm::TokenBucket, 1, 5, 3_600_000_000, 1).expect("a limit");
    let define = |number: usize| {
        let scope = format!("passing by {number}");
        let definition = Definition { scope: &scope, text: "", limit };
        sure(table.register(definition, now_us)).expect("room for a limit").number()
    };
    (0..count).map(define).collect()
}

#[test]
fn limits_that_nothing_uses_give_their_numbers_back() {
    let table = table(100, OnFull::Refuse);
    assert!(register_unused(&table, 50_000, NOW_US).into_iter().all(|number| number <= 4096));
}

#[test]
fn a_limit_that_is_held_or_has_a_state_keeps_its_number() {
    let table = table(100, OnFull::Refuse);
    let held = limit(&table, "held", Algorithm::FixedWindow, 5);
    let used = limit(&table, "used", Algorithm::TokenBucket, 5);
    let (held_number, used_number) = (held.number(), used.number());
    assert!(sure(table.apply(&[check(&table, &used, "key")], NOW_US, HIT)).allowed);
    drop(used);
    assert!(register_unused(&table, 10_000, NOW_US).iter().all(|number| ![held_number, used_number].contains(number)));
    assert_eq!(held.number(), held_number);
    let again = limit(&table, "used", Algorithm::TokenBucket, 5);
    assert_eq!(again.number(), used_number);
    assert_eq!(sure(table.apply(&[check(&table, &again, "key")], NOW_US, HIT)).readings.all()[0].remaining, 3);
    drop(again);
    let refilled_us = NOW_US + 2 * 3_600_000_000;
    assert!(register_unused(&table, 20_000, refilled_us).contains(&used_number), "its state is the same as none now");
    assert_eq!(sure(table.stats()).keys, 0);
}

#[test]
fn states_under_former_numbers_of_a_limit_become_states_of_its_latest() {
    for algorithm in ALGORITHMS {
        let table = table(100, OnFull::Refuse);
        for quota in 1001..=13_000 {
            let latest = limit(&table, "limit", algorithm, quota);
            assert!(latest.number() <= 4096, "{algorithm:?}");
            if quota == 1001 {
                for _ in 0..10 {
                    assert!(sure(table.apply(&[check(&table, &latest, "key")], NOW_US, HIT)).allowed);
                }
            }
        }
        let latest = limit(&table, "limit", algorithm, 13_000);
        let answer = sure(table.apply(&[check(&table, &latest, "key")], NOW_US, HIT));
        // A window keeps what was used; a bucket keeps what is left, and refills up to its new capacity.
        let quota = if is_window(algorithm) { 13_000 } else { 1001 };
        assert_eq!(answer.readings.all()[0].remaining, quota - 11, "{algorithm:?}");
    }
}
