//! All steps of a decision on one state at once, for a key that is known.
//!
//! The moment is converted into the limit's units once, and the algorithm is chosen once.

use crate::algorithms::log_view::Marked;
use crate::algorithms::transition::{
    ANY, Numbers, Reading, admit_numbers, charge_numbers, delay_us_numbers, measure_numbers, measured_at, roll_numbers,
    unit_time, until_at, wait_at,
};
use crate::algorithms::{fixed_window, leaky_queue, sliding_window, token_bucket};
use crate::limit::{Algorithm, Limit};

/// What `admit` returns for a cost that need not wait.
const AT_ONCE: Option<i64> = Some(0);

/// Roll, admit, charge and measure a stored state: the state, charged where this limit admits the cost, and its
/// reading. `wait_us` computes the wait of a request from the wait and the delay that the limit gives.
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
            charged_reading([charged.0, charged.1, 0], measured, (wait, 0))
        }
        Algorithm::SlidingWindow => {
            let rolled = sliding_window::roll(limit, Some((a, b, c)), now);
            let wait = wait_us(wait_at(limit, sliding_window::admit(limit, rolled, now, cost), now, now_us), 0);
            let charged = if wait == 0 { sliding_window::charge(limit, rolled, now, cost) } else { rolled };
            let measured = measured_at(limit, sliding_window::measure(limit, charged, now), now, now_us);
            charged_reading(charged.into(), measured, (wait, 0))
        }
        _ => {
            let rolled = token_bucket::roll(limit, Some((a, b)), now);
            let is_delayed = limit.algorithm == Algorithm::LeakyQueue && cost != 0;
            let delay =
                if is_delayed { until_at(limit, leaky_queue::delay(limit, rolled, now), now, now_us) } else { 0 };
            let wait = wait_us(wait_at(limit, token_bucket::admit(limit, rolled, now, cost), now, now_us), delay);
            let charged = if wait == 0 { token_bucket::charge(limit, rolled, now, cost) } else { rolled };
            let measured = measured_at(limit, token_bucket::measure(limit, charged, now), now, now_us);
            charged_reading([charged.0, charged.1, 0], measured, (wait, delay))
        }
    }
}

/// Roll, admit, charge and mark a stored state, for a hold: the state after the charge, what the hold
/// remembers, and how long its request is to wait. None where it does not pass at once.
#[inline(always)]
pub fn reserve(limit: &Limit, stored: Numbers, now_us: i64, cost: i64) -> Option<(Numbers, Marked, i64)> {
    let (now, [a, b, c]) = (unit_time(limit, now_us), stored);
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let rolled = fixed_window::roll(limit, Some((a, b)), now);
            if fixed_window::admit(limit, rolled, now, cost) != AT_ONCE {
                return None;
            }
            let charged = fixed_window::charge(limit, rolled, now, cost);
            Some(([charged.0, charged.1, 0], fixed_window::mark(limit, charged, now), 0))
        }
        Algorithm::SlidingWindow => {
            let rolled = sliding_window::roll(limit, Some((a, b, c)), now);
            if sliding_window::admit(limit, rolled, now, cost) != AT_ONCE {
                return None;
            }
            let charged = sliding_window::charge(limit, rolled, now, cost);
            Some((charged.into(), sliding_window::mark(limit, charged, now), 0))
        }
        _ => {
            let rolled = token_bucket::roll(limit, Some((a, b)), now);
            if token_bucket::admit(limit, rolled, now, cost) != AT_ONCE {
                return None;
            }
            let delay_us = delay_us_numbers(limit, [rolled.0, rolled.1, 0], now_us, cost);
            let charged = token_bucket::charge(limit, rolled, now, cost);
            Some(([charged.0, charged.1, 0], token_bucket::mark(limit, charged, now), delay_us))
        }
    }
}

/// Roll a stored state, and settle a hold: the state, and what was given back.
#[inline(always)]
pub fn settle(
    limit: &Limit,
    stored: Numbers,
    now_us: i64,
    marked: Marked,
    change: i64,
    refunded: i64,
) -> (Numbers, i64) {
    let (now, [a, b, c]) = (unit_time(limit, now_us), stored);
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let rolled = fixed_window::roll(limit, Some((a, b)), now);
            let ((a, b), given) = fixed_window::settle(limit, rolled, now, marked, change, refunded);
            ([a, b, 0], given)
        }
        Algorithm::SlidingWindow => {
            let rolled = sliding_window::roll(limit, Some((a, b, c)), now);
            let (settled, given) = sliding_window::settle(limit, rolled, now, marked, change, refunded);
            (settled.into(), given)
        }
        _ => {
            let rolled = token_bucket::roll(limit, Some((a, b)), now);
            let ((a, b), given) = token_bucket::settle(limit, rolled, now, marked, change, refunded);
            ([a, b, 0], given)
        }
    }
}

/// `decide` for the rare algorithms.
#[inline(always)]
pub fn decide_rare(
    limit: &Limit,
    stored: Numbers,
    now_us: i64,
    cost: i64,
    wait_us: impl Fn(i64, i64) -> i64,
) -> (Numbers, Reading) {
    let rolled = roll_numbers::<ANY>(limit, Some(stored), now_us);
    let wait = wait_us(admit_numbers::<ANY>(limit, rolled, now_us, cost), 0);
    let charged = if wait == 0 { charge_numbers::<ANY>(limit, rolled, now_us, cost) } else { rolled };
    charged_reading(charged, measure_numbers::<ANY>(limit, charged, now_us), (wait, 0))
}

#[inline(always)]
fn charged_reading(
    charged: Numbers,
    (remaining, reset_after_us, next_after_us): (i64, i64, i64),
    (retry_after_us, delay_us): (i64, i64),
) -> (Numbers, Reading) {
    let delay_us = if retry_after_us == 0 { delay_us } else { 0 };
    (charged, Reading { remaining, reset_after_us, retry_after_us, next_after_us, delay_us })
}
