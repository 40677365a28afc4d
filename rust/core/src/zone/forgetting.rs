//! How holds of a shard are forgotten: in time, a few at each new one, and where there is no room.

use crate::algorithms::leases::Lease;
use crate::limit::LARGEST;
use crate::zone::backing::MappedBacking;
use crate::zone::journal::{HELD, PASSED, SOONEST, SWEPT};
use crate::zone::pool::{KIND, Kind, halves, word_of};
use crate::zone::tries::Trie;

/// Holds that are looked at for each new one, so that those whose time is over do not pile up.
const TIDY: usize = 4;
/// The word of a key that has its tag.
const TAG: usize = 0;

impl MappedBacking<'_> {
    /// No hold is forgotten before this moment; None where there is none.
    pub(super) fn soonest_us(&self) -> Option<i64> {
        (self.weight() != 0).then(|| self.soonest())
    }

    /// Look at a few holds, and forget those whose time is over.
    #[inline]
    pub(super) fn tidy_holds(&mut self, now_us: i64) {
        if self.weight() != 0 && now_us >= self.soonest() {
            self.sweep_holds(TIDY, now_us);
        }
    }

    /// Forget all whose time is over; if there is none, and `forget_settled`, one that is settled.
    #[cold]
    pub(super) fn make_room_for_holds(&mut self, now_us: i64, forget_settled: bool) {
        let before = self.weight();
        if now_us >= self.soonest() {
            self.sweep_holds(usize::MAX, now_us);
            self.sweep_holds(usize::MAX, now_us);
        }
        if self.weight() < before || !forget_settled {
            return;
        }
        let (_, mut left) = halves(self.journal.word(HELD));
        left = left.min(1);
        let mut budget = self.journal.held.pool().len() / 8;
        while left != 0 && budget != 0 && !self.damaged.get() {
            budget -= 1;
            let Some(cell) = self.leaf_after(Trie::Holds, self.journal.word(SWEPT)) else {
                self.journal.set(SWEPT, 0);
                continue;
            };
            self.journal.set(SWEPT, self.hash_of(Trie::Holds, cell));
            if self.is_settled(cell) {
                self.forget(cell);
                self.journal.commit();
                left = 0;
            }
        }
    }

    /// Look at so many holds at the most, on to the last one, and forget those whose time is over.
    #[cold]
    fn sweep_holds(&mut self, count: usize, now_us: i64) {
        for _ in 0..count {
            let Some(cell) = self.leaf_after(Trie::Holds, self.journal.word(SWEPT)) else {
                self.journal.set(SWEPT, 0);
                self.journal.set(SOONEST, self.journal.word(PASSED));
                self.journal.set(PASSED, 0);
                return;
            };
            let (forget_us, passed) = (self.forget_us(cell), self.journal.word(PASSED));
            let hash = self.hash_of(Trie::Holds, cell);
            if forget_us <= now_us {
                self.forget(cell);
                self.journal.commit();
            } else if passed == 0 || (forget_us as u64) < passed {
                self.journal.set(PASSED, forget_us as u64);
            }
            self.journal.set(SWEPT, hash);
            if self.damaged.get() {
                return;
            }
        }
    }

    /// Forget a hold, and free what places it has; counts when it is committed.
    pub(super) fn forget(&mut self, cell: u32) {
        let Some(mut record) = self.read_hold(cell) else {
            return;
        };
        let (own, was_settled) = (record.weight() as u32, u32::from(record.settled));
        self.remove_leaf(Trie::Holds, self.hash_of(Trie::Holds, cell), cell);
        record.expand();
        for held in record.share().map_or(&[][..], |share| &share.limits) {
            if !self.is(held.key, Kind::Key) {
                continue;
            }
            if held.in_flight {
                let lease = Lease { until: record.until_us, number: u64::from(cell), places: held.cost() };
                self.remove_lease(held.key, lease);
            }
            let (kind, remembered) = halves(self.cell(held.key, KIND));
            self.write_cell(held.key, KIND, [word_of(kind, remembered.wrapping_sub(1))]);
            if remembered <= 1 {
                self.remove_leaf(Trie::Keys, self.cell(held.key, TAG), held.key);
                self.drop_cell(held.key);
            }
        }
        self.drop_hold(cell);
        let (weight, settled) = halves(self.journal.word(HELD));
        self.write_words(HELD, [word_of(weight.wrapping_sub(own), settled.wrapping_sub(was_settled))]);
    }

    fn soonest(&self) -> i64 {
        self.journal.word(SOONEST).min(2 * LARGEST as u64) as i64
    }
}
