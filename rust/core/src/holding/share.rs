//! What is remembered of a hold of many limits, or of its share in one shard.

use smallvec::SmallVec;

use crate::algorithms::log_view::Marked;
use crate::algorithms::transition::Reading;

/// What a hold charged a limit at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What the algorithm remembers of it.
    pub marked: Marked,
    /// What had been given back on the key until then.
    pub refunds: i64,
    /// The units.
    pub cost: i64,
    /// The number of the limit that it was charged under.
    pub number: u32,
}

/// What a hold knows of one of its limits.
#[derive(Clone, Debug)]
pub struct HeldLimit {
    /// What it charged, one after another; nothing where a shadow did not admit, or there was no room to count.
    pub parts: SmallVec<[Part; 1]>,
    /// Which of the keys that holds of its shard are of.
    pub key: u32,
    /// Which of the hold's limits it is.
    pub index: u16,
    /// Which of the hold's amounts is its own.
    pub group: u16,
    /// Whether it is a shadow.
    pub shadow: bool,
    /// Whether its places are in flight, until the end of the hold's lease.
    pub in_flight: bool,
    /// What was answered first.
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
    /// As it was made.
    pub cost: i64,
    /// With what was added.
    pub held: i64,
    /// As it was settled; meaningless before.
    pub actual: i64,
}

/// Another share of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its shard.
    pub shard: u16,
    /// Its number there; `UNTOLD` where it is found by the hold's id alone.
    pub number: u32,
}

/// The number of a share that is found by its hold's id alone. No hold has it.
pub const UNTOLD: u32 = u32::MAX;

/// A hold, or its share in one shard: the limits whose keys are there. The first key's shard has the amounts.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// How many parts it has in this shard: each counts towards the bound.
    pub weight: u32,
    /// How many limits it has in all shards.
    pub limits_of_all: u16,
    /// The amounts of its groups; none in the shares of other shards.
    pub amounts: SmallVec<[Amount; 1]>,
    /// Where its other shares are; none in those.
    pub others: SmallVec<[Other; 2]>,
    /// Its limits in this shard.
    pub limits: Vec<HeldLimit>,
}

/// What stays of a share that is settled, of a hold that has no name: a third of what it took, for most holds that are
/// remembered are settled.
#[derive(Clone, Debug)]
pub struct SettledShare {
    /// As those of `Share`.
    pub weight: u32,
    /// As those of `Share`.
    pub limits_of_all: u16,
    /// The key of each limit, and which of the hold's limits it is.
    pub limits: SmallVec<[(u32, u16); 6]>,
    /// What the share with the amounts has besides.
    pub home: Option<Box<SettledHome>>,
}

/// What stays of the share with the amounts.
#[derive(Clone, Debug)]
pub struct SettledHome {
    /// The units of each group that count.
    pub actuals: SmallVec<[i64; 8]>,
    /// Where the other shares are.
    pub others: SmallVec<[Other; 2]>,
}

impl Share {
    /// What later settlings of a share that is settled are told, and no more.
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
    /// As one that charged nothing.
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
