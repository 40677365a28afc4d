//! What a table needs of an algorithm: one interface for all of them.
//!
//! The table admits all checks of a decision, then charges all or none; each step of that is one
//! function here. Times at this border are microseconds, inside they are units of each limit. Pure.

use crate::algorithms::log_view::{Entry, Log, LogCharge, LogEntries, Marked};
use crate::algorithms::{
    calendar_window, fixed_window, leaky_queue, rare, sliding_conversion, sliding_log, sliding_window, stepwise,
    token_bucket,
};
use crate::limit::{Algorithm, LARGEST, Limit};

/// A stored state as the table hands it in.
pub enum Stored<E> {
    /// A key never seen, or one whose state has become the same as none.
    Nothing,
    /// Up to three integers, whose meaning is the algorithm's.
    Numbers(Numbers),
    /// The entries of a sliding log.
    Entries(Log<E>),
}

/// A state rolled to the moment of a decision.
pub enum State<E> {
    /// Of every algorithm but the log.
    Numbers(Numbers),
    /// Of a sliding log.
    Entries(sliding_log::State<E>),
}

/// Up to three integers, whose meaning is the algorithm's.
pub type Numbers = [i64; 3];

/// What a table writes for a charged state.
#[derive(Clone, Copy, Debug)]
pub enum StateUpdate {
    /// The new integers.
    Numbers(Numbers),
    /// What happens to a log.
    Entries(LogCharge),
}

/// Which algorithms the limits of a call may have: all, or those that are not rare, see `Algorithm::is_rare`.
pub const ANY: bool = true;
/// See `ANY`. Code that is compiled for these leaves the rare ones out, and is shorter for it.
pub const USUAL: bool = false;

/// The wait of a cost that can never pass.
pub const NEVER: i64 = -1;

/// One limit's own numbers in an answer; times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The greatest cost that would pass now.
    pub remaining: i64,
    /// Until the state is the same as none.
    pub reset_after_us: i64,
    /// Until this cost would pass: 0 when this limit admits it, `NEVER` where waiting cannot help.
    pub retry_after_us: i64,
    /// Until one more unit remains.
    pub next_after_us: i64,
    /// How long an admitted caller waits before it proceeds (queues only).
    pub delay_us: i64,
}

impl Reading {
    /// This limit's own verdict.
    #[inline]
    pub fn allowed(&self) -> bool {
        self.retry_after_us == 0
    }
}

/// The state as it stands at `now_us`.
#[inline(always)]
pub fn roll<E: LogEntries, const WHICH: bool>(limit: &Limit, stored: Stored<E>, now_us: i64) -> State<E> {
    match stored {
        Stored::Entries(log) => State::Entries(sliding_log::roll(limit, Some(log), unit_time(limit, now_us))),
        Stored::Nothing if limit.algorithm == Algorithm::SlidingLog => {
            State::Entries(sliding_log::roll(limit, None, unit_time(limit, now_us)))
        }
        Stored::Nothing => State::Numbers(roll_numbers::<WHICH>(limit, None, now_us)),
        Stored::Numbers(numbers) => State::Numbers(roll_numbers::<WHICH>(limit, Some(numbers), now_us)),
    }
}

/// `roll` for every algorithm but the log.
#[inline(always)]
pub fn roll_numbers<const WHICH: bool>(limit: &Limit, numbers: Option<Numbers>, now_us: i64) -> Numbers {
    let now = unit_time(limit, now_us);
    if WHICH == ANY && limit.algorithm.is_rare() {
        return rare::roll(limit, numbers, now);
    }
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let (window, count) = fixed_window::roll(limit, numbers.map(|[a, b, _]| (a, b)), now);
            [window, count, 0]
        }
        Algorithm::SlidingWindow => {
            let (window, current, previous) = sliding_window::roll(limit, numbers.map(|[a, b, c]| (a, b, c)), now);
            [window, current, previous]
        }
        _ => {
            let (units, updated) = token_bucket::roll(limit, numbers.map(|[a, b, _]| (a, b)), now);
            [units, updated, 0]
        }
    }
}

/// How long this cost must wait, in microseconds: 0 to pass now, `NEVER` where waiting cannot help.
#[inline(always)]
pub fn admit<E: LogEntries, const WHICH: bool>(limit: &Limit, state: &State<E>, now_us: i64, cost: i64) -> i64 {
    match state {
        State::Numbers(numbers) => admit_numbers::<WHICH>(limit, *numbers, now_us, cost),
        State::Entries(state) => {
            wait_us(limit, sliding_log::admit(limit, state, unit_time(limit, now_us), cost), now_us)
        }
    }
}

/// `admit` for every algorithm but the log.
#[inline(always)]
pub fn admit_numbers<const WHICH: bool>(limit: &Limit, [a, b, c]: Numbers, now_us: i64, cost: i64) -> i64 {
    let now = unit_time(limit, now_us);
    if WHICH == ANY && limit.algorithm.is_rare() {
        return wait_at(limit, rare::admit(limit, [a, b, c], now, cost), now, now_us);
    }
    let wait = match limit.algorithm {
        Algorithm::FixedWindow => fixed_window::admit(limit, (a, b), now, cost),
        Algorithm::SlidingWindow => sliding_window::admit(limit, (a, b, c), now, cost),
        _ => token_bucket::admit(limit, (a, b), now, cost),
    };
    wait_at(limit, wait, now, now_us)
}

/// The state after an admitted cost.
#[inline(always)]
pub fn charge<E: LogEntries, const WHICH: bool>(limit: &Limit, state: State<E>, now_us: i64, cost: i64) -> State<E> {
    match state {
        State::Numbers(numbers) => State::Numbers(charge_numbers::<WHICH>(limit, numbers, now_us, cost)),
        State::Entries(state) => State::Entries(sliding_log::charge(limit, state, unit_time(limit, now_us), cost)),
    }
}

/// `charge` for every algorithm but the log.
#[inline(always)]
pub fn charge_numbers<const WHICH: bool>(limit: &Limit, [a, b, c]: Numbers, now_us: i64, cost: i64) -> Numbers {
    let now = unit_time(limit, now_us);
    if WHICH == ANY && limit.algorithm.is_rare() {
        return rare::charge(limit, [a, b, c], now, cost);
    }
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let (window, count) = fixed_window::charge(limit, (a, b), now, cost);
            [window, count, 0]
        }
        Algorithm::SlidingWindow => {
            let (window, current, previous) = sliding_window::charge(limit, (a, b, c), now, cost);
            [window, current, previous]
        }
        _ => {
            let (units, updated) = token_bucket::charge(limit, (a, b), now, cost);
            [units, updated, 0]
        }
    }
}

/// (remaining, reset_after_us, next_after_us) of a state.
#[inline(always)]
pub fn measure<E: LogEntries, const WHICH: bool>(limit: &Limit, state: &State<E>, now_us: i64) -> (i64, i64, i64) {
    match state {
        State::Numbers(numbers) => measure_numbers::<WHICH>(limit, *numbers, now_us),
        State::Entries(state) => {
            measured_us(limit, sliding_log::measure(limit, state, unit_time(limit, now_us)), now_us)
        }
    }
}

/// `measure` for every algorithm but the log.
#[inline(always)]
pub fn measure_numbers<const WHICH: bool>(limit: &Limit, [a, b, c]: Numbers, now_us: i64) -> (i64, i64, i64) {
    let now = unit_time(limit, now_us);
    if WHICH == ANY && limit.algorithm.is_rare() {
        return measured_at(limit, rare::measure(limit, [a, b, c], now), now, now_us);
    }
    let measured = match limit.algorithm {
        Algorithm::FixedWindow => fixed_window::measure(limit, (a, b), now),
        Algorithm::SlidingWindow => sliding_window::measure(limit, (a, b, c), now),
        _ => token_bucket::measure(limit, (a, b), now),
    };
    measured_at(limit, measured, now, now_us)
}

/// Roll, admit, charge and measure in one, for a log whose kind is known: its reading, and what charging does to it.
#[inline(always)]
pub fn decide_log<E: LogEntries>(limit: &Limit, log: Option<Log<E>>, now_us: i64, cost: i64) -> (Reading, LogCharge) {
    let now = unit_time(limit, now_us);
    let mut state = sliding_log::roll(limit, log, now);
    let retry_after_us = wait_at(limit, sliding_log::admit(limit, &state, now, cost), now, now_us);
    if retry_after_us == 0 {
        state = sliding_log::charge(limit, state, now, cost);
    }
    let measured = sliding_log::measure(limit, &state, now);
    let (remaining, reset_after_us, next_after_us) = measured_at(limit, measured, now, now_us);
    let reading = Reading { remaining, reset_after_us, retry_after_us, next_after_us, delay_us: 0 };
    let sliding_log::State { expired, shift, last, charged, .. } = state;
    (reading, LogCharge { expired, shift, time: last.unwrap_or_default(), cost: charged })
}

/// How long a request admitted onto this state waits before it proceeds, in microseconds.
#[inline]
pub fn delay_us<E: LogEntries>(limit: &Limit, state: &State<E>, now_us: i64, cost: i64) -> i64 {
    match state {
        State::Numbers(numbers) => delay_us_numbers(limit, *numbers, now_us, cost),
        State::Entries(_) => 0,
    }
}

/// `delay_us` for every algorithm but the log.
#[inline(always)]
pub fn delay_us_numbers(limit: &Limit, [a, b, _]: Numbers, now_us: i64, cost: i64) -> i64 {
    if limit.algorithm != Algorithm::LeakyQueue || cost == 0 {
        return 0;
    }
    let now = unit_time(limit, now_us);
    until_at(limit, leaky_queue::delay(limit, (a, b), now), now, now_us)
}

/// What to write for a charged state.
#[inline]
pub fn update_of<E: LogEntries>(state: &State<E>) -> StateUpdate {
    match state {
        State::Numbers(numbers) => StateUpdate::Numbers(*numbers),
        State::Entries(state) => {
            let sliding_log::State { expired, shift, last, charged, .. } = *state;
            StateUpdate::Entries(LogCharge { expired, shift, time: last.unwrap_or_default(), cost: charged })
        }
    }
}

/// A state that is the same as none, as a table stores it. Not for logs.
pub fn nothing(limit: &Limit) -> Numbers {
    match limit.algorithm {
        Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::CalendarWindow
        | Algorithm::Concurrent => [0, 0, 0],
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => [limit.full, 0, 0],
        Algorithm::Stepwise => [limit.quota, 0, 0],
    }
}

/// The state of a limit whose numbers, or whose kind of sliding window, were `former`.
pub fn convert<E: LogEntries + From<Entry>>(
    limit: &Limit,
    stored: Stored<E>,
    now_us: i64,
    former: &Limit,
) -> Stored<E> {
    let now_a_log = limit.algorithm == Algorithm::SlidingLog;
    match stored {
        Stored::Nothing => Stored::Nothing,
        Stored::Entries(log) if now_a_log => {
            sliding_log::convert(limit, log, now_us, former).map_or(Stored::Nothing, Stored::Entries)
        }
        Stored::Entries(log) => sliding_conversion::counter_of_log(limit, log, now_us, former)
            .map_or(Stored::Nothing, |(a, b, c)| Stored::Numbers([a, b, c])),
        Stored::Numbers([a, b, c]) if now_a_log => sliding_conversion::log_of_counter(limit, (a, b, c), now_us, former)
            .map_or(Stored::Nothing, |entry| Stored::Entries(Log::of_one(entry))),
        Stored::Numbers(numbers) => {
            convert_numbers(limit, numbers, now_us, former).map_or(Stored::Nothing, Stored::Numbers)
        }
    }
}

/// `convert` for every algorithm but the log, within one algorithm; None where nothing is left.
fn convert_numbers(limit: &Limit, [a, b, c]: Numbers, now_us: i64, former: &Limit) -> Option<Numbers> {
    match limit.algorithm {
        Algorithm::FixedWindow => fixed_window::convert(limit, (a, b), now_us, former).map(|(a, b)| [a, b, 0]),
        Algorithm::SlidingWindow => {
            sliding_window::convert(limit, (a, b, c), now_us, former).map(|(a, b, c)| [a, b, c])
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
            token_bucket::convert(limit, (a, b), now_us, former).map(|(a, b)| [a, b, 0])
        }
        Algorithm::Stepwise => stepwise::convert(limit, (a, b), now_us, former).map(|(a, b)| [a, b, 0]),
        Algorithm::CalendarWindow => calendar_window::convert(limit, (a, b, c), now_us, former).map(Into::into),
        Algorithm::SlidingLog | Algorithm::Concurrent => Some([a, b, c]),
    }
}

/// What is left of the numbers of a state that `limit` wrote, without a charge made at `earliest_us` or later.
///
/// None where that is the same as none. Not for logs: see `sliding_log::give_back`.
pub fn give_back(limit: &Limit, [a, b, c]: Numbers, now_us: i64, cost: i64, earliest_us: i64) -> Option<Numbers> {
    let (now, earliest) = (unit_time(limit, now_us), unit_time(limit, earliest_us));
    match limit.algorithm {
        Algorithm::FixedWindow => fixed_window::give_back(limit, (a, b), now, cost, earliest).map(|(a, b)| [a, b, 0]),
        Algorithm::SlidingWindow => {
            sliding_window::give_back(limit, (a, b, c), now, cost, earliest).map(|(a, b, c)| [a, b, c])
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
            token_bucket::give_back(limit, (a, b), now, cost, earliest).map(|(a, b)| [a, b, 0])
        }
        Algorithm::Stepwise => stepwise::give_back(limit, (a, b), now, cost, earliest).map(|(a, b)| [a, b, 0]),
        Algorithm::CalendarWindow => calendar_window::give_back(limit, (a, b, c), now, cost, earliest).map(Into::into),
        Algorithm::SlidingLog | Algorithm::Concurrent => Some([a, b, c]),
    }
}

/// What a hold remembers of a limit right after its charge. Not for logs.
#[inline(always)]
pub fn mark(limit: &Limit, [a, b, c]: Numbers, now_us: i64) -> Marked {
    let now = unit_time(limit, now_us);
    match limit.algorithm {
        Algorithm::FixedWindow => fixed_window::mark(limit, (a, b), now),
        Algorithm::SlidingWindow => sliding_window::mark(limit, (a, b, c), now),
        Algorithm::Stepwise => stepwise::mark(limit, (a, b), now),
        Algorithm::CalendarWindow => calendar_window::mark(limit, (a, b, c), now),
        _ => token_bucket::mark(limit, (a, b), now),
    }
}

/// (the state, what was given back) after the charge of a hold has changed: see the algorithms. Not for logs.
#[inline(always)]
pub fn settle(
    limit: &Limit,
    [a, b, c]: Numbers,
    now_us: i64,
    marked: Marked,
    change: i64,
    refunded: i64,
) -> (Numbers, i64) {
    let now = unit_time(limit, now_us);
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let ((a, b), given) = fixed_window::settle(limit, (a, b), now, marked, change, refunded);
            ([a, b, 0], given)
        }
        Algorithm::SlidingWindow => {
            let ((a, b, c), given) = sliding_window::settle(limit, (a, b, c), now, marked, change, refunded);
            ([a, b, c], given)
        }
        Algorithm::Stepwise => {
            let ((a, b), given) = stepwise::settle(limit, (a, b), now, marked, change, refunded);
            ([a, b, 0], given)
        }
        Algorithm::CalendarWindow => {
            let ((a, b, c), given) = calendar_window::settle(limit, (a, b, c), now, marked, change, refunded);
            ([a, b, c], given)
        }
        _ => {
            let ((a, b), given) = token_bucket::settle(limit, (a, b), now, marked, change, refunded);
            ([a, b, 0], given)
        }
    }
}

/// Whether exact arithmetic holds this state, after a debt was charged. Not for logs.
#[inline(always)]
pub fn fits(limit: &Limit, [a, b, c]: Numbers) -> bool {
    match limit.algorithm {
        Algorithm::FixedWindow => fixed_window::fits(limit, (a, b)),
        Algorithm::SlidingWindow => sliding_window::fits(limit, (a, b, c)),
        Algorithm::Stepwise => stepwise::fits(limit, (a, b)),
        Algorithm::CalendarWindow => calendar_window::fits(limit, (a, b, c)),
        _ => token_bucket::fits(limit, (a, b)),
    }
}

/// Whether a state that became `rolled` was moved to the present: a clock once far ahead had written it.
///
/// A table writes the moved state at the first hit: it then counts from that moment; else a wait would never end.
#[inline(always)]
pub fn was_moved(limit: &Limit, numbers: Numbers, rolled: Numbers) -> bool {
    match limit.algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::CalendarWindow => rolled[0] < numbers[0],
        _ => rolled[1] < numbers[1],
    }
}

/// Whether a charge under `limit` still counts in full in a state that is in the numbers of `former`.
///
/// A bucket that became smaller has lost what did not fit into it.
pub fn counts_alike(limit: &Limit, former: &Limit) -> bool {
    limit.same_scale(former) && (limit.refill == 0 || former.quota >= limit.quota)
}

/// A wait in units as one in microseconds.
#[inline(always)]
pub fn wait_us(limit: &Limit, wait: Option<i64>, now_us: i64) -> i64 {
    wait_at(limit, wait, unit_time(limit, now_us), now_us)
}

/// `wait_us` where the moment is known in the units of the limit.
#[inline(always)]
pub fn wait_at(limit: &Limit, wait: Option<i64>, now: i64, now_us: i64) -> i64 {
    wait.map_or(NEVER, |wait| until_at(limit, wait, now, now_us))
}

/// A measurement in units as one in microseconds.
#[inline(always)]
pub fn measured_us(limit: &Limit, measured: (i64, i64, i64), now_us: i64) -> (i64, i64, i64) {
    measured_at(limit, measured, unit_time(limit, now_us), now_us)
}

/// `measured_us` where the moment is known in the units of the limit.
#[inline(always)]
pub fn measured_at(
    limit: &Limit,
    (remaining, reset_after, next_after): (i64, i64, i64),
    now: i64,
    now_us: i64,
) -> (i64, i64, i64) {
    (remaining, until_at(limit, reset_after, now, now_us), until_at(limit, next_after, now, now_us))
}

/// A moment in the units of a limit, which are microseconds for most.
#[inline(always)]
pub fn unit_time(limit: &Limit, now_us: i64) -> i64 {
    if limit.unit_us == 1 { now_us } else { coarse_time(limit.unit_us, now_us) }
}

/// There are two coarser units: a division by a constant compiles to a multiplication.
#[inline(never)]
fn coarse_time(unit_us: i64, now_us: i64) -> i64 {
    if unit_us == 1_000 { now_us / 1_000 } else { now_us / 1_000_000 }
}

/// From `now_us`, which is in the unit `now`, to the first microsecond that is `duration` units later; 0 stays 0.
///
/// No clock reaches beyond `LARGEST`, so a longer time is reported as that: 142 years.
#[inline(always)]
pub fn until_at(limit: &Limit, duration: i64, now: i64, now_us: i64) -> i64 {
    if limit.unit_us == 1 || duration == 0 {
        return duration.min(LARGEST);
    }
    let moment_us = (now + duration).saturating_mul(limit.unit_us);
    (moment_us - now_us).min(LARGEST)
}
