//! The storage of a table in a file that all processes of a host map: they share every limit, and the states survive
//! the death of any of them.

use std::fs::File;
use std::io;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::hash::{KeyHash, Seed};
use crate::memory::prefetch;
use crate::memory::shared::{SharedMap, set};
use crate::shard::backing::Backing;
use crate::shard::registered::{Definition, Limits, Registered, Registration};
use crate::shard::states::Need;
use crate::shard::{Place, home};
use crate::table::answer::{Check, OnFull};
use crate::table::storage::{Full, LockedShards, Stats, Storage};
use crate::zone::backing::MappedBacking;
use crate::zone::file::{Figure, ZoneFile};
use crate::zone::header::{Birth, read_header, write_header};
use crate::zone::hold_room::{HoldRoom, settle_holds};
use crate::zone::journal::{self, Journal};
use crate::zone::layout::{Layout, NAMESPACE};
use crate::zone::limits::BoundLimits;
use crate::zone::line_layout::LinePlaces;
use crate::zone::lines::Lines;
use crate::zone::several_shards;
use crate::zone::shards::{Guard, MappedShards, Unusable};

/// How many slots a full shard visits for one new key.
const SWEEP: usize = 32;
/// How many places every new key visits, so that expired states do not pile up.
const TIDY: usize = 8;

/// The storage of a table that all processes of a host share.
pub struct ZoneStorage {
    pub(super) shards: MappedShards,
    limits: BoundLimits,
    lines: Lines,
    birth: Birth,
    on_full: OnFull,
}

impl ZoneStorage {
    /// Turn a file of zeroes, as long as the layout says, into a zone without states. No other process may use it yet.
    pub fn format(file: &File, layout: &Layout, birth: &Birth) -> io::Result<()> {
        let mut map = SharedMap::map(file, layout.size, layout.shards)?;
        map.init_locks()?;
        for shard_number in 0..layout.shards.count {
            if let Some(held) = map.hold(shard_number) {
                Journal::new(held).format();
            }
        }
        write_header(&map, layout, birth);
        Ok(())
    }

    /// The zone in a file, or why it is none that can be used here.
    ///
    /// `alone` is given by a caller that knows that no other process uses it: then no lock can be in use, whatever its
    /// word says, and later processes must be of this PID namespace. The kernel detects the death of a
    /// thread by its number, and numbers of two namespaces cannot be distinguished.
    pub fn open(file: &File, on_full: OnFull, alone: Option<u64>) -> io::Result<Result<Self, String>> {
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or_default();
        let (layout, birth) = match read_header(file, bytes)? {
            Ok(header) => header,
            Err(fault) => return Ok(Err(fault)),
        };
        let mut map = SharedMap::map(file, bytes, layout.shards)?;
        let lines = Lines::new(LinePlaces::new(&layout.shards.lines));
        if let Some(namespace) = alone {
            map.init_locks()?;
            lines.forget_all(&map);
            set(&map.words::<1>(NAMESPACE)[0], namespace);
        }
        let shards = MappedShards::new(ZoneFile { map, layout });
        Ok(Ok(Self { shards, limits: BoundLimits::default(), lines, birth, on_full }))
    }

    /// The PID namespace of the processes that use it.
    pub fn namespace(&self) -> u64 {
        self.shards.file.namespace()
    }

    /// The waiting lines, and the memory they are in.
    #[inline(always)]
    pub fn lines(&self) -> (&Lines, &SharedMap) {
        (&self.lines, &self.shards.file.map)
    }

    /// The layout of the zone.
    pub fn layout(&self) -> &Layout {
        &self.shards.file.layout
    }

    /// The zone's identity: its creation, clock and seed.
    pub fn birth(&self) -> &Birth {
        &self.birth
    }

    /// Try once all locks that were out of reach; the error says why one still is.
    pub fn probe(&self) -> Result<(), Unusable> {
        let probed = self.shards.probe();
        self.limits.probe(&self.shards)?;
        probed
    }

    fn count(&self, figure: Figure, more: usize) {
        self.shards.file.count(figure, more as u64);
    }

    /// Free a place in a full shard for a tag: of an expired key, or of one that may be forgotten (`OnFull::Forget`).
    fn free_one(&self, shard: &mut Guard<'_>, tag: u64, now_us: i64, ours: impl Fn(u64) -> bool) -> Result<(), Full> {
        let swept = shard.sweep(SWEEP, usize::MAX, self.limits(), now_us, ours);
        self.count(Figure::Expired, swept.expired);
        if !shard.can_take(tag, 1, 1)
            && self.on_full == OnFull::Forget
            && let Some(victim) = swept.victim
        {
            shard.forget(victim.tag, self.limits(), now_us);
            self.count(Figure::Evicted, 1);
        }
        if shard.can_take(tag, 1, 1) { Ok(()) } else { Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) }) }
    }
}

impl Storage for ZoneStorage {
    type Backing<'zone> = MappedBacking<'zone>;
    type Guard<'zone> = Guard<'zone>;
    type Error = Unusable;
    const MOST_PARTS_OF_LOG: usize = 20;

    fn shard_count(&self) -> usize {
        self.shards.count()
    }

    #[inline(always)]
    fn shard_of(&self, key: KeyHash) -> usize {
        self.shards.of(key)
    }

    #[inline(always)]
    fn lock(&self, shard_number: usize) -> Result<Guard<'_>, Unusable> {
        self.shards.lock(shard_number)
    }

    #[inline(always)]
    fn lock_all<'zone>(
        &'zone self,
        shard_numbers: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), Unusable> {
        self.shards.lock_all(shard_numbers, guards)
    }

    #[inline(always)]
    fn fetch(&self, check: &Check) {
        let shard_number = self.shard_of(check.key);
        prefetch(self.shards.file.map.slot_place(shard_number, home(check.tag(), self.layout().homes)));
    }

    fn register(&self, seed: &Seed, definition: Definition<'_>, now_us: i64) -> Registration<Unusable> {
        let salt = seed.salt(definition.scope);
        let name = self.limits.name(&self.shards, definition, salt, now_us)?;
        Ok(name.map(|name| Arc::new(Registered::new(definition, salt, name))))
    }

    #[inline(always)]
    fn is_current(&self, limit: &Registered) -> bool {
        self.shards.file.catalog().is_current(limit.name())
    }

    #[cold]
    fn renew(&self, _seed: &Seed, limit: &Registered, now_us: i64) -> Result<(), Unusable> {
        if !self.is_current(limit) {
            let name = self.limits.name(&self.shards, limit.definition(), limit.salt, now_us)?;
            limit.rename(name.map_err(Unusable::Full)?);
        }
        Ok(())
    }

    #[inline(always)]
    fn limits(&self) -> &impl Limits {
        &self.shards.file
    }

    fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// A new slot is put in at once, with a state that is the same as none: charging it is then no more
    /// than overwriting it.
    fn reserve<'zone>(
        &'zone self,
        check: &Check,
        locked: &mut LockedShards<Guard<'zone>>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full> {
        let LockedShards { guards, locations } = locked;
        let location = locations[index];
        let shard = &mut guards[location.guard];
        let ours = |tag| locations.iter().any(|location| location.tag == tag);
        let limit = &check.limit.limit;
        if shard.find(location.tag) == Place::Absent {
            self.count(Figure::Expired, shard.sweep(TIDY, TIDY, self.limits(), now_us, ours).expired);
            if !shard.can_take(location.tag, 1, 1) {
                self.free_one(shard, location.tag, now_us, ours)?;
            }
            shard.put_nothing(location.tag, check.limit);
        }
        if shard.needs_block(shard.find(location.tag), limit, &need) {
            let swept = shard.sweep(SWEEP, usize::MAX, self.limits(), now_us, ours);
            self.count(Figure::Expired, swept.expired);
            if shard.needs_block(shard.find(location.tag), limit, &need) {
                return Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) });
            }
        }
        Ok(())
    }

    fn drop_reserved<'zone>(&'zone self, locked: &mut LockedShards<Guard<'zone>>, now_us: i64) {
        let LockedShards { guards, locations } = locked;
        for location in locations {
            guards[location.guard].drop_nothing(location.tag, self.limits(), now_us);
        }
    }

    #[inline(always)]
    fn begin<'zone>(&'zone self, locked: &mut LockedShards<Guard<'zone>>) {
        if locked.guards.len() > 1 {
            several_shards::begin(locked);
        }
    }

    #[inline(always)]
    fn commit<'zone>(&'zone self, locked: &mut LockedShards<Guard<'zone>>) {
        if let [only] = &mut locked.guards[..] {
            only.backing.commit();
        } else {
            several_shards::commit(locked);
        }
    }

    #[cold]
    fn roll_back<'zone>(&'zone self, locked: &mut LockedShards<Guard<'zone>>) {
        several_shards::roll_back(locked);
    }

    #[inline]
    fn next_id(&self) -> u64 {
        self.shards.file.next(Figure::Ids)
    }

    #[inline]
    fn reserve_hold(&self, shard: &mut Guard<'_>, limits: usize, now_us: i64) -> Result<(), Full> {
        HoldRoom { shards: &self.shards, on_full: self.on_full, now_us }.reserve(shard, limits)
    }

    #[inline(always)]
    fn reserve_one_hold(&self, shard: &mut Guard<'_>, now_us: i64) -> Result<(), Full> {
        HoldRoom { shards: &self.shards, on_full: self.on_full, now_us }.reserve_one(shard)
    }

    #[inline]
    fn settle_holds(&self, shard: &mut Guard<'_>) {
        settle_holds(&self.shards.file, shard);
    }

    #[inline(always)]
    fn settle(&self, _shard_number: usize, _shard: &mut Guard<'_>) {}

    fn count_refused(&self) {
        self.count(Figure::RefusedFull, 1);
    }

    fn count_passed(&self) {
        self.count(Figure::PassedFull, 1);
    }

    fn stats(&self) -> Result<Stats, Unusable> {
        let (file, layout) = (&self.shards.file, self.layout());
        let keys = (0..self.shards.count())
            .map(|shard_number| journal::used(file.map.shard_words(shard_number), layout.shards.slots))
            .sum();
        Ok(Stats {
            keys,
            holds: (0..self.shards.count())
                .map(|shard_number| journal::holds(file.map.shard_words(shard_number)))
                .sum(),
            bytes: layout.size,
            expired: file.figure(Figure::Expired),
            evicted: file.figure(Figure::Evicted),
            refused_full: file.figure(Figure::RefusedFull),
            passed_full: file.figure(Figure::PassedFull),
        })
    }
}
