//! Inspecting a zone while other processes use it, and checking all of it.

use crate::algorithms::concurrent;
use crate::algorithms::leases::LeaseRequest;
use crate::algorithms::transition::{self, ANY, Reading, measured_us};
use crate::hash::KeyHash;
use crate::holding::store::HoldStore;
use crate::limit::Algorithm;
use crate::shard::Place;
use crate::shard::backing::Backing;
use crate::shard::registered::{Limits, Registered};
use crate::table::storage::Storage;
use crate::zone::file::Figure;
use crate::zone::hold_check;
use crate::zone::integrity::check;
use crate::zone::journal;
use crate::zone::shards::Unusable;
use crate::zone::storage::ZoneStorage;

/// The state of one key under one limit in a zone.
pub struct KeyState {
    /// The index of the limit among the known ones.
    pub place: usize,
    /// The reading for a cost of 0.
    pub reading: Reading,
    /// Whether the last decision was a refusal.
    pub refused: bool,
}

impl ZoneStorage {
    /// Check all states, logs and holds. Returns the first fault, or Stuck where a shard cannot be had.
    pub fn check(&self) -> Result<Result<(), String>, Unusable> {
        if let Err(fault) = self.shards.file.catalog().check() {
            return Ok(Err(fault));
        }
        for shard_number in 0..self.layout().shards.count {
            // Locking a shard mends it first if it is inconsistent.
            let checked = match self.lock(shard_number) {
                Ok(guard) => check(&guard.backing, |number| self.limits().of(number))
                    .and_then(|()| hold_check::check(&guard.backing, |number| self.limits().of(number).is_some())),
                Err(Unusable::Damaged(fault)) => Err(fault),
                Err(stuck) => return Err(stuck),
            };
            if let Err(fault) = checked {
                return Ok(Err(format!("{fault}, in shard {shard_number}")));
            }
        }
        Ok(Ok(()))
    }

    /// All limits that are known, in the order of their numbers.
    pub fn known(&self) -> Vec<Registered> {
        self.shards.file.catalog().all()
    }

    /// The states of a key, under every known limit.
    pub fn inspect(&self, key: KeyHash, now_us: i64) -> Result<Vec<KeyState>, Unusable> {
        let known = self.known();
        let shard = self.lock(self.shard_of(key))?;
        let states = known.iter().enumerate().filter_map(|(place, registered)| {
            if registered.limit.algorithm == Algorithm::Concurrent {
                let leases = shard.backing.holds()?.leases(key.tag_under(registered.salt))?;
                let request = LeaseRequest { leases: Some(leases), until: None };
                let state = concurrent::roll(&registered.limit, request, now_us);
                let measured = concurrent::measure(&registered.limit, &state, now_us);
                let (remaining, reset_after_us, next_after_us) = measured_us(&registered.limit, measured, now_us);
                let reading = Reading { remaining, reset_after_us, next_after_us, ..Reading::default() };
                return Some(KeyState { place, reading, refused: false });
            }
            let Place::Found(index) = shard.find(key.tag_under(registered.salt)) else {
                return None;
            };
            let slot = shard.backing.slots()[index];
            if slot.limit() != registered.number() {
                return None;
            }
            let limit = &registered.limit;
            let state = transition::roll::<_, ANY>(
                limit,
                shard.stored(Place::Found(index), registered, self.limits(), now_us),
                now_us,
            );
            let (remaining, reset_after_us, next_after_us) = transition::measure::<_, ANY>(limit, &state, now_us);
            let reading = Reading { remaining, reset_after_us, next_after_us, ..Reading::default() };
            Some(KeyState { place, reading, refused: slot.refused() })
        });
        let states = states.collect();
        shard.check_with_holds()?;
        Ok(states)
    }

    /// Log blocks that are held, and how many there are.
    pub fn log_blocks(&self) -> (usize, usize) {
        let held = (0..self.layout().shards.count)
            .map(|shard_number| journal::held_blocks(self.shards.file.map.shard_words(shard_number)))
            .sum();
        (held, self.layout().shards.blocks * self.layout().shards.count)
    }

    /// How often a shard was found half written, and mended.
    pub fn mended(&self) -> u64 {
        self.shards.file.figure(Figure::Mended)
    }
}
