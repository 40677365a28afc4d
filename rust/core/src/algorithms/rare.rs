//! The algorithms that are rarely used, behind one branch: a call of another algorithm pays one comparison.
//!
//! Each function is the one of `transition` for the limits of which `Algorithm::is_rare` holds.

use crate::algorithms::{calendar_window, stepwise};
use crate::limit::{Algorithm, Limit};

/// As in `transition`.
type Numbers = [i64; 3];

/// The state as it stands at `now`.
#[cold]
#[inline(never)]
pub fn roll(limit: &Limit, numbers: Option<Numbers>, now: i64) -> Numbers {
    if limit.algorithm == Algorithm::Stepwise {
        let (tokens, stepped) = stepwise::roll(limit, numbers.map(|[a, b, _]| (a, b)), now);
        return [tokens, stepped, 0];
    }
    calendar_window::roll(limit, numbers.map(Into::into), now).into()
}

/// How long this cost must wait: 0 to pass now, None for never.
#[cold]
#[inline(never)]
pub fn admit(limit: &Limit, [a, b, c]: Numbers, now: i64, cost: i64) -> Option<i64> {
    if limit.algorithm == Algorithm::Stepwise {
        return stepwise::admit(limit, (a, b), now, cost);
    }
    calendar_window::admit(limit, (a, b, c), now, cost)
}

/// The state after an admitted cost.
#[cold]
#[inline(never)]
pub fn charge(limit: &Limit, [a, b, c]: Numbers, now: i64, cost: i64) -> Numbers {
    if limit.algorithm == Algorithm::Stepwise {
        let (tokens, stepped) = stepwise::charge(limit, (a, b), now, cost);
        return [tokens, stepped, 0];
    }
    calendar_window::charge(limit, (a, b, c), now, cost).into()
}

/// (remaining, reset_after, next_after) of a state.
#[cold]
#[inline(never)]
pub fn measure(limit: &Limit, [a, b, c]: Numbers, now: i64) -> (i64, i64, i64) {
    if limit.algorithm == Algorithm::Stepwise {
        return stepwise::measure(limit, (a, b), now);
    }
    calendar_window::measure(limit, (a, b, c), now)
}
