//! The limits that a zone knows: each is written once, with its scope, and named by its number ever after.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::hash::Seed;
use crate::layout::{LIMIT_BYTES, LIMITS, LIMITS_KNOWN, Layout};
use crate::limit::{Algorithm, Limit};
use crate::memory::shared::{SharedMap, Words, set};
use crate::registry::Registered;
use crate::storage::TooMany;

/// A limit that a zone knows.
pub struct Known {
    /// What slots name it by, and its integers.
    pub registered: Registered,
    /// Where it is used.
    pub scope: String,
    /// How people write it.
    pub text: String,
}

/// The part of a zone where its limits are written.
#[derive(Clone, Copy)]
pub struct Catalog<'zone> {
    map: &'zone SharedMap,
    layout: &'zone Layout,
}

impl<'zone> Catalog<'zone> {
    /// Of a zone.
    #[inline(always)]
    pub fn new(map: &'zone SharedMap, layout: &'zone Layout) -> Self {
        Self { map, layout }
    }

    /// How many limits are known.
    pub fn len(&self) -> usize {
        self.map.words::<1>(LIMITS_KNOWN)[0].load(Acquire).min(self.layout.limits as u64) as usize
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All limits but the first so many, in the order in which they were met.
    pub fn since(&self, first: usize, seed: &Seed) -> Vec<Known> {
        (first as u32..self.len() as u32).filter_map(|number| self.entry(number, seed)).collect()
    }

    /// Whether all limits can be read, or what cannot.
    pub fn check(&self, seed: &Seed) -> Result<(), String> {
        let known = self.len();
        if known > self.layout.limits {
            return Err("more limits than there can be".into());
        }
        match (0..known as u32).find(|number| self.entry(*number, seed).is_none()) {
            Some(number) => Err(format!("limit {number} is none")),
            None => Ok(()),
        }
    }

    /// The integers of a limit that is known.
    pub fn limit(&self, number: u32) -> Option<Limit> {
        if number as usize >= self.len() {
            return None;
        }
        self.written(number).map(|(limit, _)| limit)
    }

    /// A known limit, as it is written in the zone.
    fn entry(&self, number: u32, seed: &Seed) -> Option<Known> {
        let (limit, [place, scope_bytes, text_bytes]) = self.written(number)?;
        let end = place.checked_add(scope_bytes + text_bytes)?;
        if end > self.layout.texts_bytes {
            return None;
        }
        let mut bytes = Vec::with_capacity(scope_bytes + text_bytes);
        for word in place / 8..end.div_ceil(8) {
            let word = self.map.words::<1>(self.layout.texts + word * 8)[0].load(Relaxed);
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        let text = String::from_utf8(bytes.get(scope_bytes..scope_bytes + text_bytes)?.to_vec()).ok()?;
        bytes.truncate(scope_bytes);
        let scope = String::from_utf8(bytes).ok()?;
        let salt = seed.salt(&scope);
        Some(Known { registered: Registered { limit, number, salt }, scope, text })
    }

    /// The integers of a known limit; where its texts begin, and how long the scope and the text are.
    fn written(&self, number: u32) -> Option<(Limit, [usize; 3])> {
        let words = self.limit_words(number).each_ref().map(|word| word.load(Relaxed));
        let [algorithm, unit_us, quota, period, refill, place, scope_bytes, text_bytes] = words;
        let algorithm = *Algorithm::ALL.get(usize::try_from(algorithm).ok()?)?;
        let [unit_us, quota, period, refill] = [unit_us, quota, period, refill].map(|word| word as i64);
        let limit = Limit::new(algorithm, unit_us, quota, period, refill).ok()?;
        Some((limit, [place, scope_bytes, text_bytes].map(|word| word.min(u64::from(u32::MAX)) as usize)))
    }

    fn limit_words(&self, number: u32) -> &Words<8> {
        self.map.words(LIMITS + (number as usize).min(self.layout.limits - 1) * LIMIT_BYTES)
    }

    /// Write a limit behind those that are known, and give its number. The lock of the limits is held.
    pub fn add(&self, scope: &str, text: &str, limit: &Limit) -> Result<u32, TooMany> {
        let number = self.len() as u32;
        if number as usize >= self.layout.limits {
            return Err(TooMany::Limits(self.layout.limits));
        }
        let place = match number.checked_sub(1).and_then(|last| self.written(last)) {
            Some((_, [place, scope_bytes, text_bytes])) => (place + scope_bytes + text_bytes).next_multiple_of(8),
            None => 0,
        };
        if place + scope.len() + text.len() + 8 > self.layout.texts_bytes {
            return Err(TooMany::Bytes(self.layout.texts_bytes));
        }
        let bytes: Vec<u8> = scope.bytes().chain(text.bytes()).collect();
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            set(&self.map.words::<1>(self.layout.texts + place + index * 8)[0], u64::from_ne_bytes(word));
        }
        let code = Algorithm::ALL.iter().position(|one| *one == limit.algorithm).unwrap_or_default();
        let numbers = [limit.unit_us, limit.quota, limit.period, limit.refill].map(|number| number as u64);
        let places = [place, scope.len(), text.len()].map(|number| number as u64);
        let words = [code as u64].into_iter().chain(numbers).chain(places);
        for (word, value) in self.limit_words(number).iter().zip(words) {
            set(word, value);
        }
        set(&self.map.words::<1>(LIMITS_KNOWN)[0], u64::from(number) + 1);
        Ok(number)
    }
}
