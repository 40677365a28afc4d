//! Making and settling holds, for counting instructions: `held_path token_bucket 20000`, or in a zone `held_path
//! token_bucket 20000 zone`; `places` are in flight, and `ten_limits` are held together. The last argument is the most
//! holds that are remembered: once there are as many, each new one takes the place of one that is settled.

#![allow(clippy::expect_used, clippy::panic)] // a tool of the benchmarks, not part of the core

use std::fmt::Debug;
use std::fs::OpenOptions;

use headgate_core::holding::record::HoldId;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::registered::Definition;
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

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a kind of limit");
    let holds: i64 = arguments.next().and_then(|count| count.parse().ok()).expect("a number of holds");
    let place = arguments.next().unwrap_or_default();
    let max_holds = arguments.next().map_or(100_000, |most| most.parse().expect("a number of holds"));
    let settled = match &*place {
        "" | "memory" => {
            let bounds = Bounds { max_keys: 1_000_000, max_log_blocks: 1_000_000, max_holds, on_full: OnFull::Forget };
            hold_kind(&Table::new([7; 16], ProcessStorage::new(bounds)), &kind, holds)
        }
        "zone" => hold_kind(&Table::new([7; 16], zone(max_holds)), &kind, holds),
        place => panic!("no such place: {place}"),
    };
    println!("{settled}");
}

/// Hold and settle `holds` times; returns how many were settled on the fast path.
fn hold_kind<S: Storage<Error: Debug>>(table: &Table<S>, kind: &str, holds: i64) -> i64 {
    let (algorithm, refill) = match kind {
        "fixed_window" => (Algorithm::FixedWindow, 0),
        "sliding_window" => (Algorithm::SlidingWindow, 0),
        "token_bucket" => (Algorithm::TokenBucket, 7),
        "places" => (Algorithm::Concurrent, 0),
        "ten_limits" => {
            hold_ten(table, holds);
            return 0;
        }
        kind => panic!("no such kind of limit: {kind}"),
    };
    hold(table, Limit::new(algorithm, 1, 10_000_000, 60_000_000, refill).expect("a limit"), holds)
}

/// Hold ten limits of four keys, which count three units, and settle: what a call of a language model does.
fn hold_ten<S: Storage<Error: Debug>>(table: &Table<S>, holds: i64) {
    let kinds = [(Algorithm::TokenBucket, 7), (Algorithm::SlidingWindow, 0), (Algorithm::FixedWindow, 0)];
    let limits: Vec<_> = (0..10)
        .map(|number| {
            let (algorithm, refill) = kinds[number % 3];
            let limit = Limit::new(algorithm, 1, 10_000_000, 60_000_000, refill).expect("a limit");
            let scope = format!("held {number}");
            table.register(Definition { scope: &scope, text: "", limit }, NOW_US).expect("a lock").expect("room")
        })
        .collect();
    let groups: Vec<u16> = (0..10).map(|number| number % 3).collect();
    let caller_limits: CallerLimits<'_> = limits.iter().map(|limit| &**limit).collect();
    let costs = [1, 90, 50];
    let hashes = ["ann", "staff", "a model", "all"].map(|key| table.seed().text(key.as_bytes()));
    for number in 0..holds {
        let now_us = NOW_US + number * 1000;
        let checks: Vec<Check<'_>> = (0..10)
            .map(|number| Check {
                limit: &limits[number],
                key: hashes[number * 4 / 10],
                cost: costs[number % 3],
                shadow: false,
            })
            .collect();
        let (id, lease_us, remember_us, at_once) = (table.new_id(), 60_000_000, HOUR_US, false);
        let request = HoldRequest { id, lease_us, remember_us, at_once, named: false, costs: &costs, groups: &groups };
        let id = held(table.reserve(&checks, &request, now_us, HOLD).expect("a lock"));
        let place = table.storage().shard_of(checks[0].key);
        let committed =
            table.commit(id, place, &[Some(1), Some(70), Some(12)], &caller_limits, now_us + 500).expect("a lock");
        assert_eq!(committed.expect("no debt").outcome, Outcome::Settled);
    }
}

/// A zone in a file without a name.
fn zone(max_holds: usize) -> ZoneStorage {
    let (size, path) = (128 << 20, std::env::temp_dir().join(format!("headgate-held-path-{}", std::process::id())));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.set_len(size as u64).expect("room");
    std::fs::remove_file(path).expect("its name to go");
    let birth = Birth { seed: [7; 16], boot: [1; 16], anchor_us: 5, created_us: 6 };
    ZoneStorage::format(&file, &Layout::new(size, 0, max_holds).expect("a layout"), &birth).expect("a zone");
    ZoneStorage::open(&file, OnFull::Forget, Some(1)).expect("a file").expect("a zone")
}

/// `hold_kind` of one limit.
fn hold<S: Storage<Error: Debug>>(table: &Table<S>, limit: Limit, holds: i64) -> i64 {
    let limit = table.register(Definition { scope: "held", text: "", limit }, NOW_US).expect("a lock").expect("room");
    let mut settled = 0;
    for number in 0..holds {
        let now_us = NOW_US + number * 1000;
        let check = Check { limit: &limit, key: table.seed().text(b"user:042"), cost: 9, shadow: false };
        let times = HoldTimes { lease_us: 60_000_000, remember_us: HOUR_US };
        let id = match table.reserve_one(&check, times, now_us).expect("a lock") {
            Some((id, _)) => id,
            None => reserve(table, check, times, now_us),
        };
        let shard_number = table.storage().shard_of(check.key);
        let committed = table.commit_one(id, shard_number, Some(4), &limit, now_us).expect("a lock");
        if committed.is_none() {
            let caller_limits: CallerLimits<'_> = std::iter::once(&*limit).collect();
            let committed = table.commit(id, shard_number, &[Some(4)], &caller_limits, now_us).expect("a lock");
            assert_eq!(committed.expect("no debt").outcome, Outcome::Settled);
        }
        settled += i64::from(committed.is_some());
    }
    settled
}

/// Hold on the slow path, under a new id.
fn reserve<S: Storage<Error: Debug>>(table: &Table<S>, check: Check<'_>, times: HoldTimes, now_us: i64) -> HoldId {
    let (id, HoldTimes { lease_us, remember_us }) = (table.new_id(), times);
    let request =
        HoldRequest { id, lease_us, remember_us, at_once: false, named: false, costs: &[check.cost], groups: &[0] };
    held(table.reserve(&[check], &request, now_us, HOLD).expect("a lock"))
}

/// The id that a hold was made under.
fn held(reserved: Reserved) -> HoldId {
    match reserved {
        Reserved::Decided(_, id) => id,
        _ => panic!("nothing was held before under this id"),
    }
}
