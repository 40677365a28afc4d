//! The shards of a zone, and how they are locked.
//!
//! Each has a lock that the system gives on when its holder dies; what the holder left half done is mended by the next
//! one, see `journal`. A shard that no process can have for a quarter of a second is held by one that was stopped: that
//! is told, not waited for, and no other shard is held while waiting for it. From then on this process knows it as out
//! of reach: each decision tries it once and waits no more, until one of them gets it.

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

/// Why a shard cannot be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It has been held for longer than `LONGEST_WAIT`: by a thread of this number, 0 if that is not known.
    Stuck(u32),
    /// What is noted in it makes no sense: a process wrote there that must not.
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
    /// Another thread holds this shard, or this one which must be mended with it.
    Busy(usize),
    /// As in `Unusable`.
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
    /// The file that they lie in.
    pub file: ZoneFile,
    /// The shards, as bits, that this process could not have when it last waited for them.
    out_of_reach: AtomicU64,
}

impl MappedShards {
    /// Those of a mapped zone.
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
            Err(hindrance) => self.lock_later(shard_number, hindrance, &mut Backoff::default()),
        }
    }

    /// Lock several shards.
    ///
    /// While one is waited for, no other is held: a process that is stopped in one stops none in another.
    #[inline(always)]
    pub fn lock_all<'zone>(
        &'zone self,
        shard_numbers: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), Unusable> {
        let mut backoff = Backoff::default();
        while let Err((shard_number, hindrance)) = self.attempt_all(shard_numbers, guards) {
            guards.clear();
            drop(self.lock_later(shard_number, hindrance, &mut backoff)?);
        }
        Ok(())
    }

    /// A shard, unless it takes waiting to have it.
    pub fn try_lock(&self, shard_number: usize) -> Option<Guard<'_>> {
        self.attempt(shard_number).ok()
    }

    /// Try once each shard that was out of reach, or why one still is.
    pub fn probe(&self) -> Result<(), Unusable> {
        let shard_numbers = (0..self.count()).filter(|shard_number| self.is_out_of_reach(*shard_number));
        let hindered = shard_numbers.filter_map(|shard_number| self.lock(shard_number).err()).last(); // each is tried
        hindered.map_or(Ok(()), Err)
    }

    /// A shard that is whole, held; or what has to be waited for first.
    #[inline(always)]
    fn attempt(&self, shard_number: usize) -> Result<Guard<'_>, Hindrance> {
        let held = self.file.map.hold(shard_number).ok_or(Hindrance::Busy(shard_number))?;
        let mut guard = Guard(Shard::on(MappedBacking::new(held, self.file.layout.homes)));
        if !guard.backing.journal.is_whole() {
            self.mend(shard_number, &mut guard)?;
        }
        if self.out_of_reach.load(Relaxed) != 0 {
            self.out_of_reach.fetch_and(!(1 << shard_number), Relaxed);
        }
        Ok(guard)
    }

    /// Lock shards as long as each is to be had at once; else which one is not, and why.
    #[inline(always)]
    fn attempt_all<'zone>(
        &'zone self,
        shard_numbers: &[usize],
        guards: &mut SmallVec<[Guard<'zone>; 4]>,
    ) -> Result<(), (usize, Hindrance)> {
        for shard_number in shard_numbers {
            guards.push(self.attempt(*shard_number).map_err(|hindrance| (*shard_number, hindrance))?);
        }
        Ok(())
    }

    /// Bring to an end, or take back, what a process that died left half done.
    ///
    /// Where a shard that is to be mended too is held, this one is left as it is, and mended later.
    #[cold]
    fn mend(&self, shard_number: usize, guard: &mut Guard<'_>) -> Result<(), Hindrance> {
        let decided = |shard_number| journal::decided(self.file.map.shard_words(shard_number % self.count()));
        let followers = guard.backing.journal.mend(decided).map_err(Hindrance::Damaged)?;
        if followers != 0 {
            // They follow this shard's turn, so they must be whole before it takes another. All come behind it.
            for follower in (shard_number + 1..self.count()).filter(|follower| followers >> follower & 1 != 0) {
                drop(self.attempt(follower)?);
            }
            guard.backing.journal.forget_followers();
        }
        self.file.count(Figure::Mended, 1);
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
                    break Unusable::Stuck(self.file.map.holder(busy));
                }
                Hindrance::Busy(_) => {}
            }
            match self.attempt(shard_number) {
                Ok(guard) => return Ok(guard),
                Err(next) => hindrance = next,
            }
        };
        self.out_of_reach.fetch_or(1 << shard_number, Relaxed);
        Err(unusable)
    }

    fn is_out_of_reach(&self, shard_number: usize) -> bool {
        self.out_of_reach.load(Relaxed) >> shard_number & 1 != 0
    }
}
