//! The record of one hold.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithms::leases::Lease;
use crate::algorithms::transition::Reading;
use crate::holding::share::{Amount, HeldLimit, Other, Part, SettledShare, Share};

/// The 128 bits that a hold is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldId(pub [u64; 2]);

impl HoldId {
    /// The id of these 16 bytes, the lowest first.
    #[inline]
    pub fn of_bytes(bytes: [u8; 16]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        Self([bits as u64, (bits >> 64) as u64])
    }

    /// An id that contains the number of its hold, made from 128 secret bits, of which 96 stay.
    #[inline(always)]
    pub fn with_number(number: u32, [low, high]: [u64; 2]) -> Self {
        Self([low >> 32 << 32 | u64::from(number ^ high as u32), high])
    }

    /// The number that the id contains, if it was made with one.
    #[inline(always)]
    pub fn number(self) -> u32 {
        let Self([low, high]) = self;
        low as u32 ^ high as u32
    }

    /// Whether the id contains this number, so that it alone finds the hold.
    #[inline(always)]
    pub fn has_number(self, number: u32) -> bool {
        self.number() == number
    }

    /// The id as 16 bytes, the lowest first.
    #[inline]
    pub fn bytes(self) -> [u8; 16] {
        let Self([low, high]) = self;
        (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
    }
}

/// A charged hold of one limit, as most are, which was never extended.
#[derive(Clone, Copy, Debug)]
pub struct One {
    /// What the hold charged.
    pub part: Part,
    /// The number of its key in the shard's store.
    pub key: u32,
    /// The units that count since it was settled; meaningless before.
    pub actual: i64,
    /// The first answer: `remaining`, `reset_after_us`, `next_after_us` and `delay_us` of its reading.
    pub answered: [i64; 4],
    /// Whether its places are in flight.
    pub in_flight: bool,
    /// Whether the limit is a shadow.
    pub shadow: bool,
}

/// The content of a record.
#[derive(Clone, Debug)]
pub enum Content {
    /// A hold of one limit, as most are.
    One(One),
    /// A hold, or its share, in full. A loaded copy stays as it is while the record is changed.
    Many(Arc<Share>),
    /// A settled share of a hold of many limits; only in the memory of a process.
    Settled(SettledShare),
}

/// The record of one hold in one shard. It is remembered as long after its settling as after its lease's end.
#[derive(Clone, Debug)]
pub struct Record {
    /// The id it is found by.
    pub id: HoldId,
    /// The end of its lease.
    pub until_us: i64,
    /// When it is forgotten.
    pub forget_us: i64,
    /// Its content.
    pub content: Content,
    /// Whether it is settled.
    pub settled: bool,
    /// Whether it is a hit, settled when it was made.
    pub at_once: bool,
    /// Whether a limit passed uncounted when it was made.
    pub passed: bool,
    /// Whether its request can be repeated with its id: the answer is then recorded.
    pub named: bool,
}

/// A forgotten share of a hold that has other shares.
#[derive(Clone, Debug)]
pub struct ForgottenShare {
    /// The id of the hold.
    pub id: HoldId,
    /// Whether it was the first share, with the amounts and the list of the others.
    pub is_first: bool,
    /// The other shares, if it listed them.
    pub others: SmallVec<[Other; 2]>,
}

impl Record {
    /// The keys of its limits, each as often as there are limits on it.
    pub fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        let (one, many, settled) = match &self.content {
            Content::One(one) => (Some(one.key), &[][..], &[][..]),
            Content::Many(share) => (None, &share.limits[..], &[][..]),
            Content::Settled(share) => (None, &[][..], &share.limits[..]),
        };
        one.into_iter().chain(many.iter().map(|limit| limit.key)).chain(settled.iter().map(|(key, _)| *key))
    }

    /// What remains to be done when it is forgotten; None where its hold has no other shares.
    pub fn forgotten_share(&self) -> Option<ForgottenShare> {
        let (limits, of_all, home) = match &self.content {
            Content::One(_) => return None,
            Content::Many(share) => {
                let home = (!share.amounts.is_empty()).then_some(&share.others);
                (share.limits.len(), share.limits_of_all, home)
            }
            Content::Settled(share) => {
                (share.limits.len(), share.limits_of_all, share.home.as_ref().map(|home| &home.others))
            }
        };
        let number =
            || ForgottenShare { id: self.id, is_first: home.is_some(), others: home.cloned().unwrap_or_default() };
        (limits < usize::from(of_all)).then(number)
    }

    /// How many parts it has in this shard.
    #[inline]
    pub fn weight(&self) -> usize {
        match &self.content {
            Content::One(_) => 1,
            Content::Many(share) => share.weight as usize,
            Content::Settled(share) => share.weight as usize,
        }
    }

    /// Its share in full; None where it is compact or shrunk.
    #[inline]
    pub fn share(&self) -> Option<&Share> {
        match &self.content {
            Content::One(_) | Content::Settled(_) => None,
            Content::Many(share) => Some(share),
        }
    }

    /// `share`, mutably.
    #[inline]
    pub fn share_mut(&mut self) -> Option<&mut Share> {
        match &mut self.content {
            Content::One(_) | Content::Settled(_) => None,
            Content::Many(share) => Some(Arc::make_mut(share)),
        }
    }

    /// Move the end of its lease, and the moment it is forgotten with it.
    pub fn move_end(&mut self, until_us: i64) {
        self.forget_us += until_us - self.until_us;
        self.until_us = until_us;
    }

    /// Mark it as settled.
    #[inline]
    pub fn settle(&mut self, now_us: i64) {
        self.settled = true;
        self.forget_us += (now_us - self.until_us).max(0);
    }

    /// Settle it with the actual units of each group. Returns the leases that end, each with its key.
    pub fn settle_share(&mut self, number: u32, actuals: &[i64], now_us: i64) -> SmallVec<[(u32, Lease); 1]> {
        let (until, mut freed) = (self.until_us, SmallVec::new());
        if let Some(share) = self.share_mut() {
            for held in share.limits.iter_mut().filter(|held| held.in_flight) {
                held.in_flight = false;
                freed.push((held.key, Lease { until, number: u64::from(number), places: held.cost() }));
            }
            share.amounts.iter_mut().zip(actuals).for_each(|(amount, actual)| amount.actual = *actual);
        }
        self.settle(now_us);
        freed
    }

    /// Shrink a share that was just settled to what later settlements report.
    pub fn shrink(&mut self) {
        let Content::Many(share) = &self.content else {
            return;
        };
        self.content = Content::Settled(share.settled());
    }

    /// Convert a hold of one limit, or a shrunk share, to a share in full.
    pub fn expand(&mut self) {
        if let Content::Settled(share) = &self.content {
            self.content = Content::Many(Arc::new(share.expanded()));
            return;
        }
        let Content::One(one) = &self.content else {
            return;
        };
        let [remaining, reset_after_us, next_after_us, delay_us] = one.answered;
        let cost = one.part.cost;
        let held = HeldLimit {
            parts: SmallVec::from_buf([one.part]),
            key: one.key,
            index: 0,
            group: 0,
            shadow: one.shadow,
            in_flight: one.in_flight,
            reading: Reading { remaining, reset_after_us, retry_after_us: 0, next_after_us, delay_us },
        };
        self.content = Content::Many(Arc::new(Share {
            weight: 1,
            limits_of_all: 1,
            amounts: SmallVec::from_buf([Amount { cost, held: cost, actual: one.actual }]),
            others: SmallVec::new(),
            limits: vec![held],
        }));
    }

    /// Convert a share in full to a hold of one limit where possible: the inverse of `expand`.
    pub fn compact(&mut self) {
        let Content::Many(share) = &self.content else {
            return;
        };
        let ([held], [amount], 1) = (&share.limits[..], &share.amounts[..], share.limits_of_all) else {
            return;
        };
        let [part] = held.parts[..] else {
            return;
        };
        let Amount { cost, held: all, actual } = *amount;
        let Reading { remaining, reset_after_us, next_after_us, delay_us, retry_after_us } = held.reading;
        if (part.cost, all, share.weight, held.group, retry_after_us) != (cost, cost, 1, 0, 0) {
            return;
        }
        let answered = [remaining, reset_after_us, next_after_us, delay_us];
        let (key, in_flight, shadow) = (held.key, held.in_flight, held.shadow);
        self.content = Content::One(One { part, key, actual, answered, in_flight, shadow });
    }
}
