//! The keys of judged requests: distinguished by their hashes, with their texts stored once.

use std::collections::hash_map::Entry;

use headgate_core::hash::KeyHash;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The hashes of the keys of a set of rules.
pub type Keys = SmallVec<[KeyHash; 4]>;

/// The parts of a key; None where a rule refuses for lack of an identity.
pub type Parts = Option<Box<[Box<str>]>>;

/// Stands for the key of a rule that refuses for lack of an identity: no keyed hash has this value by chance.
pub const NO_KEY: KeyHash = KeyHash { shard: 0, tag: 0 };

/// The texts of all known keys, each once.
pub type Texts = FxHashMap<KeyHash, Parts>;

/// Rules that apply together, by their places in the policy, and the requests of each of their keys.
pub struct RuleSet {
    pub rules: Box<[usize]>,
    /// Requests of this step that no rule refused.
    pub unrefused: u64,
    /// The counts that each request looks up are small, and in one place.
    requests: FxHashMap<u128, KeyRequests>,
    keys: Vec<Keys>,
    /// How many requests each rule refused, where one did.
    refused: FxHashMap<u32, SmallVec<[u64; 4]>>,
}

/// Requests of some keys.
#[derive(Clone, Copy)]
pub struct KeyRequests {
    /// The place of these keys.
    place: u32,
    requests: u64,
}

impl RuleSet {
    pub fn of(rules: &[usize]) -> Self {
        Self {
            rules: rules.into(),
            unrefused: 0,
            requests: FxHashMap::default(),
            keys: Vec::new(),
            refused: FxHashMap::default(),
        }
    }

    /// Count a request of known keys, and give their place; None where they are new.
    #[inline]
    pub fn count_keys(&mut self, keys: impl Iterator<Item = KeyHash>) -> Option<u32> {
        let entry = self.requests.get_mut(&fingerprint(keys))?;
        entry.requests += 1;
        Some(entry.place)
    }

    /// Count a request of new keys, and give their place.
    pub fn count_new_keys(&mut self, keys: Keys) -> PyResult<u32> {
        let place = u32::try_from(self.keys.len()).map_err(|_| PyOverflowError::new_err("a log has too many keys"))?;
        self.requests.insert(fingerprint(keys.iter().copied()), KeyRequests { place, requests: 1 });
        self.keys.push(keys);
        Ok(place)
    }

    /// Count a request of the keys at this place that some rules refuse.
    pub fn count_refused(&mut self, place: u32, refusing: &[bool]) {
        let refused = self.refused.entry(place).or_insert_with(|| SmallVec::from_elem(0, refusing.len()));
        refused.iter_mut().zip(refusing).for_each(|(count, refuses)| *count += u64::from(*refuses));
    }

    /// All keys, with their requests.
    pub fn keys(&self) -> impl Iterator<Item = (&Keys, u64)> {
        self.requests.values().filter_map(|entry| Some((self.keys.get(entry.place as usize)?, entry.requests)))
    }

    /// (a key of a rule, its requests, how many of them the rule refused).
    pub fn of_rule(&self, index: usize) -> impl Iterator<Item = (KeyHash, u64, u64)> {
        self.requests.values().filter_map(move |entry| {
            let refused = self.refused.get(&entry.place).map_or(0, |refused| refused[index]);
            Some((self.keys.get(entry.place as usize)?[index], entry.requests, refused))
        })
    }
}

/// A fingerprint of keys. Keyed hashes of 128 bits distinguish keys here as they do in the table.
#[inline]
fn fingerprint(keys: impl Iterator<Item = KeyHash>) -> u128 {
    let both = |key: KeyHash| u128::from(key.shard) << 64 | u128::from(key.tag);
    keys.fold(0, |name: u128, key| name.rotate_left(23) ^ both(key))
}

/// Keys as Python has them, each created once.
pub struct PythonKeys<'py, 'own> {
    texts: &'own Texts,
    keys: FxHashMap<KeyHash, Bound<'py, PyAny>>,
}

impl<'py, 'own> PythonKeys<'py, 'own> {
    pub fn of(texts: &'own Texts) -> Self {
        Self { texts, keys: FxHashMap::default() }
    }

    pub fn key(&mut self, py: Python<'py>, key: KeyHash) -> PyResult<&Bound<'py, PyAny>> {
        match self.keys.entry(key) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
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
