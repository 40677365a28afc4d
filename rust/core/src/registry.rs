//! The limits that a table has met: each slot names the one that wrote it by a small number.
//!
//! A limit's identity is its scope, not its numbers: two versions of one limit share the salt, and so
//! the states, and differ in their number, so that a state is read in the numbers it was written in.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::hash::Seed;
use crate::limit::Limit;
use crate::slot::MOST_LIMITS;

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

/// All limits of a table, in the order in which it met them. Nothing is ever taken out.
#[derive(Default)]
pub struct Registry {
    limits: RwLock<Vec<Limit>>,
    known: Mutex<HashMap<(String, Limit), Registered>>,
}

impl Registry {
    /// The number and salt of a limit in a scope; None where a table knows too many limits already.
    pub fn register(&self, seed: &Seed, scope: &str, limit: Limit) -> Option<Registered> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (scope.to_owned(), limit);
        if let Some(registered) = known.get(&key) {
            return Some(*registered);
        }
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        if limits.len() == MOST_LIMITS {
            return None;
        }
        let registered = Registered { limit, number: limits.len() as u32, salt: seed.salt(scope) };
        limits.push(limit);
        known.insert(key, registered);
        Some(registered)
    }

    /// The limits by their numbers.
    pub fn limits(&self) -> RwLockReadGuard<'_, Vec<Limit>> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }
}
