//! All steps of a decision on one state at once: what a table asks of a key that is known, of a usual algorithm.
//!
//! The moment is brought into the limit's units once, and its algorithm is asked for once.

use crate::algorithms::transition::{Numbers, Reading, measured_at, unit_time, until_at, wait_at};
use crate::algorithms::{fixed_window, leaky_queue, sliding_window, token_bucket};
use crate::limit::{Algorithm, Limit};

/// Roll, admit, charge and measure a state that is stored: the state after the charge, where this limit admits it, and
/// what it then says. `wait_us` is made of the wait and the delay of a request.
#[inline(always)]
pub fn decide(
    limit: &Limit,
    stored: Numbers,
    now_us: i64,
    cost: i64,
    wait_us: impl Fn(i64, i64) -> i64,
) -> (Numbers, Reading) {
    let (now, [a, b, c]) = (unit_time(limit, now_us), stored);
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let rolled = fixed_window::roll(limit, Some((a, b)), now);
            let wait = wait_us(wait_at(limit, fixed_window::admit(limit, rolled, now, cost), now, now_us), 0);
            let charged = if wait == 0 { fixed_window::charge(limit, rolled, now, cost) } else { rolled };
            let measured = measured_at(limit, fixed_window::measure(limit, charged, now), now, now_us);
            told([charged.0, charged.1, 0], measured, (wait, 0))
        }
        Algorithm::SlidingWindow => {
            let rolled = sliding_window::roll(limit, Some((a, b, c)), now);
            let wait = wait_us(wait_at(limit, sliding_window::admit(limit, rolled, now, cost), now, now_us), 0);
            let charged = if wait == 0 { sliding_window::charge(limit, rolled, now, cost) } else { rolled };
            let measured = measured_at(limit, sliding_window::measure(limit, charged, now), now, now_us);
            told(charged.into(), measured, (wait, 0))
        }
        _ => {
            let rolled = token_bucket::roll(limit, Some((a, b)), now);
            let is_delayed = limit.algorithm == Algorithm::LeakyQueue && cost != 0;
            let delay =
                if is_delayed { until_at(limit, leaky_queue::delay(limit, rolled, now), now, now_us) } else { 0 };
            let wait = wait_us(wait_at(limit, token_bucket::admit(limit, rolled, now, cost), now, now_us), delay);
            let charged = if wait == 0 { token_bucket::charge(limit, rolled, now, cost) } else { rolled };
            let measured = measured_at(limit, token_bucket::measure(limit, charged, now), now, now_us);
            told([charged.0, charged.1, 0], measured, (wait, delay))
        }
    }
}

#[inline(always)]
fn told(
    charged: Numbers,
    (remaining, reset_after_us, next_after_us): (i64, i64, i64),
    (retry_after_us, delay_us): (i64, i64),
) -> (Numbers, Reading) {
    let delay_us = if retry_after_us == 0 { delay_us } else { 0 };
    (charged, Reading { remaining, reset_after_us, retry_after_us, next_after_us, delay_us })
}
