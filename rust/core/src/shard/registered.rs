//! The limits that states are kept under: each slot names the one that wrote it by a small number.
//!
//! A limit's identity is its scope, not its numbers: two versions of one limit share the salt, and so
//! the states, and differ in their number, so that a state is read in the numbers it was written in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::encoding::slot::NUMBER_BITS;
use crate::limit::Limit;

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

/// Why no limit can be made known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// So many are known already.
    Limits(usize),
    /// The texts that name them take so many bytes already.
    Bytes(usize),
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
