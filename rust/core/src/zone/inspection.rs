//! Looking into a zone while other processes use it, and checking all of it.

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

/// What a zone holds of one key under one limit.
pub struct Looked {
    /// The limit's place among those that are known.
    pub place: usize,
    /// Its own numbers for a cost of 0.
    pub reading: Reading,
    /// Whether the last decision was a refusal.
    pub refused: bool,
}

impl ZoneStorage {
    /// Go through all states and logs. The first thing that does not fit, or Stuck where a shard is not to be had.
    pub fn check(&self) -> Result<Result<(), String>, Unusable> {
        if let Err(fault) = self.shards.file.catalog().check() {
            return Ok(Err(fault));
        }
        for shard_number in 0..self.layout().shards.count {
            // A shard that is not whole is mended first.
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

    /// What is held of a key, under every limit that is known.
    pub fn look(&self, key: KeyHash, now_us: i64) -> Result<Vec<Looked>, Unusable> {
        let known = self.known();
        let shard = self.lock(self.shard_of(key))?;
        let looked = known.iter().enumerate().filter_map(|(place, registered)| {
            if registered.limit.algorithm == Algorithm::Concurrent {
                let leases = shard.backing.holds()?.leases(key.tag_under(registered.salt))?;
                let asked = LeaseRequest { leases: Some(leases), until: None };
                let state = concurrent::roll(&registered.limit, asked, now_us);
                let measured = concurrent::measure(&registered.limit, &state, now_us);
                let (remaining, reset_after_us, next_after_us) = measured_us(&registered.limit, measured, now_us);
                let reading = Reading { remaining, reset_after_us, next_after_us, ..Reading::default() };
                return Some(Looked { place, reading, refused: false });
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
            Some(Looked { place, reading, refused: slot.refused() })
        });
        let looked = looked.collect();
        shard.check_with_holds()?;
        Ok(looked)
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
