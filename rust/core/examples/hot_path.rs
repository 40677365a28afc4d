//! Decisions of one kind, for counting instructions: `hot_path token_bucket 20000`.

#![allow(clippy::expect_used, clippy::panic)] // a tool of the benchmarks, not part of the core

use std::sync::Arc;

use headgate_core::limit::calendar::Calendar;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::table;
use headgate_core::table::answer::{Check, Mode, OnFull};

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

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a kind of decision");
    let decisions: i64 = arguments.next().and_then(|count| count.parse().ok()).expect("a number of decisions");
    let table = Table::new(
        [7; 16],
        ProcessStorage::new(Bounds {
            max_keys: 1_000_000,
            max_log_blocks: 1_000_000,
            max_holds: 1,
            on_full: OnFull::Forget,
        }),
    );
    let algorithms: &[Algorithm] = match kind.as_str() {
        "fixed_window" => &[Algorithm::FixedWindow],
        "sliding_window" => &[Algorithm::SlidingWindow],
        "token_bucket" | "new_keys" => &[Algorithm::TokenBucket],
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
        allowed += i64::from(table.apply(&checks, NOW_US + number * 1000, HIT).expect("a lock").allowed);
    }
    println!("{allowed}");
}
