//! The input and the output of a decision of the table.

use crate::algorithms::integers::floor_div;
use crate::algorithms::transition::{NEVER, Reading};
use crate::hash::KeyHash;
use crate::limit::Algorithm;
use crate::shard::registered::Registered;

/// One limit on one key.
#[derive(Clone, Copy, Debug)]
pub struct Check<'limit> {
    /// The limit.
    pub limit: &'limit Registered,
    /// The key.
    pub key: KeyHash,
    /// The requested units, at least 0.
    pub cost: i64,
    /// A shadow check is counted for itself and decides nothing.
    pub shadow: bool,
}

impl Check<'_> {
    /// Whether its limit counts what is in flight.
    #[inline]
    pub(super) fn is_in_flight(&self) -> bool {
        self.limit.limit.algorithm == Algorithm::Concurrent
    }

    /// The tag under which the state of this check is stored.
    #[inline(always)]
    pub fn tag(&self) -> u64 {
        self.key.tag_under(self.limit.salt)
    }
}

/// How checks are decided.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// Whether an admitted request is charged.
    pub commit: bool,
    /// The longest a queue may delay an admitted request; a request it would delay longer is refused.
    pub max_delay_us: Option<i64>,
}

impl Mode {
    /// The wait of a check whose queue would delay it: a delay beyond the longest is a refusal.
    #[inline(always)]
    pub fn wait_us(self, wait_us: i64, delay_us: i64) -> i64 {
        match self.max_delay_us {
            Some(max_delay_us) if wait_us >= 0 => wait_us.max(delay_us - max_delay_us),
            _ => wait_us,
        }
    }
}

/// What happens to a new key when the table is full of live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// The key that resets soonest is forgotten, unless it is blocked; where all are blocked, refuse.
    Forget,
    /// The new key is refused.
    Refuse,
    /// The new key passes and is not counted.
    Pass,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether all enforced checks may pass.
    pub allowed: bool,
    /// Set where the table was full and this choice decided instead of the limits.
    pub full: Option<OnFull>,
    /// The index of the limit that binds: see `binding_of`; None where none is enforced.
    pub binding: Option<u16>,
    /// Each check's own numbers, in order.
    pub readings: Readings,
}

impl Answer {
    /// The answer of a decision with one check.
    #[inline(always)]
    pub fn of_one(shadow: bool, reading: Reading) -> Self {
        Self {
            allowed: shadow || reading.allowed(),
            full: None,
            binding: (!shadow).then_some(0),
            readings: Readings::One(reading),
        }
    }
}

/// The readings of an answer; most answers have one.
#[derive(Clone, Debug)]
pub enum Readings {
    /// The reading of the only check.
    One(Reading),
    /// The readings of all checks, in order.
    Many(Box<[Reading]>),
}

impl Readings {
    /// Each check's own numbers, in order.
    #[inline]
    pub fn all(&self) -> &[Reading] {
        match self {
            Self::One(reading) => std::slice::from_ref(reading),
            Self::Many(readings) => readings,
        }
    }
}

/// The index of the limit that binds, None where none is enforced; `headgate.decision.binding_of`.
///
/// On a refusal the longest wait, the first of equals; else the fewest further requests of this
/// cost, of equals the one that resets latest.
#[inline(always)]
pub fn binding_of(checks: &[Check], readings: &[Reading], allowed: bool) -> Option<u16> {
    binding_among(checks.iter().map(|check| (check.shadow, check.cost)), readings, allowed)
}

/// `binding_of` for limits given as (whether it is a shadow, the requested cost).
#[inline(always)]
pub fn binding_among(limits: impl Iterator<Item = (bool, i64)>, readings: &[Reading], allowed: bool) -> Option<u16> {
    let mut binding = None;
    if allowed {
        let (mut fewest, mut latest) = (i64::MAX, i64::MIN);
        for (index, ((shadow, cost), reading)) in (0..).zip(limits.zip(readings)) {
            let Reading { remaining, reset_after_us, .. } = *reading;
            let further = if cost <= 1 { remaining } else { floor_div(remaining, cost) };
            if !shadow && (further < fewest || further == fewest && reset_after_us > latest) {
                (binding, fewest, latest) = (Some(index), further, reset_after_us);
            }
        }
        return binding;
    }
    let mut longest = 0;
    for (index, ((shadow, _), reading)) in (0..).zip(limits.zip(readings)) {
        let wait_us = if reading.retry_after_us == NEVER { i64::MAX } else { reading.retry_after_us };
        if !shadow && wait_us > longest {
            (binding, longest) = (Some(index), wait_us);
        }
    }
    binding
}
