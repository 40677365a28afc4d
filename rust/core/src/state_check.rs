//! Whether numbers that were read can be a state of a limit, so that no transition computes beyond its integers.
//!
//! A zone's file may be damaged: by a bit that flipped, or by a process that writes where it must not.

use crate::algorithms::transition::Numbers;
use crate::limit::{Algorithm, Limit};

/// Whether a transition of `limit`, or of a former version of it, can have written these. Not for logs.
#[inline(always)]
pub fn is_sound(limit: &Limit, [a, b, c]: Numbers) -> bool {
    match limit.algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow => {
            is_within(a, limit.latest) && is_within(b, limit.most) && is_within(c, limit.most)
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
            (-limit.most..=limit.most).contains(&a) && is_within(b, limit.latest)
        }
        Algorithm::SlidingLog => false,
    }
}

/// Whether a number is from 0 to `most`, which is not negative: as unsigned numbers, one compare.
#[inline(always)]
fn is_within(number: i64, most: i64) -> bool {
    number as u64 <= most as u64
}

/// Whether states of `former` can be those of `limit`: versions of one limit have one algorithm.
pub fn may_follow(limit: &Limit, former: &Limit) -> bool {
    let is_sliding = |limit: &Limit| matches!(limit.algorithm, Algorithm::SlidingLog | Algorithm::SlidingWindow);
    limit.algorithm == former.algorithm || is_sliding(limit) && is_sliding(former)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_transition_writes_is_no_state() {
        let window = |algorithm| Limit::new(algorithm, 1, 5, 60_000_000, 0).ok();
        let fixed = window(Algorithm::FixedWindow).map(|limit| is_sound(&limit, [30_000_000, 5, 0]));
        assert_eq!(fixed, Some(true));
        for damaged in [[-1, 5, 0], [1 << 52, 5, 0], [30_000_000, -1, 0], [30_000_000, 1 << 53, 0], [30_000_000, 1, -1]]
        {
            assert_eq!(window(Algorithm::FixedWindow).map(|limit| is_sound(&limit, damaged)), Some(false));
        }
        let bucket = Limit::new(Algorithm::TokenBucket, 1_000_000, 5, 60, 1).ok();
        assert_eq!(bucket.map(|limit| is_sound(&limit, [300, 1_800_000_000, 0])), Some(true));
        assert_eq!(bucket.map(|limit| is_sound(&limit, [300, 1 << 40, 0])), Some(false));
        assert_eq!(bucket.map(|limit| is_sound(&limit, [1 << 53, 0, 0])), Some(false));
    }
}
