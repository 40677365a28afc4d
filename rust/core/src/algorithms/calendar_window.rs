//! Calendar window: a counter that restarts where a day, week, month or year of a time zone begins.
//!
//! State is (start, end, count), or None for a key never seen: it has the borders of the counted window, so its meaning
//! depends on no time zone. Times are microseconds, which are the unit of these limits. Pure.
//! See docs/algorithms.md#calendar-window.

use crate::algorithms::log_view::Marked;
use crate::limit::{LARGEST, Limit};

/// (start, end, count)
pub type State = (i64, i64, i64);

/// The state as it stands at `now`. A clock behind the window stays in it: it never admits more.
pub fn roll(limit: &Limit, state: Option<State>, now: i64) -> State {
    let Some(state) = state else {
        return counted(limit.calendar.window(now), 0);
    };
    let (start, end, count) = state;
    if now >= end {
        return counted(limit.calendar.window(now), 0);
    }
    if now < start && start > limit.calendar.latest(now) {
        // No clock steps back that far: the state is from a clock once far ahead.
        return counted(limit.calendar.window(now), count);
    }
    state
}

/// How long this cost must wait: 0 to pass now, None for never.
pub fn admit(limit: &Limit, state: State, now: i64, cost: i64) -> Option<i64> {
    let (_, end, count) = state;
    if cost == 0 || (cost <= limit.quota && count + cost <= limit.quota) {
        return Some(0);
    }
    if cost > limit.quota {
        return None;
    }
    Some(end - now)
}

/// The state after an admitted cost.
pub fn charge(_limit: &Limit, state: State, _now: i64, cost: i64) -> State {
    let (start, end, count) = state;
    (start, end, count + cost)
}

/// (remaining, reset_after, next_after): what is left, when all of it is back, when one more is.
pub fn measure(limit: &Limit, state: State, now: i64) -> (i64, i64, i64) {
    let (_, end, count) = state;
    let reset_after = if count != 0 { end - now } else { 0 };
    let remaining = (limit.quota - count).max(0);
    (remaining, reset_after, reset_after)
}

/// The state of a limit whose numbers or calendar were `former`: what was used in a live window stays used.
pub fn convert(limit: &Limit, state: State, now_us: i64, former: &Limit) -> Option<State> {
    if limit.same_scale(former) {
        return Some(state);
    }
    let (start, end, count) = state;
    if count == 0 || now_us >= end {
        return None;
    }
    let mut window = limit.calendar.window(now_us.max(start));
    if window.0 > limit.calendar.latest(now_us) {
        window = limit.calendar.window(now_us);
    }
    Some(counted(window, count.min(LARGEST)))
}

/// The state without what is left of a charge made at `earliest` or later; None where nothing is left.
pub fn give_back(_limit: &Limit, state: State, _now: i64, cost: i64, earliest: i64) -> Option<State> {
    let (start, end, mut count) = state;
    if start <= earliest && earliest < end {
        count = (count - cost).max(0);
    }
    (count != 0).then_some((start, end, count))
}

/// What a hold remembers right after its charge: the window that counts it.
pub fn mark(_limit: &Limit, state: State, _now: i64) -> Marked {
    [state.0, 0]
}

/// (the state, what was given back) after a hold's charge has changed: in its window, if that is still counted.
pub fn settle(_limit: &Limit, state: State, _now: i64, marked: Marked, change: i64, _refunded: i64) -> (State, i64) {
    let (start, end, count) = state;
    if start != marked[0] {
        return (state, 0);
    }
    let after = (count + change).max(0);
    ((start, end, after), (count - after).max(0))
}

/// Whether exact arithmetic holds this state, after a debt was charged.
pub fn fits(_limit: &Limit, state: State) -> bool {
    state.2 <= LARGEST
}

/// A window with a count of units.
fn counted((start, end): (i64, i64), count: i64) -> State {
    (start, end, count)
}
