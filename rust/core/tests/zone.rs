//! A zone as its callers see it: exact under threads, and mended where a process left it inconsistent.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

use std::fs::{self, File, OpenOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use headgate_core::encoding::slot::Slot;
use headgate_core::limit::calendar::Calendar;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::shard::Place;
use headgate_core::shard::backing::Backing;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table::Table;
use headgate_core::table::answer::{Check, Mode, OnFull};
use headgate_core::table::storage::Storage;
use headgate_core::zone::header::Birth;
use headgate_core::zone::layout::Layout;
use headgate_core::zone::shards::Unusable;
use headgate_core::zone::storage::ZoneStorage;

const NOW_US: i64 = 1_800_000_000_000_000;
const HIT: Mode = Mode { commit: true, max_delay_us: None };
const BIRTH: Birth = Birth { seed: [7; 16], boot: [1; 16], anchor_us: 5, created_us: 6 };

/// A file without a name.
fn file(size: u64) -> File {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("headgate-zone-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.set_len(size).expect("room");
    fs::remove_file(path).expect("its name to go");
    file
}

fn zone(size: usize) -> ZoneStorage {
    let (file, layout) = (file(size as u64), Layout::new(size, 25, size >> 12).expect("a layout"));
    ZoneStorage::format(&file, &layout, &BIRTH).expect("a zone");
    ZoneStorage::open(&file, OnFull::Refuse, Some(4)).expect("a file").expect("a zone")
}

fn table(size: usize) -> Table<ZoneStorage> {
    Table::new(BIRTH.seed, zone(size))
}

fn limit(table: &Table<ZoneStorage>, scope: &str, algorithm: Algorithm, quota: i64) -> Arc<Registered> {
    let windowed = matches!(
        algorithm,
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::CalendarWindow
    );
    let hours = Calendar::numbered(3_600_000_000, || Ok::<_, ()>(vec![(0, 3_600_000_000)])).expect("a calendar");
    let limit = Limit::new(algorithm, 1, quota, 3_600_000_000, i64::from(!windowed)).expect("a limit").on(hours);
    table.register(Definition { scope, text: "text", limit }, NOW_US).expect("a lock").expect("room for a limit")
}

fn check<'limit>(table: &Table<ZoneStorage>, limit: &'limit Registered, key: &str) -> Check<'limit> {
    Check { limit, key: table.seed().text(key.as_bytes()), cost: 1, shadow: false }
}

fn remaining(table: &Table<ZoneStorage>, limit: &Registered, key: &str) -> i64 {
    let look = Mode { commit: false, max_delay_us: None };
    let check = Check { cost: 0, ..check(table, limit, key) };
    table.apply(&[check], NOW_US, look).expect("a lock").readings.all()[0].remaining
}

fn assert_whole(table: &Table<ZoneStorage>) {
    assert_eq!(table.storage().check().expect("a lock"), Ok(()));
}

/// Keys in shards of their own, in ascending order of the shards.
fn keys_in_shards(table: &Table<ZoneStorage>, count: usize) -> Vec<String> {
    let shard_number = |key: &String| table.storage().shard_of(table.seed().text(key.as_bytes()));
    let mut keys: Vec<String> = (0..1000).map(|number| format!("key {number}")).collect();
    keys.sort_by_key(shard_number);
    keys.dedup_by_key(|key| shard_number(key));
    keys.truncate(count);
    assert_eq!(keys.len(), count);
    keys
}

#[test]
fn a_zone_is_what_its_file_says() {
    let zone = zone(1 << 20);
    assert_eq!((zone.birth().seed, zone.birth().boot), (BIRTH.seed, BIRTH.boot));
    assert_eq!((zone.birth().anchor_us, zone.birth().created_us), (5, 6));
    assert_eq!(zone.namespace(), 4);
    for (size, log_percent) in [(128 << 10, 0), (1 << 20, 90), (64 << 20, 25), (1 << 40, 50)] {
        let layout = Layout::new(size, log_percent, 0).expect("a layout");
        let end = layout.shards.first + layout.shards.count * layout.shards.stride;
        assert!(end <= size && size - end < size / 16 + 8192, "{size}: {end}");
        assert!(layout.homes > 100);
        assert_eq!(layout.shards.blocks == 0, log_percent == 0);
    }
    for (size, log_percent) in [(64 << 10, 25), ((1 << 20) + 1, 25), (1 << 20, 91), (1 << 50, 25)] {
        assert!(Layout::new(size, log_percent, 0).is_err());
    }
}

#[test]
fn a_zone_whose_logs_and_holds_leave_no_room_for_a_state_is_refused() {
    for size in (128 << 10..300 << 10).step_by(4096) {
        for (log_percent, max_holds) in (0..=90).flat_map(|percent| (0..=150).map(move |holds| (percent, holds))) {
            if let Ok(layout) = Layout::new(size, log_percent, max_holds) {
                assert!(layout.max_keys() > 0, "{size} {log_percent} {max_holds}");
            }
        }
    }
    let fault = Layout::new(128 << 10, 90, 100).expect_err("no room");
    assert_eq!(fault, "a zone of 131072 bytes with 90 percent for logs and 100 holds has no room for states");
}

#[test]
fn concurrent_threads_pass_exactly_the_limit() {
    // Places in flight are taken by holds, not by hits.
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Concurrent) {
        let table = table(1 << 20);
        let narrow = limit(&table, "narrow", algorithm, 1000);
        let wide = limit(&table, "wide", Algorithm::TokenBucket, 100_000);
        let (passed, start) = (AtomicUsize::new(0), Barrier::new(4));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (table, narrow, wide, passed, start) = (&table, &narrow, &wide, &passed, &start);
                scope.spawn(move || {
                    start.wait();
                    for number in 0..600 {
                        // Two keys in two shards, in either order.
                        let own = format!("key-{thread}-{number}");
                        let mut checks = [check(table, narrow, "shared"), check(table, wide, &own)];
                        if number % 2 == 0 {
                            checks.reverse();
                        }
                        let answer = table.apply(&checks, NOW_US + number, HIT).expect("a lock");
                        passed.fetch_add(usize::from(answer.allowed), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 1000, "{algorithm:?}");
        assert_eq!(table.stats().expect("a lock").keys, 1001, "a refused request left something behind");
        assert_eq!(table.storage().mended(), 0);
        assert_whole(&table);
    }
}

#[test]
fn a_thread_that_waits_for_a_shard_holds_no_other() {
    let table = table(1 << 20);
    let limit = limit(&table, "limit", Algorithm::FixedWindow, 1_000_000);
    let keys = keys_in_shards(&table, 2);
    let high = table.storage().shard_of(check(&table, &limit, &keys[1]).key);
    let waiting = AtomicBool::new(true);
    let answers = thread::scope(|scope| {
        let stopped = table.storage().lock(high).expect("a lock");
        let waiter = scope.spawn(|| {
            let mut answers = Vec::new();
            while waiting.load(Ordering::Relaxed) {
                let checks = [check(&table, &limit, &keys[0]), check(&table, &limit, &keys[1])];
                answers.push(table.apply(&checks, NOW_US, HIT).map(drop));
            }
            answers
        });
        for _ in 0..20 {
            thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(
                table.apply(&[check(&table, &limit, &keys[0])], NOW_US, HIT).map(|answer| answer.allowed),
                Ok(true)
            );
        }
        waiting.store(false, Ordering::Relaxed);
        let answers = waiter.join().expect("no panic");
        drop(stopped);
        answers
    });
    let myself = fs::read_link("/proc/thread-self").expect("a number");
    let myself = myself.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    assert!(!answers.is_empty());
    assert!(answers.iter().all(|answer| *answer == Err(Unusable::Stuck(myself.expect("a number")))), "{answers:?}");
    assert_eq!(remaining(&table, &limit, &keys[1]), 1_000_000, "a thread that got the error charged nothing");
}

#[test]
fn uncommitted_writes_are_undone() {
    let table = table(128 << 10);
    let limit = limit(&table, "limit", Algorithm::FixedWindow, 100);
    table.apply(&[check(&table, &limit, "key")], NOW_US, HIT).expect("a lock");
    let key = check(&table, &limit, "key");
    for committed in [false, true] {
        let mut guard = table.storage().lock(0).expect("a lock");
        let Place::Found(index) = guard.find(key.tag()) else { panic!("the key is lost") };
        let [window, count, _] = guard.numbers(index, &limit).expect("its own numbers");
        for more in 1..=3 {
            guard.backing.write_slot(index, Slot::new(key.tag(), [window, count + more, 0], limit.number()));
        }
        if committed {
            guard.backing.commit();
        }
        drop(guard); // as a panic in the middle of a decision would
        assert_eq!(remaining(&table, &limit, "key"), if committed { 96 } else { 99 });
        assert_eq!(table.storage().mended(), 1);
        assert_whole(&table);
    }
}

#[test]
fn charges_in_several_shards_count_together_or_not_at_all() {
    // The process that dies may have committed nothing, decided, or committed some; the next may come to any shard
    // first.
    for (decided, committed) in [(false, 0), (true, 0), (true, 1), (true, 2)] {
        for first in 0..3 {
            let table = table(1 << 20);
            let limit = limit(&table, "limit", Algorithm::FixedWindow, 100);
            let keys = keys_in_shards(&table, 3);
            let checks: Vec<Check> = keys.iter().map(|key| check(&table, &limit, key)).collect();
            table.apply(&checks, NOW_US, HIT).expect("a lock");
            let shards: Vec<usize> = checks.iter().map(|check| table.storage().shard_of(check.key)).collect();
            let mut guards: Vec<_> =
                shards.iter().map(|shard_number| table.storage().lock(*shard_number).expect("a lock")).collect();
            let turn = guards[0].backing.journal.lead(shards[0], 1 << shards[1] | 1 << shards[2]);
            for guard in &mut guards[1..] {
                guard.backing.journal.follow(shards[0], turn);
            }
            for (guard, check) in guards.iter_mut().zip(&checks) {
                let Place::Found(index) = guard.find(check.tag()) else { panic!("a key is lost") };
                let [window, ..] = guard.numbers(index, &limit).expect("its own numbers");
                guard.backing.write_slot(index, Slot::new(check.tag(), [window, 50, 0], limit.number()));
            }
            if decided {
                guards[0].backing.journal.decide();
            }
            for guard in guards[1..].iter_mut().take(committed) {
                guard.backing.commit();
            }
            drop(guards);
            let expected = if decided { 50 } else { 99 };
            // The leader goes on to other turns before the last follower is locked.
            assert_eq!(remaining(&table, &limit, &keys[first]), expected);
            if first == 0 {
                table.apply(&checks[..2], NOW_US, HIT).expect("a lock");
                assert_eq!(remaining(&table, &limit, &keys[0]), expected - 1);
                assert_eq!(remaining(&table, &limit, &keys[2]), expected);
            } else {
                keys.iter().for_each(|key| assert_eq!(remaining(&table, &limit, key), expected));
            }
            assert_whole(&table);
        }
    }
}

#[test]
fn a_full_shard_refuses_and_keeps_its_states() {
    let table = table(128 << 10);
    let limits =
        [Algorithm::SlidingWindow, Algorithm::SlidingLog].map(|one| limit(&table, &format!("{one:?}"), one, 5));
    let mut refused = 0;
    for number in 0..3000 {
        let key = format!("key {number}");
        let checks = limits.each_ref().map(|limit| check(&table, limit, &key));
        let answer = table.apply(&checks, NOW_US, HIT).expect("a lock");
        refused += usize::from(answer.full == Some(OnFull::Refuse));
        if answer.allowed {
            assert!(limits.iter().all(|limit| remaining(&table, limit, &key) == 4));
        }
    }
    let stats = table.stats().expect("a lock");
    assert_eq!(stats.keys, 2 * (3000 - refused), "a refused request left something behind");
    assert_eq!(stats.refused_full, refused as u64);
    assert_whole(&table);
}

#[test]
fn a_refund_with_more_records_than_a_shard_has_is_made_in_pieces() {
    let table = table(4 << 20);
    let logs = ["one", "two", "three"].map(|scope| limit(&table, scope, Algorithm::SlidingLog, 1000));
    let keys = keys_in_shards(&table, 2);
    let checks: Vec<Check> = keys.iter().flat_map(|key| logs.iter().map(|limit| check(&table, limit, key))).collect();
    for number in 0..150 {
        assert!(table.apply(&checks, NOW_US - 150 + number, HIT).expect("a lock").allowed);
    }
    for (given, cost) in [(2, 2), (32, 30), (150, 200)] {
        let costly: Vec<Check> = checks.iter().map(|check| Check { cost, ..*check }).collect();
        table.give_back(&costly, NOW_US, NOW_US - 150).expect("a lock");
        for check in &checks {
            let look = Check { cost: 0, ..*check };
            let answer = table.apply(&[look], NOW_US, Mode { commit: false, max_delay_us: None }).expect("a lock");
            assert_eq!(answer.readings.all()[0].remaining, 1000 - 150 + given);
        }
        assert_whole(&table);
    }
    assert_eq!((table.stats().expect("a lock").keys, table.storage().log_blocks().0), (0, 0));
}
