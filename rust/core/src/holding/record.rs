//! What is remembered of one hold.

use smallvec::SmallVec;

use crate::algorithms::leases::Lease;
use crate::algorithms::log_view::Marked;
use crate::algorithms::transition::Reading;

/// The 128 bits that a hold is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldId(pub [u8; 16]);

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
#[derive(Debug)]
pub struct HeldLimit {
    /// What it charged, one after another; nothing where a shadow did not admit, or there was no room to count.
    pub parts: SmallVec<[Part; 1]>,
    /// The tag of the state.
    pub tag: u64,
    /// Which of the keys that holds of its shard are of.
    pub key: u32,
    /// Which of the hold's limits it is.
    pub index: u16,
    /// Which of the hold's amounts is its own.
    pub group: u16,
    /// Whether it is a shadow.
    pub shadow: bool,
    /// Its places in flight.
    pub lease: Option<Lease>,
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

/// One hold, or the share of it in one shard: the limits whose keys are there. The first key's shard has the amounts.
#[derive(Debug)]
pub struct Record {
    /// What it is found by.
    pub id: HoldId,
    /// The end of its lease.
    pub until_us: i64,
    /// When it is forgotten.
    pub forget_us: i64,
    /// How long it is remembered after the later of its lease's end and its settling.
    pub remember_us: i64,
    /// Whether it is settled.
    pub settled: bool,
    /// Whether it is a hit, settled as it was made.
    pub at_once: bool,
    /// Whether something passed uncounted as it was made.
    pub passed: bool,
    /// How many parts it has in this shard: each counts towards the bound.
    pub weight: u32,
    /// What tells it from others that had its number in the slab.
    pub turn: u64,
    /// How many limits it has in all shards.
    pub limits_of_all: u16,
    /// The amounts of its groups; none in the shares of other shards.
    pub amounts: SmallVec<[Amount; 1]>,
    /// The shards of its other shares, in ascending order.
    pub others: SmallVec<[u16; 4]>,
    /// Its limits in this shard.
    pub limits: SmallVec<[HeldLimit; 1]>,
}
