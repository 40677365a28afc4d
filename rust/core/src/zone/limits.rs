//! The limits that a process binds in a zone, and the names that slots have for them.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::encoding::slot::MOST_LIMITS;
use crate::limit::Limit;
use crate::memory::shared::Taken;
use crate::shard::registered::{Definition, Newest, Registered, TooMany};
use crate::zone::backoff::Backoff;
use crate::zone::file::Figure;
use crate::zone::shards::{MappedShards, Unusable};

/// How long no further attempt is made to make room in a full list of limits.
const FULL_FOR: Duration = Duration::from_secs(1);

/// The limits that this process has bound in a zone.
#[derive(Default)]
pub struct BoundLimits {
    known: Mutex<Known>,
    /// 1 where this process could not get the lock of the limits when it last waited for it.
    out_of_reach: AtomicU64,
}

/// The names of limits that this process has bound, and when it last found no room for another one.
#[derive(Default)]
struct Known {
    names: HashMap<(u64, Limit), u64>,
    full_since: Option<Instant>,
}

impl BoundLimits {
    /// The name of a limit in a zone; where there is no room for another one, unused ones are dropped first.
    pub fn name(
        &self,
        shards: &MappedShards,
        definition: Definition<'_>,
        salt: u64,
        now_us: i64,
    ) -> Result<Result<u64, TooMany>, Unusable> {
        let limit = definition.limit;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let catalog = shards.file.catalog();
        if let Some(name) = known.names.get(&(salt, limit)).filter(|name| catalog.is_current(**name)) {
            catalog.touch(*name as u32 & (MOST_LIMITS as u32 - 1));
            return Ok(Ok(*name));
        }
        let _lock = self.lock(shards)?;
        let add = || catalog.add(definition, salt);
        let mut name = catalog.find(salt, &limit).map_or_else(add, Ok);
        if name.is_err() && known.full_since.is_none_or(|since| since.elapsed() > FULL_FOR) {
            drop_unnamed(shards, now_us)?;
            name = add();
            known.full_since = name.is_err().then(Instant::now);
        }
        if let Ok(name) = name {
            if known.names.len() > 2 * shards.file.layout.limits {
                known.names.retain(|_, name| catalog.is_current(*name));
            }
            known.names.insert((salt, limit), name);
        }
        Ok(name)
    }

    /// Try once to lock the limits, if they were out of reach; the error says why they still are.
    pub fn probe(&self, shards: &MappedShards) -> Result<(), Unusable> {
        if self.out_of_reach.load(Relaxed) != 0 {
            drop(self.lock(shards)?);
        }
        Ok(())
    }

    fn lock<'zone>(&self, shards: &'zone MappedShards) -> Result<Taken<'zone>, Unusable> {
        let map = &shards.file.map;
        let mut backoff = Backoff::default();
        let mut taken = map.take();
        while taken.is_none() && backoff.pause(self.out_of_reach.load(Relaxed) != 0) {
            taken = map.take();
        }
        self.out_of_reach.store(u64::from(taken.is_none()), Relaxed);
        taken.ok_or_else(|| Unusable::Stuck(map.holder_of_limits()))
    }
}

/// Drop the limits that no slot names. The lock of the limits is held.
///
/// First, states of former versions of a limit are converted to its latest one, and expired ones are dropped. Limits
/// that no slot names then are retired; slots are scanned once more, as one may have been written meanwhile.
#[cold]
fn drop_unnamed(shards: &MappedShards, now_us: i64) -> Result<(), Unusable> {
    let catalog = shards.file.catalog();
    let with_turn = |limit: Registered| {
        let turn = catalog.salt_and_turn(limit.number()).1;
        (Arc::new(limit), turn)
    };
    let newest = Newest::of(catalog.all().into_iter().map(with_turn));
    let mut named = vec![false; shards.file.layout.limits];
    for shard_number in 0..shards.count() {
        let mut shard = shards.lock(shard_number)?;
        let expired = shard.tidy(&newest, &shards.file, now_us, &mut named);
        shard.backing.note_named_by_holds(&mut named);
        shards.file.count(Figure::Expired, expired as u64);
    }
    catalog.numbers().filter(|number| !named[*number as usize]).for_each(|number| catalog.retire(number));
    named.fill(false);
    for shard_number in 0..shards.count() {
        let shard = shards.lock(shard_number)?;
        shard.note_named(&mut named);
        shard.backing.note_named_by_holds(&mut named);
    }
    for number in catalog.numbers().filter(|number| !named[*number as usize]) {
        catalog.free_retired(number);
    }
    Ok(())
}
