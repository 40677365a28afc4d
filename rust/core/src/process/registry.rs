//! The limits that a table has met: each slot names the one that wrote it by a small number.
//!
//! A limit's identity is its scope, not its numbers: two versions of one limit share the salt, and so
//! the states, and differ in their number, so that a state is read in the numbers it was written in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::encoding::slot::{MOST_LIMITS, NUMBER_BITS};
use crate::hash::Seed;
use crate::limit::Limit;
use crate::table::storage::TooMany;

/// A limit as it is made known to a table.
#[derive(Clone, Copy)]
pub struct Definition<'text> {
    /// Where it is used.
    pub scope: &'text str,
    /// How people write it.
    pub text: &'text str,
    /// Its integers.
    pub limit: Limit,
}

/// A limit that was made known, or what there is no room for; `E` where the storage itself fails.
pub type Registration<E> = Result<Result<Arc<Registered>, TooMany>, E>;

/// A limit as a table knows it.
#[derive(Debug)]
pub struct Registered {
    /// Its integers.
    pub limit: Limit,
    /// What its scope adds to the tag of a key.
    pub salt: u64,
    /// Where it is used.
    pub scope: Box<str>,
    /// How people write it.
    pub text: Box<str>,
    /// The number that slots name it by, under what tells it from others that had that number.
    name: AtomicU64,
}

impl Registered {
    /// A limit of this name.
    pub fn new(definition: Definition<'_>, salt: u64, name: u64) -> Self {
        let Definition { scope, text, limit } = definition;
        Self { limit, salt, scope: scope.into(), text: text.into(), name: AtomicU64::new(name) }
    }

    /// The number that slots name it by.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.name() as u32 & ((1 << NUMBER_BITS) - 1)
    }

    /// The number, and what tells this limit from others that had it.
    #[inline(always)]
    pub fn name(&self) -> u64 {
        self.name.load(Relaxed)
    }

    /// What it was made known by.
    pub fn definition(&self) -> Definition<'_> {
        Definition { scope: &self.scope, text: &self.text, limit: self.limit }
    }

    /// Call it by another name: the former one was taken back.
    pub fn rename(&self, name: u64) {
        self.name.store(name, Relaxed);
    }
}

/// Limits by the numbers that slots name them by.
pub trait Limits {
    /// The limit of a number that a slot names; None where that is the number of none.
    fn of(&self, number: u32) -> Option<Limit>;
}

/// All limits of a table in the memory of one process. Whoever binds one holds it; the others can be taken back.
#[derive(Default)]
pub struct Registry {
    limits: RwLock<Vec<Option<Limit>>>,
    known: Mutex<Known>,
}

/// What is known of limits beside their integers.
#[derive(Default)]
pub struct Known {
    limits: HashMap<(Box<str>, Limit), (Arc<Registered>, u64)>,
    free: Vec<u32>,
    turn: u64,
    /// So many may be known before those that nobody needs are looked for.
    most: usize,
}

/// Below it nothing is looked for.
const FEW_LIMITS: usize = 4096;

impl Registry {
    /// What is known, for who registers a limit or takes some back.
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A limit in a scope.
    pub fn register(
        &self,
        known: &mut Known,
        seed: &Seed,
        definition: Definition<'_>,
    ) -> Result<Arc<Registered>, TooMany> {
        known.turn += 1;
        let key = (definition.scope.into(), definition.limit);
        if let Some((registered, turn)) = known.limits.get_mut(&key) {
            *turn = known.turn;
            return Ok(Arc::clone(registered));
        }
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let number = match known.free.pop() {
            Some(number) => number,
            None if limits.len() < MOST_LIMITS => {
                limits.push(None);
                limits.len() as u32 - 1
            }
            None => return Err(TooMany::Limits(MOST_LIMITS)),
        };
        limits[number as usize] = Some(definition.limit);
        let registered = Arc::new(Registered::new(definition, seed.salt(definition.scope), u64::from(number)));
        known.limits.insert(key, (Arc::clone(&registered), known.turn));
        Ok(registered)
    }

    /// Forget the limits that nobody holds, and whose numbers are not `named`.
    pub fn forget(&self, known: &mut Known, named: &[bool]) {
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let free = &mut known.free;
        known.limits.retain(|_, (registered, _)| {
            let number = registered.number();
            let stays = Arc::strong_count(registered) > 1 || named.get(number as usize).is_none_or(|named| *named);
            if !stays {
                limits[number as usize] = None;
                free.push(number);
            }
            stays
        });
        known.most = known.limits.len() * 2;
    }

    /// The limits, held: for who needs many of them.
    pub fn hold(&self) -> Held<'_> {
        Held(self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Known {
    /// Whether so many are known that those which nobody needs are to be looked for.
    pub fn is_crowded(&self) -> bool {
        self.limits.len() >= self.most.max(FEW_LIMITS)
    }

    /// The latest version of each limit, by its salt.
    pub fn newest(&self) -> Newest {
        Newest::of(self.limits.values().map(|(registered, turn)| (Arc::clone(registered), *turn)))
    }
}

impl Limits for Registry {
    #[cold]
    fn of(&self, number: u32) -> Option<Limit> {
        self.hold().of(number)
    }
}

/// All limits, while no other can be registered.
pub struct Held<'registry>(RwLockReadGuard<'registry, Vec<Option<Limit>>>);

impl Held<'_> {
    /// One more than the largest number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Limits for Held<'_> {
    #[inline]
    fn of(&self, number: u32) -> Option<Limit> {
        self.0.get(number as usize).copied().flatten()
    }
}

/// The version of each limit that was bound last: by each number of a version.
pub struct Newest(HashMap<u32, Arc<Registered>>);

impl Newest {
    /// Of limits and the turns at which they were last bound.
    pub fn of(limits: impl Iterator<Item = (Arc<Registered>, u64)>) -> Self {
        let mut by_salt: HashMap<u64, Vec<(Arc<Registered>, u64)>> = HashMap::new();
        limits.for_each(|(limit, turn)| by_salt.entry(limit.salt).or_default().push((limit, turn)));
        let mut newest = HashMap::new();
        for versions in by_salt.values().filter(|versions| versions.len() > 1) {
            if let Some((last, _)) = versions.iter().max_by_key(|(_, turn)| *turn) {
                newest.extend(versions.iter().map(|(limit, _)| (limit.number(), Arc::clone(last))));
            }
        }
        Self(newest)
    }

    /// The latest version of the limit of this number, if it is another one.
    pub fn instead_of(&self, number: u32) -> Option<&Registered> {
        self.0.get(&number).map(|limit| &**limit).filter(|limit| limit.number() != number)
    }
}
