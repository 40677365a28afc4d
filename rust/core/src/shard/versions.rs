//! States that were written by another version of their limit, or by a clock once far ahead: reading them in current
//! terms, and converting them for good.

use crate::algorithms::log_view::{LogCharge, LogEntries};
use crate::algorithms::sliding_log::{self, State};
use crate::algorithms::transition::{self, ANY, Numbers, Stored};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::{LARGEST_IN_SLOT, NO_CHAIN};
use crate::encoding::state_check::may_follow;
use crate::limit::{Algorithm, Limit};
use crate::shard::backing::Backing;
use crate::shard::log_reader::Entries;
use crate::shard::registered::{Limits, Registered};
use crate::shard::states::nothing;
use crate::shard::{Place, Shard, log_pool};

impl<B: Backing> Shard<B> {
    /// The stored state at a place, in the terms of `limit`.
    #[inline(always)]
    pub fn stored(&self, place: Place, limit: &Registered, limits: &impl Limits, now_us: i64) -> Stored<Entries<'_>> {
        let Place::Found(index) = place else {
            return Stored::Nothing;
        };
        let slot = &self.backing.slots()[index];
        if !slot.is_of(limit.number()) {
            return self.converted(slot, limit, limits, now_us);
        }
        self.of_slot(slot, &limit.limit)
    }

    /// The stored state in a slot that another version of `limit` wrote.
    #[cold]
    fn converted(&self, slot: &Slot, limit: &Registered, limits: &impl Limits, now_us: i64) -> Stored<Entries<'_>> {
        let Some(former) = self.former_of(slot, limit, limits) else {
            return Stored::Nothing;
        };
        transition::convert(&limit.limit, self.of_slot(slot, &former), now_us, &former)
    }

    /// The version of `limit` that wrote a slot; None where there is no such version, see `check`.
    fn former_of(&self, slot: &Slot, limit: &Registered, limits: &impl Limits) -> Option<Limit> {
        let former = self.limit_of(slot, limits).filter(|former| may_follow(&limit.limit, former));
        self.damage.set(self.damage.get() || former.is_none());
        former
    }

    /// Convert what another version of this limit wrote into the numbers of this one, for good: a wait
    /// that is reported from here on is counted in them. Returns whether there was such a state.
    #[inline(always)]
    pub fn adopt(&mut self, place: Place, limit: &Registered, limits: &impl Limits, now_us: i64) -> bool {
        match place {
            Place::Found(index) if !self.is_written_by(index, limit) => {
                self.adopt_former(place, index, limit, limits, now_us)
            }
            _ => false,
        }
    }

    #[cold]
    fn adopt_former(
        &mut self,
        place: Place,
        index: usize,
        limit: &Registered,
        limits: &impl Limits,
        now_us: i64,
    ) -> bool {
        let former = self.backing.slots()[index];
        let Some(former_limit) = self.former_of(&former, limit, limits) else {
            return false;
        };
        let fields = if former_limit.algorithm != limit.limit.algorithm {
            self.change_kind(&former, limit, &former_limit, now_us)
        } else {
            match self.of_slot(&former, &former_limit) {
                Stored::Entries(log) => {
                    let State { expired, shift, .. } =
                        sliding_log::roll(&former_limit, Some(log), now_us / former_limit.unit_us);
                    if self.damage.get() {
                        return false;
                    }
                    self.shift(place, shift);
                    let chain = self.chain(place);
                    Some(log_pool::drop_oldest(&mut self.backing, chain, expired))
                }
                stored => match transition::convert(&limit.limit, stored, now_us, &former_limit) {
                    Stored::Numbers(numbers) => Some(numbers),
                    _ => Some(nothing(&limit.limit)),
                },
            }
        };
        if let Some(fields) = fields {
            let mut slot = Slot::new(former.tag, fields, limit.number());
            if former.refused() {
                slot.mark_refused();
            }
            self.backing.write_slot(index, slot);
        }
        self.backing.commit();
        true
    }

    /// Bring a state to the present that a clock once far ahead has written, for good: else its wait would never end.
    pub fn to_present(&mut self, place: Place, limit: &Registered, now_us: i64) {
        let Place::Found(index) = place else {
            return;
        };
        let slot = self.backing.slots()[index];
        if !slot.is_of(limit.number()) {
            return;
        }
        match transition::roll::<_, ANY>(&limit.limit, self.of_slot(&slot, &limit.limit), now_us) {
            transition::State::Numbers(numbers) => {
                if transition::was_moved(&limit.limit, slot.fields(), numbers) {
                    self.write_fields(index, numbers);
                    self.backing.commit();
                }
            }
            transition::State::Entries(State { expired, shift, .. }) => {
                if shift != 0 && !self.damage.get() {
                    self.shift(place, shift);
                    let chain = self.chain(place);
                    let chain = log_pool::drop_oldest(&mut self.backing, chain, expired);
                    self.write_fields(index, chain);
                    self.backing.commit();
                }
            }
        }
    }

    /// What a slot is to hold whose limit was one kind of sliding window and is now the other; the log that it held
    /// is given back.
    fn change_kind(&mut self, slot: &Slot, limit: &Registered, former: &Limit, now_us: i64) -> Option<Numbers> {
        let fields = match transition::convert(&limit.limit, self.of_slot(slot, former), now_us, former) {
            Stored::Nothing => Some(nothing(&limit.limit)),
            Stored::Numbers(numbers) => Some(numbers),
            Stored::Entries(log) => log.entries.oldest().and_then(|(time, cost)| {
                let charge = LogCharge { time, cost, ..LogCharge::default() };
                // An entry too large for a slot, with no block left for it: so much refuses all that it could.
                let least = LogCharge { cost: cost.min(LARGEST_IN_SLOT), ..charge };
                log_pool::record(&mut self.backing, NO_CHAIN, &charge)
                    .or_else(|| log_pool::record(&mut self.backing, NO_CHAIN, &least))
            }),
        };
        if self.damage.get() {
            return None;
        }
        if former.algorithm == Algorithm::SlidingLog {
            log_pool::release(&mut self.backing, slot.fields());
        }
        fields
    }
}
