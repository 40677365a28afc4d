//! Decisions of one kind, for counting the instructions that they take: `hot_path token_bucket 20000`.

#![allow(clippy::expect_used, clippy::panic)] // a tool of the benchmarks, not part of the core

use std::sync::Arc;

use headgate_core::limit::calendar::Calendar;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table;
use headgate_core::table::answer::{Check, Mode, OnFull};
use headgate_core::table::holding::HoldRequest;
use headgate_core::table::settling::{Asked, Outcome};
use headgate_core::table::storage::Storage;

type Table = table::Table<ProcessStorage>;

const NOW_US: i64 = 1_800_000_000_000_000;
const HIT: Mode = Mode { commit: true, max_delay_us: None };

fn register(table: &Table, scope: &str, algorithm: Algorithm, period: i64) -> Arc<Registered> {
    let windowed = matches!(
        algorithm,
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::CalendarWindow
    );
    let refill = if windowed { 0 } else { 7 };
    let calendar = Calendar::numbered(period, || Ok::<_, ()>(vec![(0, period)])).expect("a calendar");
    let limit = Limit::new(algorithm, 1, 100_000, period, refill).expect("a limit").on(calendar);
    table.register(Definition { scope, text: "", limit }, NOW_US).expect("a lock").expect("room")
}

/// Reserve 9 units and commit 4 of them; 1 where that was so.
fn hold(table: &Table, checks: &[Check], now_us: i64) -> i64 {
    let id = table.new_id();
    let request = HoldRequest {
        id,
        lease_us: 60_000_000,
        remember_us: 60_000_000,
        is_new: true,
        at_once: false,
        costs: &[9],
        groups: &[0],
    };
    let checks: Vec<Check> = checks.iter().map(|check| Check { cost: 9, ..*check }).collect();
    table.reserve(&checks, &request, now_us, HIT).expect("a lock");
    let asked: Asked<'_> = checks.iter().map(|check| check.limit).collect();
    let shard_number = table.storage().shard_of(checks[0].key);
    let came = table.commit(id, shard_number, &[Some(4)], &asked, now_us).expect("a lock").expect("an amount");
    i64::from(came.outcome == Outcome::Settled)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a kind of decision");
    let decisions: i64 = arguments.next().and_then(|count| count.parse().ok()).expect("a number of decisions");
    let table = Table::new(
        [7; 16],
        ProcessStorage::new(Bounds {
            max_keys: 1_000_000,
            max_log_blocks: 1_000_000,
            max_holds: 1_000_000,
            on_full: OnFull::Forget,
        }),
    );
    let algorithms: &[Algorithm] = match kind.as_str() {
        "fixed_window" => &[Algorithm::FixedWindow],
        "sliding_window" => &[Algorithm::SlidingWindow],
        "token_bucket" | "new_keys" | "held" => &[Algorithm::TokenBucket],
        "sliding_log" | "short_log" => &[Algorithm::SlidingLog],
        "stepwise" => &[Algorithm::Stepwise],
        "calendar_window" => &[Algorithm::CalendarWindow],
        "three_limits" => &[Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket],
        _ => panic!("no such kind of decision: {kind}"),
    };
    let period = if kind == "short_log" { 1500 } else { 60_000_000 }; // of which two requests are within one
    let limits: Vec<Arc<Registered>> =
        algorithms.iter().map(|one| register(&table, &format!("{one:?}"), *one, period)).collect();
    let key = table.seed().text(b"user:42");
    let mut checks: Vec<Check> = limits.iter().map(|limit| Check { limit, key, cost: 1, shadow: false }).collect();
    let mut allowed = 0;
    for number in 0..decisions {
        let name = if kind == "new_keys" { number.to_le_bytes() } else { *b"user:042" };
        let key = table.seed().text(&name);
        checks.iter_mut().for_each(|check| check.key = key);
        if kind == "held" {
            allowed += hold(&table, &checks, NOW_US + number * 1000);
            continue;
        }
        allowed += i64::from(table.apply(&checks, NOW_US + number * 1000, HIT).expect("a lock").allowed);
    }
    println!("{allowed}");
}
