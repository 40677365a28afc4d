//! The limits that a table has met: each slot names the one that wrote it by a small number.
//!
//! A limit's identity is its scope, not its numbers: two versions of one limit share the salt, and so
//! the states, and differ in their number, so that a state is read in the numbers it was written in.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::hash::Seed;
use crate::limit::Limit;
use crate::slot::MOST_LIMITS;
use crate::storage::TooMany;

/// A limit as a table knows it.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// Its integers.
    pub limit: Limit,
    /// The number that slots name it by.
    pub number: u32,
    /// What its scope adds to the tag of a key.
    pub salt: u64,
}

/// Limits by the numbers that slots name them by.
pub trait Limits {
    /// The limit of a number that a slot names; None where that is the number of none.
    fn of(&self, number: u32) -> Option<Limit>;
}

/// All limits of a table, in the order in which it met them. Nothing is ever taken out.
#[derive(Default)]
pub struct Registry {
    limits: RwLock<Vec<Limit>>,
    known: Mutex<HashMap<(String, Limit), Registered>>,
}

impl Registry {
    /// The number and salt of a limit in a scope.
    pub fn register(&self, seed: &Seed, scope: &str, limit: Limit) -> Result<Registered, TooMany> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (scope.to_owned(), limit);
        if let Some(registered) = known.get(&key) {
            return Ok(*registered);
        }
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        if limits.len() == MOST_LIMITS {
            return Err(TooMany::Limits(MOST_LIMITS));
        }
        let registered = Registered { limit, number: limits.len() as u32, salt: seed.salt(scope) };
        limits.push(limit);
        known.insert(key, registered);
        Ok(registered)
    }

    /// The limits, held: for who needs many of them.
    pub fn hold(&self) -> Held<'_> {
        Held(self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Limits for Registry {
    #[cold]
    fn of(&self, number: u32) -> Option<Limit> {
        self.hold().of(number)
    }
}

/// All limits, while no other can be registered.
pub struct Held<'registry>(RwLockReadGuard<'registry, Vec<Limit>>);

impl Limits for Held<'_> {
    #[inline]
    fn of(&self, number: u32) -> Option<Limit> {
        self.0.get(number as usize).copied()
    }
}
