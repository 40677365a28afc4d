//! The record of a hold of many limits, or of its share in one shard.

use smallvec::SmallVec;

use crate::algorithms::log_view::Marked;
use crate::algorithms::transition::Reading;

/// What a hold charged on a limit at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The algorithm's mark of the charge.
    pub marked: Marked,
    /// What had been given back on the key until then, in scaled units.
    pub refunds: i64,
    /// The units.
    pub cost: i64,
    /// The number of the limit that it was charged under.
    pub number: u32,
}

/// One of the limits of a hold.
#[derive(Clone, Debug)]
pub struct HeldLimit {
    /// The charges in order; none where a shadow did not admit, or there was no room to count.
    pub parts: SmallVec<[Part; 1]>,
    /// The number of its key in the shard's store.
    pub key: u32,
    /// Its index among the hold's limits.
    pub index: u16,
    /// The index of its amount among the hold's groups.
    pub group: u16,
    /// Whether it is a shadow.
    pub shadow: bool,
    /// Whether its places are in flight, until the end of the hold's lease.
    pub in_flight: bool,
    /// The reading of the first answer.
    pub reading: Reading,
}

impl HeldLimit {
    /// The units that are held.
    #[inline]
    pub fn cost(&self) -> i64 {
        self.parts.iter().map(|part| part.cost).sum()
    }
}

/// The units of one group of a hold.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// The cost when it was made.
    pub cost: i64,
    /// The cost with what extensions added.
    pub held: i64,
    /// The units that count since it was settled; meaningless before.
    pub actual: i64,
}

/// Another share of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its shard.
    pub shard: u16,
    /// Its number there; `UNNUMBERED` where only the hold's id finds it.
    pub number: u32,
}

/// The number of a share that is found by its hold's id alone. No hold has this number.
pub const UNNUMBERED: u32 = u32::MAX;

/// A hold, or its share in one shard: the limits whose keys are there. The first key's shard has the amounts.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// How many parts it has in this shard: each counts towards `max_holds`.
    pub weight: u32,
    /// How many limits it has in all shards.
    pub limits_of_all: u16,
    /// The amounts of its groups; empty in all but the first share.
    pub amounts: SmallVec<[Amount; 1]>,
    /// Where its other shares are; empty in all but the first share.
    pub others: SmallVec<[Other; 2]>,
    /// Its limits in this shard.
    pub limits: Vec<HeldLimit>,
}

/// A settled share of an unnamed hold, reduced to a third of its size, since most remembered holds are settled.
#[derive(Clone, Debug)]
pub struct SettledShare {
    /// As in `Share`.
    pub weight: u32,
    /// As in `Share`.
    pub limits_of_all: u16,
    /// The key of each limit, and its index among the hold's limits.
    pub limits: SmallVec<[(u32, u16); 6]>,
    /// What only the first share has.
    pub home: Option<Box<SettledHome>>,
}

/// The rest of a settled first share.
#[derive(Clone, Debug)]
pub struct SettledHome {
    /// The units of each group that count.
    pub actuals: SmallVec<[i64; 8]>,
    /// Where the other shares are.
    pub others: SmallVec<[Other; 2]>,
}

impl Share {
    /// The settled share, reduced to what later settlements report.
    pub fn settled(&self) -> SettledShare {
        let home = || SettledHome {
            actuals: self.amounts.iter().map(|amount| amount.actual).collect(),
            others: self.others.clone(),
        };
        SettledShare {
            weight: self.weight,
            limits_of_all: self.limits_of_all,
            limits: self.limits.iter().map(|held| (held.key, held.index)).collect(),
            home: (!self.amounts.is_empty()).then(|| Box::new(home())),
        }
    }
}

impl SettledShare {
    /// The share in full, as one that charged nothing.
    pub fn expanded(&self) -> Share {
        let limit = |(key, index): &(u32, u16)| HeldLimit {
            parts: SmallVec::new(),
            key: *key,
            index: *index,
            group: 0,
            shadow: false,
            in_flight: false,
            reading: Reading::default(),
        };
        let amount = |actual: &i64| Amount { cost: *actual, held: *actual, actual: *actual };
        let home = self.home.as_deref();
        Share {
            weight: self.weight,
            limits_of_all: self.limits_of_all,
            amounts: home.map_or_else(SmallVec::new, |home| home.actuals.iter().map(amount).collect()),
            others: home.map_or_else(SmallVec::new, |home| home.others.clone()),
            limits: self.limits.iter().map(limit).collect(),
        }
    }
}
