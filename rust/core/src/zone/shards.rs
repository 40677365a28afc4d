//! The shards of a zone, and how they are locked.
//!
//! Each has a lock that the system passes on when its holder dies; what the holder left unfinished is mended by the
//! next one, see `journal`. A shard that cannot be had for a quarter of a second is held by a stopped process: that is
//! an error, and no other shard is held while waiting for it. From then on this process marks it as out of reach: each
//! decision tries it once without waiting, until one of them gets it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use crate::hash::KeyHash;
use crate::shard::registered::TooMany;
use crate::shard::{DamagedState, Shard, home};
use crate::zone::backing::MappedBacking;
use crate::zone::backoff::Backoff;
use crate::zone::file::{Figure, ZoneFile};
use crate::zone::journal;

/// Why a shard cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It has been held for longer than `LONGEST_WAIT`: by a thread of this number, 0 if that is not known.
    Stuck(u32),
    /// Its journal makes no sense: a process wrote where it must not.
    Damaged(&'static str),
    /// The stored state of a key is impossible.
    DamagedState,
    /// A limit whose number was taken back gets no other one.
    Full(TooMany),
}

impl From<DamagedState> for Unusable {
    fn from(_: DamagedState) -> Self {
        Self::DamagedState
    }
}

/// Why a shard cannot be had at this moment.
enum Obstacle {
    /// Another thread holds this shard, or the shard of this number, which must be mended with it.
    Busy(usize),
    /// See `Unusable::Damaged`.
    Damaged(&'static str),
}

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

/// All shards of a zone; a key's hash chooses one.
pub struct MappedShards {
    /// The file they are in.
    pub file: ZoneFile,
    /// The shards, as bits, that this process could not get when it last waited for them.
    out_of_reach: AtomicU64,
}

impl MappedShards {
    /// The shards of a mapped zone.
    pub fn new(file: ZoneFile) -> Self {
        Self { file, out_of_reach: AtomicU64::new(0) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.file.layout.shards.count
    }

    /// The number of a key's shard.
    #[inline(always)]
    pub fn of(&self, key: KeyHash) -> usize {
        // A power of two of shards: the product keeps the highest bits.
        home(key.shard, self.count())
    }

    /// Lock a shard.
    #[inline(always)]
    pub fn lock(&self, shard_number: usize) -> Result<Guard<'_>, Unusable> {
        match self.attempt(shard_number) {
            Ok(guard) => Ok(guard),
            Err(obstacle) => self.lock_later(shard_number, obstacle, &mut Backoff::default()),
        }
    }

    /// Lock several shards.
    ///
    /// While waiting for one, no other is held: a process that is stopped in one shard blocks none in another.
    #[inline(always)]
    pub fn lock_all<'zone>(
        &'zone self,
        shard_numbers: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), Unusable> {
        let mut backoff = Backoff::default();
        while let Err((shard_number, obstacle)) = self.attempt_all(shard_numbers, guards) {
            guards.clear();
            drop(self.lock_later(shard_number, obstacle, &mut backoff)?);
        }
        Ok(())
    }

    /// Lock a shard, unless that takes waiting.
    pub fn try_lock(&self, shard_number: usize) -> Option<Guard<'_>> {
        self.attempt(shard_number).ok()
    }

    /// Try once each shard that was out of reach; the error says why one still is.
    pub fn probe(&self) -> Result<(), Unusable> {
        let shard_numbers = (0..self.count()).filter(|shard_number| self.is_out_of_reach(*shard_number));
        let failed = shard_numbers.filter_map(|shard_number| self.lock(shard_number).err()).last(); // each is tried
        failed.map_or(Ok(()), Err)
    }

    /// Lock a shard and make it consistent; the error says what has to be waited for first.
    #[inline(always)]
    fn attempt(&self, shard_number: usize) -> Result<Guard<'_>, Obstacle> {
        let held = self.file.map.hold(shard_number).ok_or(Obstacle::Busy(shard_number))?;
        let mut guard = Guard(Shard::on(MappedBacking::new(held, self.file.layout.homes)));
        if !guard.backing.journal.is_consistent() {
            self.mend(shard_number, &mut guard)?;
        }
        if self.out_of_reach.load(Relaxed) != 0 {
            self.out_of_reach.fetch_and(!(1 << shard_number), Relaxed);
        }
        Ok(guard)
    }

    /// Lock shards as long as each can be had at once; the error says which one cannot, and why.
    #[inline(always)]
    fn attempt_all<'zone>(
        &'zone self,
        shard_numbers: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), (usize, Obstacle)> {
        for shard_number in shard_numbers {
            guards.push(self.attempt(*shard_number).map_err(|obstacle| (*shard_number, obstacle))?);
        }
        Ok(())
    }

    /// Finish or undo what a process that died left unfinished.
    ///
    /// Where a shard that must be mended too is held, this one is left as it is, and mended later.
    #[cold]
    fn mend(&self, shard_number: usize, guard: &mut Guard<'_>) -> Result<(), Obstacle> {
        let decided = |shard_number| journal::decided(self.file.map.shard_words(shard_number % self.count()));
        let followers = guard.backing.journal.mend(decided).map_err(Obstacle::Damaged)?;
        if followers != 0 {
            // They follow this shard's turn, so they must be consistent before it takes another. All have higher
            // numbers.
            for follower in (shard_number + 1..self.count()).filter(|follower| followers >> follower & 1 != 0) {
                drop(self.attempt(follower)?);
            }
            guard.backing.journal.forget_followers();
        }
        self.file.count(Figure::Mended, 1);
        Ok(())
    }

    /// Lock a shard that cannot be had at once; usually that takes less time than falling asleep.
    #[cold]
    fn lock_later(
        &self,
        shard_number: usize,
        mut obstacle: Obstacle,
        backoff: &mut Backoff,
    ) -> Result<Guard<'_>, Unusable> {
        let unusable = loop {
            match obstacle {
                Obstacle::Damaged(fault) => break Unusable::Damaged(fault),
                Obstacle::Busy(busy) if !backoff.pause(self.is_out_of_reach(shard_number)) => {
                    break Unusable::Stuck(self.file.map.holder(busy));
                }
                Obstacle::Busy(_) => {}
            }
            match self.attempt(shard_number) {
                Ok(guard) => return Ok(guard),
                Err(next) => obstacle = next,
            }
        };
        self.out_of_reach.fetch_or(1 << shard_number, Relaxed);
        Err(unusable)
    }

    fn is_out_of_reach(&self, shard_number: usize) -> bool {
        self.out_of_reach.load(Relaxed) >> shard_number & 1 != 0
    }
}
