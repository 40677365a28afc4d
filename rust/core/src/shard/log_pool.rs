//! Where the entries of sliding logs live: the first ones in the slot itself, more in chains of small blocks.
//!
//! The words of a slot hold up to `IN_SLOT` entries, or name both ends of a chain of blocks that are
//! linked by index. Nothing here is an address: the same layout works in memory that several processes
//! map. Such memory may be damaged: a walk along a chain ends where something is that cannot be, and
//! tells it to a cell that whoever asked looks at.

use std::cell::Cell;

use crate::limit::LARGEST;
use crate::shard::backing::{Backing, Head};

/// Entries of one block.
pub const PER_BLOCK: usize = 7;
const LAST_INDEX: u32 = PER_BLOCK as u32 - 1;
/// The number of no block.
pub const NIL: u32 = u32::MAX;
/// Entries that a slot holds by itself.
pub const IN_SLOT: usize = 2;
/// Bits that each of those has for its cost; an entry of more units goes into a block.
const COST_BITS: usize = 26;
/// The greatest cost of an entry that a slot holds.
pub const LARGEST_IN_SLOT: i64 = (1 << COST_BITS) - 1;

/// (time, cost) in units of the limit.
pub type Entry = (i64, i64);

/// A few entries of one key, and where its next ones are.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Block {
    /// The next block of the chain, or of those that are free.
    pub next: u32,
    /// Oldest first.
    pub entries: [[i64; 2]; PER_BLOCK],
}

impl Block {
    /// A block of no chain.
    pub const EMPTY: Self = Self { next: NIL, entries: [[0, 0]; PER_BLOCK] };
}

/// The place of one entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Position {
    block: u32,
    index: u32,
}

impl Position {
    fn pack(self) -> i64 {
        i64::from(self.block) << 3 | i64::from(self.index)
    }

    fn unpack(word: i64) -> Self {
        Self { block: (word >> 3) as u32, index: (word & 7) as u32 }
    }

    /// The next place of a chain; one that is nowhere if this is.
    fn after(self, blocks: &[Block]) -> Self {
        if self.index < LAST_INDEX {
            Self { index: self.index + 1, ..self }
        } else {
            Self { block: blocks.get(self.block as usize).map_or(NIL, |block| block.next), index: 0 }
        }
    }
}

/// A key's log as a slot stores it.
///
/// Of a chain: the place of the oldest entry, the units of all entries, the place of the newest one. Of
/// entries in the slot: the times of both, and the complement of their costs, which is negative; a cost of 0 is
/// that of no entry.
pub type Chain = [i64; 3];

/// The log of a key without entries.
pub const NO_CHAIN: Chain = [0, 0, -1];

/// The entries that a slot holds by itself, oldest first; behind the last of them come such of cost 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Few([Entry; IN_SLOT]);

impl Few {
    /// The entries in a slot; None where it names a chain.
    #[inline(always)]
    fn read([first, second, costs]: Chain) -> Option<Self> {
        let costs = !costs;
        if costs < 0 {
            return None;
        }
        Some(Self([(first, costs & LARGEST_IN_SLOT), (second, costs >> COST_BITS)]))
    }

    #[inline(always)]
    fn write(self) -> Chain {
        let Self([(first, one), (second, other)]) = self;
        [first, second, !(one | other << COST_BITS)]
    }

    #[inline(always)]
    fn count(self) -> usize {
        self.0.iter().filter(|(_, cost)| *cost != 0).count()
    }

    #[inline(always)]
    fn all(&self) -> &[Entry] {
        &self.0[..self.count()]
    }

    /// Whether some algorithm can have written these.
    #[inline(always)]
    fn is_sound(self) -> bool {
        let Self([(first, one), (second, other)]) = self;
        if other == 0 {
            return second == 0 && (0..=LARGEST).contains(&first) && (one != 0 || first == 0);
        }
        one != 0 && 0 <= first && first < second && second <= LARGEST && other <= LARGEST_IN_SLOT
    }

    /// The log of these; None where there are none.
    #[inline(always)]
    fn log(self) -> Option<Log<Self>> {
        let Self([(first, one), (second, other)]) = self;
        let last = if other == 0 { first } else { second };
        (one != 0).then_some(Log { entries: self, used: one + other, last, shift: 0 })
    }

    /// Without the `gone` oldest.
    #[inline(always)]
    fn without(self, gone: usize) -> Self {
        match gone {
            0 => self,
            1 => Self([self.0[1], (0, 0)]),
            _ => Self::default(),
        }
    }

    /// With one more; None where that has no room here.
    #[inline(always)]
    fn with(self, time: i64, cost: i64) -> Option<Self> {
        let Self([first, second]) = self;
        if first.1 == 0 {
            return (cost <= LARGEST_IN_SLOT).then_some(Self([(time, cost), (0, 0)]));
        }
        let (newest, before) = if second.1 == 0 { (first, None) } else { (second, Some(first)) };
        let merged = newest.0 == time;
        let cost = if merged { newest.1.checked_add(cost)? } else { cost };
        if cost > LARGEST_IN_SLOT {
            return None;
        }
        match (before, merged) {
            (None, true) => Some(Self([(time, cost), (0, 0)])),
            (None, false) => Some(Self([first, (time, cost)])),
            (Some(before), true) => Some(Self([before, (time, cost)])),
            (Some(_), false) => None,
        }
    }
}

impl Iterator for Few {
    type Item = Entry;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        let [oldest, next] = self.0;
        self.0 = [next, (0, 0)];
        (oldest.1 != 0).then_some(oldest)
    }
}

impl Oldest for Few {
    #[inline(always)]
    fn oldest(&self) -> Option<Entry> {
        (self.0[0].1 != 0).then_some(self.0[0])
    }
}

/// What a charge does to a log: the `gone` oldest entries leave, all times move by `shift`, `cost` comes at `time`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charge {
    /// How many of the oldest entries leave.
    pub gone: usize,
    /// What is added to all times.
    pub shift: i64,
    /// When the cost is charged.
    pub time: i64,
    /// How much is charged.
    pub cost: i64,
}

/// The entries of a log, oldest first: those of a slot, those of a chain, or those of either.
pub trait Oldest: Iterator<Item = Entry> + Clone + Default {
    /// The next one, which stays.
    fn oldest(&self) -> Option<Entry>;
}

/// A key's entries, to be read.
pub struct Log<E> {
    /// All stored entries, oldest first.
    pub entries: E,
    /// Units of all stored entries.
    pub used: i64,
    /// The time of the newest entry.
    pub last: i64,
    /// What is added to all stored times, `last` among them.
    pub shift: i64,
}

impl Log<Entries<'_>> {
    /// A log of one entry, which is stored nowhere.
    pub fn of_one(entry: Entry) -> Self {
        let entries = Entries::InSlot(Few([entry, (0, 0)]));
        Self { entries, used: entry.1, last: entry.0, shift: 0 }
    }
}

/// The entries of a log, wherever they are.
#[derive(Clone)]
pub enum Entries<'pool> {
    /// Those that a slot holds.
    InSlot(Few),
    /// Those of a chain.
    InBlocks(Walk<'pool>),
}

impl Default for Entries<'_> {
    #[inline(always)]
    fn default() -> Self {
        Self::InSlot(Few::default())
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        match self {
            Self::InSlot(few) => few.next(),
            Self::InBlocks(walk) => walk.next(),
        }
    }
}

impl Oldest for Entries<'_> {
    #[inline(always)]
    fn oldest(&self) -> Option<Entry> {
        match self {
            Self::InSlot(few) => few.oldest(),
            Self::InBlocks(walk) => walk.oldest(),
        }
    }
}

/// A way along a chain, which ends where that cannot go on.
#[derive(Clone, Default)]
pub struct Walk<'pool> {
    blocks: &'pool [Block],
    at: Position,
    end: Position,
    /// The entry there; one without units behind the last.
    first: Entry,
    /// Units of the entries that are left.
    units: i64,
    /// Whether something was met that cannot be.
    damage: Option<&'pool Cell<bool>>,
}

impl Walk<'_> {
    /// The entry at this place, which is later than `after`.
    #[inline(always)]
    fn look(&self, after: i64) -> Entry {
        let (time, cost) = entry(self.blocks, self.at).unwrap_or_default();
        // The units tell where a chain ends, and times that grow that it does.
        let is_last = self.at == self.end;
        let fits = if is_last { cost == self.units } else { 0 < cost && cost < self.units };
        if fits && after < time && time <= LARGEST {
            return (time, cost);
        }
        self.tell_damage()
    }

    #[cold]
    fn tell_damage(&self) -> Entry {
        if let Some(damage) = self.damage {
            damage.set(true);
        }
        (0, 0)
    }
}

impl Iterator for Walk<'_> {
    type Item = Entry;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        let (time, cost) = self.first;
        if cost == 0 {
            return None;
        }
        self.first = (0, 0);
        if self.at != self.end {
            self.at = self.at.after(self.blocks);
            self.units -= cost;
            self.first = self.look(time);
        }
        Some((time, cost))
    }
}

impl Oldest for Walk<'_> {
    #[inline(always)]
    fn oldest(&self) -> Option<Entry> {
        (self.first.1 != 0).then_some(self.first)
    }
}

/// A key's entries; None where it has none, or where those are `damage`.
#[inline(always)]
pub fn read<'pool>(blocks: &'pool [Block], chain: Chain, damage: &'pool Cell<bool>) -> Option<Log<Entries<'pool>>> {
    if has_blocks(chain) {
        let Log { entries, used, last, shift } = read_chain(blocks, chain, damage)?;
        return Some(Log { entries: Entries::InBlocks(entries), used, last, shift });
    }
    let Log { entries, used, last, shift } = read_slot(chain, damage)?;
    Some(Log { entries: Entries::InSlot(entries), used, last, shift })
}

/// `read` for a log in its slot.
#[inline(always)]
pub fn read_slot(chain: Chain, damage: &Cell<bool>) -> Option<Log<Few>> {
    match Few::read(chain) {
        Some(few) if few.is_sound() => few.log(),
        _ => {
            damage.set(true);
            None
        }
    }
}

/// `read` for a log in blocks.
#[inline(always)]
pub fn read_chain<'pool>(blocks: &'pool [Block], chain: Chain, damage: &'pool Cell<bool>) -> Option<Log<Walk<'pool>>> {
    let [first, used, last] = chain;
    let (at, end) = (Position::unpack(first), Position::unpack(last));
    match entry(blocks, end) {
        Some((last, _)) if (1..=LARGEST).contains(&used) && (0..=LARGEST).contains(&last) => {
            let mut walk = Walk { blocks, at, end, first: (0, 0), units: used, damage: Some(damage) };
            walk.first = walk.look(-1);
            Some(Log { entries: walk, used, last, shift: 0 })
        }
        _ => {
            damage.set(true);
            None
        }
    }
}

/// Whether this log is one of blocks.
#[inline(always)]
pub fn has_blocks(chain: Chain) -> bool {
    chain[2] >= 0
}

/// Whether a charge takes another block than those that the entries which leave give back.
#[inline(always)]
pub fn takes_block(blocks: &[Block], chain: Chain, charge: &Charge) -> bool {
    if let Some(few) = Few::read(chain) {
        let Charge { gone, shift, time, cost } = *charge;
        // Times that are to be moved are as far apart as before.
        return few.without(gone).with(time - shift, cost).is_none();
    }
    let (first, last) = (Position::unpack(chain[0]), Position::unpack(chain[2]));
    let behind = first.index as usize + charge.gone;
    if last.index != LAST_INDEX || behind >= PER_BLOCK {
        return false;
    }
    // The only one that is left goes back into the slot, and its block with it, unless it is too large for that.
    let is_only = first.block == last.block && behind == last.index as usize;
    !(is_only && entry(blocks, last).is_some_and(|(_, cost)| cost <= LARGEST_IN_SLOT))
}

/// The places of all entries of a chain, oldest first, as (block, index); it ends where it leads out of the blocks.
pub fn places(blocks: &[Block], chain: Chain) -> impl Iterator<Item = (u32, usize)> {
    let mut next = has_blocks(chain).then(|| Position::unpack(chain[0]));
    let mut left = blocks.len() * PER_BLOCK;
    std::iter::from_fn(move || {
        let at = next.filter(|at| left > 0 && entry(blocks, *at).is_some())?;
        left -= 1;
        next = (at.pack() != chain[2]).then(|| at.after(blocks));
        Some((at.block, at.index as usize))
    })
}

/// The log of a slot with all times moved by `shift`; None for one of blocks.
pub fn shifted(chain: Chain, shift: i64) -> Option<Chain> {
    let mut few = Few::read(chain)?;
    let count = few.count();
    for (time, _) in &mut few.0[..count] {
        *time += shift;
    }
    Some(few.write())
}

/// `record` for a log in its slot that stays there; None of any other.
#[inline(always)]
pub fn record_in_slot(chain: Chain, charge: &Charge) -> Option<Chain> {
    let Charge { gone, time, cost, .. } = *charge;
    Some(Few::read(chain)?.without(gone).with(time, cost)?.write())
}

/// Do to a log what a charge does, but for moving its times. None where a block is missing that must be there.
///
/// Entries of one instant are merged, so a burst at one microsecond takes one entry.
#[inline(always)]
pub fn record<G: Backing>(backing: &mut G, chain: Chain, charge: &Charge) -> Option<Chain> {
    let Charge { gone, time, cost, .. } = *charge;
    let chain = drop_oldest(backing, chain, gone);
    match Few::read(chain) {
        Some(few) => match few.with(time, cost) {
            Some(few) => Some(few.write()),
            None => spill(backing, &few, (time, cost)),
        },
        None => append(backing, chain, (time, cost)),
    }
}

/// Put one more entry at the end of a chain.
#[inline(always)]
fn append<G: Backing>(backing: &mut G, chain: Chain, (time, cost): Entry) -> Option<Chain> {
    let [first, used, last] = chain;
    let newest = Position::unpack(last);
    let (newest_time, newest_cost) = entry(backing.blocks(), newest)?;
    if newest_time == time {
        put(backing, newest, (time, newest_cost + cost));
        return Some([first, used + cost, last]);
    }
    let mut next = Position { block: newest.block, index: newest.index + 1 };
    if next.index > LAST_INDEX {
        next = Position { block: take_block(backing)?, index: 0 };
        backing.write_link(newest.block, next.block);
    }
    put(backing, next, (time, cost));
    Some([first, used + cost, next.pack()])
}

/// Put the entries of a slot and one more into a block of their own.
#[cold]
fn spill<G: Backing>(backing: &mut G, few: &Few, (time, cost): Entry) -> Option<Chain> {
    let first = Position { block: take_block(backing)?, index: 0 };
    let (mut used, mut next) = (0, first);
    let mut count = few.count();
    for own in few.all() {
        let merged = if own.0 == time { cost } else { 0 };
        put(backing, next, (own.0, own.1 + merged));
        used += own.1 + merged;
        next.index += 1;
    }
    if few.all().last().is_none_or(|newest| newest.0 != time) {
        put(backing, next, (time, cost));
        used += cost;
        count += 1;
    }
    Some([first.pack(), used, Position { index: count as u32 - 1, ..first }.pack()])
}

/// Leave the `kept` oldest entries as they are, and write `moved` over those behind, which were no fewer.
pub fn rewrite<G: Backing>(backing: &mut G, chain: Chain, kept: usize, moved: &[Entry]) -> Chain {
    if let Some(few) = Few::read(chain) {
        let left = few.all().iter().take(kept).chain(moved);
        let few = left.fold(Few::default(), |few, (time, cost)| few.with(*time, *cost).unwrap_or(few));
        return few.write();
    }
    let [first, _, last] = chain;
    let (mut at, end) = (Position::unpack(first), Position::unpack(last));
    let (mut newest, mut used) = (None, 0);
    for number in 0..kept + moved.len() {
        let Some(mut own) = entry(backing.blocks(), at) else {
            break;
        };
        if number >= kept && own != moved[number - kept] {
            own = moved[number - kept];
            put(backing, at, own);
        }
        used += own.1;
        newest = Some(at);
        if at == end {
            break;
        }
        at = at.after(backing.blocks());
    }
    let Some(newest) = newest else {
        release(backing, chain);
        return NO_CHAIN;
    };
    if newest.block != end.block {
        let next = Position { index: LAST_INDEX, ..newest }.after(backing.blocks()).block;
        give_back(backing, next, end.block);
    }
    [first, used, newest.pack()]
}

/// Give back all blocks of a log.
pub fn release<G: Backing>(backing: &mut G, chain: Chain) {
    if has_blocks(chain) {
        give_back(backing, Position::unpack(chain[0]).block, Position::unpack(chain[2]).block);
    }
    if backing.head().held == 0 {
        backing.drop_blocks();
    }
}

/// The log without its oldest entries; blocks that held only those are given back, and one entry goes into the slot.
#[inline(always)]
pub fn drop_oldest<G: Backing>(backing: &mut G, chain: Chain, gone: usize) -> Chain {
    match Few::read(chain) {
        _ if gone == 0 && chain[0] != chain[2] => chain,
        Some(few) => few.without(gone).write(),
        None => drop_some(backing, chain, gone),
    }
}

fn drop_some<G: Backing>(backing: &mut G, chain: Chain, gone: usize) -> Chain {
    let [first, mut used, last] = chain;
    let start = Position::unpack(first);
    let (mut at, mut left) = (start, None);
    for _ in 0..gone {
        let Some((_, cost)) = entry(backing.blocks(), at) else {
            break;
        };
        used -= cost;
        if at.pack() == last {
            give_back(backing, start.block, at.block);
            return NO_CHAIN;
        }
        let next = at.after(backing.blocks());
        if next.block != at.block {
            left = Some(at.block);
        }
        at = next;
    }
    if at.pack() == last
        && let Some((time, cost)) = entry(backing.blocks(), at)
        && let Some(only) = Few::default().with(time, cost)
    {
        give_back(backing, start.block, at.block);
        return only.write();
    }
    if let Some(end) = left {
        give_back(backing, start.block, end);
    }
    [at.pack(), used, last]
}

#[inline(never)]
fn take_block<G: Backing>(backing: &mut G) -> Option<u32> {
    let Head { free, held, .. } = backing.head();
    if free == NIL {
        return backing.take_new_block();
    }
    let next = backing.blocks().get(free as usize)?.next;
    backing.write_free(next, held + 1);
    Some(free)
}

/// Give back the blocks from `first` to `last`, which are linked; those of a chain that is not stay as they are.
fn give_back<G: Backing>(backing: &mut G, first: u32, last: u32) {
    let blocks = backing.blocks();
    let (mut count, mut at) = (1, first);
    while at != last && count as usize <= blocks.len() {
        at = blocks.get(at as usize).map_or(NIL, |block| block.next);
        count += 1;
    }
    if count as usize > blocks.len() || last as usize >= blocks.len() {
        return;
    }
    let Head { free, held, .. } = backing.head();
    backing.write_link(last, free);
    backing.write_free(first, held.saturating_sub(count));
}

fn put<G: Backing>(backing: &mut G, at: Position, entry: Entry) {
    backing.write_entry(at.block, at.index as usize, entry);
}

#[inline(always)]
fn entry(blocks: &[Block], at: Position) -> Option<Entry> {
    let [time, cost] = *blocks.get(at.block as usize)?.entries.get(at.index as usize)?;
    Some((time, cost))
}

/// The entries of a slot, None of a chain; for who looks through what may be damaged. `Err` for what cannot be.
pub fn look_into_slot(chain: Chain) -> Option<Result<usize, ()>> {
    Few::read(chain).map(|few| if few.is_sound() { Ok(few.count()) } else { Err(()) })
}
