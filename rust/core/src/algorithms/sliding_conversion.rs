//! The states of a sliding window that was a log and is now a counter, or was a counter and is now a log.
//!
//! Neither kind can represent the other's state exactly. Both conversions err to one side: at every
//! later moment at least as much counts as used as the former state, left alone, would have counted
//! under the new limit's period. So a changed limit never passes what the former kind would have
//! refused. Pure. See docs/algorithms.md#changing-the-numbers.

use crate::algorithms::integers::ceil_div;
use crate::algorithms::log_view::{Entry, Log, LogEntries};
use crate::algorithms::{sliding_log, sliding_window};
use crate::limit::{LARGEST, Limit};

/// The counter that takes over from a log; None where nothing of the log counts any more.
///
/// All that is used counts as if it had been charged at once with the newest entry, at `last`. A log would drop it one
/// period after that, `into` the next window. There the counter weighs it by the share `to_come / period`, so it is
/// raised until that share of it is all that is used. Where so much would use up a limit that has room, the units
/// are counted in the window after `last` instead, as they are: that counts them until they have left for certain.
pub fn counter_of_log<E: LogEntries>(
    limit: &Limit,
    log: Log<E>,
    now_us: i64,
    former: &Limit,
) -> Option<sliding_window::State> {
    let period_us = limit.period * limit.unit_us;
    let shorter = Limit { period: former.period.min(period_us / former.unit_us), ..*former };
    let live = sliding_log::roll(&shorter, Some(log), now_us / former.unit_us);
    let most = LARGEST / limit.period;
    let used = live.used.min(most);
    let last = ceil_div(live.last? * former.unit_us, limit.unit_us);
    let (window, into) = (last / limit.period, last % limit.period);
    let to_come = limit.period.min(limit.period - into + 1);
    let raised = ceil_div(used * limit.period, to_come);
    if raised <= limit.quota || used >= limit.quota && raised <= most {
        return Some((window, raised, 0));
    }
    Some((window + 1, used, 0))
}

/// The log that takes over from a counter, as its only entry; None where nothing counts.
///
/// What counts now becomes one entry. It stays for one period from now, or until the counter would have dropped its
/// last unit, `dropped_us`, whichever is later. Where the period became shorter, it stays for one period from now.
pub fn log_of_counter(limit: &Limit, state: sliding_window::State, now_us: i64, former: &Limit) -> Option<Entry> {
    let now = now_us / former.unit_us;
    let state = sliding_window::roll(former, Some(state), now);
    let (window, current, previous) = state;
    let used = sliding_window::used(former, state, now);
    if used == 0 {
        return None;
    }
    let (last, count) = if current != 0 { (window + 1, current) } else { (window, previous) };
    let dropped_us = (last * former.period + sliding_window::gone(former, count, 0)) * former.unit_us;
    let (mut moment_us, period_us) = (now_us, limit.period * limit.unit_us);
    if period_us >= former.period * former.unit_us {
        moment_us = now_us.max(dropped_us - period_us);
    }
    Some((ceil_div(moment_us, limit.unit_us), used))
}
