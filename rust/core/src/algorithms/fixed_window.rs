//! Fixed window, aligned to the Unix epoch: a counter that restarts with every window.
//!
//! State is (window, count), or None for a key never seen. `window` is the index of the window that
//! is counted. Times are integers of the limit's unit. Pure. See docs/algorithms.md#fixed-window.

use crate::algorithms::integers::floor_div_near;
use crate::algorithms::log_view::Marked;
use crate::limit::{LARGEST, Limit};

/// (window, count)
pub type State = (i64, i64);

/// The state as it stands at `now`. A clock behind the window stays in it: it never admits more.
#[inline(always)]
pub fn roll(limit: &Limit, state: Option<State>, now: i64) -> State {
    let index = floor_div_near(now, limit.period, state.map_or(0, |(window, _)| window));
    let Some(state) = state else {
        return (index, 0);
    };
    let (window, count) = state;
    if index > window {
        return (index, 0);
    }
    if window - index > 2 {
        // No clock steps back that far: the state is from a clock once far ahead.
        return (index, count);
    }
    state
}

/// How long this cost must wait: 0 to pass now, None for never.
#[inline(always)]
pub fn admit(limit: &Limit, state: State, now: i64, cost: i64) -> Option<i64> {
    let (window, count) = state;
    if cost == 0 || count + cost <= limit.quota {
        return Some(0);
    }
    if cost > limit.quota {
        return None;
    }
    Some((window + 1) * limit.period - now)
}

/// The state after an admitted cost.
#[inline(always)]
pub fn charge(_limit: &Limit, state: State, _now: i64, cost: i64) -> State {
    let (window, count) = state;
    (window, count + cost)
}

/// (remaining, reset_after, next_after): what is left, when all of it is back, when one more is.
#[inline(always)]
pub fn measure(limit: &Limit, state: State, now: i64) -> (i64, i64, i64) {
    let (window, count) = state;
    let reset_after = if count != 0 { (window + 1) * limit.period - now } else { 0 };
    let remaining = (limit.quota - count).max(0);
    (remaining, reset_after, reset_after)
}

/// The state of a limit whose numbers were `former`: what was used in a live window stays used.
pub fn convert(limit: &Limit, state: State, now_us: i64, former: &Limit) -> Option<State> {
    if limit.same_scale(former) {
        return Some(state);
    }
    let (window, count) = roll(former, Some(state), now_us / former.unit_us);
    if count == 0 {
        return None;
    }
    let moment_us = now_us.max(window * former.period * former.unit_us);
    Some((moment_us / limit.unit_us / limit.period, count.min(LARGEST)))
}

/// The state without what is left of a charge made at `earliest` or later; None where nothing is left.
pub fn give_back(limit: &Limit, state: State, _now: i64, cost: i64, earliest: i64) -> Option<State> {
    let (window, mut count) = state;
    if window == earliest / limit.period {
        count = (count - cost).max(0);
    }
    (count != 0).then_some((window, count))
}

/// What a hold remembers right after its charge: the window that counts it.
#[inline(always)]
pub fn mark(_limit: &Limit, state: State, _now: i64) -> Marked {
    [state.0, 0]
}

/// (the state, what was given back) after a hold's charge has changed: in its window, if that is still counted.
#[inline(always)]
pub fn settle(_limit: &Limit, state: State, _now: i64, marked: Marked, change: i64, _refunded: i64) -> (State, i64) {
    let (window, count) = state;
    if window != marked[0] {
        return (state, 0);
    }
    let after = (count + change).max(0);
    ((window, after), (count - after).max(0))
}

/// Whether exact arithmetic holds this state, after a debt was charged.
#[inline(always)]
pub fn fits(_limit: &Limit, state: State) -> bool {
    state.1 <= LARGEST
}
