//! Token bucket in steps: whole refills at the end of full periods, counted from the first charge of a full bucket.
//!
//! State is (tokens, stepped), or None for a key never seen, which is a full bucket. `stepped` is the moment of the
//! last refill, or of the charge that began the count; `tokens` may be below zero where a debt was charged. Times are
//! integers of the limit's unit. Pure. See docs/algorithms.md#token-bucket-in-steps.

use crate::algorithms::integers::ceil_div;
use crate::algorithms::log_view::Marked;
use crate::limit::{LARGEST, Limit};

/// (tokens, stepped)
pub type State = (i64, i64);

/// The state as it stands at `now`. While the clock is behind, nothing flows in.
pub fn roll(limit: &Limit, state: Option<State>, now: i64) -> State {
    let full = limit.quota;
    let Some(state) = state else {
        return (full, now);
    };
    let (mut tokens, stepped) = state;
    if tokens >= full {
        return (full, now);
    }
    if now >= stepped + limit.period {
        let steps = (now - stepped) / limit.period;
        // Saturating on purpose: a long idle time fills the bucket, it does not overflow.
        tokens = tokens.saturating_add(limit.refill.saturating_mul(steps));
        if tokens >= full {
            return (full, now);
        }
        return (tokens, stepped + limit.period * steps);
    }
    if stepped - now > horizon(limit) {
        // No clock steps back that far: the state is from a clock once far ahead.
        return (tokens, now);
    }
    state
}

/// How long this cost must wait: 0 to pass now, None for never.
pub fn admit(limit: &Limit, state: State, now: i64, cost: i64) -> Option<i64> {
    let (tokens, stepped) = state;
    if cost > limit.quota {
        return None;
    }
    let missing = cost - tokens;
    if missing <= 0 {
        return Some(0);
    }
    Some(time_of(limit, missing).saturating_add(stepped - now))
}

/// The state after an admitted cost.
pub fn charge(_limit: &Limit, state: State, _now: i64, cost: i64) -> State {
    let (tokens, stepped) = state;
    (tokens - cost, stepped)
}

/// (remaining, reset_after, next_after): what is left, when all of it is back, when one more is.
pub fn measure(limit: &Limit, state: State, now: i64) -> (i64, i64, i64) {
    let (tokens, stepped) = state;
    let missing = limit.quota - tokens;
    if missing == 0 {
        return (limit.quota, 0, 0);
    }
    let reset_after = time_of(limit, missing).saturating_add(stepped - now);
    let next_after = time_of(limit, 1).saturating_add(stepped - now);
    (tokens, reset_after, next_after)
}

/// The state of a limit whose numbers were `former`: the tokens left stay, up to the new capacity.
pub fn convert(limit: &Limit, state: State, now_us: i64, former: &Limit) -> Option<State> {
    let (tokens, stepped) = roll(former, Some(state), now_us / former.unit_us);
    if tokens == former.quota {
        return None;
    }
    if limit.same_scale(former) {
        return Some(state);
    }
    Some((tokens.clamp(-limit.quota, limit.quota), ceil_div(stepped * former.unit_us, limit.unit_us)))
}

/// The state without what is left of a charge made at `earliest` or later; None where nothing is left.
///
/// All steps since `earliest` may have given units of the charge back. `stepped` counts as one of them even where it is
/// the beginning of the count, which a state does not record.
pub fn give_back(limit: &Limit, state: State, now: i64, cost: i64, earliest: i64) -> Option<State> {
    let (mut tokens, stepped) = roll(limit, Some(state), now);
    let steps = ceil_div((stepped - earliest).max(0), limit.period);
    // Saturating on purpose, as above.
    tokens = limit.quota.min(tokens + (cost - limit.refill.saturating_mul(steps)).max(0));
    (tokens < limit.quota).then_some((tokens, stepped))
}

/// What a hold remembers right after its charge: the moment of the last refill, and what was missing then.
pub fn mark(limit: &Limit, state: State, _now: i64) -> Marked {
    let (tokens, stepped) = state;
    [stepped, limit.quota - tokens]
}

/// (the state, what was given back) after a hold's charge has changed, in tokens.
///
/// Missing tokens are charged now. Of unused ones, at most as many are given back as cannot have flowed back since the
/// hold: what was missing then, less what steps since have brought, and less what was given back (`refunded`).
pub fn settle(limit: &Limit, state: State, _now: i64, marked: Marked, change: i64, refunded: i64) -> (State, i64) {
    let (tokens, stepped) = state;
    // Saturating on purpose, here and below: what is too large does not fit, and long ago all has flowed in.
    if change >= 0 {
        return ((tokens.saturating_sub(change), stepped), 0);
    }
    let [moment, missing] = marked;
    let flowed = limit.refill.saturating_mul(ceil_div((stepped - moment).max(0), limit.period));
    let left = missing.saturating_sub(flowed).saturating_sub(refunded);
    let given = change.saturating_neg().min(left).min(limit.quota - tokens).max(0);
    ((tokens + given, stepped), given)
}

/// Whether exact arithmetic holds this state, after a debt was charged.
pub fn fits(limit: &Limit, state: State) -> bool {
    state.0 >= -(LARGEST / limit.period)
}

/// How far a clock may fall behind a state before the state is held to be wrong.
fn horizon(limit: &Limit) -> i64 {
    time_of(limit, limit.quota)
}

/// How long this many tokens take to flow in. Saturating on purpose: a debt may be very large.
fn time_of(limit: &Limit, tokens: i64) -> i64 {
    ceil_div(tokens, limit.refill).saturating_mul(limit.period)
}
