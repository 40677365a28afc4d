//! The registered limits of a table in the memory of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::encoding::slot::MOST_LIMITS;
use crate::hash::Seed;
use crate::limit::Limit;
use crate::shard::registered::{Definition, Limits, Newest, Registered, TooMany};

/// All limits of a table in the memory of one process. A bound limit is held by its binding; the others can be dropped.
#[derive(Default)]
pub struct Registry {
    limits: RwLock<Vec<Option<Limit>>>,
    known: Mutex<Known>,
}

/// The registered limits with their scopes and texts.
#[derive(Default)]
pub struct Known {
    limits: HashMap<(Box<str>, Limit), (Arc<Registered>, u64)>,
    free: Vec<u32>,
    turn: u64,
    /// How many may be registered before unused ones are searched.
    most: usize,
}

/// The number of limits below which unused ones are not searched.
const FEW_LIMITS: usize = 4096;

impl Registry {
    /// Lock the registered limits, to register one or to drop some.
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Register a limit in a scope, or find it.
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

    /// Forget the limits that no binding holds, and whose numbers are not `named`.
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

    /// Lock the limits for reading, where many of them are needed.
    pub fn lock_limits(&self) -> LockedLimits<'_> {
        LockedLimits(self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Known {
    /// Whether enough are registered to search for unused ones.
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
        self.lock_limits().of(number)
    }
}

/// All limits, locked: no other can be registered meanwhile.
pub struct LockedLimits<'registry>(RwLockReadGuard<'registry, Vec<Option<Limit>>>);

impl LockedLimits<'_> {
    /// One more than the largest number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Limits for LockedLimits<'_> {
    #[inline]
    fn of(&self, number: u32) -> Option<Limit> {
        self.0.get(number as usize).copied().flatten()
    }
}
