//! The holds of a shard in memory: bounded, found by their ids, forgotten in time. Nothing is decided here.

pub mod ids;
pub mod record;
mod settled_order;
pub mod share;
pub mod slab;
pub mod store;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::algorithms::leases::{KeyLeases, Lease};
use crate::holding::ids::Ids;
use crate::holding::record::{Content, ForgottenShare, HoldId, One, Record};
use crate::holding::settled_order::SettledOrder;
use crate::holding::share::Part;
use crate::holding::slab::Slab;
use crate::holding::store::{HeldKey, HoldStore, IdSource, NewHold};

/// The data of one limit on one key while holds of it are remembered.
#[derive(Debug)]
pub struct KeyHolds {
    /// The tag of its state.
    pub tag: u64,
    /// The salt of its limit's scope.
    pub salt: u64,
    /// The total of scaled units that were ever given back.
    pub refunds: i64,
    /// How many holds of it are remembered.
    pub remembered: u32,
    /// Its places in flight.
    pub leases: KeyLeases,
}

/// All holds of a shard.
#[derive(Debug)]
pub struct Holds {
    records: Slab<Record>,
    ids: Ids,
    keys: Slab<KeyHolds>,
    by_tag: HashMap<u64, u32, BuildHasherDefault<TagHasher>>,
    weight: usize,
    /// How many of the parts the table's count includes.
    pub counted: usize,
    settled: SettledOrder,
    /// Where the next sweep begins.
    cursor: u32,
    /// No hold is forgotten before this moment.
    soonest_us: i64,
    /// The hold last found to be the first to be forgotten; valid as long as it is forgotten at `soonest_us`.
    first: u32,
    /// The earliest such moment of the holds that the sweep has passed.
    passed_us: i64,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            records: Slab::default(),
            ids: Ids::default(),
            keys: Slab::default(),
            by_tag: HashMap::default(),
            weight: 0,
            counted: 0,
            settled: SettledOrder::default(),
            cursor: 0,
            soonest_us: i64::MAX,
            first: 0,
            passed_us: i64::MAX,
        }
    }
}

impl Holds {
    /// The number of parts of all holds.
    #[inline]
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Whether no hold is remembered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.weight == 0
    }

    /// The bytes that the holds take.
    pub fn bytes(&self) -> usize {
        let tags = self.by_tag.capacity() * size_of::<(u64, u32)>();
        self.records.bytes() + self.settled.bytes() + self.keys.bytes() + self.ids.bytes() + tags
    }

    /// Visit a few holds, and forget those whose time is over.
    #[inline]
    pub fn tidy(&mut self, now_us: i64) {
        if now_us >= self.soonest_us {
            self.sweep(TIDY, now_us);
        }
    }

    /// Forget all holds whose time is over; if there is none, and `forget_settled`, the one that was settled first.
    #[cold]
    pub fn make_room(&mut self, now_us: i64, forget_settled: bool) {
        let before = self.weight;
        if now_us >= self.soonest_us {
            self.sweep(self.records.places() - self.cursor.min(self.records.places()), now_us);
            self.sweep(self.records.places(), now_us);
        }
        if self.weight < before || !forget_settled {
            return;
        }
        if let Some(number) = self.settled.first() {
            self.forget(number);
        }
    }

    /// When the first hold is forgotten; None where there is none.
    ///
    /// All holds are visited where the one that was first has changed, or was forgotten.
    #[cold]
    pub fn soonest_us(&mut self) -> Option<i64> {
        let is_soonest = |record: &Record| record.forget_us == self.soonest_us;
        if !self.records.get(self.first).is_some_and(is_soonest) {
            let ends = self.records.iter().map(|(number, record)| (record.forget_us, number));
            (self.soonest_us, self.first) = ends.min()?;
        }
        Some(self.soonest_us)
    }

    /// Visit this many places, starting where the last sweep ended, and forget the holds whose time is over.
    #[cold]
    fn sweep(&mut self, places: u32, now_us: i64) {
        for _ in 0..places {
            if self.cursor >= self.records.places() {
                self.cursor = 0;
                self.soonest_us = std::mem::replace(&mut self.passed_us, i64::MAX);
            }
            let number = self.cursor;
            self.cursor += 1;
            match self.records.get(number).map(|record| record.forget_us) {
                Some(forget_us) if forget_us <= now_us => self.forget(number),
                Some(forget_us) => self.passed_us = self.passed_us.min(forget_us),
                None => {}
            }
        }
        if self.cursor >= self.records.places() {
            self.cursor = 0;
            self.soonest_us = std::mem::replace(&mut self.passed_us, i64::MAX);
        }
    }

    /// Forget everything.
    pub fn clear(&mut self) {
        *self = Self { counted: self.counted, ..Self::default() };
    }

    /// Mark the numbers of the limits that holds name.
    pub fn note_named(&self, named: &mut [bool]) {
        let mut note = |number: u32| {
            if let Some(named) = named.get_mut(number as usize) {
                *named = true;
            }
        };
        for (_, record) in self.records.iter() {
            match &record.content {
                Content::One(one) => note(one.part.number),
                Content::Many(share) => {
                    share.limits.iter().flat_map(|limit| &limit.parts).for_each(|part| note(part.number));
                }
                Content::Settled(_) => {}
            }
        }
    }

    /// Forget a hold, and free its places.
    pub fn forget(&mut self, number: u32) {
        let Some(record) = self.records.remove(number) else {
            return;
        };
        let (until, own) = (record.until_us, u64::from(number));
        if is_among_ids(&record, number) {
            self.ids.remove(record.id, number);
        }
        self.weight -= record.weight();
        if record.settled {
            self.settled.remove(number);
        }
        match &record.content {
            Content::One(one) => {
                let lease = Lease { until, number: own, places: one.part.cost };
                self.release_hold(one.key, one.in_flight.then_some(lease));
            }
            Content::Many(share) => {
                for limit in &share.limits {
                    let lease = Lease { until, number: own, places: limit.cost() };
                    self.release_hold(limit.key, limit.in_flight.then_some(lease));
                }
            }
            Content::Settled(share) => {
                for (key, _) in &share.limits {
                    self.release_hold(*key, None);
                }
            }
        }
    }

    /// Count one more hold of a key.
    #[inline(always)]
    fn count_hold(&mut self, number: u32) {
        if let Some(key) = self.keys.get_mut(number) {
            key.remembered += 1;
        }
    }

    /// Count one hold fewer of a key, and remove its lease.
    fn release_hold(&mut self, number: u32, lease: Option<Lease>) {
        let Some(key) = self.keys.get_mut(number) else {
            return;
        };
        if let Some(lease) = lease {
            key.leases.take(lease);
        }
        key.remembered -= 1;
        if key.remembered == 0 {
            let tag = key.tag;
            self.by_tag.remove(&tag);
            self.keys.remove(number);
        }
    }
}

impl HoldStore for Holds {
    type Leases<'store> = &'store KeyLeases;

    #[inline(always)]
    fn find(&mut self, id: HoldId, now_us: i64) -> Option<u32> {
        self.find_numbered(id, id.number(), now_us)
    }

    #[inline(always)]
    fn find_numbered(&mut self, id: HoldId, number: u32, now_us: i64) -> Option<u32> {
        let is_it = |number| self.records.get(number).filter(|record| record.id == id);
        let numbered = is_it(number).map(|record| (number, record.forget_us));
        let found = numbered.or_else(|| {
            let number = self.ids.find(id, |number| is_it(number).is_some())?;
            Some((number, is_it(number)?.forget_us))
        });
        let (number, forget_us) = found?;
        if forget_us <= now_us {
            self.forget(number);
            return None;
        }
        Some(number)
    }

    #[inline(always)]
    fn next_id(&self, HoldId(secret): HoldId) -> HoldId {
        HoldId::with_number(self.records.next(), secret)
    }

    #[inline(always)]
    fn open_one(&self, number: u32) -> Option<(Part, u32)> {
        let record = self.records.get(number).filter(|record| !record.settled)?;
        let Content::One(One { part, key, .. }) = record.content else {
            return None;
        };
        Some((part, key))
    }

    fn load(&self, number: u32) -> Option<Record> {
        let mut record = self.records.get(number)?.clone();
        record.expand();
        Some(record)
    }

    fn change(&mut self, number: u32, record: Record) {
        let Some(former) = self.records.get_mut(number) else {
            return;
        };
        self.weight = self.weight - former.weight() + record.weight();
        let (was_settled, is_settled) = (former.settled, record.settled);
        *former = record;
        if is_settled && !was_settled {
            self.settled.add(number);
        }
    }

    /// In place, without a copy.
    fn settle(&mut self, number: u32, loaded: Record, actuals: &[i64], now_us: i64) {
        drop(loaded);
        let Some(record) = self.records.get_mut(number) else {
            return;
        };
        let was_settled = record.settled;
        record.expand();
        let freed = record.settle_share(number, actuals, now_us);
        if !record.named {
            record.shrink();
        }
        if !was_settled {
            self.settled.add(number);
        }
        for (key, lease) in freed {
            self.move_places(key, Some(lease), None);
        }
    }

    #[inline(always)]
    fn settle_one(&mut self, number: u32, actual: i64, given: i64, now_us: i64) {
        let Some(record) = self.records.get_mut(number) else {
            return;
        };
        record.settle(now_us);
        self.settled.add(number);
        if let Content::One(one) = &mut record.content {
            one.actual = actual;
            if given != 0
                && let Some(key) = self.keys.get_mut(one.key)
            {
                key.refunds = key.refunds.saturating_add(given);
            }
        }
    }

    #[inline]
    fn free_one(&mut self, number: u32, actual: i64, now_us: i64) {
        let Some(record) = self.records.get_mut(number) else {
            return;
        };
        let until = record.until_us;
        record.settle(now_us);
        self.settled.add(number);
        if let Content::One(one) = &mut record.content {
            one.actual = actual;
            if std::mem::take(&mut one.in_flight)
                && let Some(key) = self.keys.get_mut(one.key)
            {
                key.leases.take(Lease { until, number: u64::from(number), places: one.part.cost });
            }
        }
    }

    /// Its id contains its number, which finds it.
    #[inline(always)]
    fn add_one(&mut self, held: NewHold, one: One, ids: &impl IdSource) -> (u32, HoldId) {
        let (secret, NewHold { until_us, forget_us }) = (ids.secret(ids.next()), held);
        self.weight += 1;
        self.soonest_us = self.soonest_us.min(forget_us);
        self.passed_us = self.passed_us.min(forget_us);
        self.count_hold(one.key);
        let number = self.records.take();
        let id = HoldId::with_number(number, secret);
        let (settled, at_once, passed, named) = (false, false, false, false);
        let content = Content::One(one);
        self.records.put(number, Record { id, until_us, forget_us, content, settled, at_once, passed, named });
        (number, id)
    }

    #[inline(always)]
    fn add(&mut self, record: Record) -> u32 {
        self.weight += record.weight();
        self.soonest_us = self.soonest_us.min(record.forget_us);
        self.passed_us = self.passed_us.min(record.forget_us);
        match &record.content {
            Content::One(one) => self.count_hold(one.key),
            Content::Many(share) => share.limits.iter().for_each(|limit| self.count_hold(limit.key)),
            Content::Settled(share) => share.limits.iter().for_each(|(key, _)| self.count_hold(*key)),
        }
        let number = self.records.take();
        if is_among_ids(&record, number) {
            self.ids.insert(record.id, number);
        }
        if record.settled {
            self.settled.add(number);
        }
        self.records.put(number, record);
        number
    }

    #[inline(always)]
    fn key(&self, number: u32) -> Option<HeldKey> {
        let KeyHolds { tag, salt, refunds, .. } = *self.keys.get(number)?;
        Some(HeldKey { tag, salt, refunds })
    }

    #[inline(always)]
    fn key_or_new(&mut self, tag: u64, salt: u64) -> u32 {
        if let Some(number) = self.by_tag.get(&tag) {
            return *number;
        }
        let key = KeyHolds { tag, salt, refunds: 0, remembered: 0, leases: KeyLeases::default() };
        let number = self.keys.take();
        self.keys.put(number, key);
        self.by_tag.insert(tag, number);
        number
    }

    fn set_refunds(&mut self, key: u32, refunds: i64) {
        if let Some(key) = self.keys.get_mut(key) {
            key.refunds = refunds;
        }
    }

    fn note_refund(&mut self, tag: u64, given: i64) {
        if let Some(number) = self.by_tag.get(&tag)
            && let Some(key) = self.keys.get_mut(*number)
        {
            key.refunds = key.refunds.saturating_add(given);
        }
    }

    #[inline]
    fn key_number(&self, tag: u64) -> Option<u32> {
        self.by_tag.get(&tag).copied()
    }

    #[inline]
    fn leases_of(&self, key: u32) -> Option<&KeyLeases> {
        Some(&self.keys.get(key)?.leases)
    }

    fn move_places(&mut self, key: u32, former: Option<Lease>, lease: Option<Lease>) {
        if let Some(key) = self.keys.get_mut(key) {
            former.into_iter().for_each(|former| key.leases.take(former));
            lease.into_iter().for_each(|lease| key.leases.add(lease));
        }
    }

    #[inline]
    fn drop_over(&mut self, key: u32, now_us: i64) {
        if let Some(key) = self.keys.get_mut(key) {
            key.leases.drop_over(now_us);
        }
    }

    fn forget_hold(&mut self, number: u32) -> Option<ForgottenShare> {
        let forgotten = self.records.get(number)?.forgotten_share();
        self.forget(number);
        forgotten
    }

    fn forget_tag(&mut self, tag: u64) -> Vec<ForgottenShare> {
        let Some(key) = self.by_tag.get(&tag).copied() else {
            return Vec::new();
        };
        let own = |record: &Record| record.keys().any(|own| own == key);
        let numbers: Vec<u32> =
            self.records.iter().filter(|(_, record)| own(record)).map(|(number, _)| number).collect();
        numbers.into_iter().filter_map(|number| self.forget_hold(number)).collect()
    }
}

/// Whether a hold is in the table of ids: it is named, and its name does not contain its number.
#[inline(always)]
fn is_among_ids(record: &Record, number: u32) -> bool {
    record.named && !record.id.has_number(number)
}

/// How many holds are visited for each new one, so that expired holds do not pile up.
const TIDY: u32 = 4;

/// The identity: tags are keyed hashes already.
#[derive(Default)]
pub struct TagHasher(u64);

impl Hasher for TagHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    #[inline]
    fn write_u64(&mut self, tag: u64) {
        // The shard determines none of the tag's bits, so both ends that `HashMap` uses are random.
        self.0 = tag;
    }
}
