//! Making holds: charged like a hit, and recorded, with a share in the shard of each key.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use crate::algorithms::transition::Reading;
use crate::holding::record::HoldId;
use crate::holding::share::Other;
use crate::holding::store::HoldStore;
use crate::shard::backing::Backing;
use crate::shard::{DamagedState, Shard};
use crate::table::Table;
use crate::table::answer::{Answer, Check, Mode, OnFull, Readings, binding_of};
use crate::table::judgement::Judgement;
use crate::table::remembering::remember;
use crate::table::settling::{Conflict, HoldRequest, Reserved};
use crate::table::shares::{LoadedShare, find, load};
use crate::table::storage::{Full, Location, LockedShards, Storage};
use crate::table::transaction::Transaction;

impl<S: Storage> Table<S> {
    /// Decide and charge like `apply`, and record what was charged.
    pub fn reserve(
        &self,
        checks: &[Check],
        request: &HoldRequest<'_>,
        now_us: i64,
        mode: Mode,
    ) -> Result<Reserved, S::Error> {
        let mut transaction = Transaction::new(&self.storage);
        transaction.locked.locations.reserve(checks.len());
        self.lock(&mut transaction, checks, now_us)?;
        let first = request.groups.iter().position(|group| *group == 0).unwrap_or(0);
        let home = transaction.locked.locations[first].guard;
        if request.named {
            if let Some(number) = find(&mut transaction.locked.guards[home], request.id, now_us)
                && let Some(repeated) = repeat(&mut transaction.locked, (home, number), checks, request, now_us)
            {
                transaction.check_with_holds()?;
                return Ok(repeated);
            }
            forget_former(&mut transaction.locked, request.id, now_us);
        }
        transaction.check_with_holds()?;
        if let Err(Full { soonest_us }) = self.reserve_parts(&mut transaction.locked, |_| true, checks.len(), now_us) {
            let answer = self.refuse_hold(checks, &transaction, soonest_us, now_us);
            self.settle_parts(&mut transaction.locked);
            return Ok(Reserved::Decided(answer, request.id));
        }
        let mut judgement = Judgement::with_room(checks.len());
        judgement.until_us = Some(now_us + request.lease_us);
        let mut id = request.id;
        let decided =
            self.decide::<true>(checks, &mut transaction, &mut judgement, now_us, mode, |locked, judgement, full| {
                let passed = full == Some(OnFull::Pass);
                id = remember(locked, checks, judgement, request, passed, home, now_us);
                check_all(&locked.guards)
            });
        drop_over(&mut transaction.locked, checks, &decided, now_us);
        self.settle_parts(&mut transaction.locked);
        decided.map(|answer| Reserved::Decided(answer, id))
    }

    /// Reserve room for one more part in each of the shards for which `has_one` holds.
    #[inline]
    pub(super) fn reserve_parts<'table>(
        &'table self,
        locked: &mut LockedShards<S::Guard<'table>>,
        has_one: impl Fn(usize) -> bool,
        limits: usize,
        now_us: i64,
    ) -> Result<(), Full> {
        for (number, guard) in locked.guards.iter_mut().enumerate() {
            if has_one(number) {
                self.storage.reserve_hold(guard, limits, now_us)?;
            }
        }
        Ok(())
    }

    /// Update the count of holds to all locked shards.
    #[inline]
    pub(super) fn settle_parts<'table>(&'table self, locked: &mut LockedShards<S::Guard<'table>>) {
        for guard in &mut locked.guards {
            self.storage.settle_holds(guard);
        }
    }

    /// The answer where no further hold fits: the configured choice, and nothing is charged.
    #[cold]
    pub(super) fn refuse_hold(
        &self,
        checks: &[Check],
        transaction: &Transaction<'_, S>,
        full_us: i64,
        now_us: i64,
    ) -> Answer {
        let passes = self.storage.on_full() == OnFull::Pass;
        if passes {
            self.storage.count_passed();
        } else {
            self.storage.count_refused();
        }
        let free: SmallVec<[Check<'_>; 4]> = checks.iter().map(|check| Check { cost: 0, ..*check }).collect();
        let mut judgement = Judgement::new();
        judgement.judge::<S, true>(&free, transaction, now_us, Mode { commit: false, max_delay_us: None }, None);
        let passing = |check: &Check| passes || check.shadow;
        let readings: SmallVec<[Reading; 4]> = checks
            .iter()
            .zip(&judgement.readings)
            .map(|(check, reading)| Reading { retry_after_us: if passing(check) { 0 } else { full_us }, ..*reading })
            .collect();
        let allowed = checks.iter().all(passing);
        let full = Some(if allowed { OnFull::Pass } else { OnFull::Refuse });
        Answer { allowed, full, binding: binding_of(checks, &readings, allowed), readings: readings_of(&readings) }
    }
}

pub(super) fn readings_of(readings: &[Reading]) -> Readings {
    if let [only] = *readings { Readings::One(only) } else { Readings::Many(readings.into()) }
}

/// Whether all values read in these shards were possible.
pub(super) fn check_all<G, B>(guards: &[G]) -> Result<(), DamagedState>
where
    G: Deref<Target = Shard<B>>,
    B: Backing,
{
    let mut checked = Ok(());
    for guard in guards {
        checked = guard.check_with_holds().and(checked); // each guard is checked, which clears its flag
    }
    checked
}

/// Drop the expired leases of the keys whose places were just taken.
pub(super) fn drop_over<G, B, E>(
    locked: &mut LockedShards<G>,
    checks: &[Check],
    decided: &Result<Answer, E>,
    now_us: i64,
) where
    G: DerefMut<Target = Shard<B>>,
    B: Backing,
{
    if !decided.as_ref().is_ok_and(|answer| answer.allowed) {
        return;
    }
    for (check, location) in checks.iter().zip(&locked.locations).filter(|(check, _)| check.is_in_flight()) {
        if check.cost > 0
            && let Some(holds) = locked.guards[location.guard].backing.holds_mut()
            && let Some(key) = holds.key_number(location.tag)
        {
            holds.drop_over(key, now_us);
        }
    }
}

/// Forget what these shards still have of a former hold of this id: no shard can have two shares of one id.
fn forget_former<G, B>(locked: &mut LockedShards<G>, id: HoldId, now_us: i64)
where
    G: DerefMut<Target = Shard<B>>,
    B: Backing,
{
    for guard in &mut locked.guards {
        if let Some(number) = find(guard, id, now_us)
            && let Some(holds) = guard.backing.holds_mut()
        {
            holds.forget_hold(number);
        }
    }
}

/// The answer where a hold of this id exists: the same as before, or a conflict; None where a full store has forgotten
/// part of it.
#[cold]
fn repeat<G, B>(
    locked: &mut LockedShards<G>,
    (home, number): (usize, u32),
    checks: &[Check],
    request: &HoldRequest<'_>,
    now_us: i64,
) -> Option<Reserved>
where
    G: DerefMut<Target = Shard<B>>,
    B: Backing,
{
    let mut shares: SmallVec<[LoadedShare; 2]> = SmallVec::new();
    for guard in 0..locked.guards.len() {
        let number = if guard == home { Some(number) } else { find(&mut locked.guards[guard], request.id, now_us) };
        shares.extend(number.and_then(|number| load(&locked.guards[guard], guard, number)));
    }
    let first = shares.iter().find(|share| share.guard == home).map(|share| &share.record);
    let Some((first, share)) = first.and_then(|record| Some((record, record.share()?))) else {
        return Some(Reserved::Conflict(Conflict::Keys));
    };
    if first.at_once != request.at_once {
        return Some(Reserved::Conflict(Conflict::Kind { former_is_hit: first.at_once }));
    }
    let costs: SmallVec<[i64; 2]> = share.amounts.iter().map(|amount| amount.cost).collect();
    if costs[..] != *request.costs {
        return Some(Reserved::Conflict(Conflict::Costs(costs)));
    }
    if checks.len() != usize::from(share.limits_of_all) {
        return Some(Reserved::Conflict(Conflict::Limits));
    }
    let mut readings: SmallVec<[Option<Reading>; 4]> = SmallVec::from_elem(None, checks.len());
    for LoadedShare { guard, record, .. } in &shares {
        let Some(holds) = locked.guards[*guard].backing.holds() else {
            continue;
        };
        for held in record.share().iter().flat_map(|share| &share.limits) {
            let (likely, key) = (usize::from(held.index), holds.key(held.key));
            let is_own = |check: &Check| key.map(|key| key.salt) == Some(check.limit.salt);
            let index =
                if checks.get(likely).is_some_and(is_own) { Some(likely) } else { checks.iter().position(is_own) };
            let Some(index) = index else {
                return Some(Reserved::Conflict(Conflict::Limits));
            };
            if key.map(|key| key.tag) == Some(locked.locations[index].tag) {
                readings[index] = Some(held.reading);
            }
        }
    }
    let all: Option<SmallVec<[Reading; 4]>> = readings.into_iter().collect();
    let Some(readings) = all else {
        let is_forgotten = |other: &Other| {
            let is_its = |location: &&Location| location.shard_number == usize::from(other.shard);
            let location = locked.locations.iter().find(is_its);
            location.is_some_and(|location| shares.iter().all(|share| share.guard != location.guard))
        };
        let conflict = Reserved::Conflict(Conflict::Keys);
        return (!share.others.iter().any(is_forgotten)).then_some(conflict);
    };
    let binding = binding_of(checks, &readings, true);
    let full = first.passed.then_some(OnFull::Pass);
    Some(Reserved::Repeated(Answer { allowed: true, full, binding, readings: readings_of(&readings) }))
}
