//! The integers that a transition computes with, as `headgate.units` compiled them.

pub mod calendar;

use crate::limit::calendar::Calendar;

/// Below it `floor(a / b)` is exact in doubles as well; no limit names a larger integer.
pub const LARGEST: i64 = 1 << 52;

/// Which transition a limit follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// See `algorithms::fixed_window`.
    FixedWindow,
    /// See `algorithms::sliding_log`.
    SlidingLog,
    /// See `algorithms::sliding_window`.
    SlidingWindow,
    /// See `algorithms::token_bucket`.
    TokenBucket,
    /// See `algorithms::leaky_bucket`.
    LeakyBucket,
    /// See `algorithms::leaky_queue`.
    LeakyQueue,
    /// See `algorithms::stepwise`.
    Stepwise,
    /// See `algorithms::calendar_window`.
    CalendarWindow,
    /// See `algorithms::concurrent`.
    Concurrent,
}

impl Algorithm {
    /// All algorithms. Zones name them by their places here: new ones come last.
    pub const ALL: [Self; 9] = [
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingWindow,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::LeakyQueue,
        Self::Stepwise,
        Self::CalendarWindow,
        Self::Concurrent,
    ];

    /// The algorithm of a name as the vectors write it.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "fixed_window" => Self::FixedWindow,
            "sliding_log" => Self::SlidingLog,
            "sliding_window" => Self::SlidingWindow,
            "token_bucket" => Self::TokenBucket,
            "leaky_bucket" => Self::LeakyBucket,
            "leaky_queue" => Self::LeakyQueue,
            "stepwise" => Self::Stepwise,
            "calendar_window" => Self::CalendarWindow,
            "concurrent" => Self::Concurrent,
            _ => return None,
        })
    }

    /// Whether it is rarely used: such algorithms have no fast paths, so that those of the others stay short.
    #[inline(always)]
    pub fn is_rare(self) -> bool {
        matches!(self, Self::Stepwise | Self::CalendarWindow)
    }
}

/// A compiled limit. Times are in units of `unit_us` microseconds; see `headgate.units.CompiledLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// The transition.
    pub algorithm: Algorithm,
    /// The length of one unit of time.
    pub unit_us: i64,
    /// The limit or the capacity.
    pub quota: i64,
    /// The window; for buckets the scaled units of one token, in steps the period; the number of a calendar.
    pub period: i64,
    /// For buckets, the scaled units that flow in a unit of time, in steps the tokens of each; 0 for windows.
    pub refill: i64,
    /// For buckets, the scaled units of a full bucket.
    pub full: i64,
    /// The least first number of a state; the other two begin at 0. See `state_check`.
    pub least: i64,
    /// How far above those the numbers of a state can be.
    pub most: [u64; 3],
    /// For calendar windows, the borders, where they are known.
    pub calendar: Calendar,
}

impl Limit {
    /// A limit of these integers, or what is wrong with them.
    pub fn new(algorithm: Algorithm, unit_us: i64, quota: i64, period: i64, refill: i64) -> Result<Self, &'static str> {
        if ![1, 1_000, 1_000_000].contains(&unit_us) {
            return Err("unit_us must be 1, 1000 or 1000000");
        }
        if !(0..=LARGEST).contains(&quota) || !(1..=LARGEST).contains(&period) {
            return Err("quota must be in [0, 2**52] and period in [1, 2**52]");
        }
        let mut full = 0;
        match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
                if !(1..=LARGEST).contains(&refill) {
                    return Err("refill must be in [1, 2**52]");
                }
                full = quota.saturating_mul(period);
                if full.saturating_add(refill) > LARGEST {
                    return Err("capacity times period passes 2**52");
                }
            }
            Algorithm::SlidingWindow if quota.saturating_mul(period) > LARGEST => {
                return Err("limit times period passes 2**52");
            }
            Algorithm::Stepwise => {
                if !(1..=LARGEST).contains(&refill) {
                    return Err("refill must be in [1, 2**52]");
                }
                if (quota as u64).div_ceil(refill as u64).saturating_mul(period as u64) > LARGEST as u64 {
                    return Err("the time to fill the bucket passes 2**52");
                }
            }
            Algorithm::CalendarWindow | Algorithm::Concurrent if unit_us != 1 => {
                return Err("unit_us of a calendar window and of what is in flight must be 1");
            }
            _ => {}
        }
        let (bound, times) = (LARGEST as u64, (LARGEST / unit_us) as u64);
        // A clock that went back may be up to two windows behind.
        let (windows, weighed) = (times / period as u64 + 2, 2 * bound / period as u64);
        let (least, most) = match algorithm {
            Algorithm::FixedWindow => (0, [windows, bound, bound]),
            // Counts are weighed by the period.
            Algorithm::SlidingWindow => (0, [windows, weighed, weighed]),
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
                (-LARGEST, [2 * bound, times + 1, u64::MAX]) // the third means nothing
            }
            // No slot holds these: a log has entries, and leases are stored with the holds.
            Algorithm::SlidingLog | Algorithm::Concurrent => (i64::MAX, [0; 3]),
            Algorithm::Stepwise | Algorithm::CalendarWindow => (i64::MAX, [0; 3]), // rare ones are not checked by these
        };
        Ok(Self { algorithm, unit_us, quota, period, refill, full, least, most, calendar: Calendar::default() })
    }

    /// The same limit with the borders of its calendar.
    pub fn on(self, calendar: Calendar) -> Self {
        Self { calendar, ..self }
    }

    /// Whether a state under `former` means the same under this limit.
    #[inline]
    pub fn same_scale(&self, former: &Self) -> bool {
        (self.algorithm, self.period, self.refill, self.unit_us)
            == (former.algorithm, former.period, former.refill, former.unit_us)
    }
}
