//! The effect of settling a hold on a state: computed first, as all its limits are settled or none, and then written.

use crate::algorithms::log_view::{Entry, LogCharge, Marked};
use crate::algorithms::sliding_log::{self, Settled};
use crate::algorithms::transition::{self, ANY, Numbers, Stored};
use crate::encoding::block::{Position, entry};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::{Chain, NO_CHAIN, has_blocks};
use crate::holding::share::Part;
use crate::limit::{Algorithm, LARGEST, Limit};
use crate::shard::backing::Backing;
use crate::shard::log_reader::Entries;
use crate::shard::registered::Limits;
use crate::shard::states::nothing;
use crate::shard::{Place, Shard, log_pool};

/// How a state is settled.
pub struct Settling {
    /// The numbers that the state is in, by the number of the limit that wrote it.
    pub limit: Limit,
    /// The number of the limit.
    pub number: u32,
    /// How many units more are charged; below 0, how many fewer.
    pub change: i64,
    /// The state as it is to be; None of a log.
    pub numbers: Option<Numbers>,
    /// The total of what was given back on the key, this settlement included.
    pub refunds: i64,
}

impl Settling {
    /// Whether a part was charged in numbers that count like those of the state.
    #[inline(always)]
    fn counts(&self, part: &Part, limits: &impl Limits) -> bool {
        part.number == self.number
            || limits.of(part.number).is_some_and(|own| transition::counts_alike(&own, &self.limit))
    }

    /// The mark of the last part, if it counts.
    #[inline(always)]
    fn mark_of_last(&self, parts: &[Part], limits: &impl Limits) -> Option<Marked> {
        parts.last().filter(|part| self.counts(part, limits)).map(|part| part.marked)
    }
}

impl<B: Backing> Shard<B> {
    /// How to settle a state on which a hold has these parts, the last of them charged under `own`; None where the debt
    /// passes exact arithmetic. Nothing is changed.
    ///
    /// A state stays in its numbers. Unused units are given back starting with the last part, missing ones are charged
    /// to the last part, as far as their numbers count alike.
    #[inline]
    #[allow(clippy::too_many_arguments)] // the data of a state and of a hold on it
    pub fn settling(
        &self,
        place: Place,
        own: &Limit,
        parts: &[Part],
        change: i64,
        refunds: i64,
        limits: &impl Limits,
        now_us: i64,
    ) -> Option<Settling> {
        let number = parts.last()?.number;
        let mut settling = Settling { limit: *own, number, change, numbers: None, refunds };
        let slot = match place {
            Place::Found(index) => Some(&self.backing.slots()[index]),
            Place::Absent => None,
        };
        if let Some(slot) = slot
            && !slot.is_of(number)
        {
            settling.number = slot.limit();
            settling.limit = self.limit_of(slot, limits)?;
        }
        let stored = slot.map_or(Stored::Nothing, |slot| self.of_slot(slot, &settling.limit));
        if settling.limit.algorithm == Algorithm::SlidingLog {
            let used = if let Stored::Entries(log) = &stored { log.used } else { 0 };
            return (used.saturating_add(change) <= LARGEST).then_some(settling);
        }
        let stored = if let Stored::Numbers(numbers) = stored { Some(numbers) } else { None };
        let mut numbers = transition::roll_numbers::<ANY>(&settling.limit, stored, now_us);
        if change >= 0 {
            let marked = settling
                .mark_of_last(parts, limits)
                .unwrap_or_else(|| transition::mark(&settling.limit, numbers, now_us));
            numbers = transition::settle(&settling.limit, numbers, now_us, marked, change, 0).0;
        } else {
            let mut left = -change;
            for part in parts.iter().rev() {
                let unused = left.min(part.cost);
                left -= unused;
                if settling.counts(part, limits) {
                    let refunded = settling.refunds.saturating_sub(part.refunds);
                    let settled = transition::settle(&settling.limit, numbers, now_us, part.marked, -unused, refunded);
                    numbers = settled.0;
                    settling.refunds = settling.refunds.saturating_add(settled.1);
                }
            }
        }
        settling.numbers = Some(numbers);
        (change <= 0 || transition::fits(&settling.limit, numbers)).then_some(settling)
    }

    /// The number of the limit that wrote the state at a place; None where there is no state.
    #[inline]
    pub fn number_at(&self, place: Place) -> Option<u32> {
        match place {
            Place::Found(index) => Some(self.backing.slots()[index].limit()),
            Place::Absent => None,
        }
    }

    /// Whether there is a state at a place, in other numbers than those of the limit of this number.
    #[inline(always)]
    pub fn has_other_numbers(&self, place: Place, number: u32) -> bool {
        matches!(place, Place::Found(index) if !self.backing.slots()[index].is_of(number))
    }

    /// Write the state of a log that was settled.
    #[cold]
    pub fn settle_log(&mut self, index: usize, settling: &Settling, parts: &[Part], limits: &impl Limits, now_us: i64) {
        let limit = &settling.limit;
        let now = transition::unit_time(limit, now_us);
        if settling.change > 0 {
            let marked = settling.mark_of_last(parts, limits).unwrap_or_else(|| {
                let stored = self.of_slot(&self.backing.slots()[index], limit);
                let log = if let Stored::Entries(log) = stored { Some(log) } else { None };
                sliding_log::mark(limit, &sliding_log::roll(limit, log, now), now)
            });
            self.settle_entry(index, limit, now, marked, settling.change);
            return;
        }
        let mut left = -settling.change;
        for part in parts.iter().rev() {
            let unused = left.min(part.cost);
            left -= unused;
            if unused > 0 && settling.counts(part, limits) {
                self.settle_entry(index, limit, now, part.marked, -unused);
            }
        }
    }

    /// Change the units of the entry of one moment.
    fn settle_entry(&mut self, index: usize, limit: &Limit, now: i64, marked: Marked, change: i64) {
        let slot = self.backing.slots()[index];
        let log = match self.of_slot(&slot, limit) {
            Stored::Entries(log) => Some(log),
            _ => None,
        };
        let state = sliding_log::roll(limit, log, now);
        let Some(settled) = sliding_log::settle(limit, &state, now, marked, change, 0).filter(|_| state.shift == 0)
        else {
            return;
        };
        if settled.before == settled.after || self.damage.get() {
            return;
        }
        let chain = slot.fields();
        let changed = if has_blocks(chain) && settled.before > 0 && settled.after > 0 {
            self.change_units(chain, &settled)
        } else {
            self.rewrite_entries(&slot, limit, &settled)
        };
        self.write_fields(index, changed);
    }

    /// Give an entry of a chain other units.
    fn change_units(&mut self, chain: Chain, settled: &Settled) -> Chain {
        let [first, used, last] = chain;
        let mut at = Position::unpack(first);
        for _ in 0..settled.older {
            at = at.after(self.backing.blocks());
        }
        if entry(self.backing.blocks(), at) == Some((settled.time, settled.before)) {
            self.backing.write_entry(at.block, at.index as usize, (settled.time, settled.after));
        }
        [first, used + settled.after - settled.before, last]
    }

    /// Remove or add an entry of a log, or rewrite it in its slot; unchanged where no block is free for another entry.
    fn rewrite_entries(&mut self, slot: &Slot, limit: &Limit, settled: &Settled) -> Chain {
        let chain = slot.fields();
        let entries = match self.of_slot(slot, limit) {
            Stored::Entries(log) => log.entries,
            _ => Entries::default(),
        };
        let taken = usize::from(settled.before > 0);
        if has_blocks(chain) {
            let behind = entries.skip(settled.older + taken).count();
            if settled.after == 0 {
                return log_pool::take_out(&mut self.backing, chain, settled.older, behind, settled.before);
            }
            return log_pool::put_in(&mut self.backing, chain, settled.older, behind, (settled.time, settled.after));
        }
        let mut all: Vec<Entry> = entries.collect();
        let own = (settled.after > 0).then_some((settled.time, settled.after));
        all.splice(settled.older..settled.older + taken, own);
        let rewritten = all.iter().try_fold(NO_CHAIN, |chain, (time, cost)| {
            let charge = LogCharge { time: *time, cost: *cost, ..LogCharge::default() };
            log_pool::record(&mut self.backing, chain, &charge)
        });
        rewritten.unwrap_or(chain)
    }

    /// Put a slot for a missing state, as it is before it is settled; `can_take` has checked that there is room.
    pub fn put_unsettled(&mut self, tag: u64, settling: &Settling) {
        self.insert(Slot::new(tag, nothing(&settling.limit), settling.number));
    }
}
