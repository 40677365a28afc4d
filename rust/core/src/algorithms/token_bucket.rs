//! Token bucket with greedy refill, without any rounding.
//!
//! State is (units, updated), or None for a key never seen, which is a full bucket. One token is
//! `limit.period` scaled units, of which `limit.refill` flow in per unit of time; `units` may be
//! below zero where a debt was charged. Times are integers of the limit's unit. Pure.
//! See docs/algorithms.md#token-bucket.

use crate::algorithms::integers::{ceil_div, floor_div};
use crate::algorithms::log_view::Marked;
use crate::limit::{LARGEST, Limit};

/// (units, updated)
pub type State = (i64, i64);

/// The state as it stands at `now`. While the clock is behind, nothing flows in.
#[inline(always)]
pub fn roll(limit: &Limit, state: Option<State>, now: i64) -> State {
    let full = limit.full;
    let Some(state) = state else {
        return (full, now);
    };
    let (units, updated) = state;
    if units >= full {
        return (full, now);
    }
    if now > updated {
        // Saturating on purpose: a long idle time fills the bucket, it does not overflow.
        return (full.min(units.saturating_add(limit.refill.saturating_mul(now - updated))), now);
    }
    if updated - now > horizon(limit) {
        // No clock steps back that far: the state is from a clock once far ahead.
        return (units, now);
    }
    state
}

/// How long this cost must wait: 0 to pass now, None for never.
#[inline(always)]
pub fn admit(limit: &Limit, state: State, now: i64, cost: i64) -> Option<i64> {
    let (units, updated) = state;
    if cost > limit.quota {
        return None;
    }
    let missing = cost * limit.period - units;
    if missing <= 0 {
        return Some(0);
    }
    Some(ceil_div(missing, limit.refill) + updated - now)
}

/// The state after an admitted cost.
#[inline(always)]
pub fn charge(limit: &Limit, state: State, _now: i64, cost: i64) -> State {
    let (units, updated) = state;
    (units - cost * limit.period, updated)
}

/// (remaining, reset_after, next_after): what is left, when all of it is back, when one more is.
#[inline(always)]
pub fn measure(limit: &Limit, state: State, now: i64) -> (i64, i64, i64) {
    let (units, updated) = state;
    let missing = limit.full - units;
    if missing == 0 {
        return (limit.quota, 0, 0);
    }
    let behind = updated - now;
    let remaining = floor_div(units, limit.period);
    let reset_after = ceil_div(missing, limit.refill) + behind;
    let next_after = ceil_div((remaining + 1) * limit.period - units, limit.refill) + behind;
    (remaining, reset_after, next_after)
}

/// The state of a limit whose numbers were `former`: the tokens left stay, up to the new capacity.
pub fn convert(limit: &Limit, state: State, now_us: i64, former: &Limit) -> Option<State> {
    let (units, updated) = roll(former, Some(state), now_us / former.unit_us);
    if units == former.full {
        return None;
    }
    if limit.same_scale(former) {
        return Some(state);
    }
    // Wider than 64 bits only here: both factors may reach 2**52.
    let tokens = (i128::from(units) * i128::from(limit.period)).div_euclid(i128::from(former.period));
    let full = i128::from(limit.full);
    Some((tokens.clamp(-full, full) as i64, ceil_div(updated * former.unit_us, limit.unit_us)))
}

/// The state without what is left of a charge made at `earliest` or later; None where nothing is left.
///
/// The units of a charge flow back from its moment on at the soonest; where others were missing, those flow back
/// first.
pub fn give_back(limit: &Limit, state: State, now: i64, cost: i64, earliest: i64) -> Option<State> {
    let (mut units, updated) = state;
    let passed = now.max(updated) - earliest;
    // Saturating on purpose: what was charged long ago has flowed back, it does not overflow.
    units = limit.full.min(units + (cost * limit.period - limit.refill.saturating_mul(passed)).max(0));
    (units < limit.full).then_some((units, updated))
}

/// What a hold remembers right after its charge: the state's moment, and what was missing then.
#[inline(always)]
pub fn mark(limit: &Limit, state: State, _now: i64) -> Marked {
    let (units, updated) = state;
    [updated, limit.full - units]
}

/// (the state, what was given back) after a hold's charge has changed, in scaled units.
///
/// Missing units are charged now. Of unused ones, at most as many are given back as cannot have flowed back since the
/// hold: what was missing then, less what has flowed in since, and less what was given back (`refunded`).
#[inline(always)]
pub fn settle(limit: &Limit, state: State, _now: i64, marked: Marked, change: i64, refunded: i64) -> (State, i64) {
    let (units, updated) = state;
    // Saturating on purpose, here and below: what is too large does not fit, and long ago all has flowed in.
    if change >= 0 {
        return ((units.saturating_sub(change.saturating_mul(limit.period)), updated), 0);
    }
    let [moment, missing] = marked;
    let flowed = limit.refill.saturating_mul(updated - moment);
    let left = missing.saturating_sub(flowed).saturating_sub(refunded);
    let given = change.saturating_neg().saturating_mul(limit.period).min(left).min(limit.full - units).max(0);
    ((units + given, updated), given)
}

/// Whether exact arithmetic holds this state, after a debt was charged.
#[inline(always)]
pub fn fits(_limit: &Limit, state: State) -> bool {
    state.0 >= -LARGEST
}

/// How far a clock may fall behind a state before the state is held to be wrong.
#[inline(always)]
fn horizon(limit: &Limit) -> i64 {
    ceil_div(limit.full, limit.refill)
}
