//! The limits that states are stored under: each slot names the one that wrote it by a small number.
//!
//! A limit's identity is its scope, not its numbers: two versions of one limit share the salt, and so
//! the states, and differ in their number, so that a state is read in the numbers it was written in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::encoding::slot::NUMBER_BITS;
use crate::limit::Limit;

/// A limit as it is registered with a table.
#[derive(Clone, Copy)]
pub struct Definition<'text> {
    /// The scope it is used in.
    pub scope: &'text str,
    /// The text users write it as.
    pub text: &'text str,
    /// Its integers.
    pub limit: Limit,
}

/// The registered limit, or why there is no room for it; `E` where the storage itself fails.
pub type Registration<E> = Result<Result<Arc<Registered>, TooMany>, E>;

/// A limit as a table knows it.
#[derive(Debug)]
pub struct Registered {
    /// Its integers.
    pub limit: Limit,
    /// What its scope adds to the tag of a key.
    pub salt: u64,
    /// The scope it is used in.
    pub scope: Box<str>,
    /// The text users write it as.
    pub text: Box<str>,
    /// The number that slots name it by, in the lower bits; the upper ones distinguish it from earlier owners of it.
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

    /// The number, and the bits that distinguish this limit from earlier owners of the number.
    #[inline(always)]
    pub fn name(&self) -> u64 {
        self.name.load(Relaxed)
    }

    /// The definition it was registered with.
    pub fn definition(&self) -> Definition<'_> {
        Definition { scope: &self.scope, text: &self.text, limit: self.limit }
    }

    /// Give it another name, after the former one was taken back.
    pub fn rename(&self, name: u64) {
        self.name.store(name, Relaxed);
    }
}

/// Limits by the numbers that slots name them by.
pub trait Limits {
    /// The limit of a number that a slot names; None where no limit has it.
    fn of(&self, number: u32) -> Option<Limit>;
}

/// Why no further limit can be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// This many limits are registered already.
    Limits(usize),
    /// The texts that name them take this many bytes already.
    Bytes(usize),
}

/// The version of each limit that was bound last: by each number of a version.
pub struct Newest(HashMap<u32, Arc<Registered>>);

impl Newest {
    /// From limits and the turns at which they were last bound.
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
