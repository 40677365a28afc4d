//! Shards in a file that all processes of a host map: they share every limit, and outlive every one of them.
//!
//! Each shard has a fixed size, and a lock that the system gives on when its holder dies;
//! what the holder left half done is mended by whoever comes next, see `zone::backing`. A shard that no
//! process can have for a quarter of a second is held by one that was stopped: that is told, not waited
//! for, and nobody holds another shard while waiting for it. From then on this process knows it as out of
//! reach: each decision tries it once and waits no more, until one of them gets it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::encoding::slot::MOST_LIMITS;
use crate::hash::{KeyHash, Seed};
use crate::limit::{Algorithm, Limit};
use crate::memory::prefetch;
use crate::memory::shared::{SharedMap, Taken, Words, set};
use crate::process::registry::{Definition, Limits, Newest, Registered, Registration};
use crate::shard::backing::Backing;
use crate::shard::{Need, Place, Shard, home};
use crate::table::answer::{Check, OnFull};
use crate::table::storage::{DamagedState, Full, Stats, Storage, TooMany};
use crate::table::transaction::Transaction;
use crate::zone::backing::{self, MOST_RECORDS, MappedBacking, RECORDS_OF_LOG, RECORDS_OF_NUMBERS};
use crate::zone::backoff::Backoff;
use crate::zone::catalog::Catalog;
pub use crate::zone::header::Birth;
use crate::zone::header::{read_header, write_header};
use crate::zone::layout::{FIGURES, Layout, NAMESPACE};

/// Slots that a full shard looks at for one new key.
const SWEEP: usize = 32;
/// Places that every new key looks at, so that what has expired does not pile up.
const TIDY: usize = 8;

/// Figures that are counted.
pub(crate) const FIGURE_WORDS: usize = 5;
const EXPIRED: usize = 0;
const FORGOTTEN: usize = 1;
const REFUSED_FULL: usize = 2;
const PASSED_FULL: usize = 3;
/// Shards that were found half written.
pub(crate) const MENDED: usize = 4;

/// Why a shard cannot be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Somebody has held it for longer than `LONGEST_WAIT`: a thread of this number, 0 if that is not known.
    Stuck(u32),
    /// What is noted in it makes no sense: somebody wrote there who must not.
    Damaged(&'static str),
    /// What it holds of a key cannot be.
    DamagedState,
    /// A limit whose number was taken back gets no other one.
    Full(TooMany),
}

impl From<DamagedState> for Unusable {
    fn from(_: DamagedState) -> Self {
        Self::DamagedState
    }
}

/// Why a shard is not to be had at this moment.
enum Hindrance {
    /// Somebody holds this shard, or this one which must be mended with it.
    Busy(usize),
    /// As in `Unusable`.
    Damaged(&'static str),
}

/// The storage of a table that all processes of a host share.
pub struct ZoneStorage {
    pub(crate) map: SharedMap,
    pub(crate) layout: Layout,
    birth: Birth,
    on_full: OnFull,
    known: Mutex<KnownHere>,
    out_of_reach: OutOfReach,
}

/// What this process could not have when it last waited for it, so that nobody here waits for it again.
#[derive(Default)]
struct OutOfReach {
    /// As bits.
    shards: AtomicU64,
    /// 1 for the list of limits.
    limits: AtomicU64,
}

/// The names of limits that this process has bound, and when it last found no room for another one.
#[derive(Default)]
struct KnownHere {
    names: HashMap<(u64, Limit), u64>,
    full_since: Option<Instant>,
}

/// How long it is not tried again to make room in a list of limits that was full.
const FULL_FOR: Duration = Duration::from_secs(1);

/// A shard, held.
pub struct Guard<'zone>(Shard<MappedBacking<'zone>>);

impl<'zone> Deref for Guard<'zone> {
    type Target = Shard<MappedBacking<'zone>>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Guard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl ZoneStorage {
    /// Make a file of zeroes, as long as the layout says, a zone without states. Nobody else may have it yet.
    pub fn format(file: &File, layout: &Layout, birth: &Birth) -> io::Result<()> {
        let mut map = SharedMap::map(file, layout.size, layout.shards)?;
        map.init_locks()?;
        for shard_number in 0..layout.shards.count {
            if let Some(held) = map.hold(shard_number) {
                MappedBacking::new(held, layout.homes).format();
            }
        }
        write_header(&map, layout, birth);
        Ok(())
    }

    /// The zone in a file, or why it is none that can be used here.
    ///
    /// `alone` is given by who knows that nobody else uses it: then no lock can be in use, whatever it
    /// says, and those who come later must be of this PID namespace. The kernel tells the death of a
    /// thread by its number, and numbers of two namespaces are not told apart.
    pub fn open(file: &File, on_full: OnFull, alone: Option<u64>) -> io::Result<Result<Self, String>> {
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or_default();
        let (layout, birth) = match read_header(file, bytes)? {
            Ok(header) => header,
            Err(fault) => return Ok(Err(fault)),
        };
        let mut map = SharedMap::map(file, bytes, layout.shards)?;
        if let Some(namespace) = alone {
            map.init_locks()?;
            set(&map.words::<1>(NAMESPACE)[0], namespace);
        }
        Ok(Ok(Self { map, layout, birth, on_full, known: Mutex::default(), out_of_reach: OutOfReach::default() }))
    }

    /// The PID namespace of those who use it.
    pub fn namespace(&self) -> u64 {
        self.map.words::<1>(NAMESPACE)[0].load(Relaxed)
    }

    /// Where everything is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Since when it is, and by which clock and seed.
    pub fn birth(&self) -> &Birth {
        &self.birth
    }

    /// Whether limits can be asked together here, or what is too much.
    pub fn check_fit<'limit>(limits: impl Iterator<Item = &'limit Limit> + Clone) -> Result<(), String> {
        let is_log = |limit: &&Limit| limit.algorithm == Algorithm::SlidingLog;
        let logs = limits.clone().filter(is_log).count();
        let others = limits.clone().count() - logs;
        if logs * RECORDS_OF_LOG + others * RECORDS_OF_NUMBERS > MOST_RECORDS {
            return Err(format!(
                "{others} limits and {logs} sliding logs are asked at once; a zone can charge {MOST_RECORDS} limits, \
                 where a log counts as {RECORDS_OF_LOG}"
            ));
        }
        Ok(())
    }

    /// A shard that is whole, held; or what has to be waited for first.
    #[inline(always)]
    fn attempt(&self, shard_number: usize) -> Result<Guard<'_>, Hindrance> {
        let held = self.map.hold(shard_number).ok_or(Hindrance::Busy(shard_number))?;
        let mut guard = Guard(Shard::on(MappedBacking::new(held, self.layout.homes)));
        if !guard.backing.is_whole() {
            self.mend(shard_number, &mut guard)?;
        }
        if self.out_of_reach.shards.load(Relaxed) != 0 {
            self.out_of_reach.shards.fetch_and(!(1 << shard_number), Relaxed);
        }
        Ok(guard)
    }

    /// Bring to an end, or take back, what somebody who died left half done.
    ///
    /// Where somebody holds a shard that is to be mended too, this one is left as it is, and mended later.
    #[cold]
    fn mend(&self, shard_number: usize, guard: &mut Guard<'_>) -> Result<(), Hindrance> {
        let decided = |shard_number| backing::decided(self.map.shard_words(shard_number % self.layout.shards.count));
        let followers = guard.backing.mend(decided).map_err(Hindrance::Damaged)?;
        if followers != 0 {
            // They follow this shard's turn, so they must be whole before it takes another. All come behind it.
            for follower in
                (shard_number + 1..self.layout.shards.count).filter(|shard_number| followers >> shard_number & 1 != 0)
            {
                drop(self.attempt(follower)?);
            }
            guard.backing.forget_followers();
        }
        self.count(MENDED, 1);
        Ok(())
    }

    /// A shard that is not to be had at once: most often it takes less time than it does to fall asleep.
    #[cold]
    fn lock_later(
        &self,
        shard_number: usize,
        mut hindrance: Hindrance,
        backoff: &mut Backoff,
    ) -> Result<Guard<'_>, Unusable> {
        let unusable = loop {
            match hindrance {
                Hindrance::Damaged(fault) => break Unusable::Damaged(fault),
                Hindrance::Busy(busy) if !backoff.pause(self.is_out_of_reach(shard_number)) => {
                    break Unusable::Stuck(self.map.holder(busy));
                }
                Hindrance::Busy(_) => {}
            }
            match self.attempt(shard_number) {
                Ok(guard) => return Ok(guard),
                Err(next) => hindrance = next,
            }
        };
        self.out_of_reach.shards.fetch_or(1 << shard_number, Relaxed);
        Err(unusable)
    }

    fn is_out_of_reach(&self, shard_number: usize) -> bool {
        self.out_of_reach.shards.load(Relaxed) >> shard_number & 1 != 0
    }

    /// Try once what was out of reach, or why something still is.
    pub fn probe(&self) -> Result<(), Unusable> {
        let shards = (0..self.layout.shards.count).filter(|shard_number| self.is_out_of_reach(*shard_number));
        let hindered = shards.filter_map(|shard_number| self.lock(shard_number).err()).last(); // each is tried
        if self.out_of_reach.limits.load(Relaxed) != 0 {
            drop(self.lock_limits()?);
        }
        hindered.map_or(Ok(()), Err)
    }

    /// Lock shards as long as each is to be had at once; else which one is not, and why.
    #[inline(always)]
    fn attempt_all<'zone>(
        &'zone self,
        shards: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), (usize, Hindrance)> {
        for shard_number in shards {
            guards.push(self.attempt(*shard_number).map_err(|hindrance| (*shard_number, hindrance))?);
        }
        Ok(())
    }

    /// Free a place in a full shard for a tag: of an expired key, or of one that the written choice lets go.
    fn free_one(&self, shard: &mut Guard<'_>, tag: u64, now_us: i64, ours: impl Fn(u64) -> bool) -> Result<(), Full> {
        let swept = shard.sweep(SWEEP, usize::MAX, self, now_us, ours);
        self.count(EXPIRED, swept.expired as u64);
        if !shard.can_take(tag, 1)
            && self.on_full == OnFull::Forget
            && let Some(victim) = swept.victim
        {
            shard.forget(victim.tag, self, now_us);
            self.count(FORGOTTEN, 1);
        }
        if shard.can_take(tag, 1) { Ok(()) } else { Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) }) }
    }

    pub(crate) fn figures(&self) -> &Words<FIGURE_WORDS> {
        self.map.words(FIGURES)
    }

    fn count(&self, figure: usize, more: u64) {
        if more > 0 {
            self.figures()[figure].fetch_add(more, Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn catalog(&self) -> Catalog<'_> {
        Catalog::new(&self.map, &self.layout)
    }

    /// The name of a limit in this zone; where there is no room for another one, some are taken back first.
    fn name(&self, definition: Definition<'_>, salt: u64, now_us: i64) -> Result<Result<u64, TooMany>, Unusable> {
        let limit = definition.limit;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = known.names.get(&(salt, limit)).filter(|name| self.catalog().is_current(**name)) {
            self.catalog().touch(*name as u32 & (MOST_LIMITS as u32 - 1));
            return Ok(Ok(*name));
        }
        let _lock = self.lock_limits()?;
        let add = || self.catalog().add(definition, salt);
        let mut name = self.catalog().find(salt, &limit).map_or_else(add, Ok);
        if name.is_err() && known.full_since.is_none_or(|since| since.elapsed() > FULL_FOR) {
            self.take_back_limits(now_us)?;
            name = add();
            known.full_since = name.is_err().then(Instant::now);
        }
        if let Ok(name) = name {
            if known.names.len() > 2 * self.layout.limits {
                known.names.retain(|_, name| self.catalog().is_current(*name));
            }
            known.names.insert((salt, limit), name);
        }
        Ok(name)
    }

    /// Take back the limits that no slot names. The lock of the limits is held.
    ///
    /// States of former versions of a limit become states of its latest one first, and what has expired goes. What
    /// is then named by none is retired; slots are looked through once more, as one may have been written meanwhile.
    #[cold]
    fn take_back_limits(&self, now_us: i64) -> Result<(), Unusable> {
        let catalog = self.catalog();
        let with_turn = |limit: Registered| {
            let turn = catalog.salt_and_turn(limit.number()).1;
            (Arc::new(limit), turn)
        };
        let newest = Newest::of(catalog.all().into_iter().map(with_turn));
        let mut named = vec![false; self.layout.limits];
        for shard_number in 0..self.layout.shards.count {
            let expired = self.lock(shard_number)?.tidy(&newest, self, now_us, &mut named);
            self.count(EXPIRED, expired as u64);
        }
        catalog.numbers().filter(|number| !named[*number as usize]).for_each(|number| catalog.retire(number));
        named.fill(false);
        for shard_number in 0..self.layout.shards.count {
            self.lock(shard_number)?.note_named(&mut named);
        }
        for number in catalog.numbers().filter(|number| !named[*number as usize]) {
            catalog.free_retired(number);
        }
        Ok(())
    }

    fn lock_limits(&self) -> Result<Taken<'_>, Unusable> {
        let mut backoff = Backoff::default();
        let mut taken = self.map.take();
        while taken.is_none() && backoff.pause(self.out_of_reach.limits.load(Relaxed) != 0) {
            taken = self.map.take();
        }
        self.out_of_reach.limits.store(u64::from(taken.is_none()), Relaxed);
        taken.ok_or_else(|| Unusable::Stuck(self.map.holder_of_limits()))
    }
}

impl Limits for ZoneStorage {
    fn of(&self, number: u32) -> Option<Limit> {
        self.catalog().limit(number)
    }
}

impl Storage for ZoneStorage {
    type Backing<'zone> = MappedBacking<'zone>;
    type Guard<'zone> = Guard<'zone>;
    type Error = Unusable;

    fn shards(&self) -> usize {
        self.layout.shards.count
    }

    #[inline(always)]
    fn shard_of(&self, key: KeyHash) -> usize {
        // A power of two of shards: the product keeps the highest bits.
        home(key.shard, self.layout.shards.count)
    }

    #[inline(always)]
    fn lock(&self, shard_number: usize) -> Result<Guard<'_>, Unusable> {
        match self.attempt(shard_number) {
            Ok(guard) => Ok(guard),
            Err(hindrance) => self.lock_later(shard_number, hindrance, &mut Backoff::default()),
        }
    }

    /// While one shard is waited for, no other is held: who is stopped in one stops nobody in another.
    #[inline(always)]
    fn lock_all<'zone>(
        &'zone self,
        shards: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), Unusable> {
        let mut backoff = Backoff::default();
        while let Err((shard_number, hindrance)) = self.attempt_all(shards, guards) {
            guards.clear();
            drop(self.lock_later(shard_number, hindrance, &mut backoff)?);
        }
        Ok(())
    }

    #[inline(always)]
    fn fetch(&self, check: &Check) {
        let shard_number = self.shard_of(check.key);
        prefetch(self.map.slot_place(shard_number, home(check.tag(), self.layout.homes)));
    }

    fn register(&self, seed: &Seed, definition: Definition<'_>, now_us: i64) -> Registration<Unusable> {
        let salt = seed.salt(definition.scope);
        let name = self.name(definition, salt, now_us)?;
        Ok(name.map(|name| Arc::new(Registered::new(definition, salt, name))))
    }

    #[inline(always)]
    fn is_current(&self, limit: &Registered) -> bool {
        self.catalog().is_current(limit.name())
    }

    #[cold]
    fn renew(&self, _seed: &Seed, limit: &Registered, now_us: i64) -> Result<(), Unusable> {
        if !self.is_current(limit) {
            let name = self.name(limit.definition(), limit.salt, now_us)?;
            limit.rename(name.map_err(Unusable::Full)?);
        }
        Ok(())
    }

    #[inline(always)]
    fn limits(&self) -> &impl Limits {
        self
    }

    fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// A new slot is put in at once, with a state that is the same as none: charging it is then no more
    /// than overwriting it.
    fn reserve(
        &self,
        check: &Check,
        locked: &mut Transaction<'_, Self>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full> {
        let Transaction { guards, locations } = locked;
        let location = locations[index];
        let shard = &mut guards[location.guard];
        let ours = |tag| locations.iter().any(|location| location.tag == tag);
        let limit = &check.limit.limit;
        if shard.find(location.tag) == Place::Absent {
            self.count(EXPIRED, shard.sweep(TIDY, TIDY, self, now_us, ours).expired as u64);
            if !shard.can_take(location.tag, 1) {
                self.free_one(shard, location.tag, now_us, ours)?;
            }
            shard.put_nothing(location.tag, check.limit);
        }
        if shard.needs_block(shard.find(location.tag), limit, &need) {
            let swept = shard.sweep(SWEEP, usize::MAX, self, now_us, ours);
            self.count(EXPIRED, swept.expired as u64);
            if shard.needs_block(shard.find(location.tag), limit, &need) {
                return Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) });
            }
        }
        Ok(())
    }

    fn drop_reserved(&self, locked: &mut Transaction<'_, Self>, now_us: i64) {
        let Transaction { guards, locations } = locked;
        for location in locations {
            guards[location.guard].drop_nothing(location.tag, self, now_us);
        }
    }

    #[inline(always)]
    fn begin(&self, locked: &mut Transaction<'_, Self>) {
        if locked.guards.len() > 1 {
            lead(locked);
        }
    }

    #[inline(always)]
    fn commit(&self, locked: &mut Transaction<'_, Self>) {
        if let [only] = &mut locked.guards[..] {
            only.backing.commit();
        } else {
            decide(locked);
        }
    }

    /// No turn was decided, so a follower whose charges are still noted would take them back as well.
    #[cold]
    fn take_back(&self, locked: &mut Transaction<'_, Self>) {
        for guard in locked.guards.iter_mut().rev() {
            guard.backing.take_back();
        }
    }

    #[inline(always)]
    fn settle(&self, _shard_number: usize, _shard: &mut Guard<'_>) {}

    fn count_refused(&self) {
        self.count(REFUSED_FULL, 1);
    }

    fn count_passed(&self) {
        self.count(PASSED_FULL, 1);
    }

    fn stats(&self) -> Result<Stats, Unusable> {
        let [expired, evicted, refused_full, passed_full, _] =
            self.figures().each_ref().map(|figure| figure.load(Relaxed));
        let keys = (0..self.layout.shards.count)
            .map(|shard_number| backing::used(self.map.shard_words(shard_number), self.layout.shards.slots))
            .sum();
        Ok(Stats { keys, bytes: self.layout.size, expired, evicted, refused_full, passed_full })
    }
}

/// The lowest shard of a decision leads, the others follow: all charges count together.
fn lead(locked: &mut Transaction<'_, ZoneStorage>) {
    let number_of_guard = numbers_of_guards(locked);
    let followers = number_of_guard[1..].iter().fold(0, |bits, shard_number| bits | 1 << shard_number);
    let turn = locked.guards[0].backing.lead(number_of_guard[0], followers);
    for guard in &mut locked.guards[1..] {
        guard.backing.follow(number_of_guard[0], turn);
    }
}

fn decide(locked: &mut Transaction<'_, ZoneStorage>) {
    let [leader, followers @ ..] = &mut locked.guards[..] else {
        return;
    };
    leader.backing.decide();
    for follower in followers {
        follower.backing.commit();
    }
    leader.backing.commit();
}

fn numbers_of_guards(locked: &Transaction<'_, ZoneStorage>) -> Vec<usize> {
    let mut shards = vec![0; locked.guards.len()];
    for location in &locked.locations {
        shards[location.guard] = location.shard_number;
    }
    shards
}
