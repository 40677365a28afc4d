//! Looking into a zone while others use it, and through all of it when nobody does.

use std::sync::atomic::Ordering::Relaxed;

use crate::algorithms::transition::{self, Reading};
use crate::ground::Ground;
use crate::hash::KeyHash;
use crate::region;
use crate::registry::{Limits, Registered};
use crate::soundness::check;
use crate::storage::Storage;
use crate::stripe::Place;
use crate::zone::{MENDED, Unusable, Zone};

/// What a zone holds of one key under one limit.
pub struct Looked {
    /// The limit's place among those that are known.
    pub place: usize,
    /// Its own numbers for a cost of 0.
    pub reading: Reading,
    /// Whether the last decision was a refusal.
    pub refused: bool,
}

impl Zone {
    /// Go through all states and logs. The first thing that does not fit, or Stuck where a lane is not to be had.
    pub fn check(&self) -> Result<Result<(), String>, Unusable> {
        if let Err(fault) = self.catalog().check() {
            return Ok(Err(fault));
        }
        for lane in 0..self.layout.lanes.count {
            // A lane that is not whole is mended first.
            let checked = match self.lock(lane) {
                Ok(guard) => check(&guard.ground, |number| self.of(number)),
                Err(Unusable::Damaged(fault)) => Err(fault),
                Err(stuck) => return Err(stuck),
            };
            if let Err(fault) = checked {
                return Ok(Err(format!("{fault}, in lane {lane}")));
            }
        }
        Ok(Ok(()))
    }

    /// All limits that are known, in the order of their numbers.
    pub fn known(&self) -> Vec<Registered> {
        self.catalog().all()
    }

    /// What is held of a key, under every limit that is known.
    pub fn look(&self, key: KeyHash, now_us: i64) -> Result<Vec<Looked>, Unusable> {
        let known = self.known();
        let stripe = self.lock(self.lane_of(key))?;
        let looked = known.iter().enumerate().filter_map(|(place, registered)| {
            let Place::Found(index) = stripe.find(key.tag_under(registered.salt)) else {
                return None;
            };
            let slot = stripe.ground.slots()[index];
            if slot.limit() != registered.number() {
                return None;
            }
            let limit = &registered.limit;
            let state = transition::roll(limit, stripe.stored(Place::Found(index), registered, self, now_us), now_us);
            let (remaining, reset_after_us, next_after_us) = transition::measure(limit, &state, now_us);
            let reading = Reading { remaining, reset_after_us, next_after_us, ..Reading::default() };
            Some(Looked { place, reading, refused: slot.refused() })
        });
        let looked = looked.collect();
        stripe.check()?;
        Ok(looked)
    }

    /// Forget what is held of a key, under every limit that is known; whether that was more than nothing.
    pub fn forget(&self, key: KeyHash, now_us: i64) -> Result<bool, Unusable> {
        let known = self.known();
        let mut stripe = self.lock(self.lane_of(key))?;
        Ok(known
            .iter()
            .fold(false, |found, registered| found | stripe.forget(key.tag_under(registered.salt), self, now_us)))
    }

    /// Log blocks that are held, and how many there are.
    pub fn log_blocks(&self) -> (usize, usize) {
        let held = (0..self.layout.lanes.count).map(|lane| region::held_blocks(self.map.lane_words(lane))).sum();
        (held, self.layout.lanes.blocks * self.layout.lanes.count)
    }

    /// How often a lane was found half written, and mended.
    pub fn mended(&self) -> u64 {
        self.figures()[MENDED].load(Relaxed)
    }
}
