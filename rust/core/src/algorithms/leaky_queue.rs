//! Leaky bucket as a queue: requests leave evenly spaced, those admitted wait for their place.
//!
//! The bucket of capacity queue + 1 decides which requests may join; the level before a request is the time
//! that the requests ahead of it still need. State is that of the token bucket. Pure.
//! See docs/algorithms.md#leaky-queue.

use crate::algorithms::integers::ceil_div;
pub use crate::algorithms::token_bucket::{
    State, admit, charge, convert, fits, give_back, mark, measure, roll, settle,
};
use crate::limit::Limit;

/// How long a request admitted onto this state waits before it may proceed.
#[inline]
pub fn delay(limit: &Limit, state: State, now: i64) -> i64 {
    let (units, updated) = state;
    let missing = limit.full - units;
    if missing == 0 {
        return 0;
    }
    ceil_div(missing, limit.refill) + updated - now
}
