//! Requests for holds, and the results of making, committing and extending them.

use smallvec::SmallVec;

use crate::holding::record::HoldId;
use crate::holding::store::NewHold;
use crate::shard::registered::Registered;
use crate::table::answer::Answer;

/// How long a hold lasts, and how long it is remembered.
#[derive(Clone, Copy, Debug)]
pub struct HoldTimes {
    /// The length of the lease.
    pub lease_us: i64,
    /// How long the hold is remembered after its lease's end or its settling, whichever is later.
    pub remember_us: i64,
}

impl HoldTimes {
    /// The times of a hold that is made at this moment.
    #[inline(always)]
    pub fn from(self, now_us: i64) -> NewHold {
        let until_us = now_us + self.lease_us;
        NewHold { until_us, forget_us: until_us + self.remember_us }
    }
}

/// A request for a hold.
#[derive(Clone, Copy, Debug)]
pub struct HoldRequest<'request> {
    /// The id of the hold; where it is not `named`, 128 secret bits that its id is made of.
    pub id: HoldId,
    /// The length of its lease; 0 for a hit.
    pub lease_us: i64,
    /// How long the hold is remembered after its lease's end or its settling, whichever is later.
    pub remember_us: i64,
    /// Whether it is a hit: settled with its costs when it is made.
    pub at_once: bool,
    /// Whether the request may be repeated with the same id.
    pub named: bool,
    /// The cost of each group.
    pub costs: &'request [i64],
    /// The group of each check.
    pub groups: &'request [u16],
}

/// The outcome of settling or extending a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The hold is settled now.
    Settled,
    /// The hold was settled before.
    AlreadySettled,
    /// No such hold is remembered.
    Unknown,
    /// The hold is extended.
    Extended,
    /// The limits refused the further units.
    Refused,
    /// The hold's lease is over.
    Lapsed,
}

/// The standing of one limit after a settlement.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The index of the limit among the caller's limits.
    pub limit: usize,
    /// What remains; negative in debt.
    pub remaining: i64,
    /// The time until the state is the same as none.
    pub reset_after_us: i64,
}

/// The standings of the caller's limits after a settlement.
pub type Standings = SmallVec<[Standing; 2]>;

/// The result of a commit.
#[derive(Debug)]
pub struct Settlement {
    /// The outcome.
    pub outcome: Outcome,
    /// The units of each group that count.
    pub actuals: SmallVec<[i64; 2]>,
    /// The standings of the caller's limits now.
    pub after: Standings,
}

/// The result of an extension.
#[derive(Debug)]
pub struct Extension {
    /// The outcome.
    pub outcome: Outcome,
    /// The standings of the caller's limits now.
    pub after: Standings,
    /// The decision; None where there was none, or where it is not about exactly the caller's limits.
    pub answer: Option<Answer>,
}

/// Why a hold cannot be settled or extended as requested.
#[derive(Debug)]
pub enum Misuse {
    /// The hold has this many amounts.
    Amounts(usize),
    /// This amount leaves a debt that takes the numbers of a limit past 2**52; the limit is given by its salt.
    Debt(i64, u64),
}

/// A request for a hold under the id of a different one.
#[derive(Debug)]
pub enum Conflict {
    /// One of the two is a hit, the other is not.
    Kind {
        /// Whether the existing one is a hit.
        former_is_hit: bool,
    },
    /// The costs differ; these are those of the existing one.
    Costs(SmallVec<[i64; 2]>),
    /// The existing one has other limits.
    Limits,
    /// The existing one has other keys.
    Keys,
}

/// The result of a request for a hold.
#[derive(Debug)]
pub enum Reserved {
    /// The request was decided; the hold is found by this id.
    Decided(Answer, HoldId),
    /// The request repeats one that was decided before.
    Repeated(Answer),
    /// A different hold has the id.
    Conflict(Conflict),
}

/// The limits through which the caller settles or extends a hold.
pub type CallerLimits<'limit> = SmallVec<[&'limit Registered; 4]>;
