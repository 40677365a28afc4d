//! The keys of requests that were judged: told apart by their hashes, their texts kept once.

use std::collections::hash_map::Entry;

use headgate_core::hash::KeyHash;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The hashes of the keys of rules that were asked together.
pub type Keys = SmallVec<[KeyHash; 4]>;

/// The parts of a key; None where a rule refuses for lack of an identity.
pub type Parts = Option<Box<[Box<str>]>>;

/// Stands for the key of a rule that refuses for lack of an identity: a secret hash is this one by no chance.
pub const NO_KEY: KeyHash = KeyHash { shard: 0, tag: 0 };

/// The texts of the keys that were seen, each once.
pub type Texts = FxHashMap<KeyHash, Parts>;

/// Rules that were asked together, by their places in the policy, and the requests of each of their keys.
pub struct Together {
    pub rules: Box<[usize]>,
    /// Requests of this step that no rule refused.
    pub quiet: u64,
    /// What is looked for with each request is in one place, and small.
    seen: FxHashMap<u128, Seen>,
    keys: Vec<Keys>,
    /// How many each rule refused, where one did.
    refused: FxHashMap<u32, SmallVec<[u64; 4]>>,
}

/// Requests of some keys.
#[derive(Clone, Copy)]
pub struct Seen {
    /// Where these keys are.
    place: u32,
    requests: u64,
}

impl Together {
    pub fn of(rules: &[usize]) -> Self {
        Self {
            rules: rules.into(),
            quiet: 0,
            seen: FxHashMap::default(),
            keys: Vec::new(),
            refused: FxHashMap::default(),
        }
    }

    /// Count a request of keys that were seen before; where they are.
    #[inline]
    pub fn see(&mut self, keys: impl Iterator<Item = KeyHash>) -> Option<u32> {
        let seen = self.seen.get_mut(&name_of(keys))?;
        seen.requests += 1;
        Some(seen.place)
    }

    /// Count a request of keys that were not; where they are.
    pub fn see_new(&mut self, keys: Keys) -> PyResult<u32> {
        let place = u32::try_from(self.keys.len()).map_err(|_| PyOverflowError::new_err("a log has too many keys"))?;
        self.seen.insert(name_of(keys.iter().copied()), Seen { place, requests: 1 });
        self.keys.push(keys);
        Ok(place)
    }

    /// Count a request of keys that are in this place, and that some rules refuse.
    pub fn refuse(&mut self, place: u32, refusing: &[bool]) {
        let refused = self.refused.entry(place).or_insert_with(|| SmallVec::from_elem(0, refusing.len()));
        refused.iter_mut().zip(refusing).for_each(|(count, refuses)| *count += u64::from(*refuses));
    }

    /// All keys, with their requests.
    pub fn keys(&self) -> impl Iterator<Item = (&Keys, u64)> {
        self.seen.values().filter_map(|seen| Some((self.keys.get(seen.place as usize)?, seen.requests)))
    }

    /// (a key of a rule, its requests, how many of them the rule refused).
    pub fn of_rule(&self, own: usize) -> impl Iterator<Item = (KeyHash, u64, u64)> {
        self.seen.values().filter_map(move |seen| {
            let refused = self.refused.get(&seen.place).map_or(0, |refused| refused[own]);
            Some((self.keys.get(seen.place as usize)?[own], seen.requests, refused))
        })
    }
}

/// A name for keys. Keyed hashes of 128 bits tell keys apart here as they do in the table.
#[inline]
fn name_of(keys: impl Iterator<Item = KeyHash>) -> u128 {
    let both = |key: KeyHash| u128::from(key.shard) << 64 | u128::from(key.tag);
    keys.fold(0, |name: u128, key| name.rotate_left(23) ^ both(key))
}

/// Keys as Python has them, each made once.
pub struct ToldKeys<'py, 'own> {
    texts: &'own Texts,
    made: FxHashMap<KeyHash, Bound<'py, PyAny>>,
}

impl<'py, 'own> ToldKeys<'py, 'own> {
    pub fn of(texts: &'own Texts) -> Self {
        Self { texts, made: FxHashMap::default() }
    }

    pub fn key(&mut self, py: Python<'py>, key: KeyHash) -> PyResult<&Bound<'py, PyAny>> {
        match self.made.entry(key) {
            Entry::Occupied(made) => Ok(made.into_mut()),
            Entry::Vacant(place) => {
                let parts = self.texts.get(&key).unwrap_or(&None);
                Ok(place.insert(key_of(py, parts)?))
            }
        }
    }
}

/// A key as Python has it.
pub fn key_of<'py>(py: Python<'py>, parts: &Parts) -> PyResult<Bound<'py, PyAny>> {
    match parts {
        Some(parts) => Ok(PyTuple::new(py, parts.iter().map(|part| &**part))?.into_any()),
        None => Ok(py.None().into_bound(py)),
    }
}
