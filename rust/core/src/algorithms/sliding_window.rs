//! Sliding window counter: this window's count and the share of the last one that still overlaps.
//!
//! The share is rounded down to whole units, so that a caller that keeps to the limit is not refused.
//! State is (window, current, previous), or None for a key never seen. `window` is the index of the
//! window that `current` counts. Times are integers of the limit's unit. Pure.
//! See docs/algorithms.md#sliding-window-counter.

use crate::algorithms::integers::{floor_div, floor_div_near};
use crate::algorithms::log_view::Marked;
use crate::limit::{LARGEST, Limit};

/// (window, current, previous)
pub type State = (i64, i64, i64);

/// The state as it stands at `now`. A clock behind the window stays in it: it never admits more.
#[inline(always)]
pub fn roll(limit: &Limit, state: Option<State>, now: i64) -> State {
    let index = floor_div_near(now, limit.period, state.map_or(0, |(window, _, _)| window));
    let Some(state) = state else {
        return (index, 0, 0);
    };
    let (window, current, previous) = state;
    if index == window + 1 {
        return (index, 0, current);
    }
    if index > window {
        return (index, 0, 0);
    }
    if window - index > 2 {
        // No clock steps back that far: the state is from a clock once far ahead.
        return (index + 1, current, previous); // the start of a window, where all of `previous` counts
    }
    state
}

/// How long this cost must wait: 0 to pass now, None for never.
#[inline(always)]
pub fn admit(limit: &Limit, state: State, now: i64, cost: i64) -> Option<i64> {
    let (window, current, previous) = state;
    if cost == 0 {
        return Some(0);
    }
    if cost > limit.quota {
        return None;
    }
    let (left, behind) = to_come(limit, window, now);
    if previous * left < (limit.quota - current - cost + 1) * limit.period {
        return Some(0);
    }
    if current + cost <= limit.quota {
        return Some(gone(limit, previous, limit.quota - current - cost) - (limit.period - left) + behind);
    }
    Some(left + gone(limit, current, limit.quota - cost).max(0) + behind)
}

/// The state after an admitted cost.
#[inline(always)]
pub fn charge(_limit: &Limit, state: State, _now: i64, cost: i64) -> State {
    let (window, current, previous) = state;
    (window, current + cost, previous)
}

/// (remaining, reset_after, next_after): what is left, when all of it is back, when one more is.
#[inline(always)]
pub fn measure(limit: &Limit, state: State, now: i64) -> (i64, i64, i64) {
    let (window, current, previous) = state;
    let (left, behind) = to_come(limit, window, now);
    let remaining = (limit.quota - used(limit, state, now)).max(0);
    let reset_after = if current != 0 {
        limit.period + left + behind
    } else if previous != 0 {
        left + behind
    } else {
        return (remaining, 0, 0);
    };
    let next_after = admit(limit, state, now, remaining + 1).unwrap_or(reset_after);
    (remaining, reset_after, next_after)
}

/// The state of a limit whose numbers were `former`: what counts as used now stays used.
pub fn convert(limit: &Limit, state: State, now_us: i64, former: &Limit) -> Option<State> {
    if limit.same_scale(former) {
        return Some(state);
    }
    let now = now_us / former.unit_us;
    let state = roll(former, Some(state), now);
    let counted = used(former, state, now);
    if counted == 0 {
        return None;
    }
    let moment = now.max(state.0 * former.period) * former.unit_us / limit.unit_us;
    Some((moment / limit.period, counted.min(LARGEST / limit.period), 0))
}

/// The state without what is left of a charge made at `earliest` or later; None where nothing is left.
///
/// A charge that may be of this window or of the last one is taken off the last, where it counts for less.
pub fn give_back(limit: &Limit, state: State, _now: i64, cost: i64, earliest: i64) -> Option<State> {
    let (window, mut current, mut previous) = state;
    let charged = earliest / limit.period;
    if window == charged {
        current = (current - cost).max(0);
    } else if window == charged + 1 {
        previous = (previous - cost).max(0);
    }
    (current != 0 || previous != 0).then_some((window, current, previous))
}

/// What a hold remembers right after its charge: the window that counts it.
#[inline(always)]
pub fn mark(_limit: &Limit, state: State, _now: i64) -> Marked {
    [state.0, 0]
}

/// (the state, what was given back) after a hold's charge has changed: in its window, where that is now.
#[inline(always)]
pub fn settle(_limit: &Limit, state: State, _now: i64, marked: Marked, change: i64, _refunded: i64) -> (State, i64) {
    let (window, mut current, mut previous) = state;
    let before = current + previous;
    if window == marked[0] {
        current = (current + change).max(0);
    } else if window == marked[0] + 1 {
        previous = (previous + change).max(0);
    }
    ((window, current, previous), (before - current - previous).max(0))
}

/// Whether exact arithmetic holds this state, after a debt was charged.
#[inline(always)]
pub fn fits(limit: &Limit, state: State) -> bool {
    state.1.max(state.2) <= LARGEST / limit.period
}

/// How many units count: this window's, and the share of the last one's, in whole units.
#[inline(always)]
pub fn used(limit: &Limit, state: State, now: i64) -> i64 {
    let (window, current, previous) = state;
    let (left, _) = to_come(limit, window, now);
    current + floor_div(previous * left, limit.period)
}

/// How far into a window at most `most` of the `count` units of the window before it still count.
#[inline(always)]
pub fn gone(limit: &Limit, count: i64, most: i64) -> i64 {
    limit.period - floor_div((most + 1) * limit.period - 1, count)
}

/// (how much of the window is still to come, how far the clock is behind its start)
#[inline(always)]
fn to_come(limit: &Limit, window: i64, now: i64) -> (i64, i64) {
    let start = window * limit.period;
    if now < start {
        return (limit.period, start - now);
    }
    (start + limit.period - now, 0)
}
