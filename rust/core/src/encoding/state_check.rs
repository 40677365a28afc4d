//! Whether numbers that were read can be a state of a limit, so that no transition computes beyond its integers.
//!
//! A zone's file may be damaged: by a bit that flipped, or by a process that writes where it must not.

use crate::algorithms::transition::Numbers;
use crate::limit::{Algorithm, LARGEST, Limit};

/// Whether a transition of `limit`, or of a former version of it, can have written these. Not for logs.
#[inline(always)]
pub fn is_sound(limit: &Limit, numbers: Numbers) -> bool {
    is_usual(limit, numbers) || limit.algorithm.is_rare() && is_rare(limit, numbers)
}

/// `is_sound` where the algorithm is not rare, else false: the code that follows need not handle rare ones.
///
/// As unsigned numbers, values below the least are above the most, so each check takes one comparison.
#[inline(always)]
pub fn is_usual(limit: &Limit, [a, b, c]: Numbers) -> bool {
    let [most_a, most_b, most_c] = limit.most;
    a.wrapping_sub(limit.least) as u64 <= most_a && b as u64 <= most_b && c as u64 <= most_c
}

/// `is_sound` of a rare algorithm.
#[cold]
#[inline(never)]
fn is_rare(limit: &Limit, [a, b, c]: Numbers) -> bool {
    let longest = LARGEST / limit.unit_us + 1;
    match limit.algorithm {
        Algorithm::Stepwise => (-LARGEST..=LARGEST).contains(&a) && (0..=longest).contains(&b),
        // The first window began before 1970, the last one ends after 2112.
        _ => (-LARGEST..2 * LARGEST).contains(&a) && (0..2 * LARGEST).contains(&b) && (0..=LARGEST).contains(&c),
    }
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
    fn numbers_that_no_transition_writes_are_no_state() {
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

    #[test]
    fn a_state_is_sound_up_to_its_bounds_and_not_beyond_them() {
        let (bound, seconds) = (LARGEST, LARGEST / 1_000_000);
        let edges = [
            (Algorithm::FixedWindow, 0, [(0, seconds / 60 + 2), (0, bound), (0, bound)]),
            (Algorithm::SlidingWindow, 0, [(0, seconds / 60 + 2), (0, 2 * bound / 60), (0, 2 * bound / 60)]),
            (Algorithm::TokenBucket, 1, [(-bound, bound), (0, seconds + 1), (i64::MIN, i64::MAX)]),
            (Algorithm::LeakyQueue, 1, [(-bound, bound), (0, seconds + 1), (i64::MIN, i64::MAX)]),
            (Algorithm::Stepwise, 1, [(-bound, bound), (0, seconds + 1), (i64::MIN, i64::MAX)]),
        ];
        for (algorithm, refill, ranges) in edges {
            let limit = Limit::new(algorithm, 1_000_000, 5, 60, refill).ok();
            for (place, (least, most)) in ranges.into_iter().enumerate() {
                for (number, sound) in [
                    (least, true),
                    (most, true),
                    (least.saturating_sub(1), least == i64::MIN),
                    (most.saturating_add(1), most == i64::MAX),
                ] {
                    let mut numbers = [1, 1, 1];
                    numbers[place] = number;
                    assert_eq!(limit.map(|limit| is_sound(&limit, numbers)), Some(sound), "{algorithm:?} {numbers:?}");
                }
            }
        }
        let calendar = Limit::new(Algorithm::CalendarWindow, 1, 5, 60, 0).ok();
        for (numbers, sound) in [
            ([-bound, 0, 0], true),
            ([2 * bound - 1, 2 * bound - 1, bound], true),
            ([-bound - 1, 0, 0], false),
            ([2 * bound, 0, 0], false),
            ([0, -1, 0], false),
            ([0, 2 * bound, 0], false),
            ([0, 0, -1], false),
            ([0, 0, bound + 1], false),
        ] {
            assert_eq!(calendar.map(|limit| is_sound(&limit, numbers)), Some(sound), "{numbers:?}");
            assert_eq!(calendar.map(|limit| is_usual(&limit, numbers)), Some(false), "{numbers:?}");
        }
        let log = Limit::new(Algorithm::SlidingLog, 1, 5, 60, 0).ok();
        assert_eq!(log.map(|limit| is_sound(&limit, [0, 0, 0])), Some(false));
    }
}
