//! Stripes in a file that all processes of a host map: they share every limit, and outlive every one of them.
//!
//! Each lane is a stripe of fixed size under a lock that the system gives on when its holder dies;
//! what the holder left half done is mended by whoever comes next, see `region`. A lane that no
//! process can have for a quarter of a second is held by one that was stopped: that is told, not waited
//! for, and nobody holds another lane while waiting for it. From then on this process knows it as out of
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

use crate::answer::{Check, OnFull};
use crate::catalog::Catalog;
use crate::ground::Ground;
use crate::hash::{KeyHash, Seed};
pub use crate::header::Birth;
use crate::header::{read_header, write_header};
use crate::layout::{FIGURES, Layout, NAMESPACE};
use crate::limit::{Algorithm, Limit};
use crate::locked::Locked;
use crate::memory::prefetch;
use crate::memory::shared::{SharedMap, Taken, Words, set};
use crate::patience::Patience;
use crate::region::{self, MOST_RECORDS, RECORDS_OF_LOG, RECORDS_OF_NUMBERS, Region};
use crate::registry::{Definition, Limits, Newest, Registered, Registration};
use crate::slot::MOST_LIMITS;
use crate::storage::{DamagedState, Full, Stats, Storage, TooMany};
use crate::stripe::{Need, Place, Stripe, home};

/// Slots that a full lane looks at for one new key.
const SWEEP: usize = 32;
/// Places that every new key looks at, so that what has expired does not pile up.
const TIDY: usize = 8;

/// Figures that are counted.
pub(crate) const FIGURE_WORDS: usize = 5;
const EXPIRED: usize = 0;
const FORGOTTEN: usize = 1;
const REFUSED_FULL: usize = 2;
const PASSED_FULL: usize = 3;
/// Lanes that were found half written.
pub(crate) const MENDED: usize = 4;

/// Why a lane cannot be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Somebody has held it for longer than `PATIENCE`: a thread of this number, 0 if that is not known.
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

/// Why a lane is not to be had at this moment.
enum Hindrance {
    /// Somebody holds this lane, or this one which must be mended with it.
    Busy(usize),
    /// As in `Unusable`.
    Damaged(&'static str),
}

/// The storage of a table that all processes of a host share.
pub struct Zone {
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
    lanes: AtomicU64,
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

/// A lane, held.
pub struct Guard<'zone>(Stripe<Region<'zone>>);

impl<'zone> Deref for Guard<'zone> {
    type Target = Stripe<Region<'zone>>;

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

impl Zone {
    /// Make a file of zeroes, as long as the layout says, a zone without states. Nobody else may have it yet.
    pub fn format(file: &File, layout: &Layout, birth: &Birth) -> io::Result<()> {
        let mut map = SharedMap::map(file, layout.size, layout.lanes)?;
        map.init_locks()?;
        for lane in 0..layout.lanes.count {
            if let Some(held) = map.hold(lane) {
                Region::new(held, layout.homes).format();
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
        let mut map = SharedMap::map(file, bytes, layout.lanes)?;
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

    /// A lane that is whole, held; or what has to be waited for first.
    #[inline(always)]
    fn attempt(&self, lane: usize) -> Result<Guard<'_>, Hindrance> {
        let held = self.map.hold(lane).ok_or(Hindrance::Busy(lane))?;
        let mut guard = Guard(Stripe::on(Region::new(held, self.layout.homes)));
        if !guard.ground.is_whole() {
            self.mend(lane, &mut guard)?;
        }
        if self.out_of_reach.lanes.load(Relaxed) != 0 {
            self.out_of_reach.lanes.fetch_and(!(1 << lane), Relaxed);
        }
        Ok(guard)
    }

    /// Bring to an end, or take back, what somebody who died left half done.
    ///
    /// Where somebody holds a lane that is to be mended too, this one is left as it is, and mended later.
    #[cold]
    fn mend(&self, lane: usize, guard: &mut Guard<'_>) -> Result<(), Hindrance> {
        let decided = |lane| region::decided(self.map.lane_words(lane % self.layout.lanes.count));
        let followers = guard.ground.mend(decided).map_err(Hindrance::Damaged)?;
        if followers != 0 {
            // They follow this lane's turn, so they must be whole before it takes another. All come behind it.
            for follower in (lane + 1..self.layout.lanes.count).filter(|lane| followers >> lane & 1 != 0) {
                drop(self.attempt(follower)?);
            }
            guard.ground.forget_followers();
        }
        self.count(MENDED, 1);
        Ok(())
    }

    /// A lane that is not to be had at once: most often it takes less time than it does to fall asleep.
    #[cold]
    fn lock_later(
        &self,
        lane: usize,
        mut hindrance: Hindrance,
        patience: &mut Patience,
    ) -> Result<Guard<'_>, Unusable> {
        let unusable = loop {
            match hindrance {
                Hindrance::Damaged(fault) => break Unusable::Damaged(fault),
                Hindrance::Busy(busy) if !patience.pause(self.is_out_of_reach(lane)) => {
                    break Unusable::Stuck(self.map.holder(busy));
                }
                Hindrance::Busy(_) => {}
            }
            match self.attempt(lane) {
                Ok(guard) => return Ok(guard),
                Err(next) => hindrance = next,
            }
        };
        self.out_of_reach.lanes.fetch_or(1 << lane, Relaxed);
        Err(unusable)
    }

    fn is_out_of_reach(&self, lane: usize) -> bool {
        self.out_of_reach.lanes.load(Relaxed) >> lane & 1 != 0
    }

    /// Try once what was out of reach, or why something still is.
    pub fn probe(&self) -> Result<(), Unusable> {
        let lanes = (0..self.layout.lanes.count).filter(|lane| self.is_out_of_reach(*lane));
        let hindered = lanes.filter_map(|lane| self.lock(lane).err()).last(); // each is tried
        if self.out_of_reach.limits.load(Relaxed) != 0 {
            drop(self.lock_limits()?);
        }
        hindered.map_or(Ok(()), Err)
    }

    /// Lock lanes as long as each is to be had at once; else which one is not, and why.
    #[inline(always)]
    fn attempt_all<'zone>(
        &'zone self,
        lanes: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), (usize, Hindrance)> {
        for lane in lanes {
            guards.push(self.attempt(*lane).map_err(|hindrance| (*lane, hindrance))?);
        }
        Ok(())
    }

    /// Free a place in a full lane for a tag: of an expired key, or of one that the written choice lets go.
    fn free_one(&self, stripe: &mut Guard<'_>, tag: u64, now_us: i64, ours: impl Fn(u64) -> bool) -> Result<(), Full> {
        let swept = stripe.sweep(SWEEP, usize::MAX, self, now_us, ours);
        self.count(EXPIRED, swept.expired as u64);
        if !stripe.can_take(tag, 1)
            && self.on_full == OnFull::Forget
            && let Some(victim) = swept.victim
        {
            stripe.forget(victim.tag, self, now_us);
            self.count(FORGOTTEN, 1);
        }
        if stripe.can_take(tag, 1) { Ok(()) } else { Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) }) }
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
        for lane in 0..self.layout.lanes.count {
            let expired = self.lock(lane)?.tidy(&newest, self, now_us, &mut named);
            self.count(EXPIRED, expired as u64);
        }
        catalog.numbers().filter(|number| !named[*number as usize]).for_each(|number| catalog.retire(number));
        named.fill(false);
        for lane in 0..self.layout.lanes.count {
            self.lock(lane)?.note_named(&mut named);
        }
        for number in catalog.numbers().filter(|number| !named[*number as usize]) {
            catalog.free_retired(number);
        }
        Ok(())
    }

    fn lock_limits(&self) -> Result<Taken<'_>, Unusable> {
        let mut patience = Patience::default();
        let mut taken = self.map.take();
        while taken.is_none() && patience.pause(self.out_of_reach.limits.load(Relaxed) != 0) {
            taken = self.map.take();
        }
        self.out_of_reach.limits.store(u64::from(taken.is_none()), Relaxed);
        taken.ok_or_else(|| Unusable::Stuck(self.map.holder_of_limits()))
    }
}

impl Limits for Zone {
    fn of(&self, number: u32) -> Option<Limit> {
        self.catalog().limit(number)
    }
}

impl Storage for Zone {
    type Ground<'zone> = Region<'zone>;
    type Guard<'zone> = Guard<'zone>;
    type Error = Unusable;

    fn lanes(&self) -> usize {
        self.layout.lanes.count
    }

    #[inline(always)]
    fn lane_of(&self, key: KeyHash) -> usize {
        // A power of two of lanes: the product keeps the highest bits.
        home(key.stripe, self.layout.lanes.count)
    }

    #[inline(always)]
    fn lock(&self, lane: usize) -> Result<Guard<'_>, Unusable> {
        match self.attempt(lane) {
            Ok(guard) => Ok(guard),
            Err(hindrance) => self.lock_later(lane, hindrance, &mut Patience::default()),
        }
    }

    /// While one lane is waited for, no other is held: who is stopped in one stops nobody in another.
    #[inline(always)]
    fn lock_all<'zone>(&'zone self, lanes: &[usize], guards: &mut SmallVec<[Guard<'zone>; 4]>) -> Result<(), Unusable> {
        let mut patience = Patience::default();
        while let Err((lane, hindrance)) = self.attempt_all(lanes, guards) {
            guards.clear();
            drop(self.lock_later(lane, hindrance, &mut patience)?);
        }
        Ok(())
    }

    #[inline(always)]
    fn fetch(&self, check: &Check) {
        let lane = self.lane_of(check.key);
        prefetch(self.map.slot_place(lane, home(check.tag(), self.layout.homes)));
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
        locked: &mut Locked<'_, Self>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full> {
        let Locked { guards, spots } = locked;
        let spot = spots[index];
        let stripe = &mut guards[spot.guard];
        let ours = |tag| spots.iter().any(|spot| spot.tag == tag);
        let limit = &check.limit.limit;
        if stripe.find(spot.tag) == Place::Absent {
            self.count(EXPIRED, stripe.sweep(TIDY, TIDY, self, now_us, ours).expired as u64);
            if !stripe.can_take(spot.tag, 1) {
                self.free_one(stripe, spot.tag, now_us, ours)?;
            }
            stripe.put_nothing(spot.tag, check.limit);
        }
        if stripe.needs_block(stripe.find(spot.tag), limit, &need) {
            let swept = stripe.sweep(SWEEP, usize::MAX, self, now_us, ours);
            self.count(EXPIRED, swept.expired as u64);
            if stripe.needs_block(stripe.find(spot.tag), limit, &need) {
                return Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) });
            }
        }
        Ok(())
    }

    fn drop_reserved(&self, locked: &mut Locked<'_, Self>, now_us: i64) {
        let Locked { guards, spots } = locked;
        for spot in spots {
            guards[spot.guard].drop_nothing(spot.tag, self, now_us);
        }
    }

    #[inline(always)]
    fn begin(&self, locked: &mut Locked<'_, Self>) {
        if locked.guards.len() > 1 {
            lead(locked);
        }
    }

    #[inline(always)]
    fn commit(&self, locked: &mut Locked<'_, Self>) {
        if let [only] = &mut locked.guards[..] {
            only.ground.commit();
        } else {
            decide(locked);
        }
    }

    /// No turn was decided, so a follower whose charges are still noted would take them back as well.
    #[cold]
    fn take_back(&self, locked: &mut Locked<'_, Self>) {
        for guard in locked.guards.iter_mut().rev() {
            guard.ground.take_back();
        }
    }

    #[inline(always)]
    fn settle(&self, _lane: usize, _stripe: &mut Guard<'_>) {}

    fn count_refused(&self) {
        self.count(REFUSED_FULL, 1);
    }

    fn count_passed(&self) {
        self.count(PASSED_FULL, 1);
    }

    fn stats(&self) -> Result<Stats, Unusable> {
        let [expired, evicted, refused_full, passed_full, _] =
            self.figures().each_ref().map(|figure| figure.load(Relaxed));
        let keys = (0..self.layout.lanes.count)
            .map(|lane| region::used(self.map.lane_words(lane), self.layout.lanes.slots))
            .sum();
        Ok(Stats { keys, bytes: self.layout.size, expired, evicted, refused_full, passed_full })
    }
}

/// The lowest lane of a decision leads, the others follow: all charges count together.
fn lead(locked: &mut Locked<'_, Zone>) {
    let lane_of_guard = lanes_of_guards(locked);
    let followers = lane_of_guard[1..].iter().fold(0, |bits, lane| bits | 1 << lane);
    let turn = locked.guards[0].ground.lead(lane_of_guard[0], followers);
    for guard in &mut locked.guards[1..] {
        guard.ground.follow(lane_of_guard[0], turn);
    }
}

fn decide(locked: &mut Locked<'_, Zone>) {
    let [leader, followers @ ..] = &mut locked.guards[..] else {
        return;
    };
    leader.ground.decide();
    for follower in followers {
        follower.ground.commit();
    }
    leader.ground.commit();
}

fn lanes_of_guards(locked: &Locked<'_, Zone>) -> Vec<usize> {
    let mut lanes = vec![0; locked.guards.len()];
    for spot in &locked.spots {
        lanes[spot.guard] = spot.lane;
    }
    lanes
}
