//! What comes of holds that are committed or extended.

use smallvec::SmallVec;

use crate::holding::record::HoldId;
use crate::holding::store::NewHold;
use crate::shard::registered::Registered;
use crate::table::answer::Answer;

/// How long a hold lasts, and is remembered.
#[derive(Clone, Copy, Debug)]
pub struct HoldTimes {
    /// How long its lease is.
    pub lease_us: i64,
    /// How long it is remembered after the later of its lease's end and its settling.
    pub remember_us: i64,
}

impl HoldTimes {
    /// Of a hold that is made at this moment.
    #[inline(always)]
    pub fn from(self, now_us: i64) -> NewHold {
        let until_us = now_us + self.lease_us;
        NewHold { until_us, forget_us: until_us + self.remember_us }
    }
}

/// A hold that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct HoldRequest<'request> {
    /// What it is to be found by; where it is not `named`, 128 secret bits that its id is made of.
    pub id: HoldId,
    /// How long its lease is; 0 of a hit.
    pub lease_us: i64,
    /// How long it is remembered after the later of its lease's end and its settling.
    pub remember_us: i64,
    /// Whether it is a hit: settled with its costs as it is made.
    pub at_once: bool,
    /// Whether it may be asked for again by its id.
    pub named: bool,
    /// The cost of each group.
    pub costs: &'request [i64],
    /// The group of each check.
    pub groups: &'request [u16],
}

/// What settling came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is settled now.
    Settled,
    /// It was before.
    AlreadySettled,
    /// No such hold is remembered.
    Unknown,
    /// It holds on.
    Extended,
    /// There was no room for more.
    Refused,
    /// Its lease is over.
    Lapsed,
}

/// What one limit has after a settlement.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Which of the limits that were asked.
    pub asked: usize,
    /// What remains; below 0 in debt.
    pub remaining: i64,
    /// Until the state is the same as none.
    pub reset_after_us: i64,
}

/// The numbers of the limits that were asked.
pub type After = SmallVec<[Standing; 2]>;

/// What came of a commit.
#[derive(Debug)]
pub struct Settlement {
    /// What it came to.
    pub outcome: Outcome,
    /// The units of each group that count.
    pub actuals: SmallVec<[i64; 2]>,
    /// What the limits have now.
    pub after: After,
}

/// What came of an extension.
#[derive(Debug)]
pub struct Extension {
    /// What it came to.
    pub outcome: Outcome,
    /// What the limits have now.
    pub after: After,
    /// What was decided; None where nothing was, or of other limits than were asked.
    pub answer: Option<Answer>,
}

/// Why a hold cannot be settled or extended so.
#[derive(Debug)]
pub enum Misuse {
    /// It has so many amounts.
    Amounts(usize),
    /// This amount is so large a debt that the numbers of a limit pass 2**52; the limit by its salt.
    Debt(i64, u64),
}

/// A hold that is asked for under the id of another one.
#[derive(Debug)]
pub enum Conflict {
    /// The other one is a hit, or this is.
    Kind {
        /// Whether the other one is.
        former_is_hit: bool,
    },
    /// The costs of the other one.
    Costs(SmallVec<[i64; 2]>),
    /// It is of other limits.
    Limits,
    /// It is of other keys.
    Keys,
}

/// What came of asking for a hold.
#[derive(Debug)]
pub enum Reserved {
    /// It was decided; what is held is found by this id.
    Decided(Answer, HoldId),
    /// It was decided before.
    Repeated(Answer),
    /// Another one has its id.
    Conflict(Conflict),
}

/// The limits through which a hold is settled.
pub type Asked<'limit> = SmallVec<[&'limit Registered; 4]>;
