//! Holds as their callers see them, in the memory of one process and in a zone: places and settling under threads, and
//! what a full table forgets.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

use std::collections::HashSet;
use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use headgate_core::holding::record::HoldId;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table::Table;
use headgate_core::table::answer::{Check, Mode, OnFull};
use headgate_core::table::settling::{CallerLimits, HoldRequest, HoldTimes, Outcome, Reserved};
use headgate_core::table::storage::Storage;
use headgate_core::zone::header::Birth;
use headgate_core::zone::layout::Layout;
use headgate_core::zone::storage::ZoneStorage;

const NOW_US: i64 = 1_800_000_000_000_000;
const HOUR_US: i64 = 3_600_000_000;
const HOLD: Mode = Mode { commit: true, max_delay_us: None };
const LOOK: Mode = Mode { commit: false, max_delay_us: None };

fn process(max_holds: usize, on_full: OnFull) -> Table<ProcessStorage> {
    let bounds = Bounds { max_keys: 100_000, max_log_blocks: 100_000, max_holds, on_full };
    Table::new([7; 16], ProcessStorage::new(bounds))
}

fn zone(max_holds: usize, on_full: OnFull) -> Table<ZoneStorage> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (size, name) = (4 << 20, NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(format!("headgate-holding-{}-{name}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.set_len(size as u64).expect("room");
    fs::remove_file(path).expect("its name to go");
    let layout = Layout::new(size, 25, max_holds).expect("a layout");
    let birth = Birth { seed: [7; 16], boot: [1; 16], anchor_us: 5, created_us: 6 };
    ZoneStorage::format(&file, &layout, &birth).expect("a zone");
    Table::new(birth.seed, ZoneStorage::open(&file, on_full, Some(4)).expect("a file").expect("a zone"))
}

fn limit<S: Storage>(table: &Table<S>, scope: &str, algorithm: Algorithm, quota: i64) -> Arc<Registered>
where
    S::Error: Debug,
{
    let refill = i64::from(algorithm == Algorithm::TokenBucket);
    let limit = Limit::new(algorithm, 1, quota, HOUR_US, refill).expect("a limit");
    table.register(Definition { scope, text: "text", limit }, NOW_US).expect("a lock").expect("room for a limit")
}

fn check<'limit, S: Storage>(table: &Table<S>, limit: &'limit Registered, key: &str, cost: i64) -> Check<'limit> {
    Check { limit, key: table.seed().text(key.as_bytes()), cost, shadow: false }
}

/// The id and the shard of the hold; None where it was refused.
fn hold<S: Storage>(table: &Table<S>, checks: &[Check], lease_us: i64, now_us: i64) -> Option<(HoldId, usize)>
where
    S::Error: Debug,
{
    let remember_us = HOUR_US;
    if let [check] = checks
        && let Some((id, _)) = table.reserve_one(check, HoldTimes { lease_us, remember_us }, now_us).expect("a lock")
    {
        return Some((id, table.storage().shard_of(check.key)));
    }
    let id = table.new_id();
    let costs = [checks[0].cost];
    let groups = vec![0; checks.len()];
    let request =
        HoldRequest { id, lease_us, remember_us, at_once: false, named: false, costs: &costs, groups: &groups };
    match table.reserve(checks, &request, now_us, HOLD).expect("a lock") {
        Reserved::Decided(answer, id) if answer.full.is_none() => {
            answer.allowed.then(|| (id, table.storage().shard_of(checks[0].key)))
        }
        Reserved::Decided(..) => None,
        other => panic!("{other:?}"),
    }
}

fn settle<S: Storage>(
    table: &Table<S>,
    (id, shard): (HoldId, usize),
    actual: i64,
    caller_limits: &[&Registered],
) -> Outcome
where
    S::Error: Debug,
{
    let caller_limits: CallerLimits<'_> = caller_limits.iter().copied().collect();
    table.commit(id, shard, &[Some(actual)], &caller_limits, NOW_US).expect("a lock").expect("no debt").outcome
}

fn remaining<S: Storage>(table: &Table<S>, limit: &Registered, key: &str, now_us: i64) -> i64
where
    S::Error: Debug,
{
    let checks = [check(table, limit, key, 0)];
    table.apply_in_flight(&checks, now_us, LOOK).expect("a lock").readings.all()[0].remaining
}

fn places_are_never_more_than_there_are<S: Storage + Sync>(table: &Table<S>)
where
    S::Error: Debug,
{
    let places = limit(table, "places", Algorithm::Concurrent, 5);
    let rate = limit(table, "rate", Algorithm::FixedWindow, 1_000_000);
    let (in_flight, most) = (AtomicI64::new(0), AtomicI64::new(0));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (places, rate, in_flight, most) = (&places, &rate, &in_flight, &most);
            scope.spawn(move || {
                for number in 0..500_i64 {
                    let cost = (number + thread) % 3 + 1;
                    let own = format!("own {thread}");
                    let all = [check(table, places, "shared", cost), check(table, rate, &own, cost)];
                    // A thread may be stopped while it holds places, for as long as others need for all their tries.
                    let id = loop {
                        match hold(table, &all[..1 + number as usize % 2], HOUR_US, NOW_US + number) {
                            Some(id) => break id,
                            None => thread::yield_now(),
                        }
                    };
                    most.fetch_max(in_flight.fetch_add(cost, Ordering::SeqCst) + cost, Ordering::SeqCst);
                    thread::yield_now();
                    in_flight.fetch_sub(cost, Ordering::SeqCst);
                    assert_eq!(settle(table, id, cost, &[&**places]), Outcome::Settled);
                }
            });
        }
    });
    let most = most.into_inner();
    assert!(most <= 5, "{most} in flight");
    assert_eq!(remaining(table, &places, "shared", NOW_US), 5);
}

fn a_hold_is_settled_once<S: Storage + Sync>(table: &Table<S>)
where
    S::Error: Debug,
{
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::TokenBucket, Algorithm::SlidingWindow] {
        let limit = limit(table, &format!("{algorithm:?}"), algorithm, 10_000);
        let ids: Vec<_> = (0..400)
            .map(|number| hold(table, &[check(table, &limit, "key", 3)], HOUR_US, NOW_US - number % 40).expect("room"))
            .collect();
        let settled = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..3 {
                let (ids, limit, settled) = (&ids, &limit, &settled);
                scope.spawn(move || {
                    for number in 0..ids.len() {
                        let id = ids[(number * 7 + thread * 31) % ids.len()];
                        let outcome = settle(table, id, (number % 3) as i64, &[&**limit]);
                        settled.fetch_add(usize::from(outcome == Outcome::Settled), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(settled.into_inner(), 400, "{algorithm:?}");
        ids.iter().for_each(|id| assert_eq!(settle(table, *id, 9, &[&*limit]), Outcome::AlreadySettled));
    }
}

fn forgetting_makes_room_and_keeps_what_is_open<S: Storage>(table: &Table<S>, max_holds: usize)
where
    S::Error: Debug,
{
    let limit = limit(table, "limit", Algorithm::FixedWindow, 1_000);
    let one = |number: usize, now_us: i64| {
        hold(table, &[check(table, &limit, &format!("key {number}"), 1)], 60_000_000, now_us)
    };
    let ids: Vec<_> = (0..max_holds).map(|number| one(number, NOW_US).expect("room")).collect();
    assert_eq!(table.stats().expect("a lock").holds, max_holds);
    assert!(one(max_holds, NOW_US).is_none(), "an open hold was forgotten");
    ids.iter().step_by(2).for_each(|id| assert_eq!(settle(table, *id, 0, &[&*limit]), Outcome::Settled));
    let more: Vec<_> = (0..max_holds / 2).map(|number| one(max_holds + number, NOW_US).expect("room")).collect();
    assert!(one(0, NOW_US).is_none(), "an open hold was forgotten");
    for id in ids.iter().skip(1).step_by(2).chain(&more) {
        assert_eq!(settle(table, *id, 0, &[&*limit]), Outcome::Settled);
    }
    assert_eq!(settle(table, ids[0], 0, &[&*limit]), Outcome::Unknown);
    let later_us = NOW_US + 3 * HOUR_US;
    (0..max_holds).for_each(|number| assert!(one(number, later_us).is_some(), "what is over makes room"));
    assert_eq!(table.stats().expect("a lock").holds, max_holds);
    table.clear().expect("a lock");
    assert_eq!(table.stats().expect("a lock").holds, 0);
    (0..max_holds).for_each(|number| assert!(one(number, later_us).is_some()));
}

fn leases_end_one_after_another<S: Storage>(table: &Table<S>)
where
    S::Error: Debug,
{
    let places = limit(table, "ends", Algorithm::Concurrent, 10_000);
    let lease_us = |number: i64| 1 + number * 7919 % 1_000;
    for number in 0..1_000 {
        hold(table, &[check(table, &places, "key", 2)], lease_us(number), NOW_US).expect("room");
    }
    for later_us in [0, 1, 2, 499, 500, 998, 999, 1_000, 3] {
        let open: i64 = (0..1_000).map(|number| if lease_us(number) > later_us { 2 } else { 0 }).sum();
        assert_eq!(remaining(table, &places, "key", NOW_US + later_us), 10_000 - open, "{later_us}");
    }
}

fn assert_whole(table: &Table<ZoneStorage>) {
    assert_eq!(table.storage().check().expect("a lock"), Ok(()));
    assert_eq!(table.storage().mended(), 0);
}

#[test]
fn a_full_zone_puts_new_holds_in_the_place_of_the_oldest_settled_ones() {
    let table = zone(40, OnFull::Forget);
    for algorithm in [Algorithm::TokenBucket, Algorithm::Concurrent, Algorithm::FixedWindow] {
        table.clear().expect("a lock");
        let limit = limit(&table, &format!("{algorithm:?}"), algorithm, 1_000_000);
        let one = || hold(&table, &[check(&table, &limit, "key", 2)], HOUR_US, NOW_US).expect("room");
        let open: Vec<_> = (0..5).map(|_| one()).collect();
        let settled: Vec<_> = (0..400)
            .map(|_| {
                let id = one();
                assert_eq!(settle(&table, id, 1, &[&*limit]), Outcome::Settled);
                id
            })
            .collect();
        assert_whole(&table);
        assert_eq!(table.stats().expect("a lock").holds, 40);
        for (number, id) in settled.iter().enumerate() {
            let expected = if number < 400 - 35 { Outcome::Unknown } else { Outcome::AlreadySettled };
            assert_eq!(settle(&table, *id, 1, &[&*limit]), expected, "{algorithm:?} {number}");
        }
        for id in open {
            assert_eq!(settle(&table, id, 1, &[&*limit]), Outcome::Settled);
        }
        match algorithm {
            Algorithm::Concurrent => assert_eq!(remaining(&table, &limit, "key", NOW_US), 1_000_000),
            Algorithm::FixedWindow => assert_eq!(remaining(&table, &limit, "key", NOW_US), 1_000_000 - 405),
            _ => {}
        }
    }
}

#[test]
fn an_id_settles_its_own_hold_in_its_own_shard_alone() {
    let table = zone(3_000, OnFull::Refuse);
    let limit = limit(&table, "limit", Algorithm::FixedWindow, 1_000_000);
    let ids: Vec<_> = (0..500)
        .map(|number| hold(&table, &[check(&table, &limit, &format!("key {number}"), 2)], HOUR_US, NOW_US))
        .map(|id| id.expect("room"))
        .collect();
    let digests: HashSet<_> = ids.iter().map(|(id, _)| id.0).collect();
    assert_eq!(digests.len(), ids.len());
    for (id, shard) in &ids {
        for other in (0..table.storage().shard_count()).filter(|other| other != shard) {
            // The bits that contain the cell are changed as well, so that they name the same cell in the other shard.
            let HoldId([low, high]) = *id;
            let forged = HoldId([low ^ (shard ^ other) as u64, high]);
            assert_eq!(settle(&table, (*id, other), 1, &[&*limit]), Outcome::Unknown);
            assert_eq!(settle(&table, (forged, other), 1, &[&*limit]), Outcome::Unknown);
        }
    }
    for id in ids {
        assert_eq!(settle(&table, id, 1, &[&*limit]), Outcome::Settled);
    }
    assert_whole(&table);
}

/// Holds whose ids contain their numbers, among others whose ids do not. An id finds its
/// own hold, and none once that has made room.
fn a_number_finds_no_hold_but_that_of_its_id<S: Storage>(table: &Table<S>, max_holds: usize)
where
    S::Error: Debug,
{
    let limit = limit(table, "limit", Algorithm::TokenBucket, 1_000_000);
    let (mut made, mut seen) = (Vec::new(), HashSet::new());
    for number in 0..20 * max_holds {
        let checks = [check(table, &limit, "key", 2)];
        let (id, place) = if number % 3 == 0 {
            let (id, costs, groups) = (table.new_id(), [2], [0]);
            let (lease_us, remember_us, at_once) = (HOUR_US, HOUR_US, false);
            let request =
                HoldRequest { id, lease_us, remember_us, at_once, named: false, costs: &costs, groups: &groups };
            let reserved = table.reserve(&checks, &request, NOW_US, HOLD).expect("a lock");
            let Reserved::Decided(answer, id) = reserved else { panic!("{reserved:?}") };
            assert!(answer.allowed);
            (id, table.storage().shard_of(checks[0].key))
        } else {
            hold(table, &checks, HOUR_US, NOW_US).expect("room")
        };
        assert!(seen.insert(id.0), "no id is made twice");
        let HoldId([low, high]) = id;
        for forged in [[low ^ 1 << 32, high], [low ^ 1 << 40, high ^ 1 << 50], [low ^ 4, high ^ 4]] {
            assert_eq!(settle(table, (HoldId(forged), place), 1, &[&*limit]), Outcome::Unknown);
        }
        assert_eq!(settle(table, (id, place), 1, &[&*limit]), Outcome::Settled);
        made.push((id, place));
    }
    let outcomes: Vec<_> = made.iter().map(|id| settle(table, *id, 1, &[&*limit])).collect();
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert_eq!(count(Outcome::AlreadySettled), max_holds);
    assert_eq!(count(Outcome::Unknown), made.len() - max_holds);
}

#[test]
fn a_number_that_an_id_contains_finds_no_other_hold() {
    a_number_finds_no_hold_but_that_of_its_id(&process(40, OnFull::Forget), 40);
    let zone = zone(40, OnFull::Forget);
    a_number_finds_no_hold_but_that_of_its_id(&zone, 40);
    assert_whole(&zone);
}

#[test]
fn threads_never_have_more_places_in_flight_than_there_are() {
    places_are_never_more_than_there_are(&process(100_000, OnFull::Refuse));
    let zone = zone(3_000, OnFull::Forget);
    places_are_never_more_than_there_are(&zone);
    assert_whole(&zone);
}

#[test]
fn threads_that_settle_one_hold_settle_it_once() {
    a_hold_is_settled_once(&process(100_000, OnFull::Refuse));
    let zone = zone(3_000, OnFull::Refuse);
    a_hold_is_settled_once(&zone);
    assert_whole(&zone);
}

#[test]
fn a_full_table_forgets_what_is_settled_and_never_what_is_open() {
    forgetting_makes_room_and_keeps_what_is_open(&process(40, OnFull::Forget), 40);
    let zone = zone(40, OnFull::Forget);
    forgetting_makes_room_and_keeps_what_is_open(&zone, 40);
    assert_whole(&zone);
}

#[test]
fn places_are_free_when_their_leases_end_whatever_their_order() {
    leases_end_one_after_another(&process(100_000, OnFull::Refuse));
    let zone = zone(1_500, OnFull::Refuse);
    leases_end_one_after_another(&zone);
    assert_whole(&zone);
}

#[test]
fn holds_that_come_and_go_leave_a_zone_as_it_was() {
    let table = zone(600, OnFull::Forget);
    let places = limit(&table, "places", Algorithm::Concurrent, 1_000_000);
    let log = limit(&table, "log", Algorithm::SlidingLog, 1_000_000);
    let (mut open, mut number) = (Vec::new(), 0_u64);
    for round in 0..3_000_i64 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("key {}", number >> 60);
        let checks = [check(&table, &places, &key, 1), check(&table, &log, &key, 1)];
        open.extend(hold(
            &table,
            &checks[..1 + (number >> 40) as usize % 2],
            1 + (number >> 50) as i64,
            NOW_US + round,
        ));
        if number >> 33 & 1 == 0 && !open.is_empty() {
            let id = open.swap_remove((number >> 20) as usize % open.len());
            assert_eq!(settle(&table, id, 0, &[&*places]), Outcome::Settled);
        }
        if round % 250 == 0 {
            assert_whole(&table);
        }
    }
    for key in 0..16 {
        for limit in [&places, &log] {
            let key = table.seed().text(format!("key {key}").as_bytes());
            table.reset(&[(limit, key)], NOW_US + 3_000).expect("a lock");
        }
    }
    assert_eq!(table.stats().expect("a lock").holds, 0);
    assert_whole(&table);
}

#[test]
fn keys_whose_tags_begin_alike_take_no_more_room_than_others() {
    let table = zone(3000, OnFull::Forget);
    let limits = ["minute", "hour"].map(|scope| limit(&table, scope, Algorithm::FixedWindow, 1_000_000));
    let mut keys: Vec<(usize, u64, u32)> = (0..400_000)
        .map(|name| {
            let key = table.seed().text(name.to_string().as_bytes());
            (table.storage().shard_of(key), key.tag, name)
        })
        .collect();
    keys.sort_unstable();
    let is_alike = |pair: &&[(usize, u64, u32)]| pair[0].0 == pair[1].0 && (pair[0].1 ^ pair[1].1) >> (64 - 28) == 0;
    let alike: Vec<u32> = keys.windows(2).filter(is_alike).flat_map(|pair| [pair[0].2, pair[1].2]).collect();
    assert!(alike.len() > 20, "{} keys", alike.len());
    let mut held = Vec::new();
    for (number, name) in alike.iter().enumerate() {
        for name in [*name].into_iter().chain((0..number as u32 % 7).map(|more| more * 1000 + number as u32)) {
            let checks = [0, 1].map(|index| check(&table, &limits[index], &name.to_string(), 5));
            held.push(hold(&table, &checks, HOUR_US, NOW_US).expect("room"));
        }
    }
    assert_whole(&table);
    for id in held {
        assert_eq!(settle(&table, id, 3, &[&*limits[0], &*limits[1]]), Outcome::Settled);
    }
    assert_whole(&table);
}

#[test]
fn a_zone_whose_settled_holds_are_in_the_way_has_room_for_new_ones() {
    let table = zone(256, OnFull::Forget);
    let places = limit(&table, "places", Algorithm::Concurrent, 1_000_000);
    let rates = ["minute", "hour"].map(|scope| limit(&table, scope, Algorithm::FixedWindow, 1_000_000));
    let mut open = 0;
    for number in 0..6000_i64 {
        let key = format!("key {}", number % 2000);
        let checks = [&places, &rates[0], &rates[1]].map(|limit| check(&table, limit, &key, 1));
        let id = hold(&table, &checks, HOUR_US, NOW_US + number).unwrap_or_else(|| panic!("{number}: {open} are open"));
        if number % 50 == 0 && open < 30 {
            open += 1;
        } else {
            assert_eq!(settle(&table, id, 1, &[]), Outcome::Settled);
        }
    }
    assert_whole(&table);
}
