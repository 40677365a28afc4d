//! Forgetting the holds of a shard: in time, a few at each new one, and where there is no room. A clock hand walks the
//! cells of the shard, so that older holds are visited first.

use crate::algorithms::leases::Lease;
use crate::limit::LARGEST;
use crate::zone::backing::MappedBacking;
use crate::zone::hold_records::is_replaceable;
use crate::zone::journal::{HAND, HELD, PASSED, SOONEST, STALE};
use crate::zone::pool::{KIND, Kind, halves, word_of};
use crate::zone::tries::Trie;

/// How many cells are visited for each new hold, more than it takes, so that expired holds do not pile up.
const TIDY: usize = 8;
/// The word of a key that has its tag.
const TAG: usize = 0;

impl MappedBacking<'_> {
    /// When the first hold is forgotten; None where there is none.
    ///
    /// All holds are visited where the one that was first has changed, or was forgotten.
    #[cold]
    pub(super) fn soonest_us(&mut self) -> Option<i64> {
        if self.weight() == 0 {
            return None;
        }
        if self.journal.word(SOONEST) & STALE != 0 {
            let first_us = self.each_hold().map(|cell| self.forget_us(cell)).min()?;
            self.journal.set(SOONEST, first_us as u64);
        }
        Some(self.soonest())
    }

    /// Mark the first moment as stale, if a hold that is about to change determines it.
    #[inline(always)]
    pub(super) fn mark_soonest_stale(&mut self, cell: u32) {
        let soonest = self.journal.word(SOONEST);
        if self.forget_us(cell) as u64 == soonest {
            self.journal.set(SOONEST, soonest | STALE);
        }
    }

    /// Visit a few holds, and forget those whose time is over.
    #[inline]
    pub(super) fn tidy_holds(&mut self, now_us: i64) {
        if self.weight() != 0 && now_us >= self.soonest() {
            self.sweep_holds(TIDY, now_us);
        }
    }

    /// Find a settled hold among the next few that a new one can replace; returns whether there is one.
    #[inline]
    pub(super) fn find_replaceable(&mut self) -> bool {
        for _ in 0..TIDY {
            let Some((cell, is_last)) = self.next_at_hand() else {
                return false;
            };
            let kind = self.cell(cell, KIND);
            let found = is_replaceable(kind) && self.has_other_holds(self.key_cell(cell));
            if !found && kind as u8 == Kind::Hold as u8 {
                self.pass(cell);
            }
            if is_last {
                self.end_round();
            }
            if found {
                self.replaceable = cell;
                return true;
            }
        }
        false
    }

    /// Forget all holds whose time is over; if there is none, and `forget_settled`, one that is settled.
    #[cold]
    pub(super) fn make_room_for_holds(&mut self, now_us: i64, forget_settled: bool) {
        let before = self.weight();
        if now_us >= self.soonest() {
            self.sweep_holds(usize::MAX, now_us);
            self.sweep_holds(usize::MAX, now_us);
        }
        if self.weight() < before || !forget_settled || halves(self.journal.word(HELD)).1 == 0 {
            return;
        }
        let mut rounds = 0;
        while rounds < 2 && !self.damaged.get() {
            let Some((cell, is_last)) = self.next_at_hand() else {
                return;
            };
            rounds += usize::from(is_last);
            let found = self.is_hold(cell) && self.is_settled(cell);
            if found {
                self.forget(cell);
                self.journal.commit();
            } else if self.is_hold(cell) {
                self.pass(cell);
            }
            if is_last {
                self.end_round();
            }
            if found {
                return;
            }
        }
    }

    /// Visit up to `count` cells, until the last one, and forget the holds whose time is over.
    #[cold]
    fn sweep_holds(&mut self, count: usize, now_us: i64) {
        for _ in 0..count {
            let Some((cell, is_last)) = self.next_at_hand() else {
                return;
            };
            if self.is_hold(cell) {
                if self.forget_us(cell) <= now_us {
                    self.forget(cell);
                    self.journal.commit();
                } else {
                    self.pass(cell);
                }
            }
            if is_last {
                self.end_round();
            }
            if is_last || self.damaged.get() {
                return;
            }
        }
    }

    /// The cell at the hand, which then moves to the next one, and whether it is the last of a round.
    #[inline]
    fn next_at_hand(&mut self) -> Option<(u32, bool)> {
        let (hand, chunks) = halves(self.journal.word(HAND));
        let cell = if hand == 0 { self.first_cell()? } else { hand };
        let next = self.next_cell(cell).unwrap_or(0);
        self.journal.set(HAND, word_of(next, chunks));
        Some((cell, next == 0))
    }

    /// Record that the hand passes a hold that stays.
    #[inline]
    fn pass(&mut self, cell: u32) {
        let (forget_us, passed) = (self.forget_us(cell) as u64, self.journal.word(PASSED));
        if passed == 0 || forget_us < passed {
            self.journal.set(PASSED, forget_us);
        }
    }

    /// Begin a new round: the hand has passed all cells; the moments of some may have changed since.
    fn end_round(&mut self) {
        let passed = self.journal.word(PASSED);
        self.journal.set(SOONEST, if passed == 0 { 0 } else { passed | STALE });
        self.journal.set(PASSED, 0);
    }

    /// Forget a hold, and free its places; takes effect when committed.
    pub(super) fn forget(&mut self, cell: u32) {
        let Some(mut record) = self.read_hold(cell) else {
            return;
        };
        let (own, was_settled) = (record.weight() as u32, u32::from(record.settled));
        if !self.is_found_by_cell(cell) {
            self.remove_leaf(Trie::Holds, self.hash_of(Trie::Holds, cell), cell);
        }
        record.expand();
        for held in record.share().map_or(&[][..], |share| &share.limits) {
            if !self.is(held.key, Kind::Key) {
                continue;
            }
            if held.in_flight {
                let lease = Lease { until: record.until_us, number: u64::from(cell), places: held.cost() };
                self.remove_lease(held.key, lease);
            }
            if !self.release_key(held.key) {
                self.remove_leaf(Trie::Keys, self.cell(held.key, TAG), held.key);
                self.drop_cell(held.key);
            }
        }
        self.mark_soonest_stale(cell);
        self.drop_hold(cell);
        let (weight, settled) = halves(self.journal.word(HELD));
        self.write_words(HELD, [word_of(weight.wrapping_sub(own), settled.wrapping_sub(was_settled))]);
    }

    /// Count one hold fewer of a key; returns whether there are others.
    #[inline]
    pub(super) fn release_key(&mut self, key: u32) -> bool {
        let (kind, remembered) = halves(self.cell(key, KIND));
        self.write_cell(key, KIND, [word_of(kind, remembered.wrapping_sub(1))]);
        remembered > 1
    }

    /// Whether a key has more than one hold.
    #[inline]
    fn has_other_holds(&self, key: u32) -> bool {
        let (kind, remembered) = halves(self.cell(key, KIND));
        kind == Kind::Key as u32 && remembered > 1
    }

    fn soonest(&self) -> i64 {
        (self.journal.word(SOONEST) & !STALE).min(2 * LARGEST as u64) as i64
    }
}
